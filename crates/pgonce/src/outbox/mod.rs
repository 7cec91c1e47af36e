//! Events that exist if and only if their effect committed, and how they leave the database.
//!
//! Publish an [`Event`] with [`Tx::publish`](crate::Tx::publish), or in a transaction of your own with
//! [`Once::publish`](crate::Once::publish). A relay moves them on: the crate `pgonce-broker` is one, built on
//! [`Outbox`], which only calls SQL functions.

mod distributed;
mod event;
mod lanes;
mod message;
mod publish;
mod recover;
mod subscription;

pub use event::Event;
pub use lanes::{Lane, LaneClaim, LaneLease, Outbox, Outcome, Page, Poll, Settlement};
pub use message::{Act, Cursor, Message};
pub use recover::Goal;
pub use subscription::{Backlog, Begin, DeadLetter, Subscription, WhenFull};
