//! Work that outlives the request that waits for it.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use pgonce::driver::Driver;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument as _;

use crate::layer::RouteState;
use crate::phase_timer::{Limits, Phase, PhaseTimer};

/// A unit of work, polled by the request that waits for it: most clients wait, and a task for each request
/// would cost each of them two changes of task. Dropped before its end, it goes on as a task of its
/// own.
pub(super) struct Work<T: Send + 'static> {
    rest: Option<Pin<Box<dyn Future<Output = Completion<T>> + Send>>>,
    runtime: Handle,
    tasks: TaskTracker,
    /// When nothing comes of it any longer.
    watch: Option<Watch>,
    /// Counts it among the work under way, wherever it is done.
    _under_way: TaskTrackerToken,
}

/// How long work goes on for which nobody waits: a database that falls silent without closing its connections would keep
/// them, and the pool's places with them, for ever.
pub(super) struct Watch {
    pub(super) timer: Arc<PhaseTimer>,
    pub(super) limits: Limits,
    /// In leased mode: its claim commits by itself, and one that is granted late must be given back.
    pub(super) leased_from: Option<Arc<dyn Claims>>,
}

/// The claims that a route's database works on.
pub(super) trait Claims: Send + Sync {
    /// Whether one is under way for this time or longer.
    fn has_stalled(&self, since: Duration) -> BoxFuture<'_, pgonce::Result<bool>>;
}

impl<D: Driver> Claims for RouteState<D> {
    fn has_stalled(&self, since: Duration) -> BoxFuture<'_, pgonce::Result<bool>> {
        self.once.has_stalled_claim(since).boxed()
    }
}

impl Watch {
    /// Waits until nothing comes of the work any longer, and returns its phase.
    ///
    /// A leased claim that the database works on will be granted or refused, however late, and its work waits for the reply, to
    /// give it back. It is lost where the database, asked twice, works on no such claim: once may be between two of its
    /// statements. Where the database cannot be asked, nobody knows.
    async fn is_over(&self) -> Phase {
        let limit = self.limits.settle();
        let mut missed = 0;
        loop {
            let leased = self.leased_from.as_deref();
            let phase = self.timer.fell_silent(self.limits, leased.is_some()).await;
            let Some(claims) = leased.filter(|_| missed < 2) else {
                return phase;
            };
            match timeout(limit, claims.has_stalled(limit)).await {
                Ok(Ok(false)) => missed += 1,
                Ok(Ok(true)) => {
                    missed = 0;
                    tracing::debug!("the database still works on a claim; its reply is waited for");
                }
                Ok(Err(error)) => {
                    missed = 0;
                    tracing::debug!(
                        code = error.code(),
                        "the database could not be asked for its claims"
                    );
                }
                Err(_) => missed = 0,
            }
            if missed < 2 {
                sleep(limit).await;
            }
        }
    }
}

/// The result, or the payload of a panic.
type Completion<T> = Result<T, Box<dyn Any + Send>>;

impl<T: Send + 'static> Work<T> {
    pub(super) fn new(tasks: &TaskTracker, work: impl Future<Output = T> + Send + 'static) -> Self {
        let work = AssertUnwindSafe(work.in_current_span()).catch_unwind();
        Self {
            rest: Some(Box::pin(work)),
            runtime: Handle::current(),
            tasks: tasks.clone(),
            watch: None,
            _under_way: tasks.token(),
        }
    }

    /// Ends it, once nobody waits for it, when the database has been silent for too long.
    pub(super) fn watched(mut self, watch: Watch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Ends it where it stands.
    pub(super) fn stop(mut self) {
        self.rest = None;
    }
}

impl<T: Send + 'static> Future for Work<T> {
    type Output = Completion<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Completion<T>> {
        let Some(rest) = &mut self.rest else {
            return Poll::Pending;
        };
        let polled = rest.as_mut().poll(cx);
        if polled.is_ready() {
            self.rest = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Work<T> {
    fn drop(&mut self) {
        let Some(rest) = self.rest.take() else {
            return;
        };
        let watch = self.watch.take();
        let rest = async move {
            let Some(watch) = watch else {
                drop(rest.await);
                return;
            };
            tokio::select! {
                biased;
                _ = rest => {}
                // Its session is dropped, and so closed instead of given back.
                phase = watch.is_over() => match phase {
                    Phase::Working => {
                        tracing::warn!("work was given up: the handler took longer than handler_timeout");
                    }
                    _ => tracing::warn!("work was given up: the database did not answer"),
                },
            }
        };
        drop(self.tasks.spawn_on(rest, &self.runtime));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Work of three steps, each of which lets others go first; counts them.
    fn three_steps(steps: &Arc<AtomicUsize>) -> impl Future<Output = usize> + Send + 'static {
        let steps = steps.clone();
        async move {
            for _ in 0..3 {
                tokio::task::yield_now().await;
                steps.fetch_add(1, SeqCst);
            }
            steps.load(SeqCst)
        }
    }

    #[tokio::test]
    async fn it_goes_on_when_nobody_waits_for_it_any_more() {
        let (tasks, steps) = (TaskTracker::new(), Arc::default());
        let mut work = Work::new(&tasks, three_steps(&steps));
        assert!((&mut work).now_or_never().is_none());
        assert_eq!((tasks.len(), steps.load(SeqCst)), (1, 0));
        drop(work);
        tasks.close();
        tasks.wait().await;
        assert_eq!(steps.load(SeqCst), 3);
    }

    #[tokio::test]
    async fn it_ends_where_it_is_stopped_and_is_counted_no_more() {
        let (tasks, steps) = (TaskTracker::new(), Arc::default());
        let mut work = Work::new(&tasks, three_steps(&steps));
        assert!((&mut work).now_or_never().is_none());
        work.stop();
        assert_eq!((tasks.len(), steps.load(SeqCst)), (0, 0));
    }

    #[tokio::test]
    async fn every_waiter_gets_the_result_or_the_panic() {
        let (tasks, steps) = (TaskTracker::new(), Arc::default());
        assert_eq!(Work::new(&tasks, three_steps(&steps)).await.unwrap(), 3);
        let broken = Work::new(&tasks, async { panic!("as planned") });
        assert!(broken.await.is_err());
        assert_eq!(tasks.len(), 0);
    }
}
