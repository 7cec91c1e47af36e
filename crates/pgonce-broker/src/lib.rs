#![doc = include_str!("../README.md")]

/// A place of `pgonce::faults`; nothing at all without the feature.
macro_rules! fault_point {
    ($place:literal) => {
        #[cfg(feature = "faults")]
        pgonce::faults::reach($place).await?;
    };
}

mod meter;
mod relay;
mod sink;
pub mod sinks;

pub use relay::{Counts, Relay};
pub use sink::{Delivery, Sink};

/// Compiles the guide's code.
#[cfg(all(doctest, feature = "nats"))]
#[doc = include_str!("../../../docs/src/sinks.md")]
struct Guide;
