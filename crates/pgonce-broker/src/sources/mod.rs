//! Sources that need nothing but this crate.

mod channel;

pub use channel::{Channel, ChannelSource};
