//! The loop around a claim that makes retries boring.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument as _;

use crate::ack::Done;
use crate::attempt::{self, Attempt, not_ended};
use crate::claim::Claim;
use crate::counts::Suppression;
use crate::driver::{Driver, Session as _};
use crate::error::{Error, Result};
use crate::intent::Intent;
use crate::lease::{self, Lease};
use crate::once::Once;
use crate::region::Home;
use crate::retry::at_least;
use crate::seal;
use crate::sqlstate::Class;
use crate::term::{in_time, may_pass, reply_limit};
use crate::trace;
use crate::unresolved::UnresolvedCommit;
use crate::wait::Waiting;

impl<D: Driver> Once<D> {
    /// Makes `work` happen once and returns what came of it, now or before.
    ///
    /// `work` gets an [`Attempt`] and ends it with [`Attempt::succeed`]. It may be called several
    /// times, each time in a transaction of its own of which at most one commits: a deadlock, a
    /// serialization failure, a lost connection, a lost race or a lost commit reply is retried
    /// by the policy. Leave it with a [`Failure`](crate::Failure) to have that recorded, or with any
    /// other error to have nothing recorded.
    pub async fn run<T, F, W>(&self, intent: &Intent, work: F) -> Result<Done<T>>
    where
        T: ?Sized,
        F: FnMut(Attempt<D>) -> W,
        W: Future<Output = Result<Done<T>>>,
    {
        // Once something went wrong nobody knows that it is the first attempt: then look.
        let looking = intent.is_known_first().then(|| intent.clone().not_known());
        self.run_mode(intent, Atomic { work, looking }).await
    }

