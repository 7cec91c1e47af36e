#![doc = include_str!("../README.md")]

/// A place of [`faults`]; nothing at all without the feature.
macro_rules! fault_point {
    ($place:literal) => {
        #[cfg(feature = "faults")]
        $crate::faults::reach($place).await?;
    };
}

#[doc(hidden)]
pub mod driver;
#[cfg(feature = "faults")]
#[doc(hidden)]
pub mod faults;
pub mod inbox;
pub mod key;
pub mod migrate;
pub mod outbox;
pub mod retry;
pub mod scope;
#[cfg(feature = "sqlx")]
pub mod sqlx;
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;
pub mod unique;

mod ack;
mod attempt;
mod call;
mod claim;
mod contract;
mod counts;
mod error;
mod failure;
mod fingerprint;
mod intent;
mod joined;
mod lease;
mod loan;
mod lock;
mod once;
mod record;
mod recovery;
mod retention;
mod run;
mod sqlstate;
mod suppressed;
mod ttl_cache;
mod tx;

pub use ack::{Ack, Done, IntoAck};
pub use attempt::Attempt;
pub use call::DEFAULT_SCHEMA;
pub use claim::{Claim, ClaimKind};
pub use driver::InTransaction;
pub use error::{Error, ErrorDetail, Result};
pub use failure::Failure;
pub use fingerprint::{Fingerprint, FingerprintBuilder};
pub use intent::{Intent, MAX_NAME_BYTES};
pub use joined::Joined;
pub use lease::Lease;
pub use loan::{Lender, Loan};
pub use once::{Isolation, Once, OnceBuilder};
pub use outbox::Event;
pub use recovery::{Classification, StuckIntent};
pub use tx::Tx;
pub use unique::Inserted;
