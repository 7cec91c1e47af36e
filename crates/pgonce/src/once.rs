//! The front door: claims over a pool of connections.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::ack::Done;
use crate::attempt::Attempt;
use crate::cache::{Cache, ReplayCache};
use crate::call::{
    Args, BEGIN_AS_IS, COMMIT, Caller, DEFAULT_SCHEMA, Row, Schema, Sql, call_on, commit_with,
    roll_back,
};
use crate::claim::{Claim, ClaimKind, Outcome};
use crate::contract::InForce;
use crate::counts::{Suppressed, Suppression};
use crate::driver::{Driver, Opening, Session};
use crate::error::{Error, Result};
use crate::intent::Intent;
use crate::lease::Lease;
use crate::loan::Loan;
use crate::record::named;
use crate::retry::Policy;
use crate::seal::AnswerKeys;
use crate::term::Term;
use crate::trace;
use crate::ttl_cache::TtlCache;
use crate::tx::Tx;

/// The claim that finds fresh intents and answers without locking more than a name.
pub(crate) static CLAIM_FAST: Sql = Sql::kept("select * from pgonce._claim_fast($1, $2, $3, $4)");
/// The claim of an intent that is known to be new.
static CLAIM_OPTIMISTIC: Sql = Sql::kept(
    "select case when holds then 'fresh' end from pgonce._claim_optimistic($1, $2, $3, $4)",
);
/// The full claim.
pub(crate) static CLAIM: Sql = Sql::kept(
    "select outcome, fence, answer, ref_type, ref_id, attempts, failure_code, failure_message, \
     pg_catalog.ceil(extract(epoch from retry_after) operator(pg_catalog.*) 1000)::bigint \
     from pgonce.claim($1, $2, $3, $4::text::interval, $5, $6, $7)",
);
static ANSWER_OF: Sql =
    Sql::kept("select 'replay', null, a.* from pgonce.answer_of($1, $2, $3, $4) a");

/// Maximum number of callers that wait on a connection each for the answer of another attempt. More
/// poll instead, so that waiting never empties the pool.
const WAITERS: usize = 4;

/// The failure code of work whose holder vanished, where the contract refuses to take over.
const ABANDONED: &str = "abandoned";

/// Makes commands happen once, over a pool of connections. Cheap to clone.
///
/// ```no_run
/// # #[cfg(feature = "sqlx")]
/// # async fn example(pool: sqlx::PgPool) -> Result<(), pgonce::Error> {
/// use pgonce::Intent;
/// use pgonce::sqlx::Once;
///
/// let once = Once::new(pool);
/// let intent = Intent::new("orders.create", "0190f5a2-7c3e", &serde_json::json!({"item": "book"}))?;
/// let done = once
///     .run(&intent, |mut tx| async move {
///         let id: i64 = sqlx::query_scalar("insert into orders (item) values ('book') returning id")
///             .fetch_one(tx.conn())
///             .await?;
///         tx.succeed(&id).await
///     })
///     .await?;
/// println!("{} order", if done.replayed() { "existing" } else { "new" });
/// let id: i64 = done.into_answer()?;
/// # let _ = id;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Once<D: Driver> {
    caller: Caller<D>,
    /// Where intents of other homes are run.
    pub(crate) regions: Arc<[(String, Self)]>,
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    begin: &'static str,
    pub(crate) policy: Policy,
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) keys: Option<Arc<AnswerKeys>>,
    pub(crate) cache: Option<Arc<Cache>>,
    pub(crate) suppressed: Suppressed,
    pub(crate) waiters: Semaphore,
    pub(crate) contracts: TtlCache<InForce>,
    /// How long successes are kept, of scopes that keep all of them.
    pub(crate) retentions: Arc<TtlCache<Arc<str>>>,
}

/// How strictly a transaction is kept apart from others. pgonce is right at every level: it
/// rests on unique indexes and locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// PostgreSQL's usual level.
    #[default]
    ReadCommitted,
    /// One snapshot for the whole transaction; conflicts are retried.
    RepeatableRead,
    /// As if one after the other; conflicts are retried.
    Serializable,
}

