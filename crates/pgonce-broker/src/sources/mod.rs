//! Sources that need nothing but this crate.

mod channel;
mod nothing;
mod outbox_log;

pub use channel::{Channel, ChannelSource};
pub use nothing::Nothing;
pub use outbox_log::OutboxLog;
