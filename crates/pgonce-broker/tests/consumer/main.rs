//! What a consumer promises, with a real PostgreSQL and no sleeping.

#![allow(clippy::unwrap_used)]

mod bad;
mod basics;
#[allow(dead_code)]
mod ground;
mod log;
mod ordered;
mod trouble;
mod webhooks;
