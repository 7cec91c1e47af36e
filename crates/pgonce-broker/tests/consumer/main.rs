//! What a consumer promises, with a real PostgreSQL and no sleeping.

#![allow(clippy::unwrap_used)]

mod bad;
mod basics;
mod failures;
#[allow(dead_code)]
mod fixture;
mod log;
mod metered;
mod ordered;
mod slow;
mod webhooks;
