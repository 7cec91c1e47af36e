//! The front door: claims over a pool of connections.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::ack::Done;
use crate::attempt::Attempt;
use crate::claim::{Claim, ClaimKind, Outcome};
use crate::driver::{Connection as _, Driver, Opening, OrRaise, Param, Session as _, Settled};
use crate::lately::Lately;
use crate::lease::{Lease, interval, keep_unless_lost};
use crate::retry::Policy;
use crate::scope::InForce;
use crate::statements::{DEFAULT_SCHEMA, Statements};
use crate::suppressed::{Suppressed, Told};
use crate::{Error, Intent, Result};

/// How many callers may wait on a connection each for the answer of another attempt; more than
/// these ask again now and then instead, so that waiting never empties the pool.
const WAITERS: usize = 4;

/// The failure code of work whose holder vanished, where the contract refuses to take over.
const ABANDONED: &str = "abandoned";

/// Makes commands happen once, over a pool of connections. Cheap to clone.
///
/// ```no_run
/// # #[cfg(feature = "sqlx")]
/// # async fn example(pool: sqlx::PgPool) -> Result<(), pgonce::Error> {
/// use pgonce::{Ack, Intent, Once};
///
/// let once = Once::sqlx(pool);
/// let intent = Intent::of("orders.create", "0190f5a2-7c3e", &serde_json::json!({"item": "book"}))?;
/// let done = once
///     .run(&intent, |mut attempt| async move {
///         let id: i64 = sqlx::query_scalar("insert into orders (item) values ('book') returning id")
///             .fetch_one(attempt.conn())
///             .await?;
///         attempt.succeed(Ack::value(&id)?).await
///     })
///     .await?;
/// println!("order {}, {}", done.read::<i64>()?, if done.replayed() { "again" } else { "new" });
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Once<D: Driver> {
    driver: D,
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    statements: Arc<Statements>,
    begin: String,
    pub(crate) policy: Policy,
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) suppressed: Suppressed,
    pub(crate) waiters: Semaphore,
    pub(crate) contracts: Lately<InForce>,
    /// How long successes are kept, of scopes that keep all of them.
    pub(crate) retentions: Arc<Lately<Arc<str>>>,
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
    pooler: bool,
}

impl<D: Driver> OnceBuilder<D> {
    /// The schema that pgonce is installed in; `pgonce` unless said otherwise.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// The isolation level of attempts.
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

    /// Who makes the attempts, for the eyes of an operator: a host, a pod, a process.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Says that the connections go through a transaction pooler (PgBouncer), which cannot keep
    /// named prepared statements.
    #[must_use]
    pub fn behind_pooler(mut self) -> Self {
        self.pooler = true;
        self
    }

    /// Makes it. Refuses a schema name that would need quotes.
    pub fn build(self) -> Result<Once<D>> {
        let begin = match self.isolation {
            Isolation::ReadCommitted => "begin",
            Isolation::RepeatableRead => "begin isolation level repeatable read",
            Isolation::Serializable => "begin isolation level serializable",
        };
        Ok(Once {
            driver: self.driver,
            shared: Arc::new(Shared {
                statements: Statements::new(&self.schema, !self.pooler)?,
                begin: begin.to_owned(),
                policy: self.policy,
                owner: self.owner.map(Into::into),
                suppressed: Suppressed::new(),
                waiters: Semaphore::new(WAITERS),
                contracts: Lately::default(),
                retentions: Arc::default(),
            }),
        })
    }
}

#[cfg(feature = "sqlx")]
impl Once<crate::driver::sqlx::Sqlx> {
    /// With the usual settings, over a pool of sqlx.
    pub fn sqlx(pool: sqlx::PgPool) -> Self {
        Self::builder(crate::driver::sqlx::Sqlx::new(pool))
            .build()
            .expect("the default schema name is valid")
    }
}

