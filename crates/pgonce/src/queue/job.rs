//! A job in the hands of its handler.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio::time::error::Elapsed;
use tracing::Instrument as _;
use tracing::field::Empty;

use crate::call::{Args, Row, Sql};
use crate::driver::Driver;
use crate::error::{Error, ErrorDetail, Result};
use crate::failure::Failure;
use crate::inbox::{array_of, limited};
use crate::once::Once;
use crate::sqlstate::Class;
use crate::trace;
use crate::tx::Tx;

static CLAIM: Sql = Sql::kept(
    "select tenant, id, fence, attempts, queue, key, payload::text, \
     (extract(epoch from created_at) operator(pg_catalog.*) 1000000)::bigint::text \
     from pgonce.claim_jobs($1::text::text[], $2, $3::text::interval, $4::text::integer)",
);
/// On Citus: who has jobs, which reads every shard, and those of one tenant, on its server.
static TENANTS: Sql = Sql::kept("select t from pgonce._tenants_with_jobs($1::text::text[], 100) t");
static CLAIM_OF_TENANT: Sql = Sql::kept(
    "select tenant, id, fence, attempts, queue, key, payload::text, \
     (extract(epoch from created_at) operator(pg_catalog.*) 1000000)::bigint::text \
     from pgonce._claim_jobs_of($1::text::text[], $2, $3::text::interval, $4::text::integer, $5)",
);
static FAIL: Sql = Sql::kept(
    "select pgonce.fail_job($1::text::bigint, $2::text::bigint, $3::text::boolean, $4, $5, null, $6)",
);
static RENEW: Sql =
    Sql::kept("select tenant, id, fence from pgonce.renew_jobs($1, $2::text::interval)");
/// In the transaction of the effect, which must still be open.
pub(super) static FINISH_HERE: Sql =
    Sql::kept("select pgonce.finish_jobs($1) where pgonce._assert_same_batch()");

/// Maximum number of tries of one transaction, before the job itself is tried again later.
const TRIES: u32 = 5;

/// A job's tenant, number and fence: one attempt at it.
pub(super) type Name = (String, i64, i64);

/// A job as it was claimed.
pub(super) struct Claimed {
    pub(super) tenant: String,
    pub(super) id: i64,
    pub(super) fence: i64,
    pub(super) attempts: u32,
    pub(super) queue: String,
    pub(super) key: Option<String>,
    pub(super) payload: Option<String>,
    /// When it was enqueued, in microseconds: with its number, what no other job has, in another database neither.
    pub(super) created: String,
}

impl Claimed {
    pub(super) fn read(mut row: Row) -> Result<Self> {
        Ok(Self {
            tenant: row.text()?,
            id: row.get()?,
            fence: row.get()?,
            attempts: row.get()?,
            queue: row.text()?,
            key: row.opt_text(),
            payload: row.opt_text(),
            created: row.text()?,
        })
    }

    pub(super) fn name(&self) -> Name {
        (self.tenant.clone(), self.id, self.fence)
    }

    /// What names it to the database.
    pub(super) fn named(&self) -> Value {
        json!({"tenant": self.tenant, "id": self.id, "fence": self.fence})
    }

    pub(super) fn named_with(&self, field: &str, value: Option<&Value>) -> Value {
        let mut named = self.named();
        if let (Some(value), Some(fields)) = (value, named.as_object_mut()) {
            fields.insert(field.to_owned(), value.clone());
        }
        named
    }
}

/// Maximum number of jobs that the database gives in one claim.
const MAX_CLAIMED: usize = 10_000;

/// Claims jobs of some queues, as an array literal, or of all.
pub(super) async fn claim<D: Driver>(
    once: &Once<D>,
    queues: Option<&str>,
    owner: &str,
    lease: Duration,
    limit: usize,
) -> Result<Vec<Claimed>> {
    let limit = limit.min(MAX_CLAIMED);
    if once.caller().schema.is_distributed() {
        return claim_by_tenant(once, queues, owner, lease, limit).await;
    }
    let args = Args::new()
        .text(queues)
        .text(owner)
        .interval(lease)
        .count(limit);
    claim_with(once, &CLAIM, args).await
}

