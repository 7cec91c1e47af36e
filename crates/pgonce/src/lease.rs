//! A claim that outlives a transaction, for work that must call the outside world.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::ack::{Ack, Done, IntoAck, is_unknown_character};
use crate::attempt::{Attempt, not_ended};
use crate::call::{Args, Sql, call_on, roll_back};
use crate::claim::ClaimKind;
use crate::driver::{Driver, Session};
use crate::error::{Error, ErrorDetail, Result};
use crate::failure::Failure;
use crate::intent::Intent;
use crate::once::Once;
use crate::record::{
    ANSWER_TOO_LARGE, FAIL, SUCCEED_LEASE, Success, failure_args, leave_out, refuses_values,
};
use crate::seal;
use crate::term::{Held, Term, Tries};
use crate::trace::{database_span, step};

static GUARD: Sql = Sql::kept("select 'done' from pgonce.guard($1, $2, $3::text::bigint, $4)");
static RELEASE: Sql = Sql::kept("select 'done' from pgonce.release($1, $2, $3::text::bigint, $4)");
static FORGET: Sql =
    Sql::kept("select 'done' from pgonce.release($1, $2, $3::text::bigint, $4, true)");

/// The right to do the work for a while, holding no transaction and no connection.
///
/// Renew it by [`Lease::renew_while`] while you call out, then end it with [`Lease::succeed`],
/// [`Lease::fail`] or [`Lease::release`], or with writes of your own by [`Lease::transact`]. After a
/// takeover each of these is turned away with [`Error::Fenced`].
#[must_use = "a lease that is dropped stays taken until it runs out; end it with succeed, fail or release"]
pub struct Lease<D: Driver> {
    once: Once<D>,
    intent: Intent,
    kind: ClaimKind,
    fence: i64,
    attempts: u32,
    term: Term,
}

impl<D: Driver> Lease<D> {
    pub(crate) fn new(
        once: Once<D>,
        intent: Intent,
        (kind, fence, attempts): (ClaimKind, i64, u32),
        term: Term,
    ) -> Self {
        Self {
            once,
            intent,
            kind,
            fence,
            attempts,
            term,
        }
    }

    pub(crate) fn once(&self) -> &Once<D> {
        &self.once
    }

    pub(crate) fn term(&self) -> Term {
        self.term.clone()
    }

