//! What a relay knows of a lane that it holds.

use pgonce::outbox::{Cursor, Lane, LaneLease, Settlement};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// A lane in hand.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) epoch: i64,
    /// Everything before is delivered.
    pub(super) cursor: Cursor,
    /// Whether the database knows that cursor.
    pub(super) kept: bool,
    pub(super) surplus: bool,
    /// Whether its next events are being read.
    pub(super) reading: bool,
    /// The batch that is with the sink; one at a time, so that its subjects' order holds.
    pub(super) delivering: Option<AbortHandle>,
    /// What came of batches and is not kept yet, and when to try that.
    pub(super) unsettled: Vec<(Settlement, Instant)>,
}

impl Holding {
    pub(super) fn new(lane: Lane) -> Self {
        Self {
            epoch: lane.epoch,
            cursor: lane.cursor,
            kept: true,
            surplus: lane.surplus,
            reading: false,
            delivering: None,
            unsettled: Vec::new(),
        }
    }

    /// Ready to read the log.
    pub(super) fn is_idle(&self) -> bool {
        self.is_done() && !self.surplus
    }

    /// Ready for parked events: also while the lane waits for room among the dead letters, since
    /// these may be what makes it.
    pub(super) fn takes_parked(&self) -> bool {
        let of_parked = |(settlement, _): &(Settlement, Instant)| settlement.cursor.is_none();
        !self.reading
            && self.delivering.is_none()
            && !self.unsettled.iter().any(of_parked)
            && !self.surplus
    }

    /// Nothing is in hand.
    pub(super) fn is_done(&self) -> bool {
        !self.reading && self.delivering.is_none() && self.unsettled.is_empty()
    }

    pub(super) fn held(&self, lane: u8) -> LaneLease {
        LaneLease {
            lane,
            epoch: self.epoch,
            cursor: self.cursor.clone(),
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        // A relay that lost the lane must not go on delivering.
        if let Some(task) = &self.delivering {
            task.abort();
        }
    }
}
