//! Reading the log, beside what else a relay does.

use std::collections::{BTreeSet, HashMap};

use pgonce::Result;
use pgonce::driver::Driver;
use pgonce::outbox::{LaneLease, Page};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::deliver::jittered;
use super::run::{Engine, REST, SHORTEST_POLL, by_lane, in_time};
use crate::Sink;
use crate::metrics::RelayMetrics as _;

/// How many reads may be under way: the database works on one while this process takes another apart.
const AT_ONCE: usize = 2;

/// A lane that brings this part of what it may is taken to have more: bytes are limited too, and a read
/// for nothing costs little.
const MUCH: usize = 4;

/// Reads that are under way. Dropped, they end.
#[derive(Debug)]
pub(super) struct Reads {
    tasks: JoinSet<Result<Page>>,
    /// For which lanes each is.
    lanes: HashMap<Id, Vec<LaneLease>>,
    /// The last one brought much for a lane, or there was none: there may be more.
    more: bool,
    /// The last one failed.
    last_read_failed: bool,
}

impl Default for Reads {
    fn default() -> Self {
        Self {
            tasks: JoinSet::new(),
            lanes: HashMap::new(),
            more: true,
            last_read_failed: false,
        }
    }
}

/// A read that ended: for which lanes, and what it answered; nothing where it panicked.
type Read = (Vec<LaneLease>, Option<Result<Page>>);

impl Reads {
    pub(super) fn may_begin(&self) -> bool {
        self.tasks.len() < AT_ONCE
    }

    pub(super) fn last_read_failed(&self) -> bool {
        self.last_read_failed
    }

    /// Waits for one to end; `None` where none is under way.
    pub(super) async fn next(&mut self) -> Option<Read> {
        let done = self.tasks.join_next_with_id().await?;
        let (id, page) = match done {
            Ok((id, page)) => (id, Some(page)),
            Err(error) => (logged_id(&error), None),
        };
        Some((self.lanes.remove(&id).unwrap_or_default(), page))
    }
}

fn logged_id(error: &JoinError) -> Id {
    tracing::error!(%error, "a read panicked");
    error.id()
}

impl<D: Driver, S: Sink> Engine<D, S> {
    /// Begins to read for idle lanes, where anything is there for them.
    pub(super) async fn look(&mut self) -> Result<()> {
        let idle = self.lanes_that(super::lane::Holding::is_idle);
        if idle.is_empty() || !self.reads.may_begin() {
            return Ok(());
        }
        self.poll = (self.poll.mul_f64(1.5)).min(self.max_poll_interval());
        self.next_look = Instant::now() + self.poll;
        let mut cursors: Vec<_> = idle.iter().map(|held| &held.cursor).collect();
        cursors.dedup();
        if !self.reads.more {
            let news = self.relay.outbox.has_new_events(&cursors);
            if !in_time(&self.relay.limits, news).await? {
                // It has looked often enough: the poller says when there is something.
                if self.poll >= self.max_poll_interval() && self.poller.can_rest() {
                    self.next_look = Instant::now() + jittered(REST);
                }
                return Ok(());
            }
        }
        // Where there is much, one half each.
        let alone = !self.reads.more || self.reads.tasks.len() + 1 == AT_ONCE;
        let half = if alone {
            idle.len()
        } else {
            idle.len().div_ceil(2)
        };
        self.reads.more = false;
        for lanes in idle.chunks(half) {
            self.begin_to_read(lanes.to_vec());
        }
        Ok(())
    }

    fn begin_to_read(&mut self, lanes: Vec<LaneLease>) {
        for held in &lanes {
            if let Some(lane) = self.lanes.get_mut(&held.lane) {
                lane.reading = true;
            }
        }
        let (outbox, subscription) = (self.relay.outbox.clone(), self.relay.subscription.clone());
        let (events, bytes) = (
            self.relay.limits.lane_events * lanes.len(),
            self.relay.limits.lane_bytes * lanes.len(),
        );
        let (held, limits) = (lanes.clone(), self.relay.limits.clone());
        let task = self.reads.tasks.spawn(async move {
            fault_point!("relay.before_read");
            let read = outbox.read(&subscription, &held, events, bytes);
            let page = in_time(&limits, read).await?;
            fault_point!("relay.read");
            Ok(page)
        });
        self.reads.lanes.insert(task.id(), lanes);
    }

    /// A read ended: what it brought is sent on its way. A lane that was lost meanwhile, or lost and
    /// won again, has nothing to do with it any more.
    pub(super) fn take_page(&mut self, (lanes, page): Read) -> Result<()> {
        let mut ours = BTreeSet::new();
        for held in lanes {
            if let Some(lane) = self.lanes.get_mut(&held.lane)
                && lane.reading
                && (lane.epoch, &lane.cursor) == (held.epoch, &held.cursor)
            {
                lane.reading = false;
                ours.insert(held.lane);
            }
        }
        let Some(page) = page else {
            self.back_off_reads();
            return Ok(());
        };
        self.reads.last_read_failed = page.is_err();
        let page = page?;
        self.relay.metrics.read(&page.messages);
        if !page.messages.is_empty() {
            self.poll = SHORTEST_POLL;
            self.next_look = Instant::now();
        }
        let mut batches = by_lane(page.messages);
        for (lane, cursor) in page.cursors {
            if !ours.contains(&lane) {
                continue;
            }
            match batches.remove(&lane) {
                Some(batch) => {
                    self.reads.more |= batch.len() >= self.relay.limits.lane_events / MUCH;
                    self.send(lane, batch, cursor);
                }
                None => {
                    // A page of what the subscription does not want: the next one, at once. A cursor stands while
                    // the log of another server is not settled.
                    let held = self.lanes.get(&lane);
                    let moved = held.is_some_and(|held| held.cursor != cursor);
                    if moved && cursor.has_more() {
                        self.reads.more = true;
                        self.next_look = Instant::now();
                    }
                    self.move_to(lane, cursor);
                }
            }
        }
        Ok(())
    }
}