#[cfg(feature = "tokio-postgres")]
impl Once<crate::driver::tokio_postgres::TokioPostgres> {
    /// With the usual settings, over a deadpool pool of tokio-postgres.
    pub fn tokio_postgres(pool: deadpool_postgres::Pool) -> Self {
        Self::builder(crate::driver::tokio_postgres::TokioPostgres::new(pool))
            .build()
            .expect("the default schema name is valid")
    }
}

impl<D: Driver> Once<D> {
    /// Settings to choose.
    pub fn builder(driver: D) -> OnceBuilder<D> {
        OnceBuilder {
            driver,
            schema: DEFAULT_SCHEMA.to_owned(),
            isolation: Isolation::default(),
            policy: Policy::default(),
            owner: None,
            pooler: false,
        }
    }

    /// Asks for the right to do the work in one transaction (atomic mode).
    ///
    /// [`Once::run`] is this, with the loop around it.
    pub async fn claim(&self, intent: &Intent) -> Result<Claim<Attempt<D>>> {
        let claimed = self.claim_uncounted(intent).await;
        self.count_told(intent, &claimed);
        claimed
    }

    pub(crate) async fn claim_uncounted(&self, intent: &Intent) -> Result<Claim<Attempt<D>>> {
        fault_point!("claim.before_open");
        let mut session = self.driver.acquire().await?;
        let opened = self.open(&mut session, intent).await;
        fault_point!("claim.opened");
        let outcome = match opened {
            Ok(outcome) => outcome,
            Err(error) => {
                if !matches!(error, Error::Disconnected(_)) && session.rollback().await.is_ok() {
                    session.keep();
                }
                return Err(error);
            }
        };
        if let Outcome::Run {
            kind,
            fence,
            attempts,
        } = outcome
        {
            return Ok(Claim::Run(self.attempt(
                session,
                intent.clone(),
                kind,
                fence,
                attempts,
            )));
        }
        if matches!(&outcome, Outcome::Refused(failure) if failure.code() == ABANDONED) {
            // The claim itself may have decided so just now: it must last before anybody is told.
            match session.settle(&self.statements().nothing, &[]).await {
                Settled::Committed(_) => session.keep(),
                Settled::Refused(error) => return Err(error),
                Settled::Unknown(why) => return Err(Error::Uncertain(why)),
            }
            return Ok(outcome.finished());
        }
        // The answer is there: nobody needs to wait for the end of the transaction.
        tokio::spawn(async move {
            if session.rollback().await.is_ok() {
                session.keep();
            }
        });
        Ok(outcome.finished())
    }

    async fn open(&self, session: &mut D::Session, intent: &Intent) -> Result<Outcome> {
        let statements = self.statements();
        let params = [
            Param::Text(Some(intent.scope())),
            Param::Text(Some(intent.key())),
            Param::Bytes(intent.fingerprint().as_bytes()),
            Param::Text(Some(intent.tenant_name())),
        ];
        let first = intent.is_known_first();
        let row = session
            .begin(&Opening {
                begin: &self.shared.begin,
                claim: if first {
                    &statements.hold
                } else {
                    &statements.glance
                },
                params: &params,
                or_raise: OrRaise {
                    schema: &statements.schema,
                    intent,
                },
            })
            .await?;
        match row.map_or(Ok(Outcome::fresh()), Outcome::read)? {
            Outcome::Ask => self.ask(session, intent, None).await,
            outcome => Ok(outcome),
        }
    }

    /// The full claim.
    async fn ask(
        &self,
        session: &mut D::Session,
        intent: &Intent,
        lease: Option<Duration>,
    ) -> Result<Outcome> {
        let lease = lease.map(interval);
        let rows = session
            .query(
                &self.statements().claim,
                &[
                    Param::Text(Some(intent.scope())),
                    Param::Text(Some(intent.key())),
                    Param::Bytes(intent.fingerprint().as_bytes()),
                    Param::Text(lease.as_deref()),
                    Param::Text(self.owner()),
                    Param::Text(Some(intent.tenant_name())),
                    Param::Text(intent.correlation_id()),
                ],
            )
            .await?;
        rows.into_iter()
            .next()
            .map_or(Ok(Outcome::Ask), Outcome::read)
    }

