//! How often, how long and how patiently a transaction is tried again.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};

/// Bounds for retries at the transaction boundary: exponential with full jitter, limited in
/// number and in time, cancellable.
///
/// ```
/// use std::time::Duration;
/// use pgonce::retry::Policy;
///
/// let patient = Policy::default().tries(20).within(Duration::from_secs(120));
/// let once = Policy::none();
/// # let _ = (patient, once);
/// ```
#[derive(Debug, Clone)]
pub struct Policy {
    tries: u32,
    base: Duration,
    cap: Duration,
    within: Duration,
    cancel: Option<CancellationToken>,
}

impl Default for Policy {
    /// Eight tries within 30 seconds; pauses of up to 5 ms, 10 ms, 20 ms … and never above 1 s.
    fn default() -> Self {
        Self {
            tries: 8,
            base: Duration::from_millis(5),
            cap: Duration::from_secs(1),
            within: Duration::from_secs(30),
            cancel: None,
        }
    }
}

impl Policy {
    /// One try, no retry.
    pub fn none() -> Self {
        Self::default().tries(1)
    }

    /// At most this many tries in all, the first included. 0 counts as 1.
    #[must_use]
    pub fn tries(mut self, tries: u32) -> Self {
        self.tries = tries.max(1);
        self
    }

    /// The longest first pause; each further one may be twice as long.
    #[must_use]
    pub fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// No pause of our own choice is longer than this.
    #[must_use]
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// No try starts later than this after the first.
    #[must_use]
    pub fn within(mut self, total: Duration) -> Self {
        self.within = total;
        self
    }

    /// Stops waiting, with [`Error::Cancelled`], when the token is cancelled.
    #[must_use]
    pub fn cancel(mut self, token: CancellationToken) -> Self {
        self.cancel = Some(token);
        self
    }

    /// For how long work that begins now is tried.
    pub(crate) fn time_left(&self) -> Duration {
        let token = self.cancel.as_ref();
        match token.is_some_and(CancellationToken::is_cancelled) {
            true => Duration::ZERO,
            false => self.within,
        }
    }

    /// Starts the clock for one piece of work.
    pub fn schedule(&self) -> Schedule {
        Schedule {
            ceilings: ExponentialBuilder::new()
                .with_factor(2.0)
                .with_min_delay(self.base.min(self.cap))
                .with_max_delay(self.cap)
                .with_max_times(usize::try_from(self.tries - 1).unwrap_or(usize::MAX))
                .build(),
            started: Instant::now(),
            within: self.within,
            cancel: self.cancel.clone(),
            retries: 0,
        }
    }
}

/// The retries of one piece of work. Made by [`Policy::schedule`].
#[derive(Debug)]
pub struct Schedule {
    ceilings: ExponentialBackoff,
    started: Instant,
    within: Duration,
    cancel: Option<CancellationToken>,
    retries: u32,
}

impl Schedule {
    /// Waits before the next try, because of `why`: `at_least`, and a random part on top so that
    /// those who were turned away together do not come back together.
    ///
    /// `Ok(true)`: try again. `Ok(false)`: tries or time are used up, and it did not wait: report
    /// `why`. `Err`: the policy's token was cancelled.
    pub async fn pause(&mut self, at_least: Duration, why: &Error) -> Result<bool> {
        if self
            .cancel
            .as_ref()
            .is_some_and(CancellationToken::is_cancelled)
        {
            return Err(Error::Cancelled);
        }
        let Some(ceiling) = self.ceilings.next() else {
            return Ok(false);
        };
        // Not backon's own jitter: that only adds to the delay. Uniform from zero spreads
        // contenders best.
        let delay = at_least.saturating_add(rand::random_range(Duration::ZERO..=ceiling));
        let left = self.within.saturating_sub(self.started.elapsed());
        if delay >= left {
            return Ok(false);
        }
        self.retries += 1;
        tracing::debug!(
            code = why.code(),
            class = why.class().as_str(),
            retry = self.retries,
            ?delay,
            "trying again"
        );
        match &self.cancel {
            None => tokio::time::sleep(delay).await,
            Some(token) => tokio::select! {
                biased;
                () = token.cancelled() => return Err(Error::Cancelled),
                () = tokio::time::sleep(delay) => {}
            },
        }
        Ok(true)
    }

