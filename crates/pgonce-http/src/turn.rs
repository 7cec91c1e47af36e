//! Whose turn it is, the database's or the handler's, and for how long at most.

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
    /// Whether an earlier try came as far as its commit.
    settled: bool,
}

/// Where one request stands. The engine moves it on; whoever waits for the answer looks at it.
#[derive(Debug)]
pub(crate) struct Turn(Mutex<State>);

/// How long each turn may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) claim: Duration,
    /// `None`: as long as the handler likes.
    pub(crate) work: Option<Duration>,
    pub(crate) settle: Duration,
}

/// A turn that took too long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overdue {
    pub(crate) phase: Phase,
    /// Whether something may have been committed.
    pub(crate) in_doubt: bool,
}

impl Limits {
    fn of(self, phase: Phase) -> Option<Duration> {
        match phase {
            Phase::Claiming => Some(self.claim),
            Phase::Working => self.work,
            Phase::Settling => Some(self.settle),
            Phase::GivenUp => None,
        }
    }
}

impl Turn {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State {
            phase: Phase::Claiming,
            since: Instant::now(),
            settled: false,
        }))
    }

    /// The claim is there: the handler may begin, unless nobody waits for it any more.
    #[must_use]
    pub(crate) fn begin(&self) -> bool {
        self.move_on(Phase::Working)
    }

    /// The handler is done: the database's turn, unless nobody waits for it any more.
    #[must_use]
    pub(crate) fn settle(&self) -> bool {
        self.move_on(Phase::Settling)
    }

    fn move_on(&self, phase: Phase) -> bool {
        let mut state = self.lock();
        let goes_on = state.phase != Phase::GivenUp;
        if goes_on {
            state.settled |= phase == Phase::Settling;
            (state.phase, state.since) = (phase, Instant::now());
        }
        goes_on
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a turn has taken longer than it may, and gives up: from then on nothing begins.
    ///
    /// Nobody wakes it when the turn changes, which would cost every request: it looks up often enough
    /// to be in time for any turn that may have begun meanwhile.
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
                    return Overdue {
                        phase,
                        in_doubt: state.settled,
                    };
                }
                due.map_or(now + shortest, |due| due.min(now + shortest))
            };
            sleep_until(next_look).await;
        }
    }
}
