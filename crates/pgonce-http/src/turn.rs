//! Whose turn it is, the database's or the handler's, and for how long at most.

use std::time::Duration;

use tokio::sync::watch;
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

/// Where one request stands. The engine moves it on; whoever waits for the answer watches it.
#[derive(Debug)]
pub(crate) struct Turn(watch::Sender<State>);

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

impl Turn {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(State {
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
        self.0.send_if_modified(|state| {
            let goes_on = state.phase != Phase::GivenUp;
            if goes_on {
                state.settled |= phase == Phase::Settling;
                (state.phase, state.since) = (phase, Instant::now());
            }
            goes_on
        })
    }

    /// Waits until a turn has taken longer than it may, and gives up: from then on nothing begins.
    pub(crate) async fn overdue(&self, limits: Limits) -> Overdue {
        let mut watched = self.0.subscribe();
        loop {
            let State { phase, since, .. } = *watched.borrow_and_update();
            let limit = match phase {
                Phase::Claiming => Some(limits.claim),
                Phase::Working => limits.work,
                Phase::Settling => Some(limits.settle),
                Phase::GivenUp => None,
            };
            let over = async {
                match limit {
                    Some(limit) => sleep_until(since + limit).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The sender is `self`: it cannot be gone.
                _ = watched.changed() => continue,
                () = over => {}
            }
            let mut in_doubt = false;
            let given_up = self.0.send_if_modified(|state| {
                let still = (state.phase, state.since) == (phase, since);
                if still {
                    in_doubt = state.settled;
                    state.phase = Phase::GivenUp;
                }
                still
            });
            if given_up {
                return Overdue { phase, in_doubt };
            }
        }
    }
}
