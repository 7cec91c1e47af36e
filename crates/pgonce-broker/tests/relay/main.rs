//! What a relay promises, with a real PostgreSQL and no sleeping.

#![allow(clippy::unwrap_used)]

mod basics;
mod failures;
mod fairness;
#[allow(dead_code)]
mod fixture;
mod idle;
mod rates;
mod servers;
mod wal;
