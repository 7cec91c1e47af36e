//! What a relay knows of a lane that it holds.

use pgonce::outbox::{Held, Lane, Place, Settlement};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// A lane in hand.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) epoch: i64,
    /// Everything before is delivered.
    pub(super) place: Place,
    /// Whether the database knows that place.
    pub(super) kept: bool,
    pub(super) surplus: bool,
    pub(super) doing: Doing,
}

/// What a lane is at; one thing at a time, so that its subjects' order holds.
#[derive(Debug)]
pub(super) enum Doing {
    /// Ready to read.
    Nothing,
    /// A batch is with the sink.
    Delivering(AbortHandle),
    /// A batch is delivered, and what came of it could not be kept yet.
    Settling(Settlement, Instant),
}

impl Holding {
    pub(super) fn new(lane: Lane) -> Self {
        Self {
            epoch: lane.epoch,
            place: lane.place,
            kept: true,
            surplus: lane.surplus,
            doing: Doing::Nothing,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.doing, Doing::Nothing)
    }

    pub(super) fn held(&self, lane: u8) -> Held {
        Held {
            lane,
            epoch: self.epoch,
            place: self.place.clone(),
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        // Whoever lost the lane must not go on delivering.
        if let Doing::Delivering(task) = &self.doing {
            task.abort();
        }
    }
}