    /// Makes work that calls the outside world happen once: a committed claim, renewed while
    /// `work` runs, fenced against the next holder.
    ///
    /// `work` gets a [`Lease`], calls out under [`Lease::renew_while`], and ends it with
    /// [`Lease::succeed`]. Leave it with a [`Failure`](crate::Failure) to have that recorded. With any
    /// other error the outside effect may have happened: the claim stays until its lease runs
    /// out, and then the scope's contract decides (see [`crate::scope::Stale`]).
    ///
    /// ```no_run
    /// # async fn charge(key: &str) -> Result<String, pgonce::Failure> { Ok(key.to_owned()) }
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(once: pgonce::sqlx::Once, intent: pgonce::Intent) -> Result<(), pgonce::Error> {
    /// let done = once
    ///     .run_leased(&intent, |mut lease| async move {
    ///         let key = lease.intent().key().to_owned();
    ///         let receipt = lease.renew_while(charge(&key)).await??;
    ///         lease.succeed(&receipt).await
    ///     })
    ///     .await?;
    /// # let _ = done;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_leased<T, F, W>(&self, intent: &Intent, work: F) -> Result<Done<T>>
    where
        T: ?Sized,
        F: FnMut(Lease<D>) -> W,
        W: Future<Output = Result<Done<T>>>,
    {
        self.run_mode(intent, Leased::new(work, None, None)).await
    }

    /// As [`Once::run_leased`], for a caller who waits for a claim until `deadline` only: after it none is sent, so that a pool that
    /// gives no connections collects no claims that nobody waits for. One that is under way then still runs `work`.
    /// `answered` is set when the database has answered a claim: what comes of the command then may be uncertain, but it is not
    /// that the database is unavailable.
    #[doc(hidden)]
    pub async fn run_leased_before<T, F, W>(
        &self,
        deadline: Instant,
        answered: &AtomicBool,
        intent: &Intent,
        work: F,
    ) -> Result<Done<T>>
    where
        T: ?Sized,
        F: FnMut(Lease<D>) -> W,
        W: Future<Output = Result<Done<T>>>,
    {
        let mode = Leased::new(work, Some(deadline), Some(answered));
        self.run_mode(intent, mode).await
    }

    /// Runs a command, in a span.
    pub(crate) async fn run_mode<T, M>(&self, intent: &Intent, mode: M) -> Result<Done<T>>
    where
        T: ?Sized,
        M: Mode<D, T>,
    {
        trace::command(intent, M::NAME, self.run_loop(intent, mode)).await
    }

    async fn run_loop<T, M>(&self, intent: &Intent, mut mode: M) -> Result<Done<T>>
    where
        T: ?Sized,
        M: Mode<D, T>,
    {
        let mut schedule = self.shared.policy.schedule();
        let mut waiting = Waiting::default();
        let mut retrying = false;
        let mut unresolved = UnresolvedCommit::default();
        let mut at = self;
        loop {
            let limit = mode.limit();
            let claimed = {
                let claim = pin!(mode.claim(at, intent, retrying));
                let claim = in_time(limit, claim);
                // One that was busy, or lost something, needs what the database says now.
                match retrying {
                    false => self.cached_or(intent, claim).await,
                    true => claim.await,
                }
            };
            // A caller who waits is one duplicate, however often it looks.
            if !matches!(claimed, Ok(Claim::Busy { .. })) {
                self.count_suppressed(intent, &claimed);
            }
            let error = match claimed {
                Ok(Claim::Replay(done)) => return Ok(done.typed()),
                Ok(Claim::Refused(failure)) => return Err(Error::Refused(failure)),
                Ok(Claim::Busy { retry_after }) => {
                    match at.wait(intent, retry_after, limit, &mut waiting).await {
                        Ok(()) => {
                            retrying = true;
                            continue;
                        }
                        Err(error @ Error::Busy { .. }) => {
                            self.count(intent, Suppression::Busy);
                            return Err(unresolved.or(error));
                        }
                        Err(error) => error,
                    }
                }
                Ok(Claim::Run(right)) => match mode.work(at, intent, right).await {
                    Ok(done) => return Ok(done),
                    Err(Ended::Retry(error)) => error,
                    Err(Ended::Ran(error)) => {
                        unresolved.ran = Some(error.to_string());
                        error
                    }
                    Err(Ended::Stop(error)) => return Err(unresolved.or(error)),
                },
                Err(error) => error,
            };
            if let Some(home) = at.region_of_error(&error) {
                (at, retrying) = (home, true);
                continue;
            }
            unresolved.note(&error);
            if !is_worth_another_try(&error) {
                return Err(unresolved.or(error));
            }
            match schedule.pause(at_least(&error), &error).await {
                Ok(true) => retrying = true,
                // The tries to record leased work may have used up the time; what is stored counts all the same.
                Ok(false) if unresolved.ran.is_some() => {
                    let asking = pin!(at.stored_answer(intent));
                    return match in_time(mode.limit(), asking).await {
                        Ok(Some(done)) => Ok(done.typed()),
                        _ => Err(unresolved.or(error)),
                    };
                }
                Ok(false) => return Err(unresolved.or(error)),
                Err(cancelled) => return Err(unresolved.or(cancelled)),
            }
        }
    }

    /// Where to run an intent that is refused here, because its home is another region.
    fn region_of_error(&self, error: &Error) -> Option<&Self> {
        let home = Home::from_error(error).filter(|home| home.forward)?;
        let mut regions = self.regions.iter();
        regions.find_map(|(name, once)| (*name == home.name).then_some(once))
    }
}

/// How the loop claims an intent and does the work.
pub(crate) trait Mode<D: Driver, T: ?Sized> {
    /// What spans call it.
    const NAME: &'static str;
    /// What a claim gives.
    type Right;

    /// Maximum time of a call that asks what became of work that ran: nobody else does, and a connection that fell silent
    /// must not keep it for ever. Default: none.
    fn limit(&self) -> Option<Duration> {
        None
    }

    fn claim(
        &mut self,
        once: &Once<D>,
        intent: &Intent,
        retrying: bool,
    ) -> impl Future<Output = Result<Claim<Self::Right>>>;

