//! What a relay promises, with a real PostgreSQL and no sleeping.

#![allow(clippy::unwrap_used)]

mod basics;
#[allow(dead_code)]
mod ground;
mod servers;
mod trouble;
mod wal;