/// On Citus: claims jobs tenant by tenant, each on its server and in a transaction of its own, which commits in one phase.
async fn claim_by_tenant<D: Driver>(
    once: &Once<D>,
    queues: Option<&str>,
    owner: &str,
    lease: Duration,
    limit: usize,
) -> Result<Vec<Claimed>> {
    let rows = once
        .caller()
        .call(&TENANTS, Args::new().text(queues))
        .await?;
    let tenants = rows.read(|mut row| row.text())?;
    let mut jobs = Vec::new();
    for tenant in &tenants {
        let room = limit.saturating_sub(jobs.len());
        if room == 0 {
            break;
        }
        let args = Args::new()
            .text(queues)
            .text(owner)
            .interval(lease)
            .count(room)
            .text(&**tenant);
        let claimed = claim_with(once, &CLAIM_OF_TENANT, args).await;
        match claimed {
            Ok(more) => jobs.extend(more),
            // One server is away: what others gave is not kept back for it.
            Err(error) if !jobs.is_empty() => {
                tracing::warn!(%error, "the jobs of a tenant could not be claimed");
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(jobs)
}

async fn claim_with<D: Driver>(once: &Once<D>, sql: &Sql, args: Args<'_>) -> Result<Vec<Claimed>> {
    once.caller().write(sql, args).await?.read(Claimed::read)
}

/// Records a failure of a claimed job.
pub(super) async fn fail<D: Driver>(
    once: &Once<D>,
    claimed: &Claimed,
    (retryable, code, message): (bool, &str, &str),
) -> Result<()> {
    let (code, message) = (code.replace('\0', ""), message.replace('\0', ""));
    let args = Args::new()
        .int(claimed.id)
        .int(claimed.fence)
        .bool(retryable)
        .text(&*code)
        .text(&*message)
        .text(&*claimed.tenant);
    once.caller().write(&FAIL, args).await.map(drop)
}

impl<D: Driver> Once<D> {
    /// Claims jobs without a [`Worker`](super::Worker), for control flow of your own; no queues are all. End each with
    /// [`Job::transact`] or [`Job::fail`] before its lease is over, or renew it by [`Job::progress`].
    pub async fn claim_jobs(
        &self,
        queues: &[&str],
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Job<D>>> {
        let queues = (!queues.is_empty()).then(|| array_of(queues.iter().copied()));
        let claimed = claim(self, queues.as_deref(), owner, lease, limit).await?;
        let job = |claimed| Job {
            once: self.clone(),
            claimed: Arc::new(claimed),
            lease,
            until: None,
        };
        Ok(claimed.into_iter().map(job).collect())
    }
}

/// A job that a [`Worker`](super::Worker) gave to its handler. Its lease is renewed while the handler works.
///
/// End it with [`Job::transact`], which commits effects and the end of the job together, or with
/// [`Job::done`] where there is nothing to commit.
pub struct Job<D: Driver> {
    pub(super) once: Once<D>,
    pub(super) claimed: Arc<Claimed>,
    pub(super) lease: Duration,
    /// When its worker waits for its handler no longer.
    pub(super) until: Option<Instant>,
}

/// Proof that a handler came to the end of its job. Made by [`Job::transact`] and [`Job::done`].
#[derive(Debug)]
#[must_use = "a handler returns it"]
pub struct Finished(pub(super) End);

#[derive(Debug)]
pub(super) enum End {
    /// Committed with its effect.
    Committed,
    /// To be recorded by the worker, together with others.
    Pending(Option<Value>),
}

impl<D: Driver> Job<D> {
    /// The job's number.
    pub fn id(&self) -> i64 {
        self.claimed.id
    }

    /// The queue it was in.
    pub fn queue(&self) -> &str {
        &self.claimed.queue
    }

    /// The key whose jobs run in order, if it has one.
    pub fn key(&self) -> Option<&str> {
        self.claimed.key.as_deref()
    }

    /// The tenant it belongs to; empty where there are none.
    pub fn tenant(&self) -> &str {
        &self.claimed.tenant
    }

    /// Which attempt this is; above 1, an earlier one may have reached the outside world.
    pub fn attempts(&self) -> u32 {
        self.claimed.attempts
    }

    /// The rising number that shuts out older holders; send it along where others can check it.
    pub fn fence(&self) -> i64 {
        self.claimed.fence
    }

    /// A key that is the same on every attempt and another for every job, also of other databases: what a service needs that is called
    /// for this job, as its `Idempotency-Key`.
    pub fn idempotency_key(&self) -> String {
        let Claimed {
            tenant,
            id,
            created,
            ..
        } = &*self.claimed;
        crate::key::derived(
            "job",
            &[tenant.as_str(), id.to_string().as_str(), created.as_str()],
        )
    }

    /// The payload, as the type it was made from.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        let text = self.claimed.payload.as_deref().unwrap_or("null");
        Ok(serde_json::from_str(text)?)
    }

    /// Records how far the job is, for everyone who looks at it, and renews its lease.
    /// [`Error::Fenced`]: it is no longer yours.
    pub async fn progress(&self, progress: &(impl Serialize + ?Sized)) -> Result<()> {
        let progress = serde_json::to_value(progress)?;
        let jobs = json!([self.claimed.named_with("progress", Some(&progress))]).to_string();
        let held = renew(&self.once, &jobs, self.lease).await?;
        match held.is_empty() {
            true => Err(not_held()),
            false => Ok(()),
        }
    }

    /// Does the job in one transaction: what `work` writes commits together with the end of the job and
    /// its result, or not at all. A worker that was replaced meanwhile, or whose job was cancelled, gets
    /// [`Error::Fenced`] and leaves nothing.
    ///
    /// After a deadlock or the like `work` is called again, in a new transaction.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(job: pgonce::queue::Job<pgonce::driver::sqlx::Sqlx>) -> Result<(), pgonce::Error> {
    /// let item: String = job.payload()?;
    /// let finished = job
    ///     .transact(async |mut tx| {
    ///         sqlx::query("insert into parcels (item) values ($1)")
    ///             .bind(&item)
    ///             .execute(tx.conn())
    ///             .await?;
    ///         Ok("packed")
    ///     })
    ///     .await?;
    /// # let _ = finished;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transact<F, W, R>(&self, mut work: F) -> Result<Finished>
    where
        F: FnMut(Tx<D::Session>) -> W,
        W: Future<Output = Result<R>>,
        R: Serialize,
    {
        let mut tries = 1;
        loop {
            match self.try_transact(&mut work).await {
                Err(error)
                    if tries < TRIES
                        && error.class() == Class::Retry
                        && !matches!(error, Error::Failed(_)) =>
                {
                    tracing::debug!(%error, job = self.id(), "trying the transaction again");
                    tries += 1;
                }
                ended => return ended,
            }
        }
    }

    async fn try_transact<F, W, R>(&self, work: &mut F) -> Result<Finished>
    where
        F: FnMut(Tx<D::Session>) -> W,
        W: Future<Output = Result<R>>,
        R: Serialize,
    {
        fault_point!("queue.before_begin");
        // A statement goes on in the database when nobody waits for it any longer, and keeps its connection.
        let left = |until: Instant| limited(until.saturating_duration_since(Instant::now()));
        let settings = self.until.map(left).unwrap_or_default();
        let mut batch = self.once.inbox().open(&settings).await?;
        fault_point!("queue.begun");
        let worked = match batch.lend(&self.claimed.tenant) {
            Ok(tx) => work(tx).await,
            Err(error) => Err(error),
        };
        let result = match worked.and_then(|result| Ok(serde_json::to_value(result)?)) {
            Ok(result) => result,
            Err(error) => {
                // The error is what counts; a session that cannot roll back is closed.
                let _ = batch.roll_back().await;
                return Err(error);
            }
        };
        let jobs = json!([self.claimed.named_with("result", Some(&result))]).to_string();
        fault_point!("queue.before_finish");
        batch.settle(&FINISH_HERE, Args::new().json(&*jobs)).await?;
        fault_point!("queue.finished");
        Ok(Finished(End::Committed))
    }

    /// Records that the job failed: a permanent failure makes it a dead letter, after a transient one it is tried again.
    /// A [`Worker`](super::Worker) does this with the error that its handler returns.
    pub async fn fail(&self, failure: &Failure) -> Result<()> {
        let why = (failure.is_retryable(), failure.code(), failure.message());
        fail(&self.once, &self.claimed, why).await
    }

    /// The job is done, with a result, and nothing is to be committed with it. The worker records the end
    /// of many jobs at a time: killed before that, the job is done again.
    pub fn done(&self, result: &(impl Serialize + ?Sized)) -> Result<Finished> {
        Ok(Finished(End::Pending(Some(serde_json::to_value(result)?))))
    }
}

/// How a handler ended; it may have panicked, or taken too long.
type Worked = Result<thread::Result<Result<Finished>>, Elapsed>;

/// A handler at work on a job, in a span of its own: a job carries no trace.
pub(super) fn in_span(
    claimed: &Claimed,
    working: impl Future<Output = Worked>,
) -> impl Future<Output = Worked> {
    let span = tracing::info_span!(
        "pgonce.job",
        otel.name = %format_args!("process {}", claimed.queue),
        otel.kind = "consumer",
        messaging.system = "pgonce",
        "messaging.operation.type" = "process",
        messaging.destination.name = claimed.queue,
        pgonce.job = claimed.id,
        pgonce.attempts = i64::from(claimed.attempts),
        pgonce.outcome = Empty,
        "error.type" = Empty,
        otel.status_code = Empty,
    );
    working.instrument(span.clone()).inspect(move |worked| {
        let broke_off = |outcome: &str| {
            span.record("pgonce.outcome", outcome);
            span.record("otel.status_code", "error");
        };
        match worked {
            Ok(Ok(Ok(_))) => {
                span.record("pgonce.outcome", "done");
            }
            Ok(Ok(Err(error))) => trace::failed(&span, error),
            Ok(Err(_)) => broke_off("panicked"),
            Err(_) => broke_off("timed_out"),
        }
    })
}

/// Renews leases. Returns the jobs that are still held.
pub(super) async fn renew<D: Driver>(
    once: &Once<D>,
    jobs: &str,
    lease: Duration,
) -> Result<Vec<Name>> {
    let args = Args::new().json(jobs).interval(lease);
    let rows = once.caller().call(&RENEW, args).await?;
    rows.read(|mut row| Ok((row.text()?, row.get()?, row.get()?)))
}

pub(super) fn not_held() -> Error {
    Error::Fenced(ErrorDetail::new(
        "P4012",
        "the job is no longer this worker's",
        "Stop: another worker has it, or it was cancelled.",
    ))
}

/// Keys and payload stay out of logs.
impl<D: Driver> fmt::Debug for Job<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("queue", &self.claimed.queue)
            .field("id", &self.claimed.id)
            .field("attempts", &self.claimed.attempts)
            .finish_non_exhaustive()
    }
}
