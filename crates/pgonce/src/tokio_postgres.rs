//! pgonce over [tokio-postgres](https://docs.rs/tokio-postgres), pooled by
//! [deadpool](https://docs.rs/deadpool-postgres).
//!
//! ```no_run
//! # fn example(url: &str) -> Result<(), Box<dyn std::error::Error>> {
//! use deadpool_postgres::{Manager, Pool};
//!
//! let config = pgonce::tokio_postgres::with_limits(url.parse()?);
//! let pool = Pool::builder(Manager::new(config, tokio_postgres::NoTls)).build()?;
//! let once = pgonce::tokio_postgres::Once::new(pool);
//! # let _ = once;
//! # Ok(())
//! # }
//! ```

use deadpool_postgres::Pool;
use tokio_postgres::Config;

pub use crate::driver::tokio_postgres::Query;
use crate::driver::tokio_postgres::{TokioPostgres, TokioSession};

/// Makes commands happen once, over a deadpool pool of tokio-postgres.
pub type Once = crate::once::Once<TokioPostgres>;
/// Settings of a [`Once`].
pub type OnceBuilder = crate::once::OnceBuilder<TokioPostgres>;
/// The right to do the work, in an open transaction.
pub type Attempt = crate::attempt::Attempt<TokioPostgres>;
/// The right to do the work for a while, holding no transaction.
pub type Lease = crate::lease::Lease<TokioPostgres>;
/// The right to do the work, in a transaction of deadpool that you opened.
pub type Joined<'c> = crate::joined::Joined<deadpool_postgres::Transaction<'c>>;
/// The open transaction that an attempt or a handler works in.
pub type Tx = crate::tx::Tx<TokioSession>;
/// Installs pgonce and keeps it up to date.
pub type Migrator = crate::migrate::Migrator<TokioPostgres>;

impl Once {
    /// With default settings, over this pool.
    pub fn new(pool: Pool) -> Self {
        Self::builder(TokioPostgres::new(pool))
            .build()
            .expect("the default schema name is valid")
    }

    /// As [`Once::new`].
    #[doc(hidden)]
    pub fn tokio_postgres(pool: Pool) -> Self {
        Self::new(pool)
    }
}

/// Adds limits to how sessions are opened, so that a client that is cut off silently does not keep its
/// transaction for long: `idle_in_transaction_session_timeout` and `tcp_user_timeout`, where they are
/// not set, and the latter on this end of the wire too.
///
/// Not for PgBouncer, which refuses such start-up options: set them on the role there.
pub fn with_limits(config: Config) -> Config {
    TokioPostgres::with_limits(config)
}
