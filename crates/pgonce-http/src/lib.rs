#![doc = include_str!("../README.md")]

mod body;
mod budget;
mod counters;
mod engine;
pub mod errors;
mod extract;
mod fate;
#[cfg(feature = "gateway")]
pub mod gateway;
mod grpc;
mod handler_error;
mod headers;
mod key;
mod layer;
mod policy;
mod problem;
mod request;
mod status;
mod stored;
mod turn;

pub use budget::Budget;
pub use counters::Counters;
pub use extract::{AttemptInfo, Key, Tx};
pub use fate::{Fate, KeepFor, Outcomes};
pub use handler_error::HandlerError;
pub use layer::{IdempotencyLayer, Idempotent};
pub use policy::{
    ApiVersion, BoxFuture, Caller, Oversize, Policy, Print, Reauthorise, ReplayHeaders,
    RequestPrint, Scope,
};
pub use problem::Problem;
pub use status::status_route;

/// Compiles the guide's code.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/how-to/http.md")]
struct Guide;
