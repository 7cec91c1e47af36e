//! What the storm needs of a driver beside what pgonce needs: to write an effect, and to join.

use std::future::Future;
use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::{InAttempt, TokioPostgres};
use pgonce::driver::{Connection, Driver};
use pgonce::import::{Format, Import, Input};
use pgonce::retry::in_commit;
use pgonce::tokio_postgres::Query;
use pgonce::{Ack, Claim, Done, Error, Intent, Isolation, Once};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, IsolationLevel, NoTls};

use super::Result;

/// A pool that gives no connection within this time is out of order.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const INSERT: &str =
    "insert into effect (intent, attempt, payload) values ($1, $2, $3::text::jsonb)";

const INSERT_RETURNING: &str = "insert into effect (intent, attempt, payload) \
    values ($1, $2, $3::text::jsonb) returning attempt as by";

/// One effect, as it is written down.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    pub(super) intent: String,
    pub(super) attempt: i64,
    pub(super) payload: String,
}

type Raw<D> = <<D as Driver>::Session as Connection>::Raw;

/// A driver in the storm.
pub(super) trait DriverExt: Driver<Session: Send + Connection<Raw: Send>> {
    /// A pool of at most so many connections; none is opened yet.
    fn connect(url: &str, size: u32, pooler: bool) -> Result<Self>;

    /// Writes an effect, as a user of the driver would.
    fn write(conn: &mut Raw<Self>, mark: &Mark) -> impl Future<Output = pgonce::Result<()>> + Send;

    /// The work in a transaction of the caller's own.
    fn join(
        once: &Once<Self>,
        isolation: Isolation,
        intent: &Intent,
        mark: &Mark,
        ack: Ack,
    ) -> impl Future<Output = pgonce::Result<Done>> + Send;

    /// The work as one statement with its claim and success.
    fn execute(
        once: &Once<Self>,
        intent: &Intent,
        mark: &Mark,
    ) -> impl Future<Output = pgonce::Result<Done>> + Send;

    /// Rows, as JSON Lines, to the function `import_effect`. Returns how many were there already.
    fn import(
        once: &Once<Self>,
        job: &str,
        lease: Duration,
        rows: String,
    ) -> impl Future<Output = pgonce::Result<u64>> + Send;
}

impl DriverExt for Sqlx {
    fn connect(url: &str, size: u32, pooler: bool) -> Result<Self> {
        let mut options: PgConnectOptions = url.parse()?;
        if pooler {
            options = options.statement_cache_capacity(0);
        }
        let pool = PgPoolOptions::new()
            .max_connections(size)
            .acquire_timeout(CONNECT_TIMEOUT)
            .connect_lazy_with(options);
        Ok(Self::new(pool))
    }

    async fn write(conn: &mut sqlx::PgConnection, mark: &Mark) -> pgonce::Result<()> {
        sqlx::query(INSERT)
            .bind(&mark.intent)
            .bind(mark.attempt)
            .bind(&mark.payload)
            // A name would stay behind on a connection that the pooler gives to another client.
            .persistent(false)
            .execute(conn)
            .await?;
        Ok(())
    }

    async fn join(
        once: &Once<Self>,
        isolation: Isolation,
        intent: &Intent,
        mark: &Mark,
        ack: Ack,
    ) -> pgonce::Result<Done> {
        let begin = match isolation {
            Isolation::ReadCommitted => "begin",
            Isolation::RepeatableRead => "begin isolation level repeatable read",
            Isolation::Serializable => "begin isolation level serializable",
        };
        let tx = once.driver().pool().begin_with(begin).await?;
        match once.join(tx, intent).await? {
            Claim::Run(mut joined) => {
                Self::write(joined.conn(), mark).await?;
                let (done, tx) = joined.succeed(ack).await?;
                tx.commit().await.map_err(|error| in_commit(error.into()))?;
                Ok(done)
            }
            other => finished(other),
        }
    }

