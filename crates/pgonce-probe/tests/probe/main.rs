//! The probe: it must be able to say yes, to say no, and to say that it does not know.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod faults;
mod fixture;
mod limits;
mod reports;
mod tls;
