//! What to do about an error, and how to try again.
//!
//! Retries happen at the transaction boundary: the whole transaction, from BEGIN, never a
//! statement inside it. [`TABLE`] says for each SQLSTATE what to do, [`Policy`] how often and
//! how patiently.

mod policy;

use std::time::Duration;

pub use crate::sqlstate::Class;
#[doc(hidden)]
pub use crate::sqlstate::{Entry, GROUPS, TABLE, classify, lookup, markdown};
pub use policy::Policy;
#[doc(hidden)]
pub use policy::Schedule;

use crate::error::{Error, Result};

/// The least pause for errors of [`Class::RetryAfterDelay`] that name none themselves.
const UNHURRIED: Duration = Duration::from_millis(100);

/// The least time to wait before trying again after this error: what a busy intent asked for,
/// a moment where the server is short of something, else nothing.
#[doc(hidden)]
pub fn at_least(error: &Error) -> Duration {
    match error {
        Error::Busy { retry_after, .. } => *retry_after,
        _ if error.class() == Class::RetryAfterDelay => UNHURRIED,
        _ => Duration::ZERO,
    }
}

/// What an error of COMMIT means: where the connection broke, or the reply could not be read, nobody on this side knows
/// whether it happened, so [`Error::Disconnected`] and [`Error::Work`], which a driver's error becomes that is none of the
/// database, become [`Error::Uncertain`]. All others are a refusal.
///
/// ```
/// use pgonce::{Error, retry};
///
/// let error = retry::in_commit(Error::Disconnected("the wire was cut".into()));
/// assert!(matches!(error, Error::Uncertain(_)));
/// ```
#[must_use]
pub fn in_commit(error: Error) -> Error {
    match error {
        Error::Disconnected(why) => Error::Uncertain(why),
        Error::Work(why) => Error::Uncertain(why.to_string()),
        other => other,
    }
}

/// Runs a transaction of your own, from begin to commit, again and again until it succeeds, fails
/// for a reason that does not pass, or the policy is used up; then the last error is returned.
///
/// Only errors after which nothing was committed are tried again
/// ([`Class::is_safe_to_rerun`]). A connection that broke in COMMIT is not among them, and only
/// `work` knows that it was there: pass every error of a commit through [`in_commit`]. Work that
/// must get over a lost reply too is run as an intent, which can be asked what happened.
///
/// ```
/// use pgonce::retry::{self, Policy};
/// use pgonce::Error;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
/// # runtime.block_on(async {
/// let mut runs = 0;
/// let answer = retry::transact(&Policy::default(), || {
///     runs += 1;
///     let run = runs;
///     async move {
///         // begin, work, commit
///         if run == 1 { Err(Error::Disconnected("the wire was cut".into())) } else { Ok(run) }
///     }
/// })
/// .await?;
/// assert_eq!(answer, 2);
/// # Ok::<(), Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub async fn transact<T, F, Fut>(policy: &Policy, mut work: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let mut schedule = policy.schedule();
    loop {
        match work().await {
            Err(error) if error.class().is_safe_to_rerun() => {
                if !schedule.pause(at_least(&error), &error).await? {
                    return Err(error);
                }
            }
            settled => return settled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorDetail;
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    fn disconnected() -> Error {
        Error::Disconnected("the wire was cut".to_owned())
    }

    /// Runs work that fails with `error` every time; answers how often it ran, and its end.
    async fn runs(policy: &Policy, error: fn() -> Error) -> (u32, Error) {
        let mut runs = 0;
        let end = transact(policy, || {
            runs += 1;
            async move { Err::<(), _>(error()) }
        })
        .await;
        (runs, end.unwrap_err())
    }

    #[tokio::test(start_paused = true)]
    async fn a_passing_error_is_tried_until_the_policy_is_used_up_and_then_returned() {
        let (runs, end) = runs(&Policy::default().tries(3), disconnected).await;
        assert_eq!(runs, 3);
        assert!(matches!(end, Error::Disconnected(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_uncertain_commit_is_never_run_again() {
        let uncertain = || Error::Uncertain("the wire was cut".to_owned());
        assert_eq!(runs(&Policy::default(), uncertain).await.0, 1);
    }

    #[test]
    fn only_a_refusal_by_the_database_says_that_a_commit_did_not_happen() {
        for unknown in [disconnected(), Error::work("the reply cannot be read")] {
            assert!(matches!(in_commit(unknown), Error::Uncertain(_)));
        }
        let refused = ErrorDetail::new("40001", "it lost", "Again.");
        assert_eq!(in_commit(Error::Database(refused)).code(), "40001");
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_of_the_work_itself_is_not_tried_again() {
        assert_eq!(
            runs(&Policy::default(), || Error::work("no such item"))
                .await
                .0,
            1
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_intent_is_asked_again_no_sooner_than_it_said() {
        let busy = || Error::Busy {
            retry_after: Duration::from_secs(2),
            accepted: false,
        };
        let before = Instant::now();
        let (runs, _) = runs(&Policy::default().tries(3), busy).await;
        assert_eq!(runs, 3);
        assert!(before.elapsed() >= Duration::from_secs(4));
    }

    #[tokio::test(start_paused = true)]
    async fn cancelling_ends_the_retries() {
        let token = CancellationToken::new();
        token.cancel();
        let (runs, end) = runs(&Policy::default().cancel(token), disconnected).await;
        assert_eq!(runs, 1);
        assert!(matches!(end, Error::Cancelled));
    }

    #[test]
    fn the_future_of_a_transaction_can_be_spawned() {
        fn is_send<T: Send>(_: &T) {}
        let policy = Policy::default();
        is_send(&transact(&policy, || async { Ok(()) }));
        is_send(&policy.schedule().pause(Duration::ZERO, &disconnected()));
    }
}
