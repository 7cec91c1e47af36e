//! The phase of a request (claiming, working, settling) and the time limit of each.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Claiming,
    Working,
    Settling,
    GivenUp,
}

#[derive(Debug, Clone, Copy)]
struct State {
    phase: Phase,
    since: Instant,
    /// The number of the last attempt in which the handler was called; 0 before.
    attempt: u32,
    /// Whether an earlier attempt reached its commit.
    settled: bool,
    /// Whether a leased claim was ever granted, in time or not.
    claimed: bool,
}

/// The phase of one request. The engine advances it; the task that waits for the response reads it.
#[derive(Debug)]
pub(crate) struct PhaseTimer(Mutex<State>);

/// No limit is longer: a time so far away is the same as none, and one without an end cannot be added to a clock.
pub(crate) const FAR: Duration = Duration::from_secs(30 * 8766 * 3600);

/// The time limit of each phase.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    claim: Duration,
    /// `None`: no limit.
    work: Option<Duration>,
    settle: Duration,
}

/// A phase that exceeded its limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overdue {
    pub(crate) phase: Phase,
    /// Whether something may have been committed.
    pub(crate) may_have_committed: bool,
}

impl Limits {
    pub(crate) fn new(claim: Duration, work: Option<Duration>, settle: Duration) -> Self {
        Self {
            claim: claim.min(FAR),
            work: work.map(|work| work.min(FAR)),
            settle: settle.min(FAR),
        }
    }

    /// How long the database may take to answer.
    pub(crate) fn settle(self) -> Duration {
        self.settle
    }

    fn of(self, phase: Phase) -> Option<Duration> {
        match phase {
            Phase::Claiming => Some(self.claim),
            Phase::Working => self.work,
            Phase::Settling => Some(self.settle),
            Phase::GivenUp => None,
        }
    }
}

impl PhaseTimer {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State {
            phase: Phase::Claiming,
            since: Instant::now(),
            attempt: 0,
            settled: false,
            claimed: false,
        }))
    }

    /// When the phase began.
    pub(crate) fn since(&self) -> Instant {
        self.lock().since
    }

    /// A leased claim was granted, in time or not.
    pub(crate) fn granted(&self) {
        self.lock().claimed = true;
    }

    /// Claimed: the handler may begin, unless the wait was given up.
    #[must_use]
    pub(crate) fn begin(&self, attempt: u32) -> bool {
        self.move_on(Phase::Working, attempt.max(1))
    }

    /// The handler is done: the database records it, unless the wait was given up.
    #[must_use]
    pub(crate) fn settle(&self) -> bool {
        self.move_on(Phase::Settling, 0)
    }

    fn move_on(&self, phase: Phase, attempt: u32) -> bool {
        let mut state = self.lock();
        let goes_on = state.phase != Phase::GivenUp;
        if goes_on {
            state.attempt = state.attempt.max(attempt);
            state.settled |= phase == Phase::Settling;
            (state.phase, state.since) = (phase, Instant::now());
        }
        goes_on
    }

    /// Whether the handler was ever called.
    pub(crate) fn began(&self) -> bool {
        self.attempt() > 0
    }

    /// The number of the last attempt in which the handler was called; 0 before.
    pub(crate) fn attempt(&self) -> u32 {
        self.lock().attempt
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a phase exceeds its limit, and gives up: from then on nothing begins.
    ///
    /// It is not woken when the phase changes, which would cost every request: it polls often enough
    /// to be in time for any phase that may have begun meanwhile.
    pub(crate) async fn overdue(&self, limits: Limits) -> Overdue {
        let shortest = limits.claim.min(limits.settle);
        let shortest = limits.work.map_or(shortest, |work| work.min(shortest));
        loop {
            let next_look = {
                let mut state = self.lock();
                let now = Instant::now();
                let due = limits.of(state.phase).map(|limit| state.since + limit);
                if let Some(due) = due
                    && due <= now
                {
                    let phase = std::mem::replace(&mut state.phase, Phase::GivenUp);
                    state.since = now;
                    return Overdue {
                        phase,
                        may_have_committed: state.settled,
                    };
                }
                due.map_or(now + shortest, |due| due.min(now + shortest))
            };
            sleep_until(next_look).await;
        }
    }

    /// Waits until a phase has taken its limit and the time to settle beside it, and returns the phase: the database, or an atomic
    /// handler, is silent. A leased claim that was granted is never given up: what is sent under it has limits of its own, and
    /// the service is waited for.
    pub(crate) async fn fell_silent(&self, limits: Limits, leased: bool) -> Phase {
        let shortest = limits.claim.min(limits.settle);
        loop {
            let (phase, due, now) = {
                let state = self.lock();
                let limit = match state.phase {
                    _ if leased && state.claimed => None,
                    Phase::GivenUp => Some(Duration::ZERO),
                    phase => limits.of(phase),
                };
                let due = limit.map(|limit| state.since + limit + limits.settle);
                (state.phase, due, Instant::now())
            };
            match due {
                Some(due) if due <= now => return phase,
                _ => sleep_until(due.map_or(now + shortest, |due| due.min(now + shortest))).await,
            }
        }
    }
}
