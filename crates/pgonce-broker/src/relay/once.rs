//! A relay that delivers what is there and goes: for cron, and for tests.

use std::time::Duration;

use pgonce::Result;
use pgonce::driver::Driver;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Relay;
use crate::Sink;

/// How often it is looked whether everything is delivered.
const LOOK_EVERY: Duration = Duration::from_millis(25);

impl<D: Driver, S: Sink> Relay<D, S> {
    /// Delivers everything that was committed when it began, and goes; or when `stop` is cancelled.
    /// Answers whether everything was delivered.
    ///
    /// An event that fails with a transient error is left parked, for the next run; so is one that is not due yet. A
    /// sink that is unavailable is waited for.
    pub async fn run_once(self, stop: CancellationToken) -> Result<bool> {
        let (outbox, subscription) = (self.outbox.clone(), self.subscription.clone());
        let goal = outbox.goal().await?;
        let done = stop.child_token();
        let watching = async {
            while !done.is_cancelled() {
                // What cannot be asked now is asked again: the relay itself says what is final.
                if matches!(outbox.caught_up(&subscription, &goal).await, Ok(true)) {
                    done.cancel();
                    return true;
                }
                tokio::select! {
                    () = done.cancelled() => {}
                    () = sleep(LOOK_EVERY) => {}
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
