//! New jobs start soon although a worker that finds none claims less and less often.
//!
//! A notification in the transaction that enqueues would let commits wait for each other: it costs almost half of them.
//! So a worker looks, which costs a tenth of a claim, and the less often the longer nothing was enqueued.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::leases::bounded;
use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::once::Once;

static PEEK: Sql =
    Sql::kept("select last_id::text, is_ready::text from pgonce._peek_jobs($1::text::text[])");

/// Minimum and maximum pause between two looks.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// Wakes a worker when a job of its queues, as an array literal, was enqueued and is ready. Until it is aborted.
pub(super) async fn keep_peeking<D: Driver>(
    once: Once<D>,
    queues: Option<String>,
    lease: Duration,
    wake: Arc<Notify>,
) {
    let (mut last, mut since) = (None, Instant::now());
    loop {
        // A hundredth of the time for which nothing was enqueued is no long wait.
        sleep((since.elapsed() / 100).clamp(PAUSES.0, PAUSES.1)).await;
        let peeked = bounded(lease, async {
            let args = Args::new().text(queues.as_deref());
            let mut row = once.caller().call(&PEEK, args).await?.one()?;
            Ok((row.get::<i64>()?, row.bool()?))
        });
        match peeked.await {
            // One that was given its number before it is committed is waited for.
            Ok((id, true)) if last != Some(id) => {
                (last, since) = (Some(id), Instant::now());
                wake.notify_one();
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "new jobs are not looked for");
                sleep(PAUSES.1).await;
            }
        }
    }
}
