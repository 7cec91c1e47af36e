//! Work that outlives the request that waits for it.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument as _;

use crate::phase_timer::{Limits, PhaseTimer};

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
    pub(super) leased: bool,
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
                _ = rest => {}
                // Its session is dropped, and so closed instead of given back.
                () = watch.timer.fell_silent(watch.limits, watch.leased) => {
                    tracing::warn!("work was given up: the database did not answer");
                }
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