    fn held(&self) -> Held<'_, D> {
        held(&self.once, &self.intent, self.fence, &self.term)
    }

    pub(crate) fn tries(&self) -> Tries<'_, D> {
        Tries::new(self.held())
    }

    /// Runs `work` and renews the lease meanwhile, every third of its length.
    ///
    /// When the lease is lost, or cannot be renewed before it runs out, `work` is dropped and the
    /// result is [`Error::Fenced`]: the next holder must not meet a twin. Where the lease is over
    /// already, it is renewed first, and `work` begins only if nobody else has taken over.
    pub async fn renew_while<F: Future>(&mut self, work: F) -> Result<F::Output> {
        if self.left().is_zero() {
            // Over before the work begins, which it does only where nobody else holds the intent.
            let mut tries = self.tries();
            while let Err(error) = self.held().heartbeat().await {
                tries.after(error).await?;
            }
        }
        let mut work = std::pin::pin!(work);
        loop {
            let expiry = self.term.expiry();
            tokio::select! {
                output = &mut work => return Ok(output),
                () = sleep_until(self.term.renewed() + self.term.length / 3) => {}
            }
            // The work goes on while the heartbeat is under way.
            tokio::select! {
                output = &mut work => return Ok(output),
                beaten = self.beat_until(expiry) => beaten?,
            }
        }
    }

    /// Renews until it works or the lease has run out.
    async fn beat_until(&mut self, expiry: Instant) -> Result<()> {
        loop {
            match timeout_at(expiry, self.heartbeat()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error @ Error::Fenced(_))) => return Err(error),
                Ok(Err(error)) if Instant::now() < expiry => {
                    tracing::warn!(%error, scope = self.intent.scope(), "heartbeat failed, trying again");
                    sleep_until((Instant::now() + self.term.length / 20).min(expiry)).await;
                }
                Ok(Err(_)) | Err(_) => {
                    return Err(Error::Fenced(ErrorDetail::new(
                        "P4012",
                        "the lease could not be renewed before it ran out",
                        "Somebody else may hold the intent now: stop, and claim again to learn the answer.",
                    )));
                }
            }
        }
    }

    /// How long it still holds, by the clock of this process; at zero, somebody else may hold the intent.
    #[doc(hidden)]
    pub fn left(&self) -> Duration {
        (self.term.expiry()).saturating_duration_since(Instant::now())
    }

    /// Renews the lease once, by its own length.
    pub async fn heartbeat(&mut self) -> Result<()> {
        self.held().heartbeat().await
    }

    /// Opens a transaction for writes of your own under the fence. [`Attempt::succeed`] commits
    /// them with the acknowledgement; a holder that was replaced is turned away here already.
    ///
    /// [`Lease::transact`] is this, with the loop around it.
    pub async fn begin(&self) -> Result<Attempt<D>> {
        fault_point!("lease.before_begin");
        let caller = self.once.caller();
        let mut session = caller.driver.acquire().await?;
        let begun = match session.open(self.once.begin()).await {
            Ok(()) => {
                let args = self.names();
                call_on(&mut session, &caller.schema, &GUARD, &args).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = begun {
            if !matches!(error, Error::Disconnected(_)) {
                // The error is what counts; a session that cannot roll back is closed.
                let _ = roll_back(session).await;
            }
            return Err(error);
        }
        fault_point!("lease.began");
        let claimed = (self.kind, self.fence, self.attempts);
        Ok(self.once.attempt(session, self.intent.clone(), claimed))
    }

    /// Does writes of your own under the fence, and commits them with the acknowledgement. What is
    /// done outside must be recorded: `work` is called again, each time in a new transaction, after
    /// every error that may pass, for as long as the lease holds or the retry policy allows
    /// ([`Policy::within`](crate::retry::Policy::within)). The lease is renewed between these tries. An answer that cannot be kept is
    /// left out, as by [`Lease::succeed`].
    ///
    /// ```no_run
    /// # async fn charge(key: &str) -> Result<String, pgonce::Failure> { Ok(key.to_owned()) }
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(once: pgonce::sqlx::Once, intent: pgonce::Intent) -> Result<(), pgonce::Error> {
    /// let done = once
    ///     .run_leased(&intent, |mut lease| async move {
    ///         let key = lease.intent().key().to_owned();
    ///         let receipt = lease.renew_while(charge(&key)).await??;
    ///         let receipt = &receipt;
    ///         lease
    ///             .transact(|mut tx| async move {
    ///                 sqlx::query("insert into charge (receipt) values ($1)")
    ///                     .bind(receipt)
    ///                     .execute(tx.conn())
    ///                     .await?;
    ///                 tx.succeed(receipt).await
    ///             })
    ///             .await
    ///     })
    ///     .await?;
    /// # let _ = done;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transact<T, F, W>(self, mut work: F) -> Result<Done<T>>
    where
        T: ?Sized,
        F: FnMut(Attempt<D>) -> W,
        W: Future<Output = Result<Done<T>>>,
    {
        let mut tries = self.tries();
        let mut refused: Option<String> = None;
        loop {
            let beginning = pin!(self.begin());
            let tried = match self.held().in_time(Error::Disconnected, beginning).await {
                Ok(mut attempt) => {
                    attempt.refused.clone_from(&refused);
                    let lender = attempt.tx.loan().lend_out();
                    let ended = work(attempt).await;
                    match lender.take() {
                        Some(session) => {
                            // The error is what counts; a session that cannot roll back is closed.
                            let _ = roll_back(session).await;
                            Err(ended.err().unwrap_or_else(not_ended))
                        }
                        None => ended,
                    }
                }
                Err(error) => Err(error),
            };
            match tried {
                Ok(done) => return Ok(done),
                Err(error) if refused.is_none() && refuses_answers(error.code()) => {
                    refused = Some(error.code().to_owned());
                }
                Err(error) => tries.after(error).await?,
            }
        }
    }

    /// Records the acknowledgement. `ack` is an [`Ack`], or a reference to the answer.
    ///
    /// What is done must be recorded: an answer that cannot be kept (too large, unreadable) is left out, with a warning, and it
    /// is tried again after every error that may pass, for as long as in [`Lease::transact`]. After [`Error::Uncertain`] claim again, and the stored answer comes back.
    pub async fn succeed<A: IntoAck>(self, ack: A) -> Result<Done<A::Answer>> {
        let mut ack = Ack::of(ack, self.fence)?;
        let mut tries = self.tries();
        loop {
            match self.record(&ack).await {
                Ok(done) => return Ok(done.typed()),
                Err(error) if refuses_values(&error) && ack.leave_out(error.code()) => {}
                Err(error) => tries.after(error).await?,
            }
        }
    }

    /// As [`Lease::succeed`] with one try, and keeps the lease in hand. A try that had worked after
    /// all turns the next away with [`Error::Fenced`] or [`Error::LostRace`]; then claim again, and
    /// the stored answer comes back.
    pub async fn record(&self, ack: &Ack) -> Result<Done> {
        let ack = ack.clone().kept(self.fence)?;
        let success = Success::new(&self.intent, &ack, self.once.owner(), self.once.keys())?;
        fault_point!("succeed.before_settle");
        // One statement, which is its own transaction: it checks the fence under the row's lock.
        let held = self.held();
        let settling = pin!(self.call(&SUCCEED_LEASE, success.args(self.fence)));
        let committing = held.in_time(Error::Uncertain, settling);
        let span = database_span!("pgonce.commit");
        step(span, committing, |()| "committed").await?;
        fault_point!("succeed.settled");
        Ok(Done::new(ack.clone(), false, self.attempts, self.fence))
    }

    /// Records the failure under the fence. Tried again as [`Lease::succeed`] is.
    pub async fn fail(self, failure: Failure) -> Result<()> {
        let (intent, fence) = (&self.intent, self.fence);
        record_failure(&self.once, intent, fence, &failure, &self.term).await
    }

    /// Gives the lease back, the work not done: the next claim gets it at once. Where an earlier try of this very call may have
    /// done it and its record is gone, the lease runs out instead, so that the next claim is a takeover.
    pub async fn release(self) -> Result<()> {
        if self.term.is_in_doubt {
            return Ok(());
        }
        fault_point!("lease.before_release");
        self.call(&RELEASE, self.names()).await?;
        self.term.give_back();
        fault_point!("lease.released");
        Ok(())
    }

    /// As [`Lease::release`], where nothing was begun: after a first attempt the key is free, also for
    /// another request. One try, which keeps the lease in hand.
    pub async fn forget(&self) -> Result<()> {
        if self.term.is_in_doubt {
            return Ok(());
        }
        self.call(&FORGET, self.names()).await?;
        self.term.give_back();
        Ok(())
    }

    /// The intent that is held.
    pub fn intent(&self) -> &Intent {
        &self.intent
    }

    /// How the claim came to be yours. After [`ClaimKind::Takeover`] the outside world may have seen
    /// the first call already: ask it before you repeat it.
    pub fn kind(&self) -> ClaimKind {
        self.kind
    }

    /// The lease of a call that has run the work before: the record of that is gone, after a failover or by an operator's act.
    pub(crate) fn after_a_try(mut self) -> Self {
        self.term.is_in_doubt = self.kind != ClaimKind::Takeover;
        self.kind = ClaimKind::Takeover;
        self
    }

    /// The rising number that shuts out older holders; send it along where others can check it.
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// Which attempt at the intent this is.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Scope, key, fence and tenant.
    fn names(&self) -> Args<'_> {
        Args::texts([self.intent.scope(), self.intent.key()])
            .int(self.fence)
            .text(self.intent.tenant_name())
    }

    async fn call(&self, sql: &Sql, args: Args<'_>) -> Result<()> {
        self.once.caller().write(sql, args).await.map(drop)
    }
}

fn held<'a, D: Driver>(
    once: &'a Once<D>,
    intent: &'a Intent,
    fence: i64,
    term: &'a Term,
) -> Held<'a, D> {
    Held {
        caller: once.caller(),
        policy: &once.shared.policy,
        intent,
        fence,
        term,
    }
}