/// Settings of a [`Once`]. Made by [`Once::builder`].
#[derive(Debug, Clone)]
pub struct OnceBuilder<D> {
    driver: D,
    schema: String,
    isolation: Isolation,
    policy: Policy,
    owner: Option<String>,
    keys: Option<Arc<AnswerKeys>>,
    cache: Option<ReplayCache>,
    pooler: bool,
    regions: Vec<(String, D)>,
    statement_timeout: Option<Duration>,
    distributed: bool,
}

impl<D: Driver> OnceBuilder<D> {
    /// The schema that pgonce is installed in. Default: `pgonce`.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// The isolation level of attempts. Default: [`Isolation::ReadCommitted`].
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// How [`Once::run`] retries.
    #[must_use]
    pub fn retry(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Who makes the attempts, for operators: a host, a pod, a process. Default: none.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Encrypts stored answers, of successes and of failures, with keys that the database never sees. Default: none.
    #[cfg(feature = "encryption")]
    #[must_use]
    pub fn encrypt_answers(mut self, keys: AnswerKeys) -> Self {
        self.keys = Some(Arc::new(keys));
        self
    }

    /// Answers duplicates from a cache, where it has the stored answer. Default: none.
    #[must_use]
    pub fn cache(mut self, cache: ReplayCache) -> Self {
        self.cache = Some(cache);
        self
    }

    /// For connections through a transaction pooler (PgBouncer), which cannot keep named prepared
    /// statements. Default: off.
    #[must_use]
    pub fn behind_pooler(mut self) -> Self {
        self.pooler = true;
        self
    }

    /// Reaches another region's database: [`Once::run`] and [`Once::run_leased`] run intents whose home it is there,
    /// where they would be refused here. May be called for several. Default: none.
    ///
    /// ```no_run
    /// # fn example(here: sqlx::PgPool, us: sqlx::PgPool) -> Result<(), pgonce::Error> {
    /// use pgonce::driver::sqlx::Sqlx;
    /// use pgonce::sqlx::Once;
    ///
    /// let once = Once::builder(Sqlx::new(here)).region("us", Sqlx::new(us)).build()?;
    /// # drop(once);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn region(mut self, name: impl Into<String>, driver: D) -> Self {
        self.regions.push((name.into(), driver));
        self
    }

    /// Maximum time of a call that is a transaction of its own, such as `Outbox::backlog`; for health checks. Default: none.
    #[doc(hidden)]
    #[must_use]
    pub fn statement_timeout(mut self, limit: Duration) -> Self {
        self.statement_timeout = Some(limit);
        self
    }

    /// For a database whose tables Citus distributes ([`Migrator::distribute`](crate::migrate::Migrator::distribute)): every
    /// call is one that Citus sends to the server of the tenant. Give every intent its tenant. Default: off.
    ///
    /// ```
    /// # fn example<D: pgonce::driver::Driver>(driver: D) -> Result<(), pgonce::Error> {
    /// let once = pgonce::Once::builder(driver).distributed().build()?;
    /// # drop(once);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn distributed(mut self) -> Self {
        self.distributed = true;
        self
    }

    /// Builds the [`Once`]. A schema name that would need quotes is [`Error::Invalid`].
    pub fn build(self) -> Result<Once<D>> {
        let begin = match self.isolation {
            Isolation::ReadCommitted => BEGIN_AS_IS,
            Isolation::RepeatableRead => "begin isolation level repeatable read not deferrable",
            Isolation::Serializable => "begin isolation level serializable not deferrable",
        };
        let shared = Arc::new(Shared {
            begin,
            policy: self.policy,
            owner: self.owner.map(Into::into),
            keys: self.keys,
            cache: self.cache.map(|settings| Arc::new(Cache::new(settings))),
            suppressed: Suppressed::new(),
            waiters: Semaphore::new(WAITERS),
            contracts: TtlCache::default(),
            retentions: Arc::default(),
        });
        let schema = Schema::of(&self.schema, !self.pooler, self.distributed)?;
        let over = |driver, shared, regions| Once {
            caller: Caller {
                driver,
                schema: schema.clone(),
                statement_timeout: self.statement_timeout,
                deadline: None,
            },
            shared,
            regions,
        };
        let regions = self.regions.into_iter();
        let regions =
            regions.map(|(name, driver)| (name, over(driver, shared.clone(), Arc::default())));
        let regions: Arc<[_]> = regions.collect();
        Ok(over(self.driver, shared, regions))
    }
}

