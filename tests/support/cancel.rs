//! Cancelling a future at every point where it can be.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

/// Polls a future so often at most, then drops it. `None`: it was dropped.
pub async fn max_poll<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Drops a future after its k-th poll, for k from 1 until one completes, and calls `after` each
/// time; both get a number that never comes again. Answers how many were dropped.
///
/// On a busy machine a reply may be there before it is asked for, and a future completes in few
/// polls: then it begins anew, until enough were dropped to mean something.
pub async fn cancelled_everywhere<F, A, T>(
    mut make: impl FnMut(usize) -> F,
    mut after: impl FnMut(usize) -> A,
) -> usize
where
    F: Future<Output = T>,
    A: Future<Output = ()>,
{
    const ENOUGH: usize = 3;
    let (mut polls, mut dropped) = (1, 0);
    for number in 1..1000 {
        let completed = max_poll(polls, make(number)).await.is_some();
        after(number).await;
        if !completed {
            dropped += 1;
            polls += 1;
        } else if dropped >= ENOUGH {
            return dropped;
        } else {
            polls = 1;
        }
    }
    panic!("a thousand futures were not enough");
}

/// Reports whether what owns its guard was dropped.
#[derive(Debug, Clone, Default)]
pub struct DropFlag(Arc<AtomicBool>);

impl DropFlag {
    /// Something to own; the flag is up once it is dropped.
    pub fn guard(&self) -> impl Drop + use<> {
        struct Guard(Arc<AtomicBool>);
        impl Drop for Guard {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        Guard(self.0.clone())
    }

    /// Whether the guard was dropped.
    pub fn is_up(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// Fails a test body that hangs. Far longer than any needs, even on a machine that is busy.
pub async fn in_time<F: Future>(body: F) -> F::Output {
    const LIMIT: Duration = Duration::from_secs(120);
    match tokio::time::timeout(LIMIT, body).await {
        Ok(output) => output,
        Err(_) => panic!("it hangs: not done after {LIMIT:?}"),
    }
}
