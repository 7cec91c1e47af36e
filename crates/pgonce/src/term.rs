//! How long a lease holds, and the tries to record what its work did.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use crate::call::{Args, Caller, Sql};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::intent::Intent;
use crate::retry::{Policy, at_least};
use crate::sqlstate::Class;
use crate::trace::{database_span, step};
use crate::unresolved::UnresolvedCommit;

static HEARTBEAT: Sql = Sql::kept(
    "select 'done' from pgonce.heartbeat($1, $2, $3::text::bigint, $4::text::interval, $5)",
);

/// The longest pause between two tries to record what leased work did.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// No try to record or to renew is given up earlier than this, however short the lease.
const MIN_LIMIT: Duration = Duration::from_secs(2);

/// How long a lease holds; shared with the loop that runs the work.
#[derive(Debug, Clone)]
pub(crate) struct Term {
    pub(crate) length: Duration,
    renewed: Arc<Mutex<Instant>>,
    /// Only the call that holds it knows that the work may have been seen outside: given back, the next claim would not say so.
    pub(crate) is_in_doubt: bool,
    /// The work gave the lease back, or recorded a transient failure: there is nothing left to record, and the next claim
    /// may be of another call.
    is_given_back: Arc<AtomicBool>,
}

impl Term {
    /// A lease of this length. `renewed` is measured before the claim is sent, so that the lease never
    /// ends later here than in the database.
    pub(crate) fn new(length: Duration, renewed: Instant) -> Self {
        Self {
            length,
            renewed: Arc::new(Mutex::new(renewed)),
            is_in_doubt: false,
            is_given_back: Arc::default(),
        }
    }

    pub(crate) fn renewed(&self) -> Instant {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn renew(&self, at: Instant) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    pub(crate) fn give_back(&self) {
        self.is_given_back.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_given_back(&self) -> bool {
        self.is_given_back.load(Ordering::Relaxed)
    }

    pub(crate) fn expiry(&self) -> Instant {
        self.renewed() + self.length
    }
}

/// The tries to record what leased work did: until the lease ends that was held when they began, or for as long as
/// the retry policy allows, whichever is later. The lease is renewed between them.
pub(crate) struct Tries<'a, D: Driver> {
    pub(crate) held: Held<'a, D>,
    until: Instant,
    /// How long the next pause may be.
    pause: Duration,
    unresolved: UnresolvedCommit,
}

impl<'a, D: Driver> Tries<'a, D> {
    pub(crate) fn new(held: Held<'a, D>) -> Self {
        let expiry = held.term.expiry();
        let allowed = Instant::now().checked_add(held.policy.time_left());
        Self {
            until: allowed.map_or(expiry, |allowed| allowed.max(expiry)),
            pause: (held.term.length / 20).min(MAX_PAUSE),
            unresolved: UnresolvedCommit::default(),
            held,
        }
    }

    /// Pauses after an error that may pass; else says how it ended.
    pub(crate) async fn after(&mut self, error: Error) -> Result<()> {
        if !may_pass(&error) || Instant::now() >= self.until {
            // Of a try whose reply was lost a later error says nothing.
            return Err(std::mem::take(&mut self.unresolved).or(error));
        }
        tracing::warn!(%error, "leased work is not recorded yet, trying again");
        self.renew().await;
        // Of different lengths: holders that turn each other away must not meet again at each try.
        let pause = at_least(&error) + self.pause.mul_f64(rand::random_range(0.0..1.0));
        sleep_until((Instant::now() + pause).min(self.until)).await;
        // Short enough to renew the lease in time.
        self.pause = (self.pause * 2)
            .min(self.held.term.length / 6)
            .min(MAX_PAUSE);
        self.unresolved.note(&error);
        Ok(())
    }

    /// Renews the lease where a third of it is over: the work is done, and nobody may repeat it while it is being recorded.
    async fn renew(&self) {
        let term = self.held.term;
        if term.renewed().elapsed() < term.length / 3 {
            return;
        }
        if let Err(error) = self.held.heartbeat().await {
            // Not to be decided here: the next try learns who holds the intent.
            tracing::debug!(%error, "not renewed while recording");
        }
    }
}

/// Whether an error that leased work met on its way to be recorded may be gone at the next try.
pub(crate) fn may_pass(error: &Error) -> bool {
    match (error, error.class()) {
        (Error::Failed(_) | Error::Cancelled, _) => false,
        (_, Class::Retry | Class::RetryAfterDelay | Class::Ambiguous) => true,
        // A timeout of the session: the next try may be faster.
        _ => error.code() == "57014",
    }
}

/// An intent that is held, and for how long.
pub(crate) struct Held<'a, D: Driver> {
    pub(crate) caller: &'a Caller<D>,
    pub(crate) policy: &'a Policy,
    pub(crate) intent: &'a Intent,
    pub(crate) fence: i64,
    pub(crate) term: &'a Term,
}

impl<D: Driver> Held<'_, D> {
    pub(crate) async fn heartbeat(&self) -> Result<()> {
        fault_point!("lease.before_heartbeat");
        let sent = Instant::now();
        let args = Args::texts([self.intent.scope(), self.intent.key()])
            .int(self.fence)
            .interval(self.term.length)
            .text(self.intent.tenant_name());
        let renewing = pin!(self.caller.write(&HEARTBEAT, args));
        let renewing = self.in_time(Error::Disconnected, renewing);
        let span = database_span!("pgonce.lease.renew");
        step(span, renewing, |_| "renewed").await?;
        fault_point!("lease.renewed");
        self.term.renew(sent);
        Ok(())
    }

    /// A connection that falls silent must not use up the lease: what takes longer is tried on another one. `late` is what
    /// it means that there was no reply: uncertain only for what commits an end.
    pub(crate) async fn in_time<T>(
        &self,
        late: fn(String) -> Error,
        call: Pin<&mut impl Future<Output = Result<T>>>,
    ) -> Result<T> {
        limited(reply_limit(self.term.length), late, call).await
    }
}

/// Maximum time that a call under a lease of this length waits for its reply.
pub(crate) fn reply_limit(length: Duration) -> Duration {
    (length / 3).max(MIN_LIMIT)
}

/// A call that is given up after `limit`, where it has one: nobody knows then what it did.
///
/// It is pinned by who makes it: an `async fn` keeps a future that it is given twice, and claims hold many others.
pub(crate) async fn in_time<T>(
    limit: Option<Duration>,
    call: Pin<&mut impl Future<Output = Result<T>>>,
) -> Result<T> {
    match limit {
        Some(limit) => limited(limit, Error::Uncertain, call).await,
        None => call.await,
    }
}

async fn limited<T>(
    limit: Duration,
    late: fn(String) -> Error,
    call: Pin<&mut impl Future<Output = Result<T>>>,
) -> Result<T> {
    let silent = || late("the database did not answer in time".to_owned());
    timeout(limit, call).await.unwrap_or_else(|_| Err(silent()))
}