impl<D: Driver> Once<D> {
    /// Over this driver, with settings to choose.
    pub fn builder(driver: D) -> OnceBuilder<D> {
        OnceBuilder {
            driver,
            schema: DEFAULT_SCHEMA.to_owned(),
            isolation: Isolation::default(),
            policy: Policy::default(),
            owner: None,
            keys: None,
            cache: None,
            pooler: false,
            regions: Vec::new(),
            statement_timeout: None,
            distributed: false,
        }
    }

    /// Asks for the right to do the work in one transaction (atomic mode).
    ///
    /// [`Once::run`] is this, with the loop around it.
    pub async fn claim(&self, intent: &Intent) -> Result<Claim<Attempt<D>>> {
        let claim = self.claim_uncounted(intent);
        let claimed = self.cached_or(intent, claim).await;
        self.count_suppressed(intent, &claimed);
        claimed
    }

    pub(crate) async fn claim_uncounted(&self, intent: &Intent) -> Result<Claim<Attempt<D>>> {
        trace::claim(intent, self.begin_attempt(intent)).await
    }

    async fn begin_attempt(&self, intent: &Intent) -> Result<Claim<Attempt<D>>> {
        fault_point!("claim.before_open");
        let mut session = self.caller.driver.acquire().await?;
        let opened = self.open(&mut session, intent).await;
        fault_point!("claim.opened");
        let outcome = match opened {
            Ok(outcome) => outcome,
            Err(error) => {
                if !matches!(error, Error::Disconnected(_)) {
                    // The error is what counts; a session that cannot roll back is closed.
                    let _ = roll_back(session).await;
                }
                return Err(error);
            }
        };
        match outcome {
            Outcome::Run {
                kind,
                fence,
                attempts,
            } => {
                let claimed = (kind, fence, attempts);
                Ok(Claim::Run(self.attempt(session, intent.clone(), claimed)))
            }
            Outcome::Refused(failure) if failure.code() == ABANDONED => {
                // The claim itself may have decided so just now: it must last before it is reported.
                commit_with(session, &self.caller.schema, &COMMIT, Args::default()).await?;
                Ok(Claim::Refused(failure))
            }
            outcome => {
                // The answer is known: nobody needs to wait for the end of the transaction.
                tokio::spawn(roll_back(session));
                Ok(outcome.finished())
            }
        }
    }

    async fn open(&self, session: &mut D::Session, intent: &Intent) -> Result<Outcome> {
        let schema = &self.caller.schema;
        let claim = match intent.is_known_first() {
            true => &CLAIM_OPTIMISTIC,
            false => &CLAIM_FAST,
        };
        let row = session
            .begin(&Opening {
                begin: self.shared.begin,
                claim: &schema.statement(claim),
                params: fast_args(intent).as_slice(),
            })
            .await?;
        match row.map_or(Ok(Outcome::fresh()), |row| Outcome::read(Row::from(row)))? {
            Outcome::Ask => self.ask(session, intent, None).await,
            outcome => outcome.opened(self.keys(), intent),
        }
    }

    /// The full claim.
    async fn ask(
        &self,
        session: &mut D::Session,
        intent: &Intent,
        lease: Option<Duration>,
    ) -> Result<Outcome> {
        let args = claim_args(intent, lease, self.owner());
        let rows = call_on(session, &self.caller.schema, &CLAIM, &args).await?;
        Outcome::read_full(rows.first())?.opened(self.keys(), intent)
    }

