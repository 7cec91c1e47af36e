//! What a relay promises, with a real PostgreSQL and no sleeping.

#![allow(clippy::unwrap_used)]

mod basics;
mod failures;
mod fairness;
mod idle;
mod rates;
mod servers;
mod wal;

use pgonce_tests::relay as fixture;
