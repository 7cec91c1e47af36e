//! Messages in, effects once.

mod source;

pub use source::{Incoming, Order, Source, SourceError};
