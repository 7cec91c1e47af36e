//! Signed webhooks in: verified, stored, acknowledged, and applied once by a
//! [`Consumer`](crate::Consumer) from the stored inbox.

#[cfg(test)]
mod fuzz;
mod receive;
mod scheme;

pub use receive::Webhooks;
pub use scheme::{Encoding, Scheme, SchemeError};
