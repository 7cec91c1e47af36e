//! Messages that may come many times and have one effect.
//!
//! In a transaction of your own ask [`Once::accept`](crate::Once::accept), or
//! [`Once::accept_batch`](crate::Once::accept_batch), and apply what is new; both commit together or not at
//! all. A consumer does the rest, from a broker's acknowledgement to messages that fail: the crate
//! `pgonce-broker` has one, built on [`Inbox`], which only calls SQL functions.

mod accept;
mod batch;
mod cursor;
mod handle;
mod literal;
mod message;
mod operate;
mod projection;
mod statement;
mod stored;

pub(crate) use batch::limited;
pub use batch::{Batch, Verdict};
pub use cursor::PartitionLease;
pub use message::{Message, PartitionPosition, Position};
pub use operate::{Backlog, Contract, Poison};
pub use projection::{Rebuilt, Verified};
pub use statement::Statement;
pub use stored::{ClaimedMessage, FailureStatus, StoreAs, StoreResult};

pub use handle::Inbox;
pub(crate) use literal::texts as array_of;

/// The transaction of a consumer's handler.
pub type Tx<D> = crate::tx::Tx<<D as crate::driver::Driver>::Session>;
