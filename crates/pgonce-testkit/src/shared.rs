use std::{collections::BTreeMap, sync::Mutex};

use tokio::sync::OnceCell;

use crate::{
    Binaries, Nats, Postgres, RabbitMq, Redis, Result,
    run::{Lend, Run},
};

type Cell = &'static OnceCell<Postgres>;

static SERVERS: Mutex<BTreeMap<u32, Cell>> = Mutex::new(BTreeMap::new());

/// The one server of a major version (`None`: of whatever [`Binaries::find`]
/// finds) that all tests share: those of this process, or of all processes of
/// a run of `cargo nextest`. The first caller starts it; its guardian ends it
/// with the process or the run.
///
/// Share it between tests that only need their own database. A test that
/// crashes or stops the server starts its own with [`Postgres::builder`].
///
/// ```no_run
/// # async fn example() -> pgonce_testkit::Result<()> {
/// let any = pgonce_testkit::shared(None).await?;
/// let newest = pgonce_testkit::shared(18).await?;
/// # drop((any, newest));
/// # Ok(())
/// # }
/// ```
pub async fn shared(major: impl Into<Option<u32>>) -> Result<&'static Postgres> {
    let binaries = match major.into() {
        Some(major) => Binaries::of_major(major)?,
        None => Binaries::find()?,
    };
    let cell = cell_of(binaries.major());
    let name = format!("postgres-{}", binaries.major());
    // Each new database is a checkpoint, after which the first change of every page would write that page to the WAL: a tenth of
    // the processor time. Whole pages guard against a crash, and this server does not meet one.
    let builder = Postgres::builder().binaries(binaries);
    let start = || builder.setting("full_page_writes", "off").start();
    cell.get_or_try_init(|| once(&name, start)).await
}

fn cell_of(major: u32) -> Cell {
    let mut servers = SERVERS
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    servers
        .entry(major)
        .or_insert_with(|| Box::leak(Box::default()))
}

/// Once for each run, or where there is none for this process.
async fn once<T: Lend, F>(name: &str, start: impl FnOnce() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    match Run::current() {
        Some(run) => run.server(name, start).await,
        None => start().await,
    }
}

static NATS: OnceCell<Nats> = OnceCell::const_new();
static REDIS: OnceCell<Redis> = OnceCell::const_new();
static RABBITMQ: OnceCell<RabbitMq> = OnceCell::const_new();

/// The one NATS server that all tests share, as with [`shared`]. A test that kills it starts its own.
pub async fn shared_nats() -> Result<&'static Nats> {
    NATS.get_or_try_init(|| once("nats", Nats::start)).await
}

/// The one Redis server that all tests share, as with [`shared`]. A test that kills it starts its own.
pub async fn shared_redis() -> Result<&'static Redis> {
    REDIS.get_or_try_init(|| once("redis", Redis::start)).await
}

/// The one RabbitMQ node that all tests share, as with [`shared`]. A test that kills it starts its own.
pub async fn shared_rabbitmq() -> Result<&'static RabbitMq> {
    RABBITMQ
        .get_or_try_init(|| once("rabbitmq", RabbitMq::start))
        .await
}
