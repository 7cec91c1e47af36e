//! What a relay knows of a lane that it holds.

use std::collections::{HashMap, HashSet};

use pgonce::outbox::{Cursor, Lane, LaneLease, Settlement};
use tokio::task::{AbortHandle, Id};
use tokio::time::Instant;

use super::health::Subject;

/// Maximum number of parked batches of a lane that are with the sink at once.
const MAX_PARKED: usize = 16;

/// A lane in hand.
///
/// What is parked is delivered beside the log, never instead of it: the log gives nothing of a parked subject out, so
/// the two have no subject in common, and neither can keep the other waiting.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) epoch: i64,
    /// Everything before is delivered.
    pub(super) cursor: Cursor,
    /// The cursor that the database had when it was asked or written last.
    pub(super) saved: Cursor,
    pub(super) surplus: bool,
    /// Whether its next events are being read.
    pub(super) reading: bool,
    /// The batch of the log that is with the sink; one at a time, so that its subjects' order holds.
    pub(super) delivering: Option<AbortHandle>,
    /// Batches of parked subjects that are with the sink.
    pub(super) parked: HashMap<Id, ParkedBatch>,
    /// Outcomes that are not written down yet.
    pub(super) unsettled: Vec<Unsettled>,
    /// Parked subjects that failed again: each goes alone, so that none waits for another.
    pub(super) suspects: HashSet<Subject>,
}

/// Parked events that are with the sink.
#[derive(Debug)]
pub(super) struct ParkedBatch {
    pub(super) task: AbortHandle,
    pub(super) subjects: HashSet<Subject>,
}

/// Outcomes that are to be written down, and when to try that.
#[derive(Debug)]
pub(super) struct Unsettled {
    pub(super) settlement: Settlement,
    pub(super) at: Instant,
    /// Of which parked subjects; empty for a batch of the log.
    pub(super) subjects: HashSet<Subject>,
}

impl Holding {
    pub(super) fn new(lane: Lane) -> Self {
        Self {
            epoch: lane.epoch,
            saved: lane.cursor.clone(),
            cursor: lane.cursor,
            surplus: lane.surplus,
            reading: false,
            delivering: None,
            parked: HashMap::new(),
            unsettled: Vec::new(),
            suspects: HashSet::new(),
        }
    }

    /// Whether the database knows the cursor.
    pub(super) fn is_saved(&self) -> bool {
        self.saved == self.cursor
    }

    /// Ready to read the log: nothing of the log is in hand.
    pub(super) fn is_idle(&self) -> bool {
        let of_log = |unsettled: &Unsettled| unsettled.settlement.cursor.is_some();
        !self.reading
            && self.delivering.is_none()
            && !self.unsettled.iter().any(of_log)
            && !self.surplus
    }

    /// Ready for parked events.
    pub(super) fn takes_parked(&self) -> bool {
        self.parked.len() < MAX_PARKED && !self.surplus
    }

    /// Whether a parked subject is with the sink, or its outcome is not written down.
    pub(super) fn is_busy(&self, subject: &Subject) -> bool {
        self.parked.values().any(|b| b.subjects.contains(subject))
            || self.unsettled.iter().any(|u| u.subjects.contains(subject))
    }

    /// Nothing is in hand.
    pub(super) fn is_done(&self) -> bool {
        !self.reading
            && self.delivering.is_none()
            && self.parked.is_empty()
            && self.unsettled.is_empty()
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
        let parked = self.parked.values().map(|batch| &batch.task);
        for task in self.delivering.iter().chain(parked) {
            task.abort();
        }
    }
}
