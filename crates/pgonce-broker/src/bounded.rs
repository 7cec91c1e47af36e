//! A call of the database that gets no reply must not hold a relay or a consumer: its connection may be dead without
//! anybody having said so.

use std::time::Duration;

use pgonce::{Error, Result};
use tokio::time::timeout;

/// Maximum time of a call of ours, which takes milliseconds.
pub(crate) const MAX_CALL: Duration = Duration::from_secs(30);

/// No call of a consumer is given up earlier than this, however short the lease: a slow reply is better than none, and the
/// fence refuses what comes too late.
const MIN_CALL: Duration = Duration::from_secs(2);

/// Maximum time of a call that matters for this time.
pub(crate) fn reply_limit(time: Duration) -> Duration {
    time.clamp(MIN_CALL, MAX_CALL)
}

/// The result of a call, or an error where it takes longer than `limit`. The call's connection is closed then, and whether
/// it happened is unknown.
pub(crate) async fn bounded<T>(
    limit: Duration,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    let late = |_| Error::Uncertain(format!("the database did not reply within {limit:?}"));
    timeout(limit, call).await.map_err(late)?
}
