//! What a consumer promises, with a real PostgreSQL and no sleeping.

#![allow(clippy::unwrap_used)]

mod bad;
mod basics;
#[allow(dead_code)]
mod ground;
mod log;
mod metered;
mod ordered;
mod slow;
mod trouble;
mod webhooks;
