//! What queues allow, and what became of jobs.

use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::Result;
use crate::once::Once;

static DEFINE: Sql = Sql::seldom(
    "select 'done' from pgonce.define_queue($1, $2::text::boolean, $3::text::integer, $4::text::interval, \
     $5::text::interval, $6::text::interval, $7::text::integer, $8::text::integer, $9::text::integer, $10::text::interval)",
);
static SCHEDULE: Sql =
    Sql::seldom("select 'done' from pgonce.define_schedule($1, $2, $3, $4, $5, $6)");
static CANCEL: Sql =
    Sql::seldom("select c::text from pgonce.cancel_job($1::text::bigint, $2, $3) c");
static RETRY: Sql =
    Sql::seldom("select n::text from pgonce.retry_jobs($1, $2::text::bigint, $3) n");
static JOB: Sql = Sql::kept(
    "select j.status, j.attempts::text, j.failure_code, j.failure_message, j.progress::text, j.result::text \
     from pgonce._job($1, $2::text::bigint) j",
);
static GROUP: Sql = Sql::kept(
    "select g.status, g.jobs::text, g.live::text, g.succeeded::text, g.dead::text, g.cancelled::text \
     from pgonce._job_group($1, $2) g",
);

/// What a queue allows. What is not set stays as it was.
///
/// ```
/// use std::time::Duration;
/// use pgonce::queue::Queue;
///
/// let mail = Queue::new("mail").max_running(5).rate(100, Duration::from_secs(1)).max_attempts(20);
/// # let _ = mail;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "settings are nothing until Once::define_queue"]
pub struct Queue {
    name: String,
    paused: Option<bool>,
    max_attempts: Option<u32>,
    backoff: Option<(Duration, Duration)>,
    keep: Option<Duration>,
    max_running: Option<u32>,
    max_per_key: Option<u32>,
    rate: Option<(u32, Duration)>,
}

impl Queue {
    /// The queue of this name; `*` for all that nobody defined.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            paused: None,
            max_attempts: None,
            backoff: None,
            keep: None,
            max_running: None,
            max_per_key: None,
            rate: None,
        }
    }

    /// Whether its jobs wait. Default: no.
    pub fn paused(mut self, paused: bool) -> Self {
        self.paused = Some(paused);
        self
    }

    /// Maximum number of tries before a job is a dead letter. Default: 10.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Pause after a job's first failure, which doubles with each, and its maximum. Default: a second, an hour.
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.backoff = Some((first, max));
        self
    }

    /// Retention of ended jobs, their results and their unique keys; zero: none. Dead letters stay. Default: seven days.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = Some(keep);
        self
    }

    /// Maximum number of jobs that run at a time, over all workers; zero: no maximum. Default: none.
    pub fn max_running(mut self, jobs: u32) -> Self {
        self.max_running = Some(jobs);
        self
    }

    /// Maximum number of jobs of one key that run at a time. Default: 1, so they run in order.
    pub fn max_per_key(mut self, jobs: u32) -> Self {
        self.max_per_key = Some(jobs);
        self
    }

    /// Maximum number of jobs that are started in a period, over all workers; zero: no maximum. Default: none.
    pub fn rate(mut self, jobs: u32, per: Duration) -> Self {
        self.rate = Some((jobs, per));
        self
    }
}

/// What became of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobInfo {
    /// `ready`, `blocked` (behind another of its key), `scheduled`, `retrying`, `running`, `succeeded`, `dead` or `cancelled`.
    pub status: String,
    /// How often it was tried.
    pub attempts: u32,
    /// The code of its last failure.
    pub failure_code: Option<String>,
    /// The message of its last failure.
    pub failure_message: Option<String>,
    progress: Option<String>,
    result: Option<String>,
}

impl JobInfo {
    /// How far the handler said it was; `None`: it said nothing.
    pub fn progress<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        parsed(self.progress.as_deref())
    }

    /// The result of a job that succeeded.
    pub fn result<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        parsed(self.result.as_deref())
    }
}

