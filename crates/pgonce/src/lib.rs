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
pub mod external;
#[cfg(feature = "faults")]
#[doc(hidden)]
pub mod faults;
#[cfg(feature = "import")]
pub mod import;
#[doc(hidden)]
pub mod inbox;
#[doc(hidden)]
pub mod json;
pub mod key;
pub mod ledger;
#[doc(hidden)]
pub mod migrate;
#[doc(hidden)]
pub mod outbox;
pub mod queue;
pub mod recovery;
pub mod region;
pub mod retry;
pub mod scope;
#[cfg(feature = "sqlx")]
pub mod sqlx;
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;
pub mod transition;
pub mod unique;

mod ack;
mod attempt;
mod cache;
mod call;
mod claim;
mod contract;
mod counts;
mod error;
mod execute;
mod failure;
mod fingerprint;
mod intent;
mod joined;
mod lease;
mod loan;
mod lock;
mod once;
mod part;
mod record;
mod retention;
mod run;
mod seal;
mod sqlstate;
mod stalled;
mod suppressed;
mod term;
mod trace;
mod ttl_cache;
mod tx;
mod unresolved;
mod wait;

pub use ack::{Ack, Done, IntoAck};
pub use cache::ReplayCache;
pub use claim::{Claim, ClaimKind};
#[doc(inline)]
pub use driver::InTransaction;
pub use error::{Error, ErrorDetail, Result};
pub use failure::Failure;
pub use fingerprint::{Fingerprint, FingerprintBuilder};
#[doc(inline)]
pub use inbox::Message;
pub use intent::Intent;
pub use once::Isolation;
#[doc(inline)]
pub use outbox::{Event, Subscription};
pub use recovery::{Classification, StuckIntent};
#[cfg(feature = "encryption")]
pub use seal::AnswerKeys;
pub use unique::Inserted;

// For any driver: here is what they can do. Services write the aliases in `sqlx` and `tokio_postgres`.
pub use attempt::Attempt;
#[doc(inline)]
pub use inbox::Inbox;
pub use joined::Joined;
pub use lease::Lease;
#[doc(inline)]
pub use migrate::Migrator;
pub use once::{Once, OnceBuilder};
#[doc(inline)]
pub use outbox::Outbox;
pub use tx::Tx;

#[doc(hidden)]
pub use {call::DEFAULT_SCHEMA, intent::MAX_NAME_BYTES};

/// What relays, consumers and operators' programs of this project build on. It may change with any
/// release.
#[doc(hidden)]
pub mod unstable {
    pub use crate::cache::CacheCounts;
    pub use crate::loan::{Lender, Loan};
    pub use crate::retry::Schedule;
    pub use crate::sqlstate::{Entry, GROUPS, TABLE, lookup, markdown};
    pub use crate::trace::{TraceContext, context_of, digest, link, set_parent};
    pub use crate::{driver, inbox, json, migrate, outbox};
}
