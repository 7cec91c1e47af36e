//! The fixture of a storm: a server, a pooler where one is wanted, and a database of its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;
use pgonce::retry::Policy;
use pgonce_testkit::{Binaries, CuttingProxy, Database, History, PgBouncer, Postgres};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

use super::Result;
use super::attempt::Case;
use super::cached::CacheFixture;
use super::config::{Config, Pooler};
use super::driver_ext::DriverExt;
use super::partition_fixture::{self, PartitionFixture};
use super::path::{LEASE, Path};
use super::post::Delivered;
use super::{business, inbox, outside, projection};

/// Connections past the proxy: each worker may need three.
const CALM: u32 = 64;

/// Nothing here keeps an effect from being written twice. The outside world is the exception: it
/// knows the keys, as a provider does, and makes each effect once.
const SCHEMA: &str = "
create table effect (
    intent  text not null,
    attempt bigint not null,
    payload jsonb not null,
    at      timestamptz not null default clock_timestamp()
);
-- A commit that waits, as one does for a standby, on one of the paths.
create function wait_in_commit() returns trigger language plpgsql as $$
begin
    perform pg_sleep(0.15);
    return null;
end $$;
create constraint trigger commits_are_slow after insert on effect deferrable initially deferred
    for each row when (new.intent like 'slow-commit-%') execute function wait_in_commit();
create table receipt (intent text primary key, attempt bigint not null);
create function outside(p_intent text, p_attempt bigint, p_payload jsonb) returns bigint
language plpgsql as $$
begin
    insert into public.receipt values (p_intent, p_attempt) on conflict do nothing;
    if found then
        insert into public.effect values (p_intent, p_attempt, p_payload);
    end if;
    return (select r.attempt from public.receipt r where r.intent = p_intent);
end $$;
";

/// A server of one major version, with its pooler.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) postgres: Postgres,
    pooler: Option<PgBouncer>,
}

impl Server {
    pub(super) async fn start(major: u32, pooled: bool) -> Result<Self> {
        let postgres = Postgres::builder()
            .binaries(Binaries::of_major(major)?)
            .setting("max_connections", "300")
            .setting("log_lock_waits", "off")
            // Cut connections are what this is about; they need no lines in the log.
            .setting("log_min_messages", "fatal")
            .start()
            .await?;
        postgres.template("storm", install).await?;
        let pooler = match pooled {
            true => Some(PgBouncer::in_front_of(&postgres).start().await?),
            false => None,
        };
        Ok(Self { postgres, pooler })
    }
}

async fn install(url: String) -> Result<()> {
    let pool = Pool::builder(Manager::new(url.parse()?, NoTls))
        .max_size(1)
        .build()?;
    let driver = TokioPostgres::new(pool);
    Migrator::new(driver.clone()).up().await?;
    let once = Once::builder(driver.clone()).build()?;
    partition_fixture::lay_out(&url).await?;
    define_scopes(&once, LEASE).await?;
    let client = connect(&url).await?;
    for sql in [
        SCHEMA,
        business::SCHEMA,
        outside::SCHEMA,
        projection::SCHEMA,
        inbox::CONTRACT,
    ] {
        client.batch_execute(sql).await?;
    }
    Ok(())
}

async fn define_scopes<D: DriverExt>(once: &Once<D>, lease: Duration) -> Result<()> {
    for path in Path::of_intents() {
        if let Some(contract) = path.contract(lease) {
            once.define_scope(&path.scope(), &contract).await?;
        }
    }
    Ok(())
}

/// A connection of its own, outside all pools.
pub(super) async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // Ends with the client.
    tokio::spawn(connection);
    Ok(client)
}

