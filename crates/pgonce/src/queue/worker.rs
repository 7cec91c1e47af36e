//! Claims jobs and runs them.
//!
//! What can strike, and what then happens: killed anywhere, the leases run out and the jobs are given to others, except
//! those whose end was committed; a reply to a commit that is lost is resolved by the next statement about the job, which
//! is turned away where it was committed; a lease that is lost aborts the handler, whose commit would be turned away.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::job::{Claimed, End, Finished, Job, claim, in_span, renew};
use super::leases::{
    Done, Held, Holding, bounded, keep_leases, keep_purging, locked, mark_ended, record,
    record_failure,
};
use super::peek::keep_peeking;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::once::Once;

/// The pause before a worker looks for jobs again when it last found some.
const SHORT: Duration = Duration::from_millis(5);
/// Maximum time of each last call of a worker whose time to shut down is over.
const LAST_CALL: Duration = Duration::from_secs(1);

/// Claims jobs of some queues and runs a handler for each. Made by [`Once::worker`].
///
/// ```no_run
/// # #[cfg(feature = "sqlx")]
/// # async fn example(once: pgonce::sqlx::Once, stop: impl Future<Output = ()>) {
/// let worker = once
///     .worker(["mail"], |job| async move {
///         let to: String = job.payload()?;
///         println!("a letter for {to}");
///         job.done("sent")
///     })
///     .concurrency(20);
/// worker.run(stop).await;
/// # }
/// ```
#[must_use = "a worker does nothing until it runs"]
pub struct Worker<D: Driver, H> {
    once: Once<D>,
    /// `None`: all of them.
    queues: Option<String>,
    handler: Arc<H>,
    pub(crate) owner: String,
    concurrency: usize,
    prefetch: usize,
    lease: Duration,
    poll: Duration,
    timeout: Option<Duration>,
    grace: Duration,
    wake: Arc<Notify>,
}

impl<D: Driver> Once<D> {
    /// A worker for these queues; none are all.
    ///
    /// A handler that returns a permanent [`Failure`](crate::Failure) makes its job a dead letter; after any other error,
    /// or a panic, it is tried again, as often and as late as its queue says.
    pub fn worker<Q, H, F>(&self, queues: Q, handler: H) -> Worker<D, H>
    where
        Q: IntoIterator,
        Q::Item: AsRef<str>,
        H: Fn(Job<D>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Finished>> + Send + 'static,
    {
        let names: Vec<_> = queues.into_iter().collect();
        let owner = match self.owner() {
            Some(owner) => owner.to_owned(),
            None => format!("process {}", std::process::id()),
        };
        Worker {
            once: self.clone(),
            queues: (!names.is_empty())
                .then(|| crate::inbox::array_of(names.iter().map(AsRef::as_ref))),
            handler: Arc::new(handler),
            owner,
            concurrency: 10,
            prefetch: 0,
            lease: Duration::from_secs(30),
            poll: Duration::from_millis(500),
            timeout: None,
            grace: Duration::from_secs(20),
            wake: Arc::default(),
        }
    }
}

impl<D: Driver, H> Worker<D, H> {
    /// Maximum number of handlers that run at a time. Default: 10.
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.concurrency = jobs.max(1);
        self
    }

    /// Number of jobs that are claimed before a handler is free: more for short jobs, none for long ones, which
    /// others might do. Default: 0.
    pub fn prefetch(mut self, jobs: usize) -> Self {
        self.prefetch = jobs.min(5000);
        self
    }

    /// Time after which the jobs of a worker that vanished are given to others. Renewed while handlers run.
    /// Default: 30 seconds.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.max(Duration::from_millis(100));
        self
    }

    /// Maximum pause between claims. A job that is enqueued wakes the worker sooner, but not on Citus; this one is for what time
    /// brings, such as retries. Default: half a second.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll = interval.max(SHORT);
        self
    }

    /// Maximum time a handler may run; then it is dropped and the job fails, to be tried again. Default: none.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Maximum time that handlers get to end after the shutdown; then they are dropped, and their jobs
    /// given back, without counting the attempt. Default: 20 seconds.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.grace = timeout;
        self
    }

    /// Makes the worker look for jobs at once when it is notified: by code of the same process that enqueues, or by
    /// a listener.
    pub fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }
}