    /// How many retries there were so far.
    pub fn retries(&self) -> u32 {
        self.retries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn why() -> Error {
        Error::Disconnected("the wire was cut".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn eight_tries_are_seven_pauses_and_no_more() {
        let mut schedule = Policy::default().schedule();
        for retry in 1..=7 {
            assert!(schedule.pause(Duration::ZERO, &why()).await.unwrap());
            assert_eq!(schedule.retries(), retry);
        }
        let before = Instant::now();
        assert!(!schedule.pause(Duration::ZERO, &why()).await.unwrap());
        assert_eq!(schedule.retries(), 7);
        assert_eq!(before.elapsed(), Duration::ZERO, "giving up does not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn no_pause_is_longer_than_its_ceiling_or_the_cap() {
        // The timer of tokio counts whole milliseconds.
        let slack = Duration::from_millis(1);
        let cap = Duration::from_millis(300);
        let mut schedule = Policy::default()
            .tries(20)
            .base(SECOND / 10)
            .cap(cap)
            .schedule();
        for ceiling in [SECOND / 10, SECOND / 5, cap, cap, cap] {
            let before = Instant::now();
            assert!(schedule.pause(Duration::ZERO, &why()).await.unwrap());
            assert!(
                before.elapsed() <= ceiling + slack,
                "{:?}",
                before.elapsed()
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_base_above_the_cap_is_capped_from_the_first_pause() {
        let mut schedule = Policy::default().base(SECOND * 20).cap(SECOND).schedule();
        let before = Instant::now();
        assert!(schedule.pause(Duration::ZERO, &why()).await.unwrap());
        assert!(before.elapsed() <= SECOND + Duration::from_millis(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_never_shorter_than_asked() {
        let mut schedule = Policy::default().schedule();
        let before = Instant::now();
        assert!(schedule.pause(SECOND * 3, &why()).await.unwrap());
        assert!(before.elapsed() >= SECOND * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn it_gives_up_at_once_when_the_pause_would_end_after_the_limit() {
        let mut schedule = Policy::default().within(SECOND * 2).schedule();
        let before = Instant::now();
        assert!(!schedule.pause(SECOND * 3, &why()).await.unwrap());
        assert_eq!(before.elapsed(), Duration::ZERO);
        assert_eq!(schedule.retries(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_the_work_took_counts() {
        let mut schedule = Policy::default().within(SECOND).schedule();
        tokio::time::advance(SECOND * 2).await;
        assert!(!schedule.pause(Duration::ZERO, &why()).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn none_never_pauses_and_zero_tries_are_one() {
        for policy in [Policy::none(), Policy::default().tries(0)] {
            assert!(
                !policy
                    .schedule()
                    .pause(Duration::ZERO, &why())
                    .await
                    .unwrap()
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_token_ends_the_pause_early() {
        let token = CancellationToken::new();
        let mut schedule = Policy::default().cancel(token.clone()).schedule();
        let before = Instant::now();
        let reason = why();
        let (paused, ()) = tokio::join!(schedule.pause(SECOND * 20, &reason), async {
            tokio::time::sleep(SECOND).await;
            token.cancel();
        });
        assert!(matches!(paused, Err(Error::Cancelled)));
        assert_eq!(before.elapsed(), SECOND);
        // And once cancelled it does not begin to wait at all.
        assert!(matches!(
            schedule.pause(SECOND, &why()).await,
            Err(Error::Cancelled)
        ));
        assert_eq!(before.elapsed(), SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn extreme_durations_do_not_overflow() {
        let policy = Policy::default()
            .base(Duration::MAX)
            .cap(Duration::MAX)
            .within(Duration::MAX);
        let mut schedule = policy.schedule();
        assert!(!schedule.pause(Duration::MAX, &why()).await.unwrap());
    }
}
