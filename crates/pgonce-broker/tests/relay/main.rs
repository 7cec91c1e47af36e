//! What a relay promises, with a real PostgreSQL and no sleeping.

#![allow(clippy::unwrap_used)]

mod basics;
mod failures;
mod fairness;
mod servers;
mod wal;

use pgonce_tests::relay as fixture;
