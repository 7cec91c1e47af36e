//! A reverse proxy that makes the requests of services in any language happen once.
//!
//! It is the leased layer around a service that sends requests on to an upstream: routes and
//! policies come from a TOML file ([`Config`]), keys, answers and leases are in PostgreSQL. Routes
//! without a policy pass untouched, streaming in both directions. `pgonce gateway` is this module
//! with a command line; use it from code to put the gateway into a program of your own:
//!
//! ```no_run
//! use pgonce::Once;
//! use pgonce::driver::Driver;
//! use pgonce_http::gateway::{Config, Gateway};
//!
//! async fn run<D: Driver>(once: Once<D>, text: &str) -> Result<(), Box<dyn std::error::Error>> {
//!     let config = Config::parse("gateway.toml", text)?;
//!     let gateway = Gateway::new(config, once)?;
//!     let differences = gateway.agree().await?;
//!     assert!(differences.is_empty(), "the database knows these scopes otherwise");
//!     let bound = gateway.bind().await?;
//!     println!("serving on {}", bound.address());
//!     let drained = bound.run(std::future::pending()).await;
//!     assert_eq!(drained.unfinished, 0);
//!     Ok(())
//! }
//! ```

mod admin;
mod body;
mod build;
mod config;
mod dispatch;
pub mod errors;
mod headers;
mod http2;
mod io;
mod lifecycle;
mod log;
mod pattern;
mod policy;
mod proxy;
mod reauthorise;
mod router;
mod scopes;
mod serve_router;
mod server;
mod stalls;
mod tls;
mod tunnel;
mod upstream;

/// For the programs of this repository; it may change in every release.
#[doc(hidden)]
pub mod unstable {
    pub use super::serve_router::serve_router;
}

pub use config::{
    Cache, Config, Contracts, Database, EXAMPLE, Encryption, Fault, Faults, Log, LogFormat,
    Summary, UrlFrom,
};
pub use lifecycle::{Bound, BuildError, Drained, Gateway, Reload, ReloadError};
pub use scopes::Difference;