    fn work(
        &mut self,
        once: &Once<D>,
        intent: &Intent,
        right: Self::Right,
    ) -> impl Future<Output = Result<Done<T>, Ended>>;
}

/// How a try without success ended.
pub(crate) enum Ended {
    /// By its class, it may be tried again.
    Retry(Error),
    /// The same, and the outside world may have seen the work.
    Ran(Error),
    /// It must not: the outside world may have seen the work.
    Stop(Error),
}

/// Claim, effect and acknowledgement in one transaction.
pub(crate) struct Atomic<F> {
    pub(crate) work: F,
    /// The same intent, not known to be new.
    pub(crate) looking: Option<Intent>,
}

impl<D, T, F, W> Mode<D, T> for Atomic<F>
where
    D: Driver,
    T: ?Sized,
    F: FnMut(Attempt<D>) -> W,
    W: Future<Output = Result<Done<T>>>,
{
    const NAME: &'static str = "atomic";
    type Right = Attempt<D>;

    async fn claim(
        &mut self,
        once: &Once<D>,
        intent: &Intent,
        retrying: bool,
    ) -> Result<Claim<Attempt<D>>> {
        if !retrying {
            return once.claim_uncounted(intent).await;
        }
        match once.stored_answer(intent).await {
            Ok(Some(done)) => Ok(Claim::Replay(done)),
            _ => {
                let intent = self.looking.as_ref().unwrap_or(intent);
                once.claim_uncounted(intent).await
            }
        }
    }

    async fn work(
        &mut self,
        once: &Once<D>,
        intent: &Intent,
        mut attempt: Attempt<D>,
    ) -> Result<Done<T>, Ended> {
        let lender = attempt.tx.loan().lend_out();
        let fence = attempt.fence;
        let span = trace::effect(attempt.attempts);
        let ended = (self.work)(attempt).instrument(span).await;
        let left = lender.take();
        let error = match ended {
            Ok(done) if left.is_none() => return Ok(done),
            Ok(_) => not_ended(),
            Err(error) => error,
        };
        let Some(mut session) = left else {
            // succeed or fail has taken the session and dealt with it. What is stored counts, not what
            // the work says afterwards.
            if matches!(error, Error::Refused(_) | Error::Failed(_))
                && let Ok(Some(mut done)) = once.stored_answer(intent).await
            {
                done.replayed = false;
                return Ok(done.typed());
            }
            return Err(Ended::Retry(error));
        };
        if matches!(error, Error::Disconnected(_)) {
            return Err(Ended::Retry(error));
        }
        if let Err(lost) = session.rollback().await {
            // A failure that cannot be recorded is not reported either: the next attempt may end
            // differently, and nobody shall have seen two ends.
            let to_record = matches!(error, Error::Refused(_) | Error::Failed(_));
            return Err(Ended::Retry(if to_record { lost } else { error }));
        }
        if let Error::Refused(failure) | Error::Failed(failure) = &error {
            let answer = match seal::stored(once.keys(), intent, failure.answer()) {
                Ok(answer) => answer,
                Err(error) => return Err(Ended::Retry(error)),
            };
            let held = (intent, fence, once.owner());
            let schema = &once.caller().schema;
            let recorded = attempt::record_failure(session, schema, held, failure, answer).await;
            // Not recorded: another attempt has settled it, and its answer is the one that counts.
            return Err(Ended::Retry(recorded.err().unwrap_or(error)));
        }
        session.keep();
        Err(Ended::Retry(error))
    }
}

/// A committed claim, renewed while the work runs.
struct Leased<'a, F> {
    work: F,
    /// As the scope's contract says; asked for once.
    length: Option<Duration>,
    /// After it, no first claim is sent.
    deadline: Option<Instant>,
    /// Set when the database has answered a claim.
    answered: Option<&'a AtomicBool>,
    /// This call has run the work before, and nothing says how that ended.
    ran: bool,
}

impl<'a, F> Leased<'a, F> {
    fn new(work: F, deadline: Option<Instant>, answered: Option<&'a AtomicBool>) -> Self {
        Self {
            work,
            length: None,
            deadline,
            answered,
            ran: false,
        }
    }
}