/// A database, and who is to walk there.
#[derive(Debug)]
pub(super) struct Fixture<D: DriverExt> {
    pub(super) config: Config,
    pub(super) database: Database,
    pub(super) history: Arc<History>,
    pub(super) calm: Once<D>,
    /// What sinks were given, in the order in which they were.
    pub(super) delivered: Mutex<Vec<Delivered>>,
    pub(super) partitions: PartitionFixture<D>,
    cache: OnceCell<CacheFixture<D>>,
    port: u16,
    /// Recovery takes what is stale of every trial: one trial of it at a time.
    pub(super) recovery: tokio::sync::Mutex<()>,
    pub(super) sabotage: bool,
    trials: AtomicU64,
    lease: Mutex<Duration>,
}

impl<D: DriverExt> Fixture<D> {
    pub(super) async fn prepare(
        server: &Server,
        config: Config,
        history: History,
        sabotage: bool,
    ) -> Result<Self> {
        let database = server.postgres.database_from("storm").await?;
        let port = match (config.pooler, &server.pooler) {
            (Pooler::Direct, _) => server.postgres.port(),
            (Pooler::Pgbouncer, Some(pooler)) => pooler.port(),
            (Pooler::Pgbouncer, None) => return Err("the pooler was not started".into()),
        };
        let calm = Once::builder(D::connect(&database.url(), CALM, false)?)
            .isolation(config.isolation.into())
            .retry(Policy::none())
            .build()?;
        let partitions = PartitionFixture::of(calm.driver().clone())?;
        Ok(Self {
            delivered: Mutex::default(),
            partitions,
            cache: OnceCell::new(),
            config,
            database,
            history: Arc::new(history),
            calm,
            port,
            recovery: tokio::sync::Mutex::default(),
            sabotage,
            trials: AtomicU64::new(0),
            lease: Mutex::new(LEASE),
        })
    }

    /// How long leases are in this configuration.
    pub(super) fn lease(&self) -> Duration {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Doubles the leases: a walk without a fault was too slow for them.
    pub(super) async fn lengthen_leases(&self) -> Result<()> {
        let longer = self.lease() * 2;
        define_scopes(&self.calm, longer).await?;
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = longer;
        Ok(())
    }

    /// A proxy in front of the server, or of its pooler.
    pub(super) fn proxy(&self) -> Result<CuttingProxy> {
        Ok(CuttingProxy::start(("127.0.0.1", self.port))?)
    }

    /// A client of one connection over the wire that breaks.
    pub(super) fn through(&self, proxy: &CuttingProxy, policy: Policy) -> Result<Once<D>> {
        self.through_to(proxy, policy, pgonce::DEFAULT_SCHEMA)
    }

    /// The same, to another schema.
    pub(super) fn through_to(
        &self,
        proxy: &CuttingProxy,
        policy: Policy,
        schema: &str,
    ) -> Result<Once<D>> {
        let pooler = self.config.pooler == Pooler::Pgbouncer;
        let driver = D::connect(&proxy.url_for(self.database.name()), 1, pooler)?;
        let mut builder = Once::builder(driver)
            .schema(schema)
            .isolation(self.config.isolation.into())
            .retry(policy);
        if pooler {
            builder = builder.behind_pooler();
        }
        Ok(builder.build()?)
    }

    /// The number of the next trial.
    pub(super) fn next(&self) -> u64 {
        self.trials.fetch_add(1, Relaxed)
    }

    /// What all attempts of a trial share. On the path through a cache, the clients that try again have it.
    pub(super) async fn case(&self, path: Path, number: u64) -> Result<Case<D>> {
        let mut case = self.plain_case(path, number);
        if path == Path::Cached {
            let isolation = self.config.isolation.into();
            let start = || CacheFixture::start(self.calm.driver().clone(), isolation);
            case.calm = self.cache.get_or_try_init(start).await?.once();
        }
        Ok(case)
    }

    fn plain_case(&self, path: Path, number: u64) -> Case<D> {
        Case {
            path,
            key: format!("{}-{number}", path.name()),
            payload: Path::payload(number),
            isolation: self.config.isolation.into(),
            calm: self.calm.clone(),
            history: Arc::clone(&self.history),
            sabotage: self.sabotage,
            first_is_over: AtomicBool::new(false),
            lease: self.lease(),
        }
    }
}
