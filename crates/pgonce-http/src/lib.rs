#![doc = include_str!("../README.md")]

mod body;
mod budget;
mod counters;
mod disposition;
mod engine;
pub mod errors;
mod extract;
#[cfg(test)]
mod fuzz;
#[cfg(feature = "gateway")]
pub mod gateway;
mod grpc;
mod handler_error;
mod headers;
mod key;
mod layer;
mod phase_timer;
mod policy;
mod problem;
mod request;
mod span;
mod status;
mod stored;

pub use budget::Budget;
pub use counters::Counters;
pub use disposition::{Disposition, KeepFor, Outcomes};
pub use extract::{AttemptInfo, Key, Tx};
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