    async fn execute(once: &Once<Self>, intent: &Intent, mark: &Mark) -> pgonce::Result<Done> {
        let statement = sqlx::query(INSERT_RETURNING)
            .bind(mark.intent.clone())
            .bind(mark.attempt)
            .bind(mark.payload.clone());
        once.execute(intent, statement).await
    }

    async fn import(_: &Once<Self>, _: &str, _: Duration, _: String) -> pgonce::Result<u64> {
        Err(Error::work("imports need tokio-postgres"))
    }
}

impl DriverExt for TokioPostgres {
    fn connect(url: &str, size: u32, _pooler: bool) -> Result<Self> {
        let pool = Pool::builder(Manager::new(url.parse()?, NoTls))
            .max_size(usize::try_from(size)?)
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .wait_timeout(Some(CONNECT_TIMEOUT))
            .create_timeout(Some(CONNECT_TIMEOUT))
            .build()?;
        Ok(Self::new(pool))
    }

    async fn write(conn: &mut InAttempt, mark: &Mark) -> pgonce::Result<()> {
        let client: &tokio_postgres::Client = conn;
        insert(client, mark).await
    }

    async fn join(
        once: &Once<Self>,
        isolation: Isolation,
        intent: &Intent,
        mark: &Mark,
        ack: Ack,
    ) -> pgonce::Result<Done> {
        let level = match isolation {
            Isolation::ReadCommitted => IsolationLevel::ReadCommitted,
            Isolation::RepeatableRead => IsolationLevel::RepeatableRead,
            Isolation::Serializable => IsolationLevel::Serializable,
        };
        let pool = once.driver().pool();
        let mut object = pool.get().await.map_err(|error| match error {
            deadpool_postgres::PoolError::Backend(error) => error.into(),
            other => Error::Disconnected(other.to_string()),
        })?;
        let tx = object
            .build_transaction()
            .isolation_level(level)
            .start()
            .await?;
        match once.join(tx, intent).await? {
            Claim::Run(mut joined) => {
                let inner: &tokio_postgres::Transaction<'_> = joined.conn();
                insert(inner, mark).await?;
                let (done, tx) = joined.succeed(ack).await?;
                tx.commit().await.map_err(|error| in_commit(error.into()))?;
                Ok(done)
            }
            other => finished(other),
        }
    }

    async fn execute(once: &Once<Self>, intent: &Intent, mark: &Mark) -> pgonce::Result<Done> {
        let statement = Query::new(INSERT_RETURNING)
            .bind(mark.intent.clone(), Type::TEXT)
            .bind(mark.attempt, Type::INT8)
            .bind(mark.payload.clone(), Type::TEXT);
        once.execute(intent, statement).await
    }

    async fn import(
        once: &Once<Self>,
        job: &str,
        lease: Duration,
        rows: String,
    ) -> pgonce::Result<u64> {
        let import = Import::call(job, "public.import_effect")
            .key(["intent"])
            .format(Format::JsonLines)
            .max_rows(2)
            .lease(lease);
        let input = Input::Stream(Box::new(std::io::Cursor::new(rows.into_bytes())));
        let report = once.import(&import, input, |_| ()).await?;
        match report.rows.failed {
            0 => Ok(report.rows.skipped),
            failed => Err(Error::work(format!("{failed} rows failed"))),
        }
    }
}

async fn insert<C: GenericClient + Sync>(client: &C, mark: &Mark) -> pgonce::Result<()> {
    let values: [(&(dyn ToSql + Sync), Type); 3] = [
        (&mark.intent, Type::TEXT),
        (&mark.attempt, Type::INT8),
        (&mark.payload, Type::TEXT),
    ];
    client.query_typed(INSERT, &values).await?;
    Ok(())
}

/// What a claim that gave no work to do is as a result.
pub(super) fn finished<R>(claim: Claim<R>) -> pgonce::Result<Done> {
    match claim {
        Claim::Run(_) => Err(Error::work("the work was given and not done")),
        Claim::Replay(done) => Ok(done),
        Claim::Refused(failure) => Err(Error::Refused(failure)),
        Claim::Busy { retry_after } => Err(Error::Busy {
            retry_after,
            accepted: false,
        }),
    }
}
