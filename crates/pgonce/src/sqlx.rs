//! pgonce over [sqlx](https://docs.rs/sqlx).
//!
//! ```no_run
//! # async fn example(url: &str) -> Result<(), sqlx::Error> {
//! let options = pgonce::sqlx::with_limits(url.parse()?);
//! let pool = sqlx::PgPool::connect_with(options).await?;
//! let once = pgonce::sqlx::Once::new(pool);
//! # let _ = once;
//! # Ok(())
//! # }
//! ```

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;

use crate::driver::sqlx::{Sqlx, SqlxSession};

/// Makes commands happen once, over a pool of sqlx.
pub type Once = crate::once::Once<Sqlx>;
/// Settings of a [`Once`].
pub type OnceBuilder = crate::once::OnceBuilder<Sqlx>;
/// The right to do the work, in an open transaction.
pub type Attempt = crate::attempt::Attempt<Sqlx>;
/// The right to do the work for a while, holding no transaction.
pub type Lease = crate::lease::Lease<Sqlx>;
/// The right to do the work, in a transaction of sqlx that you opened.
pub type Joined<'c> = crate::joined::Joined<sqlx::Transaction<'c, sqlx::Postgres>>;
/// The open transaction that an attempt or a handler works in.
pub type Tx = crate::tx::Tx<SqlxSession>;
/// Installs pgonce and keeps it up to date.
pub type Migrator = crate::migrate::Migrator<Sqlx>;

impl Once {
    /// With default settings, over this pool.
    pub fn new(pool: PgPool) -> Self {
        Self::builder(Sqlx::new(pool))
            .build()
            .expect("the default schema name is valid")
    }

    /// As [`Once::new`].
    #[doc(hidden)]
    pub fn sqlx(pool: PgPool) -> Self {
        Self::new(pool)
    }
}

/// Adds limits to how sessions are opened, so that a client that is cut off silently does not keep its
/// transaction for long: `idle_in_transaction_session_timeout` and `tcp_user_timeout`, where they are
/// not set.
///
/// Not for PgBouncer, which refuses such start-up options: set them on the role there.
pub fn with_limits(options: PgConnectOptions) -> PgConnectOptions {
    Sqlx::with_limits(options)
}