    /// Asks for the right to do the work for a while (leased mode): for work that must call the
    /// outside world. The claim is committed when this returns.
    ///
    /// After [`Error::Uncertain`] the claim may stand; it runs out with its lease.
    pub async fn lease(&self, intent: &Intent, length: Duration) -> Result<Claim<Lease<D>>> {
        let claim = self.lease_uncounted(intent, length);
        let claimed = self.cached_or(intent, claim).await;
        self.count_suppressed(intent, &claimed);
        claimed
    }

    /// The same, which sends nothing after `deadline`. A lease that it gets has none.
    pub(crate) fn before(&self, deadline: Option<Instant>) -> Self {
        Self {
            caller: self.caller.before(deadline),
            ..self.clone()
        }
    }

    pub(crate) async fn lease_uncounted(
        &self,
        intent: &Intent,
        length: Duration,
    ) -> Result<Claim<Lease<D>>> {
        trace::claim(intent, self.begin_lease(intent, length)).await
    }

    async fn begin_lease(&self, intent: &Intent, length: Duration) -> Result<Claim<Lease<D>>> {
        fault_point!("lease.before_claim");
        let sent = Instant::now();
        let args = claim_args(intent, Some(length), self.owner());
        let claimed = self.caller.write(&CLAIM, args).await;
        fault_point!("lease.claimed");
        match Outcome::read_full(claimed?.first())?.opened(self.keys(), intent)? {
            Outcome::Run {
                kind,
                fence,
                attempts,
            } => Ok(Claim::Run(Lease::new(
                self.before(None),
                intent.clone(),
                (kind, fence, attempts),
                Term::new(length, sent),
            ))),
            outcome => Ok(outcome.finished()),
        }
    }

    /// The stored answer, for a caller who knows that this is a retry: one plain look, no lock
    /// and no transaction. `None` says nothing: claim.
    pub async fn answer(&self, intent: &Intent) -> Result<Option<Done>> {
        let done = self.cached_answer(intent).await?;
        if done.is_some() {
            self.count(intent, Suppression::Replay);
        }
        Ok(done)
    }

    pub(crate) async fn stored_answer(&self, intent: &Intent) -> Result<Option<Done>> {
        let rows = self.caller.call(&ANSWER_OF, fast_args(intent)).await?;
        Ok(
            match Outcome::read_full(rows.first())?.opened(self.keys(), intent)? {
                Outcome::Replay(done) => Some(done),
                _ => None,
            },
        )
    }

    pub(crate) fn attempt(
        &self,
        session: D::Session,
        intent: Intent,
        (kind, fence, attempts): (ClaimKind, i64, u32),
    ) -> Attempt<D> {
        let schema = self.caller.schema.clone();
        Attempt {
            tx: Tx::new(Loan::owned(session), schema, intent.shared_tenant()),
            retentions: self.shared.retentions.clone(),
            keys: self.shared.keys.clone(),
            intent,
            owner: self.shared.owner.clone(),
            kind,
            fence,
            attempts,
            refused: None,
        }
    }

    /// The driver underneath.
    pub fn driver(&self) -> &D {
        &self.caller.driver
    }

    pub(crate) fn caller(&self) -> &Caller<D> {
        &self.caller
    }

    /// How attempts begin.
    pub(crate) fn begin(&self) -> &'static str {
        self.shared.begin
    }

    pub(crate) fn keys(&self) -> Option<&AnswerKeys> {
        self.shared.keys.as_deref()
    }

    pub(crate) fn owner(&self) -> Option<&str> {
        self.shared.owner.as_deref()
    }
}

/// The arguments of [`CLAIM_FAST`].
pub(crate) fn fast_args(intent: &Intent) -> Args<'_> {
    named(intent).text(intent.tenant_name())
}

/// The arguments of [`CLAIM`].
pub(crate) fn claim_args<'a>(
    intent: &'a Intent,
    lease: Option<Duration>,
    owner: Option<&'a str>,
) -> Args<'a> {
    named(intent)
        .interval(lease)
        .text(owner)
        .text(intent.tenant_name())
        .text(intent.correlation_id())
}