impl<D, T, F, W> Mode<D, T> for Leased<'_, F>
where
    D: Driver,
    T: ?Sized,
    F: FnMut(Lease<D>) -> W,
    W: Future<Output = Result<Done<T>>>,
{
    const NAME: &'static str = "leased";
    type Right = Lease<D>;

    fn limit(&self) -> Option<Duration> {
        self.length.filter(|_| self.ran).map(reply_limit)
    }

    async fn claim(&mut self, once: &Once<D>, intent: &Intent, _: bool) -> Result<Claim<Lease<D>>> {
        // What became of work that ran is asked however late it is.
        let before = self.deadline.filter(|_| !self.ran);
        let before = before.map(|deadline| once.before(Some(deadline)));
        let once = before.as_ref().unwrap_or(once);
        let length = match self.length {
            Some(length) => length,
            None => {
                let contract = once.contract(intent.scope(), intent.tenant_name()).await?;
                *self.length.insert(contract.lease)
            }
        };
        let claimed = once.lease_uncounted(intent, length).await;
        if let Some(answered) = self.answered
            && let Ok(_) | Err(Error::Conflict(_) | Error::Fenced(_) | Error::LostRace(_)) = claimed
        {
            answered.store(true, Ordering::Relaxed);
        }
        claimed
    }

    async fn work(
        &mut self,
        once: &Once<D>,
        intent: &Intent,
        lease: Lease<D>,
    ) -> Result<Done<T>, Ended> {
        let lease = if self.ran { lease.after_a_try() } else { lease };
        let (fence, term) = (lease.fence(), lease.term());
        let span = trace::effect(lease.attempts());
        self.ran = true;
        match (self.work)(lease).instrument(span).await {
            Ok(done) if done.fence == fence => Ok(done),
            Ok(_) => Err(Ended::Stop(not_ended())),
            // It ended the lease itself: where another call runs the work by now, this one must not.
            Err(Error::Refused(failure) | Error::Failed(failure)) if term.is_given_back() => {
                Err(Ended::Stop(failure.not_final().into()))
            }
            Err(Error::Refused(failure) | Error::Failed(failure)) => {
                match lease::record_failure(once, intent, fence, &failure, &term).await {
                    Ok(()) => Err(Ended::Stop(failure.into())),
                    // Settled otherwise, by the work itself or by another attempt: the claim knows.
                    Err(error @ (Error::Fenced(_) | Error::LostRace(_))) => Err(Ended::Ran(error)),
                    Err(error) => Err(Ended::Stop(not_recorded(error))),
                }
            }
            // Fenced, or the reply to the last commit was lost: the claim knows.
            Err(error @ (Error::Fenced(_) | Error::LostRace(_) | Error::Uncertain(_))) => {
                Err(Ended::Ran(error))
            }
            Err(error) => Err(Ended::Stop(not_recorded(error))),
        }
    }
}

/// How leased work ended that the database could not be asked to record: the outside world may have seen it.
fn not_recorded(error: Error) -> Error {
    match &error {
        // The last two say that nothing was done, of this intent or of another that the work asked for.
        Error::Disconnected(_) | Error::Conflict(_) | Error::Busy { .. } => {}
        Error::Database(_) if may_pass(&error) => {}
        _ => return error,
    }
    Error::Uncertain(format!("leased work could not be recorded: {error}"))
}

/// Whether claiming again may bring another answer.
fn is_worth_another_try(error: &Error) -> bool {
    // A recorded transient failure goes back to the caller, who knows when to come again.
    !matches!(error, Error::Failed(_))
        && matches!(
            error.class(),
            Class::Retry | Class::RetryAfterDelay | Class::ClaimAgain | Class::Ambiguous
        )
}

#[cfg(all(test, feature = "sqlx"))]
mod tests {
    use super::*;
    use crate::driver::sqlx::Sqlx;

    /// Compiles only if a whole command can be spawned, as an axum handler is.
    #[allow(dead_code)]
    fn a_command_can_be_spawned(once: Once<Sqlx>, intent: Intent, item: String) {
        tokio::spawn(async move {
            let item = &item;
            once.run(&intent, |mut tx| async move {
                let id: i64 = sqlx::query_scalar("select length($1)::bigint")
                    .bind(item)
                    .fetch_one(tx.conn())
                    .await?;
                tx.succeed(&id).await
            })
            .await
        });
    }
}
