//! A claim that outlives a transaction, for work that must call the outside world.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::ack::{Ack, Done, Failure};
use crate::attempt::{Attempt, record_failure, uncertain_if_lost};
use crate::claim::ClaimKind;
use crate::driver::{Connection, Driver, Param, Session};
use crate::error::ErrorDetail;
use crate::once::Once;
use crate::success::Success;
use crate::{Error, Intent, Result};

/// The right to do the work for a while, holding no transaction and no connection.
///
/// Renew it by [`Lease::hold`] while you call out, then end it with [`Lease::succeed`],
/// [`Lease::fail`] or [`Lease::release`], or with writes of your own by [`Lease::begin`]. After a
/// takeover each of these is turned away with [`Error::Fenced`].
#[must_use = "a lease that is dropped stays taken until it runs out; end it with succeed, fail or release"]
pub struct Lease<D: Driver> {
    pub(crate) once: Once<D>,
    pub(crate) intent: Intent,
    pub(crate) kind: ClaimKind,
    pub(crate) fence: i64,
    pub(crate) attempts: u32,
    pub(crate) length: Duration,
    /// Measured before the claim was sent, so that it never ends later than the database thinks.
    pub(crate) renewed: Instant,
}

impl<D: Driver> Lease<D> {
    /// Runs `work` and renews the lease meanwhile, every third of its length.
    ///
    /// When the lease is lost, or cannot be renewed before it runs out, `work` is dropped and the
    /// answer is [`Error::Fenced`]: whoever took over must not meet a twin.
    pub async fn hold<F: Future>(&mut self, work: F) -> Result<F::Output> {
        let mut work = std::pin::pin!(work);
        loop {
            let expiry = self.renewed + self.length;
            tokio::select! {
                output = &mut work => return Ok(output),
                () = sleep_until(self.renewed + self.length / 3) => {}
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
                    sleep_until((Instant::now() + self.length / 20).min(expiry)).await;
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

    /// Renews the lease once, by its own length.
    pub async fn heartbeat(&mut self) -> Result<()> {
        fault_point!("lease.before_heartbeat");
        let sent = Instant::now();
        let length = interval(self.length);
        let fence = self.fence.to_string();
        self.call(
            &self.once.statements().heartbeat.clone(),
            &[
                Param::Text(Some(self.intent.scope())),
                Param::Text(Some(self.intent.key())),
                Param::Text(Some(&fence)),
                Param::Text(Some(&length)),
                Param::Text(Some(self.intent.tenant_name())),
            ],
        )
        .await?;
        fault_point!("lease.renewed");
        self.renewed = sent;
        Ok(())
    }

    /// Opens a transaction for writes of your own under the fence. [`Attempt::succeed`] commits
    /// them with the acknowledgement; a zombie is turned away here already.
    pub async fn begin(&self) -> Result<Attempt<D>> {
        fault_point!("lease.before_begin");
        let mut session = self.once.driver().acquire().await?;
        let fence = self.fence.to_string();
        let begun = async {
            session.open(self.once.begin()).await?;
            let params = [
                Param::Text(Some(self.intent.scope())),
                Param::Text(Some(self.intent.key())),
                Param::Text(Some(&fence)),
                Param::Text(Some(self.intent.tenant_name())),
            ];
            session.query(&self.once.statements().guard, &params).await
        }
        .await;
        if let Err(error) = begun {
            if !matches!(error, Error::Disconnected(_)) && session.rollback().await.is_ok() {
                session.keep();
            }
            return Err(error);
        }
        fault_point!("lease.began");
        Ok(self.once.attempt(
            session,
            self.intent.clone(),
            self.kind,
            self.fence,
            self.attempts,
        ))
    }

    /// Records the acknowledgement. Safe to repeat after [`Error::Uncertain`]: claim again and
    /// the stored answer comes back.
    ///
    /// A connection that breaks before anything was sent is no reason to give up work that is done:
    /// it is tried again for as long as the lease holds.
    pub async fn succeed(self, ack: Ack) -> Result<Done> {
        let expiry = self.renewed + self.length;
        loop {
            match self.record(&ack).await {
                Err(Error::Disconnected(why)) if Instant::now() < expiry => {
                    tracing::warn!(
                        why,
                        scope = self.intent.scope(),
                        "not recorded yet, trying again"
                    );
                    let pause = (self.length / 20).min(Duration::from_secs(1));
                    sleep_until((Instant::now() + pause).min(expiry)).await;
                }
                ended => return ended,
            }
        }
    }

    /// As [`Lease::succeed`], and keeps the lease in hand: for another try after a connection was
    /// lost. One that had worked after all turns the next away with [`Error::Fenced`] or
    /// [`Error::LostRace`]; then claim again, and the stored answer comes back.
    pub async fn record(&self, ack: &Ack) -> Result<Done> {
        let success = Success::new(&self.intent, ack, self.fence, self.once.owner());
        fault_point!("succeed.before_settle");
        // One statement, which is its own transaction: it checks the fence under the row's lock.
        let statement = &self.once.statements().succeed_lease;
        self.call(statement, &success.params()).await?;
        fault_point!("succeed.settled");
        Ok(Done {
            ack: ack.clone(),
            replayed: false,
            attempts: self.attempts,
            fence: self.fence,
        })
    }

    /// Records the failure under the fence.
    pub async fn fail(self, failure: Failure) -> Result<()> {
        let mut session = self.once.driver().acquire().await?;
        let recorded = record_failure(
            &mut session,
            self.once.statements(),
            &self.intent,
            self.fence,
            self.once.owner(),
            &failure,
        )
        .await;
        keep_unless_lost(session, &recorded);
        recorded
    }

    /// Gives the lease back, the work not done: the next claim gets it at once.
    pub async fn release(self) -> Result<()> {
        fault_point!("lease.before_release");
        let fence = self.fence.to_string();
        self.call(
            &self.once.statements().release.clone(),
            &[
                Param::Text(Some(self.intent.scope())),
                Param::Text(Some(self.intent.key())),
                Param::Text(Some(&fence)),
                Param::Text(Some(self.intent.tenant_name())),
            ],
        )
        .await?;
        fault_point!("lease.released");
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

    /// The rising number that shuts out older holders; send it along where others can check it.
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// Which attempt at the intent this is.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    async fn call(&self, statement: &crate::driver::Statement, params: &[Param<'_>]) -> Result<()> {
        let mut session = self.once.driver().acquire().await?;
        let called = session
            .query(statement, params)
            .await
            .map(drop)
            .map_err(uncertain_if_lost);
        keep_unless_lost(session, &called);
        called
    }
}

/// Outside a transaction an error of the database leaves the connection clean.
pub(crate) fn keep_unless_lost<S: Session, T>(session: S, result: &Result<T>) {
    if !matches!(
        result,
        Err(Error::Disconnected(_) | Error::Uncertain(_) | Error::Work(_))
    ) {
        session.keep();
    }
}

/// A duration as PostgreSQL's interval.
pub(crate) fn interval(duration: Duration) -> String {
    format!("{} microseconds", duration.as_micros())
}

impl<D: Driver> fmt::Debug for Lease<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("scope", &self.intent.scope())
            .field("kind", &self.kind)
            .field("fence", &self.fence)
            .field("attempts", &self.attempts)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}
