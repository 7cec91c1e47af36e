//! What measures and proves pgonce. The program `pgonce` mounts each as a command of the same name;
//! nothing here is needed to use pgonce.
//!
//! - `bench`: what exactly-once costs, beside the bare transaction and the usual recipe
//! - `storm`: every path of the protocol, cut at every message, and a verdict
//! - `embedded`: a private PostgreSQL for `pgonce serve` on a laptop
//! - `regions`: a simulation of regions that are cut off from each other, and a verdict
//! - `demo`: an orders service under duplicates, crashes and cut connections, and a verdict

#[cfg(feature = "bench")]
pub mod bench;
#[cfg(feature = "demo")]
pub mod demo;
#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "regions")]
pub mod regions;
#[cfg(feature = "storm")]
pub mod storm;
