//! Real infrastructure for tests, without Docker and without leftovers.
//!
//! * [`Postgres`]: a private server in a temporary folder that can be crashed
//!   and started again, with a fresh [`Database`] per test from a template.
//!   It may have standbys, synchronous or not, to fail over to.
//! * [`shared`]: one such server for all tests of a process, or of a run of `cargo nextest`.
//! * [`PgBouncer`]: a private pooler in front of it.
//! * [`Nats`], [`Redis`] and [`RabbitMq`]: private brokers that can be killed
//!   and started again on what they had written; [`shared_nats`] and its
//!   siblings: one for all tests of a process or run.
//! * [`DelayProxy`]: network delay, a count of round trips, and a wire cutter.
//! * [`CuttingProxy`]: understands PostgreSQL's protocol, and cuts, swallows or
//!   holds back the message that a [`Fault`] names.
//! * [`History`] and [`checker`]: what clients got as answers against what took
//!   effect; says whether everything happened exactly once.
//! * [`storm`](fn@storm): all of that over a handler of yours.
//! * [`fuzz`](fn@fuzz): damaged inputs for a parser of yours.
//! * [`wait_until`] and [`wait_until_lock_waited`]: observe a state instead of
//!   sleeping and hoping.
//!
//! Everything listens on free loopback ports and ends with the process that
//! asked for it, even if that process is killed: a small guardian process
//! notices, stops the server and removes the folder. Root may run all this:
//! PostgreSQL and pgbouncer refuse to run as root, so servers are started as
//! user `postgres`, or else `nobody`.
//!
//! ```no_run
//! # async fn install(url: &str) -> Result<(), tokio_postgres::Error> { Ok(()) }
//! # async fn example() -> pgonce_testkit::Result<()> {
//! let server = pgonce_testkit::shared(None).await?;
//! server
//!     .template("with_schema", async |url: String| install(&url).await)
//!     .await?;
//!
//! // Each test: its own copy, named by nobody else.
//! let database = server.database_from("with_schema").await?;
//! let (client, connection) =
//!     tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await?;
//! # drop((client, connection));
//! # Ok(())
//! # }
//! ```
//!
//! The server programs are looked for in `PGONCE_PG_BIN`, in what
//! `pg_config --bindir` says, in the usual folders, on `PATH`, and in the
//! cache that pgonce's `make setup` fills: see [`Binaries`]. Brokers likewise,
//! with `PGONCE_NATS_BIN`, `PGONCE_REDIS_BIN` and `PGONCE_RABBITMQ_BIN`.

mod binaries;
mod brokers;
mod cache;
pub mod checker;
mod cut;
mod delay;
mod error;
mod folder;
mod fuzz;
mod guardian;
mod history;
mod kept;
mod pgbouncer;
mod plan;
mod port;
mod postgres;
mod process;
mod run;
mod shared;
mod storm;
mod unprivileged;
mod wait;
mod wire;

pub use binaries::Binaries;
pub use brokers::{Nats, RabbitMq, Redis};
pub use cut::{CuttingProxy, Fired};
pub use delay::DelayProxy;
pub use error::{Error, Result};
pub use fuzz::fuzz;
pub use history::{Entry, History, Outcome};
pub use pgbouncer::{PgBouncer, PgBouncerBuilder};
pub use plan::{Action, Fault, FaultPlan, Spread, Trial, UnreadableFault};
pub use postgres::{Database, Postgres, PostgresBuilder, Replication};
pub use shared::{shared, shared_nats, shared_rabbitmq, shared_redis};
pub use storm::{Call, Report, Storm, storm};
pub use wait::{Session, wait_until, wait_until_lock_waited};
pub use wire::{Direction, Message};

/// Compiles the guide's code.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/how-to/storm-your-own.md")]
struct Guide;
