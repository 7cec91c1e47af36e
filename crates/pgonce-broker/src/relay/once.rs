//! A relay that delivers what is there and goes: for cron, and for tests.

use std::time::Duration;

use pgonce::Result;
use pgonce::driver::Driver;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Relay;
use super::run::in_time;
use crate::Sink;

/// How often it is looked whether everything is delivered.
const LOOK_EVERY: Duration = Duration::from_millis(25);

impl<D: Driver, S: Sink> Relay<D, S> {
    /// Delivers everything that was committed when it began, and goes; or when `stop` is cancelled.
    /// Answers whether everything was delivered.
    ///
    /// An event that fails with a transient error is left parked, for the next run; so is one that is not due yet, or
    /// behind a dead letter. A sink that is unavailable is waited for.
    pub async fn run_once(self, stop: CancellationToken) -> Result<bool> {
        let (outbox, subscription) = (self.outbox.clone(), self.subscription.clone());
        let limits = self.limits.clone();
        let goal = tokio::select! {
            () = stop.cancelled() => return Ok(false),
            goal = in_time(&limits, outbox.goal()) => goal?,
        };
        let done = stop.child_token();
        let watching = async {
            while !done.is_cancelled() {
                let looking = async {
                    // What cannot be asked now is asked again: the relay itself says what is final.
                    let caught_up = in_time(&limits, outbox.caught_up(&subscription, &goal)).await;
                    let caught_up = matches!(caught_up, Ok(true));
                    if !caught_up {
                        sleep(LOOK_EVERY).await;
                    }
                    caught_up
                };
                // A relay that ends waits for no reply.
                let caught_up = tokio::select! {
                    () = done.cancelled() => false,
                    caught_up = looking => caught_up,
                };
                if caught_up {
                    done.cancel();
                    return true;
                }
            }
            false
        };
        let running = async {
            let ran = self.run(done.clone()).await;
            done.cancel();
            ran
        };
        let (ran, caught_up) = tokio::join!(running, watching);
        ran.map(|()| caught_up)
    }
}
