//! The loop around a claim that makes retries boring.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::ack::Done;
use crate::attempt::{Attempt, Home, record_failure};
use crate::claim::Claim;
use crate::driver::{Connection as _, Driver, Param, Session as _};
use crate::error::ErrorDetail;
use crate::lease::{Lease, interval, keep_unless_lost};
use crate::once::Once;
use crate::retry::{Class, at_least};
use crate::scope::Busy;
use crate::suppressed::Told;
use crate::{Error, Intent, Result};

impl<D: Driver> Once<D> {
    /// Makes `work` happen once and answers what came of it, now or before.
    ///
    /// `work` gets an [`Attempt`] and ends it with [`Attempt::succeed`]. It may be called several
    /// times, each time in a transaction of its own of which at most one commits: a deadlock, a
    /// serialization failure, a lost connection, a lost race or a lost commit reply is retried
    /// by the policy. Leave it with a [`crate::Failure`] to have that remembered, or with any
    /// other error to have nothing remembered.
    pub async fn run<F, W>(&self, intent: &Intent, mut work: F) -> Result<Done>
    where
        F: FnMut(Attempt<D>) -> W,
        W: Future<Output = Result<Done>>,
    {
        let mut schedule = self.shared.policy.schedule();
        let mut waiting = Waiting::default();
        let mut retrying = false;
        let mut doubt = Doubt::default();
        // Once something went wrong nobody knows that it is the first attempt: then look.
        let looking = intent.is_known_first().then(|| intent.clone().not_known());
        loop {
            let intent = looking.as_ref().filter(|_| retrying).unwrap_or(intent);
            let tried = if retrying && let Some(done) = self.answer(intent).await.ok().flatten() {
                return Ok(done);
            } else {
                self.claim_uncounted(intent).await
            };
            self.count_ended(intent, &tried);
            let error = match tried {
                Ok(Claim::Replay(done)) => return Ok(done),
                Ok(Claim::Refused(failure)) => return Err(Error::Refused(failure)),
                Ok(Claim::Busy { retry_after }) => {
                    match self.wait(intent, retry_after, &mut waiting).await {
                        Ok(()) => {
                            retrying = true;
                            continue;
                        }
                        Err(error @ Error::Busy { .. }) => {
                            self.count(intent, Told::Busy);
                            return Err(doubt.or(error));
                        }
                        Err(error) => error,
                    }
                }
                Ok(Claim::Run(attempt)) => match self.try_once(attempt, &mut work).await {
                    Ok(done) => return Ok(done),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            doubt.note(&error);
            if !is_worth_another_try(&error) {
                return Err(doubt.or(error));
            }
            match schedule.pause(at_least(&error), &error).await {
                Ok(true) => retrying = true,
                Ok(false) => return Err(doubt.or(error)),
                Err(cancelled) => return Err(doubt.or(cancelled)),
            }
        }
    }

    /// Makes work that calls the outside world happen once: a committed claim, renewed while
    /// `work` runs, fenced against whoever takes over.
    ///
    /// `work` gets a [`Lease`], calls out under [`Lease::hold`], and ends it with
    /// [`Lease::succeed`]. Leave it with a [`crate::Failure`] to have that recorded. With any
    /// other error the outside effect may have happened: the claim stays until its lease runs
    /// out, and then the scope's contract decides (see [`crate::scope::Stale`]).
    ///
    /// ```no_run
    /// # async fn charge(key: &str) -> Result<String, pgonce::Failure> { Ok(key.to_owned()) }
    /// # async fn example<D: pgonce::driver::Driver>(once: pgonce::Once<D>, intent: pgonce::Intent)
    /// # -> Result<(), pgonce::Error> {
    /// use pgonce::Ack;
    ///
    /// let done = once
    ///     .run_leased(&intent, |mut lease| async move {
    ///         let key = lease.intent().key().to_owned();
    ///         let receipt = lease.hold(charge(&key)).await??;
    ///         lease.succeed(Ack::value(&receipt)?).await
    ///     })
    ///     .await?;
    /// # let _ = done;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_leased<F, W>(&self, intent: &Intent, mut work: F) -> Result<Done>
    where
        F: FnMut(Lease<D>) -> W,
        W: Future<Output = Result<Done>>,
    {
        let mut length = None;
        let mut schedule = self.shared.policy.schedule();
        let mut waiting = Waiting::default();
        let mut doubt = Doubt::default();
        loop {
            let tried = self.lease_as_agreed(intent, &mut length).await;
            self.count_ended(intent, &tried);
            let error = match tried {
                Ok(Claim::Replay(done)) => return Ok(done),
                Ok(Claim::Refused(failure)) => return Err(Error::Refused(failure)),
                Ok(Claim::Busy { retry_after }) => {
                    match self.wait(intent, retry_after, &mut waiting).await {
                        Ok(()) => continue,
                        Err(error @ Error::Busy { .. }) => {
                            self.count(intent, Told::Busy);
                            return Err(doubt.or(error));
                        }
                        Err(error) => error,
                    }
                }
                Ok(Claim::Run(lease)) => {
                    let fence = lease.fence;
                    match work(lease).await {
                        Ok(done) if done.fence == fence => return Ok(done),
                        Ok(_) => return Err(doubt.or(not_this_ones())),
                        Err(Error::Refused(failure) | Error::Failed(failure)) => {
                            let mut session = self.driver().acquire().await?;
                            let recorded = record_failure(
                                &mut session,
                                self.statements(),
                                intent,
                                fence,
                                self.owner(),
                                &failure,
                            )
                            .await;
                            keep_unless_lost(session, &recorded);
                            return Err(recorded.err().unwrap_or_else(|| failure.into()));
                        }
                        // Fenced, or the reply to the last commit was lost: the claim tells.
                        Err(
                            error @ (Error::Fenced(_) | Error::LostRace(_) | Error::Uncertain(_)),
                        ) => error,
                        Err(error) => return Err(doubt.or(error)),
                    }
                }
                Err(error) => error,
            };
            doubt.note(&error);
            if !is_worth_another_try(&error) {
                return Err(doubt.or(error));
            }
            match schedule.pause(at_least(&error), &error).await {
                Ok(true) => {}
                Ok(false) => return Err(doubt.or(error)),
                Err(cancelled) => return Err(doubt.or(cancelled)),
            }
        }
    }

    /// A lease as long as the scope's contract says; asked for once.
    async fn lease_as_agreed(
        &self,
        intent: &Intent,
        length: &mut Option<Duration>,
    ) -> Result<Claim<Lease<D>>> {
        let agreed = match *length {
            Some(agreed) => agreed,
            None => {
                let contract = self.contract(intent.scope(), intent.tenant_name()).await?;
                *length.insert(contract.lease)
            }
        };
        self.lease_uncounted(intent, agreed).await
    }

    /// One call of the user's work, and what its failure leaves to do.
    async fn try_once<F, W>(&self, mut attempt: Attempt<D>, work: &mut F) -> Result<Done>
    where
        F: FnMut(Attempt<D>) -> W,
        W: Future<Output = Result<Done>>,
    {
        let home: Home<D::Session> = Arc::new(Mutex::new(None));
        attempt.home = Some(home.clone());
        let (intent, fence) = (attempt.intent.clone(), attempt.fence);
        let ended = work(attempt).await;
        let left = home.lock().ok().and_then(|mut slot| slot.take());
        let error = match ended {
            Ok(done) if left.is_none() => return Ok(done),
            Ok(_) => not_this_ones(),
            Err(error) => error,
        };
        let Some(mut session) = left else {
            // succeed or fail has taken the session and dealt with it.
            return Err(error);
        };
        if matches!(error, Error::Disconnected(_)) {
            return Err(error);
        }
        if let Err(lost) = session.rollback().await {
            // A failure that cannot be recorded is not told either: the next attempt may end
            // differently, and nobody shall have heard of two ends.
            let to_record = matches!(error, Error::Refused(_) | Error::Failed(_));
            return Err(if to_record { lost } else { error });
        }
        if let Error::Refused(failure) | Error::Failed(failure) = &error {
            let recorded = record_failure(
                &mut session,
                self.statements(),
                &intent,
                fence,
                self.owner(),
                failure,
            )
            .await;
            keep_unless_lost(session, &recorded);
            // Not recorded: another attempt has settled it, and its answer is the one that counts.
            return Err(recorded.err().unwrap_or(error));
        }
        session.keep();
        Err(error)
    }

    /// Counts what ends a run. Somebody who waits is one duplicate, however often it looks.
    fn count_ended<R>(&self, intent: &Intent, tried: &Result<Claim<R>>) {
        if !matches!(tried, Ok(Claim::Busy { .. })) {
            self.count_told(intent, tried);
        }
    }

    /// Does what the scope's contract says about a busy intent.
    async fn wait(
        &self,
        intent: &Intent,
        retry_after: Duration,
        waiting: &mut Waiting,
    ) -> Result<()> {
        let until = match waiting.until {
            Some(until) => until,
            None => {
                let contract = self.contract(intent.scope(), intent.tenant_name()).await?;
                match contract.busy {
                    Busy::Wait => *waiting.until.insert(Instant::now() + contract.wait_timeout),
                    busy => {
                        return Err(Error::Busy {
                            retry_after,
                            accepted: busy == Busy::Accept,
                        });
                    }
                }
            }
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Busy {
                retry_after,
                accepted: false,
            });
        }
        let started = Instant::now();
        if let Ok(_permit) = self.shared.waiters.try_acquire() {
            self.sleep_on_lock(intent, left).await?;
        }
        if started.elapsed() < waiting.pause {
            // A lease holds no lock to sleep on: ask again later and later.
            let pause = waiting
                .pause
                .min(left)
                .min(retry_after.max(Duration::from_millis(5)));
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            waiting.pause = (waiting.pause * 2).min(Duration::from_millis(500));
        }
        Ok(())
    }

    /// Sleeps until the transaction that holds the intent has ended.
    async fn sleep_on_lock(&self, intent: &Intent, at_most: Duration) -> Result<()> {
        fault_point!("wait.before_sleep");
        let mut session = self.driver().acquire().await?;
        let at_most = interval(at_most);
        let params = [
            Param::Text(Some(intent.scope())),
            Param::Text(Some(intent.key())),
            Param::Text(Some(&at_most)),
            Param::Text(Some(intent.tenant_name())),
        ];
        let slept = session
            .query(&self.statements().wait, &params)
            .await
            .map(drop);
        fault_point!("wait.woken");
        keep_unless_lost(session, &slept);
        slept
    }
}

fn not_this_ones() -> Error {
    Error::Invalid(ErrorDetail::new(
        "22023",
        "the work answered, but its attempt was never ended",
        "End the attempt with succeed and answer what that returns, not another intent's.",
    ))
}

/// Whether claiming again may bring another answer.
fn is_worth_another_try(error: &Error) -> bool {
    // A remembered failure "for now" goes back to the caller, who knows when to come again.
    !matches!(error, Error::Failed(_))
        && matches!(
            error.class(),
            Class::Retry | Class::RetryAfterDelay | Class::ClaimAgain | Class::Ambiguous
        )
}

/// Why it is not known whether an earlier try was committed, where that is so.
#[derive(Default)]
struct Doubt(Option<String>);

impl Doubt {
    fn note(&mut self, error: &Error) {
        if let Error::Uncertain(why) = error {
            self.0 = Some(why.clone());
        }
    }

