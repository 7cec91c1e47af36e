//! Asks providers what became of calls without a known outcome.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::{sleep, timeout};

use super::{Effect, Observed, Provider, Report};
use crate::call::{Args, BEGIN, COMMIT, Row, Sql, unreadable};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::intent::Intent;
use crate::once::Once;

static DUE: Sql = Sql::kept(
    "select tenant, scope, key, pg_catalog.encode(fingerprint, 'hex'), step, effect_key::text, reference, \
     (extract(epoch from sent_at) operator(pg_catalog.*) 1000000)::bigint::text from pgonce.external_due($1, $2::text::integer, $3::text::interval)",
);

/// Minimum time limit for taking calls that are due.
const TAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Looks up calls without a known outcome at their provider, later and later, until they are decided or their deadline is
/// over. Any number may run; each call is looked up by one at a time. Made by [`Once::reconciler`].
#[derive(Debug)]
pub struct Reconciler<D: Driver, P> {
    once: Once<D>,
    provider: P,
    concurrency: usize,
    poll: Duration,
    timeout: Duration,
}

/// What one pass of a [`Reconciler`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Pass {
    /// Number of calls that were looked up.
    pub looked_up: usize,
    /// Number of those that are decided now.
    pub decided: usize,
}

impl<D: Driver> Once<D> {
    /// A reconciler of the calls to this provider.
    ///
    /// ```no_run
    /// # use pgonce::external::Provider;
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(once: pgonce::sqlx::Once, bank: impl Provider + 'static) {
    /// let shutdown = async { /* ctrl-c, say */ };
    /// once.reconciler(bank).run(shutdown).await;
    /// # }
    /// ```
    pub fn reconciler<P: Provider>(&self, provider: P) -> Reconciler<D, P> {
        Reconciler {
            once: self.clone(),
            provider,
            concurrency: 8,
            poll: Duration::from_secs(1),
            timeout: Duration::from_secs(10),
        }
    }
}

struct Due {
    effect: Effect,
    /// In microseconds.
    sent_at: Option<String>,
    /// `None` where its command is gone or cannot be read.
    intent: Option<Intent>,
}

impl<D: Driver, P: Provider> Reconciler<D, P> {
    /// Maximum number of look-ups at a time. Default: 8.
    #[must_use]
    pub fn concurrency(mut self, calls: usize) -> Self {
        self.concurrency = calls.clamp(1, 1000);
        self
    }

    /// Pause between passes that found nothing. Default: one second.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll = interval.max(Duration::from_millis(5));
        self
    }

