//! Sinks that need nothing but this crate.

mod channel;
mod json_lines;

pub use channel::Channel;
pub use json_lines::JsonLines;