    /// What to end with: that the last try did nothing says nothing about the one before.
    fn or(self, error: Error) -> Error {
        match (self.0, error) {
            // What is stored about the intent settles the doubt. Nothing else does: whoever holds it
            // (busy) or was faster (lost race, fenced) may be that very try, still committing.
            (
                Some(why),
                Error::Disconnected(_)
                | Error::Cancelled
                | Error::Busy { .. }
                | Error::Database(_)
                | Error::LostRace(_)
                | Error::Fenced(_)
                | Error::Work(_),
            ) => Error::Uncertain(why),
            (_, error) => error,
        }
    }
}

/// How long a busy intent was waited for.
struct Waiting {
    until: Option<Instant>,
    pause: Duration,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            until: None,
            pause: Duration::from_millis(10),
        }
    }
}

#[cfg(test)]
mod doubt_tests {
    use super::*;
    use crate::Failure;

    /// Found by `pgonce storm --path slow-commit --driver tokio-postgres --fault
    /// c0:c22:drop-reply,c1:s11:second-client,c2:c11:drop-reply`: a try that lost the race to its own
    /// earlier commit was told that it did nothing.
    #[test]
    fn only_what_is_stored_settles_a_doubt() {
        let end = |error| {
            let mut doubt = Doubt::default();
            doubt.note(&Error::Uncertain("the reply was lost".into()));
            doubt.or(error)
        };
        let problem = || ErrorDetail::new("P4010", "another attempt finished first", "");
        for error in [
            Error::LostRace(problem()),
            Error::Fenced(problem()),
            Error::Cancelled,
        ] {
            assert!(matches!(end(error), Error::Uncertain(_)));
        }
        let refused = Error::Refused(Failure::refused("no", "not this one"));
        assert!(matches!(end(refused), Error::Refused(_)));
    }
}

#[cfg(all(test, feature = "sqlx"))]
mod tests {
    use super::*;
    use crate::Ack;
    use crate::driver::sqlx::Sqlx;

    /// Compiles only if a whole command can be spawned, as an axum handler is.
    #[allow(dead_code)]
    fn a_command_can_be_spawned(once: Once<Sqlx>, intent: Intent, item: String) {
        tokio::spawn(async move {
            let item = &item;
            once.run(&intent, |mut attempt| async move {
                let id: i64 = sqlx::query_scalar("select length($1)::bigint")
                    .bind(item)
                    .fetch_one(attempt.conn())
                    .await?;
                attempt.succeed(Ack::value(&id)?).await
            })
            .await
        });
    }
}