    /// Maximum time of one look-up; the record of what it found gets as much again. For twice this time nobody else looks the
    /// call up, also when this process ends: it is the minimum pause before the next look-up of a call. Default: 10 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// Works until `shutdown` completes. Errors of the database and of the provider are logged and survived. A slow look-up
    /// delays no other: the next call that is due gets the next free place.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let work = async {
            let mut running = FuturesUnordered::new();
            let mut failures = 0_u32;
            loop {
                let free = self.concurrency - running.len();
                let mut pause = self.poll;
                match while_running(&mut running, self.due(free)).await {
                    Ok(due) => {
                        failures = 0;
                        running.extend(due.into_iter().map(|due| self.look_up(due)));
                    }
                    Err(error) => {
                        tracing::warn!(%error, provider = self.provider.name(), "calls were not reconciled, trying again");
                        failures = failures.saturating_add(1);
                        pause = (self.poll * failures.min(30)).min(Duration::from_secs(30));
                    }
                }
                if running.len() < self.concurrency {
                    while_running(&mut running, sleep(pause)).await;
                }
                while running.len() >= self.concurrency {
                    running.next().await;
                }
            }
        };
        // A look-up changes nothing: it may be dropped at any point.
        tokio::select! {
            () = work => {}
            () = shutdown => {}
        }
    }

    /// Looks up what is due, once, as many calls as may be looked up at a time, and waits for all of them.
    pub async fn pass(&self) -> Result<Pass> {
        let due = self.due(self.concurrency).await?;
        let looked_up = due.len();
        let results = join_all(due.into_iter().map(|due| self.look_up(due))).await;
        let decided = results.into_iter().filter(|decided| *decided).count();
        Ok(Pass { looked_up, decided })
    }

    /// Takes calls that are due. They all begin at once, and nobody else gets them while they may take.
    async fn due(&self, limit: usize) -> Result<Vec<Due>> {
        let args = Args::texts([self.provider.name()])
            .count(limit)
            .interval(self.timeout * 2);
        let caller = self.once.caller();
        let taken = caller.in_own_transaction(BEGIN, &DUE, args, &COMMIT);
        let rows = timeout(self.timeout.max(TAKE_TIMEOUT), taken)
            .await
            .unwrap_or_else(|_| Err(Error::Uncertain("no answer in time".to_owned())))?;
        fault_point!("external.due");
        let due = rows.read(|row| {
            // One that this build cannot read is looked up later, and stops no other.
            let read = read_due(row);
            Ok(read
                .inspect_err(|error| tracing::warn!(%error, "a call that is due cannot be read"))
                .ok())
        })?;
        Ok(due.into_iter().flatten().collect())
    }

    /// Whether the call is decided now. What cannot be recorded delays no other call: it is looked up again later.
    async fn look_up(&self, due: Due) -> bool {
        let effect = &due.effect;
        let report = match timeout(self.timeout, self.provider.look_up(effect)).await {
            Ok(Ok(found)) => Report::found(found),
            Ok(Err(error)) => {
                tracing::warn!(%error, %effect, "the provider could not be asked");
                None
            }
            Err(_) => {
                tracing::warn!(%effect, "the provider did not answer a look-up in time");
                None
            }
        };
        let Some(report) = report else {
            return false;
        };
        let report = report.effect_key(&effect.key).tenant(&effect.tenant);
        let report = report.sent_at(due.sent_at.clone());
        let observe = self
            .once
            .observe_for(&self.provider, report, due.intent.as_ref(), "look_up");
        match timeout(self.timeout, observe).await {
            Ok(Ok(observed)) => observed != Observed::NoCall,
            Ok(Err(error)) => {
                tracing::warn!(%error, %effect, "what a look-up found was not recorded");
                false
            }
            Err(_) => {
                tracing::warn!(%effect, "what a look-up found was not recorded in time");
                false
            }
        }
    }
}

fn read_due(mut row: Row) -> Result<Due> {
    let (tenant, scope, key) = (row.text()?, row.text()?, row.text()?);
    let fingerprint = row.opt_text();
    let effect = Effect {
        step: row.text()?,
        key: row.text()?,
        reference: row.opt_text(),
        tenant: tenant.clone(),
        sends: 0,
    };
    let sent_at = row.opt_text();
    // Without its command a call is looked up all the same; only less of the response is stored.
    let intent = fingerprint.and_then(|hex| {
        intent_of(&hex, scope, key, tenant)
            .inspect_err(
                |error| tracing::warn!(%error, %effect, "the command of a call cannot be read"),
            )
            .ok()
    });
    Ok(Due {
        effect,
        sent_at,
        intent,
    })
}

fn intent_of(hex: &str, scope: String, key: String, tenant: String) -> Result<Intent> {
    let digest = bytes_of(hex).ok_or_else(unreadable)?;
    let intent = Intent::with_fingerprint(scope, key, Fingerprint::custom(digest))?;
    match tenant.is_empty() {
        true => Ok(intent),
        false => intent.tenant(tenant),
    }
}

/// Goes on with what runs until `work` is done.
async fn while_running<T>(
    running: &mut FuturesUnordered<impl Future>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            output = &mut work => return output,
            Some(_) = running.next() => {}
        }
    }
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let pairs = (0..hex.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok())
        .collect()
}
