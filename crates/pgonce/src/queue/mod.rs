//! A work queue: jobs that are enqueued with the effect they belong to, and done once.
//!
//! [`Tx::enqueue`] puts a [`NewJob`] into a queue in the transaction of its cause. A [`Worker`] claims
//! jobs, renews their leases while a handler works, and finishes each in the transaction of its effect
//! ([`Job::transact`]): a worker that was replaced cannot commit.

mod event;
mod job;
mod leases;
mod operate;
mod peek;
mod worker;

use std::borrow::Borrow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::call::{Args, Sql};
use crate::driver::{Connection, Driver, InTransaction};
use crate::error::Result;
use crate::once::Once;
use crate::tx::Tx;
use crate::unique::Inserted;

pub use job::{Finished, Job};
pub use operate::{Group, JobInfo, Queue};
pub use worker::Worker;

static ENQUEUE: Sql = Sql::kept(
    "select id, made_now::text from pgonce.enqueue($1, $2, $3, $4, $5::text::integer, \
     coalesce(pg_catalog.to_timestamp($6::text::double precision), pgonce.now() operator(pg_catalog.+) $7::text::interval), $8, $9)",
);

/// A job to be enqueued.
///
/// ```
/// use pgonce::queue::NewJob;
///
/// # fn example() -> Result<(), pgonce::Error> {
/// let job = NewJob::new("mail")
///     .payload(&serde_json::json!({"to": "ada"}))?
///     .unique_key("welcome-7")
///     .key("ada");
/// # let _ = job;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "a job is nothing until it is enqueued"]
pub struct NewJob {
    queue: String,
    payload: Option<String>,
    unique_key: Option<String>,
    key: Option<String>,
    priority: i16,
    run_at: Option<SystemTime>,
    delay: Option<Duration>,
    group: Option<String>,
}

impl NewJob {
    /// A job for this queue, without a payload.
    pub fn new(queue: impl Into<String>) -> Self {
        Self {
            queue: queue.into(),
            payload: None,
            unique_key: None,
            key: None,
            priority: 0,
            run_at: None,
            delay: None,
            group: None,
        }
    }

    /// What the handler gets, as JSON. Default: nothing.
    pub fn payload(mut self, payload: &(impl Serialize + ?Sized)) -> Result<Self> {
        self.payload = Some(serde_json::to_string(payload)?);
        Ok(self)
    }

    /// Names the job: enqueued again with this name it is the same job, for as long as its record is
    /// kept. `P4085`: the name was used with another payload. Default: none.
    pub fn unique_key(mut self, key: impl Into<String>) -> Self {
        self.unique_key = Some(key.into());
        self
    }

    /// Jobs of one key run one after the other, in the order in which they were enqueued, or as many at a
    /// time as [`Queue::max_per_key`] allows. Default: none.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Jobs with a higher priority come first. Default: 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// Earliest time at which the job runs. Default: at once.
    pub fn run_at(mut self, time: SystemTime) -> Self {
        self.run_at = Some(time);
        self
    }

    /// Time from now, by the database's clock, before the job may run. Default: none.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// The group that reports when all its jobs are finished; see [`Once::job_group`]. Default: none.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }
}

/// Keys and payload stay out of logs.
impl fmt::Debug for NewJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewJob")
            .field("queue", &self.queue)
            .field("priority", &self.priority)
            .finish_non_exhaustive()
    }
}

impl<C: Connection> Tx<C> {
    /// Puts a job into its queue. It exists if and only if the transaction commits. Returns its number.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(tx: &mut pgonce::sqlx::Tx) -> Result<(), pgonce::Error> {
    /// use pgonce::queue::NewJob;
    ///
    /// let mail = NewJob::new("mail").payload(&"welcome")?.unique_key("welcome-7");
    /// let id = tx.enqueue(&mail).await?.into_inner();
    /// # let _ = id;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn enqueue(&mut self, job: impl Borrow<NewJob> + Send) -> Result<Inserted<i64>> {
        let job = job.borrow();
        let tenant = self.shared_tenant().unwrap_or_default();
        let run_at = job.run_at.map(|time| {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            format!("{}.{:06}", since.as_secs(), since.subsec_micros())
        });
        let args = Args::new()
            .text(&*job.queue)
            .json(job.payload.as_deref())
            .text(job.unique_key.as_deref())
            .text(job.key.as_deref())
            .int(i64::from(job.priority))
            .text(run_at.as_deref())
            .interval(job.delay)
            .text(job.group.as_deref())
            .text(&*tenant);
        let mut row = self.call(&ENQUEUE, args).await?.one()?;
        let id = row.get()?;
        Ok(match row.bool()? {
            true => Inserted::New(id),
            false => Inserted::Existing(id),
        })
    }
}

impl<D: Driver> Once<D> {
    /// Puts a job into its queue in a transaction that you opened: it exists if and only if that commits.
    /// Returns its number.
    pub async fn enqueue<T: InTransaction>(
        &self,
        tx: &mut T,
        job: impl Borrow<NewJob> + Send,
    ) -> Result<Inserted<i64>> {
        self.tx_on(tx, None).enqueue(job).await
    }
}
