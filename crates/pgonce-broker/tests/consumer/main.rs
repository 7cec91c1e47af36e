//! What a consumer promises, with a real PostgreSQL and no sleeping.

#![allow(clippy::unwrap_used)]

mod bad;
mod basics;
mod failures;
mod fairness;
mod log;
mod metered;
mod ordered;
mod slow;
mod statement;
mod webhooks;

use pgonce_tests::consumer as fixture;