    /// Counts a duplicate that was turned away.
    pub(crate) fn count_told<R>(&self, intent: &Intent, claimed: &Result<Claim<R>>) {
        let told = match claimed {
            Ok(Claim::Replay(_)) => Told::Replay,
            Ok(Claim::Refused(_)) => Told::Refused,
            Ok(Claim::Busy { .. }) => Told::Busy,
            Err(Error::Conflict(_)) => Told::Conflict,
            Ok(Claim::Run(_)) | Err(_) => return,
        };
        self.count(intent, told);
    }

    /// Asks for the right to do the work for a while (leased mode): for work that must call the
    /// outside world. The claim is committed when this returns.
    ///
    /// After [`Error::Uncertain`] the claim may stand; it runs out with its lease.
    pub async fn lease(&self, intent: &Intent, length: Duration) -> Result<Claim<Lease<D>>> {
        let claimed = self.lease_uncounted(intent, length).await;
        self.count_told(intent, &claimed);
        claimed
    }

    pub(crate) async fn lease_uncounted(
        &self,
        intent: &Intent,
        length: Duration,
    ) -> Result<Claim<Lease<D>>> {
        fault_point!("lease.before_claim");
        let renewed = Instant::now();
        let mut session = self.driver.acquire().await?;
        let asked = self.ask(&mut session, intent, Some(length)).await;
        fault_point!("lease.claimed");
        keep_unless_lost(session, &asked);
        match asked {
            Ok(Outcome::Run {
                kind,
                fence,
                attempts,
            }) => Ok(Claim::Run(Lease {
                once: self.clone(),
                intent: intent.clone(),
                kind,
                fence,
                attempts,
                length,
                renewed,
            })),
            Ok(outcome) => Ok(outcome.finished()),
            // The statement was its own transaction: it may have been committed.
            Err(Error::Disconnected(why)) => Err(Error::Uncertain(why)),
            Err(error) => Err(error),
        }
    }

    /// The stored answer, for a caller who knows that this is a retry: one plain look, no lock
    /// and no transaction. `None` says nothing: claim.
    pub async fn answer(&self, intent: &Intent) -> Result<Option<Done>> {
        let mut session = self.driver.acquire().await?;
        let rows = session
            .query(
                &self.statements().answer_of,
                &[
                    Param::Text(Some(intent.scope())),
                    Param::Text(Some(intent.key())),
                    Param::Bytes(intent.fingerprint().as_bytes()),
                    Param::Text(Some(intent.tenant_name())),
                ],
            )
            .await;
        keep_unless_lost(session, &rows);
        let Some(row) = rows?.into_iter().next() else {
            return Ok(None);
        };
        let columns = [Some("replay".to_owned()), None]
            .into_iter()
            .chain(row)
            .collect();
        match Outcome::read(columns)? {
            Outcome::Replay(done) => {
                self.count(intent, Told::Replay);
                Ok(Some(done))
            }
            _ => Ok(None),
        }
    }

    pub(crate) fn attempt(
        &self,
        session: D::Session,
        intent: Intent,
        kind: ClaimKind,
        fence: i64,
        attempts: u32,
    ) -> Attempt<D> {
        Attempt {
            session: Some(session),
            home: None,
            statements: self.shared.statements.clone(),
            retentions: self.shared.retentions.clone(),
            intent,
            owner: self.shared.owner.clone(),
            kind,
            fence,
            attempts,
        }
    }

    /// The driver underneath.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    pub(crate) fn statements(&self) -> &Statements {
        &self.shared.statements
    }

    pub(crate) fn shared_statements(&self) -> Arc<Statements> {
        self.shared.statements.clone()
    }

    /// How attempts begin.
    pub(crate) fn begin(&self) -> &str {
        &self.shared.begin
    }

    pub(crate) fn owner(&self) -> Option<&str> {
        self.shared.owner.as_deref()
    }
}