fn parsed<T: DeserializeOwned>(text: Option<&str>) -> Result<Option<T>> {
    Ok(text.map(serde_json::from_str).transpose()?)
}

/// How far a group of jobs is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Group {
    /// `running`, `finished`, or `stuck`: nothing of it may still run, and there are dead letters.
    pub status: String,
    /// Number of jobs in the group.
    pub jobs: u64,
    /// Number of jobs that have not ended.
    pub live: u64,
    /// Number of jobs that succeeded.
    pub succeeded: u64,
    /// Number of dead letters.
    pub dead: u64,
    /// Number of jobs that were cancelled.
    pub cancelled: u64,
}

impl<D: Driver> Once<D> {
    /// Says what a queue allows.
    pub async fn define_queue(&self, queue: &Queue) -> Result<()> {
        let number = |number: Option<u32>| number.map(i64::from);
        let args = Args::new()
            .text(&*queue.name)
            .text(
                queue
                    .paused
                    .map(|paused| if paused { "true" } else { "false" }),
            )
            .int(number(queue.max_attempts))
            .interval(queue.backoff.map(|(first, _)| first))
            .interval(queue.backoff.map(|(_, max)| max))
            .interval(queue.keep)
            .int(number(queue.max_running))
            .int(number(queue.max_per_key))
            .int(number(queue.rate.map(|(jobs, _)| jobs)))
            .interval(queue.rate.map(|(_, per)| per));
        self.caller().write(&DEFINE, args).await.map(drop)
    }

    /// Enqueues a job at the times of a cron expression of five fields, in a time zone such as
    /// `Europe/Berlin`. Of all workers one enqueues it. `cron` `None` ends the schedule.
    pub async fn define_schedule(
        &self,
        name: &str,
        cron: Option<&str>,
        zone: &str,
        job: &super::NewJob,
    ) -> Result<()> {
        let args = Args::new()
            .text(name)
            .text(cron)
            .text(&*job.queue)
            .json(job.payload.as_deref())
            .text(zone)
            .text("");
        self.caller().write(&SCHEDULE, args).await.map(drop)
    }

    /// Ends a job that is not done; one that runs is taken from its worker. Returns whether it was.
    pub async fn cancel_job(&self, tenant: &str, id: i64, reason: &str) -> Result<bool> {
        let args = Args::new().int(id).text(reason).text(tenant);
        self.caller().write(&CANCEL, args).await?.one()?.bool()
    }

    /// Tries dead letters of a queue again: one, or all. Returns how many.
    pub async fn retry_jobs(&self, queue: &str, id: Option<i64>, reason: &str) -> Result<u64> {
        let args = Args::new().text(queue).int(id).text(reason);
        self.caller().write(&RETRY, args).await?.one()?.get()
    }

    /// What became of a job. `None`: there is no such job, or its record is no longer kept.
    pub async fn job(&self, tenant: &str, id: i64) -> Result<Option<JobInfo>> {
        let rows = self
            .caller()
            .call(&JOB, Args::new().text(tenant).int(id))
            .await?;
        let Some(mut row) = rows.first() else {
            return Ok(None);
        };
        Ok(Some(JobInfo {
            status: row.text()?,
            attempts: row.get()?,
            failure_code: row.opt_text(),
            failure_message: row.opt_text(),
            progress: row.opt_text(),
            result: row.opt_text(),
        }))
    }

    /// How far a group of jobs is. `None`: there is no such group.
    pub async fn job_group(&self, tenant: &str, group: &str) -> Result<Option<Group>> {
        let rows = self
            .caller()
            .call(&GROUP, Args::texts([tenant, group]))
            .await?;
        let Some(mut row) = rows.first() else {
            return Ok(None);
        };
        Ok(Some(Group {
            status: row.text()?,
            jobs: row.get()?,
            live: row.get()?,
            succeeded: row.get()?,
            dead: row.get()?,
            cancelled: row.get()?,
        }))
    }
}