/// Records a failure of leased work.
pub(crate) async fn record_failure<D: Driver>(
    once: &Once<D>,
    intent: &Intent,
    fence: i64,
    failure: &Failure,
    term: &Term,
) -> Result<()> {
    if term.is_in_doubt && failure.is_retryable() {
        return Ok(());
    }
    // That it failed is recorded whatever can be kept of how.
    let mut answer = seal::stored(once.keys(), intent, failure.answer()).unwrap_or_default();
    let mut failure = Cow::Borrowed(failure);
    let mut tries = Tries::new(held(once, intent, fence, term));
    loop {
        fault_point!("fail.before_record");
        let recorded = {
            let args = failure_args(intent, fence, once.owner(), &failure, answer.as_deref());
            let failing = pin!(once.caller().write(&FAIL, args));
            let failing = tries.held.in_time(Error::Uncertain, failing);
            step(database_span!("pgonce.fail"), failing, |_| "recorded").await
        };
        match recorded {
            Ok(_) => break,
            Err(error) if refuses_values(&error) && leave_out(&mut answer, &mut failure) => {}
            Err(error) => tries.after(error).await?,
        }
    }
    if failure.is_retryable() {
        term.give_back();
    }
    fault_point!("fail.recorded");
    Ok(())
}

/// Whether an answer may be what a transaction was refused for with this code.
fn refuses_answers(code: &str) -> bool {
    code == ANSWER_TOO_LARGE || is_unknown_character(code)
}

impl<D: Driver> fmt::Debug for Lease<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("scope", &self.intent.scope())
            .field("kind", &self.kind)
            .field("fence", &self.fence)
            .field("attempts", &self.attempts)
            .field("length", &self.term.length)
            .finish_non_exhaustive()
    }
}
