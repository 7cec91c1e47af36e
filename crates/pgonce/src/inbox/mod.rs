//! Messages that may come many times and have one effect.

mod message;

pub use message::{Message, Place, Position};