/// When a claim was sent, and what it gave.
type Claim = (Instant, Vec<Claimed>);

/// How a handler ended.
enum Ended {
    Returned(Result<Finished>),
    Panicked,
    TimedOut,
}

impl<D, H, F> Worker<D, H>
where
    D: Driver,
    H: Fn(Job<D>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Finished>> + Send + 'static,
{
    /// Works until `shutdown` completes, and then until the handlers that run have ended. Errors of the
    /// database are logged and survived.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let holding = Holding::default();
        let mut run = Run {
            holding: holding.clone(),
            tasks: JoinSet::new(),
            waiting: VecDeque::new(),
            done: Vec::new(),
            records: JoinSet::new(),
            recording: None,
            claiming: None,
            is_behind: Arc::default(),
            next_record: Instant::now(),
            pause: SHORT,
            next_claim: Instant::now(),
            worker: self,
        };
        // Dropped with this future, so that nobody renews the leases of handlers that are gone.
        let mut background = JoinSet::new();
        let once = run.worker.once.clone();
        let (lease, is_behind) = (run.worker.lease, run.is_behind.clone());
        background.spawn(keep_leases(once.clone(), holding, lease, is_behind));
        background.spawn(keep_purging(once.clone()));
        let (queues, wake) = (run.worker.queues.clone(), run.worker.wake.clone());
        // On Citus a look reads every shard, as a claim does.
        if !once.caller().schema.is_distributed() {
            background.spawn(keep_peeking(once, queues, run.worker.lease, wake));
        }
        run.until(shutdown).await;
    }
}

struct Run<D: Driver, H> {
    worker: Worker<D, H>,
    holding: Holding,
    tasks: JoinSet<(Arc<Claimed>, Ended)>,
    /// Claimed, not started.
    waiting: VecDeque<Arc<Claimed>>,
    /// Done, not recorded.
    done: Vec<Done>,
    /// Failures that are being recorded.
    records: JoinSet<()>,
    /// Ends that are being recorded; returns those that are to be tried again.
    recording: Option<JoinHandle<Vec<Done>>>,
    /// A claim that is under way, and how many jobs it asks for.
    claiming: Option<JoinHandle<(usize, Result<Claim>)>>,
    /// Leases of jobs that have ended run out before that is recorded: who did them must not claim them once more.
    is_behind: Arc<AtomicBool>,
    next_record: Instant,
    pause: Duration,
    next_claim: Instant,
}

