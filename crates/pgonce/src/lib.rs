#![doc = include_str!("../README.md")]

/// A place of [`faults`]; nothing at all without the feature.
macro_rules! fault_point {
    ($place:literal) => {
        #[cfg(feature = "faults")]
        $crate::faults::reach($place).await?;
    };
}

pub mod driver;
#[cfg(feature = "faults")]
pub mod faults;
pub mod inbox;
pub mod key;
pub mod migrate;
pub mod outbox;
pub mod retry;
pub mod scope;
pub mod unique;

mod ack;
mod alone;
mod attempt;
mod claim;
mod error;
mod fingerprint;
mod intent;
mod joined;
mod lately;
mod lease;
mod lock;
mod once;
mod recovery;
mod retention;
mod run;
mod statements;
mod success;
mod suppressed;

pub use ack::{Ack, Done, Failure};
pub use attempt::Attempt;
pub use claim::{Claim, ClaimKind};
pub use error::{Error, ErrorDetail, Result};
pub use fingerprint::{Fingerprint, FingerprintBuilder};
pub use intent::{Intent, MAX_NAME_BYTES};
pub use joined::Joined;
pub use lease::Lease;
pub use once::{Isolation, Once, OnceBuilder};
pub use recovery::{Classification, StuckIntent};
pub use statements::DEFAULT_SCHEMA;
