//! The probe: it must be able to say yes, to say no, and to say that it does not know.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod faults;
mod limits;
mod place;
mod reports;
mod tls;