impl<D, H, F> Run<D, H>
where
    D: Driver,
    H: Fn(Job<D>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Finished>> + Send + 'static,
{
    async fn until(&mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut stop_at = None;
        let wake = self.worker.wake.clone();
        loop {
            let stopping = stop_at.is_some();
            if stop_at.is_some_and(|end| Instant::now() >= end) {
                return self.drop_handlers().await;
            }
            if let Some(end) = stop_at
                && !self.waiting.is_empty()
            {
                let limit = self
                    .worker
                    .lease
                    .min(end.saturating_duration_since(Instant::now()));
                let waiting = self.waiting.drain(..).map(|claimed| (claimed, false));
                let waiting = waiting.collect();
                self.give_back(waiting, limit).await;
            }
            self.start_waiting();
            let room = self.room(stopping);
            self.start_claiming(room);
            self.start_recording();
            let idle = self.tasks.is_empty() && self.records.is_empty() && self.done.is_empty();
            if stopping && idle && self.recording.is_none() && self.claiming.is_none() {
                return;
            }
            let looks = room > 0 && self.claiming.is_none();
            let records = !self.done.is_empty() && self.recording.is_none();
            tokio::select! {
                Some(ended) = self.tasks.join_next() => {
                    self.ended(ended);
                    while let Some(ended) = self.tasks.try_join_next() {
                        self.ended(ended);
                    }
                }
                Some(_) = self.records.join_next() => {}
                again = result_of(&mut self.recording) => self.recorded(again.unwrap_or_default()),
                claimed = result_of(&mut self.claiming) => self.claimed(claimed),
                () = sleep_until(self.next_record), if records => {}
                () = sleep_until(self.next_claim), if looks => {}
                () = sleep(self.worker.lease / 5), if self.is_behind.load(Ordering::Relaxed) => {}
                () = wake.notified(), if looks => {
                    (self.pause, self.next_claim) = (SHORT, Instant::now());
                }
                () = &mut shutdown, if !stopping => stop_at = Some(Instant::now() + self.worker.grace),
                () = sleep_until(stop_at.unwrap_or_else(Instant::now)), if stopping => {}
            }
        }
    }

    /// How many jobs to claim.
    fn room(&self, stopping: bool) -> usize {
        let worker = &self.worker;
        if stopping || self.is_behind.load(Ordering::Relaxed) {
            return 0;
        }
        let room = (worker.concurrency + worker.prefetch)
            .saturating_sub(self.tasks.len() + self.waiting.len() + self.done.len());
        // Not one by one while there is enough to do.
        match self.waiting.len() > worker.prefetch / 2 {
            true => 0,
            false => room,
        }
    }

    fn start_waiting(&mut self) {
        while self.tasks.len() < self.worker.concurrency {
            let Some(claimed) = self.waiting.pop_front() else {
                return;
            };
            let (name, handler) = (claimed.name(), self.worker.handler.clone());
            let limit = self.worker.timeout.unwrap_or(Duration::MAX);
            let job = Job {
                once: self.worker.once.clone(),
                claimed: claimed.clone(),
                lease: self.worker.lease,
                until: Instant::now().checked_add(limit),
            };
            let task = async move {
                let work = AssertUnwindSafe(async { handler(job).await }).catch_unwind();
                let ended = match in_span(&claimed, timeout(limit, work)).await {
                    Ok(Ok(returned)) => Ended::Returned(returned),
                    Ok(Err(_)) => Ended::Panicked,
                    Err(_) => Ended::TimedOut,
                };
                (claimed, ended)
            };
            // Where its lease was lost while it waited, nobody starts it.
            if let Some(held) = locked(&self.holding).get_mut(&name) {
                held.running = Some(self.tasks.spawn(task));
            }
        }
    }

    fn ended(&mut self, ended: Result<(Arc<Claimed>, Ended), tokio::task::JoinError>) {
        // An aborted one has lost its lease, and is forgotten already.
        let Ok((claimed, ended)) = ended else { return };
        mark_ended(&self.holding, &claimed);
        let (retryable, code, message) = match ended {
            Ended::Returned(Ok(Finished(End::Committed))) => {
                return self.forget(&claimed);
            }
            Ended::Returned(Ok(Finished(End::Pending(result)))) => {
                return self.done.push((claimed, result));
            }
            Ended::Returned(Err(Error::Refused(failure))) => (
                false,
                failure.code().to_owned(),
                failure.message().to_owned(),
            ),
            Ended::Returned(Err(error)) => {
                let code = Some(error.code()).filter(|code| !code.is_empty());
                (true, code.unwrap_or("failed").to_owned(), error.to_string())
            }
            Ended::Panicked => (true, "panic".into(), "the handler panicked".into()),
            Ended::TimedOut => (true, "timeout".into(), "the handler took too long".into()),
        };
        tracing::warn!(
            job = claimed.id,
            queue = claimed.queue,
            attempts = claimed.attempts,
            code,
            "a job failed"
        );
        let (once, holding) = (self.worker.once.clone(), self.holding.clone());
        let lease = self.worker.lease;
        self.records.spawn(async move {
            let holding = (&holding, lease);
            record_failure(&once, holding, &claimed, retryable, &code, &message).await;
        });
    }

    fn forget(&self, claimed: &Claimed) {
        locked(&self.holding).remove(&claimed.name());
    }

    /// Claims jobs in a task of its own: what runs goes on meanwhile.
    fn start_claiming(&mut self, room: usize) {
        if room == 0 || self.claiming.is_some() || Instant::now() < self.next_claim {
            return;
        }
        let worker = &self.worker;
        let (once, queues, owner) = (
            worker.once.clone(),
            worker.queues.clone(),
            worker.owner.clone(),
        );
        let lease = worker.lease;
        self.claiming = Some(tokio::spawn(async move {
            let claim = async {
                fault_point!("queue.before_claim");
                let sent = Instant::now();
                let jobs = claim(&once, queues.as_deref(), &owner, lease, room).await?;
                fault_point!("queue.claimed");
                Ok((sent, jobs))
            };
            // What it gets later is given to others when its lease is over.
            (room, bounded(lease, claim).await)
        }));
    }

    fn claimed(&mut self, claimed: Option<(usize, Result<Claim>)>) {
        match claimed {
            Some((room, Ok((sent, jobs)))) => {
                let (found, full) = (!jobs.is_empty(), jobs.len() >= room);
                let mut holding = locked(&self.holding);
                for claimed in jobs.into_iter().map(Arc::new) {
                    let held = Held {
                        claimed: claimed.clone(),
                        renewed: sent,
                        running: None,
                        has_ended: false,
                    };
                    holding.insert(claimed.name(), held);
                    self.waiting.push_back(claimed);
                }
                drop(holding);
                self.pause = match found {
                    true => SHORT,
                    false => (self.pause * 2).min(self.worker.poll),
                };
                let pause = if full { Duration::ZERO } else { self.pause };
                self.next_claim = Instant::now() + pause;
            }
            failed => {
                if let Some((_, Err(error))) = failed {
                    tracing::warn!(%error, "jobs could not be claimed, trying again");
                }
                self.pause = (self.pause * 2).clamp(SHORT * 20, self.worker.poll.max(SHORT * 20));
                self.next_claim = Instant::now() + self.pause;
            }
        }
    }

    /// Records what is done in a task of its own: what ends meanwhile is recorded together, next.
    fn start_recording(&mut self) {
        if self.done.is_empty() || self.recording.is_some() || Instant::now() < self.next_record {
            return;
        }
        let done = std::mem::take(&mut self.done);
        let (once, holding) = (self.worker.once.clone(), self.holding.clone());
        let lease = self.worker.lease;
        self.recording = Some(tokio::spawn(record(once, holding, lease, done)));
    }

    fn recorded(&mut self, again: Vec<Done>) {
        if !again.is_empty() {
            self.next_record = Instant::now() + SHORT * 4;
            self.done.extend(again);
        }
    }

    /// Gives jobs to others at once, with whether each was started: an attempt that was not made does not count, and one
    /// that was cut short counts as one, however often that happens.
    async fn give_back(&self, jobs: Vec<(Arc<Claimed>, bool)>, limit: Duration) {
        if jobs.is_empty() {
            return;
        }
        let named = |(claimed, started): &(Arc<Claimed>, bool)| {
            claimed.named_with("started", Some(&Value::Bool(*started)))
        };
        let named = Value::from_iter(jobs.iter().map(named)).to_string();
        // Where this fails their leases run out.
        if let Err(error) = bounded(limit, renew(&self.worker.once, &named, Duration::ZERO)).await {
            tracing::warn!(%error, "jobs could not be given back; others get them when their leases end");
        }
        for (claimed, _) in &jobs {
            self.forget(claimed);
        }
    }

    /// The time of the shutdown is over.
    async fn drop_handlers(&mut self) {
        if let Some(claiming) = &self.claiming {
            // What it gets is given to others when its lease is over.
            claiming.abort();
        }
        self.tasks.abort_all();
        let last = async {
            // A handler that does not yield cannot be dropped.
            while let Some(ended) = self.tasks.join_next().await {
                self.ended(ended);
            }
            if let Some(again) = self.recording.take() {
                self.done.extend(again.await.unwrap_or_default());
            }
            self.next_record = Instant::now();
            self.start_recording();
            if self.recording.is_some() {
                result_of(&mut self.recording).await;
            }
            while self.records.join_next().await.is_some() {}
        };
        let _ = timeout(LAST_CALL, last).await;
        let held: Vec<_> = locked(&self.holding)
            .values()
            .map(|held| (held.claimed.clone(), held.running.is_some()))
            .collect();
        self.give_back(held, LAST_CALL).await;
    }
}

/// The result of a task, which is then over; `None` where it panicked. Waits for ever where there is none.
async fn result_of<T>(task: &mut Option<JoinHandle<T>>) -> Option<T> {
    let Some(running) = task else {
        return std::future::pending().await;
    };
    let result = running.await;
    *task = None;
    result.ok()
}
