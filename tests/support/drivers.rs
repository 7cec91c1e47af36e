//! Both drivers behind one trait, so that one body tests both.

use std::future::Future;
use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::driver::{Connection, Driver};
use pgonce::tokio_postgres::Query;
use pgonce::{Done, Intent, Once, Result};
use sqlx::{AssertSqlSafe, Row as _};
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::types::Type;

/// What the work's statements run on.
pub type Raw<D> = <<D as Driver>::Session as Connection>::Raw;

/// A driver, and how a test uses it.
pub trait TestDriver: Driver {
    /// The driver's name, for messages.
    const NAME: &'static str;

    /// A pool that connects when it is asked to.
    fn connect(url: &str, connections: u32) -> Self;

    /// Runs statements without parameters and without keeping anything prepared.
    fn exec(raw: &mut Raw<Self>, sql: &str) -> impl Future<Output = Result<()>> + Send;

    /// The first column of the first row of a query, as text.
    fn fetch(raw: &mut Raw<Self>, sql: &str)
    -> impl Future<Output = Result<Option<String>>> + Send;

    /// A command of one statement with one value, a text.
    fn execute(
        once: &Once<Self>,
        intent: &Intent,
        sql: &str,
        value: &str,
    ) -> impl Future<Output = Result<Done>> + Send;
}

impl TestDriver for Sqlx {
    const NAME: &'static str = "sqlx";

    fn connect(url: &str, connections: u32) -> Self {
        let pool = sqlx::postgres::PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(20))
            .connect_lazy(url)
            .unwrap();
        Self::new(pool)
    }

    async fn exec(raw: &mut Raw<Self>, sql: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(raw)
            .await?;
        Ok(())
    }

    async fn fetch(raw: &mut Raw<Self>, sql: &str) -> Result<Option<String>> {
        let row = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .fetch_optional(raw)
            .await?;
        Ok(row
            .map(|row| row.try_get_unchecked(0))
            .transpose()?
            .flatten())
    }

    async fn execute(once: &Once<Self>, intent: &Intent, sql: &str, value: &str) -> Result<Done> {
        let statement = sqlx::query(AssertSqlSafe(sql.to_owned())).bind(value.to_owned());
        once.execute(intent, statement).await
    }
}

impl TestDriver for TokioPostgres {
    const NAME: &'static str = "tokio-postgres";

    fn connect(url: &str, connections: u32) -> Self {
        let manager = deadpool_postgres::Manager::new(url.parse().unwrap(), tokio_postgres::NoTls);
        let pool = deadpool_postgres::Pool::builder(manager)
            .max_size(connections.try_into().unwrap())
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .wait_timeout(Some(Duration::from_secs(20)))
            .build()
            .unwrap();
        Self::new(pool)
    }

    async fn exec(raw: &mut Raw<Self>, sql: &str) -> Result<()> {
        Ok(raw.batch_execute(sql).await?)
    }

    async fn fetch(raw: &mut Raw<Self>, sql: &str) -> Result<Option<String>> {
        let messages = raw.simple_query(sql).await?;
        Ok(messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        }))
    }

    async fn execute(once: &Once<Self>, intent: &Intent, sql: &str, value: &str) -> Result<Done> {
        let statement = Query::new(sql).bind(value.to_owned(), Type::TEXT);
        once.execute(intent, statement).await
    }
}
