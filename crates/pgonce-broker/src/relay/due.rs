//! Parked events whose time has come.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use pgonce::Result;
use pgonce::driver::Driver;
use pgonce::outbox::Message;
use tokio::time::Instant;

use super::health::{Subject, subject_of};
use super::lane::{Holding, ParkedBatch};
use super::poller::DUE_EVERY;
use super::run::{Engine, REST, by_lane, in_time};
use crate::Sink;

/// How long nothing parked is asked for after that failed.
const DUE_PAUSE: Duration = Duration::from_secs(1);

impl<D: Driver, S: Sink> Engine<D, S> {
    /// Sends what is due, and says when to ask again.
    pub(super) async fn look_for_due(&mut self) -> Result<()> {
        let asked = Instant::now();
        let taken = self.take_due().await;
        self.next_due = match &taken {
            Ok(false) if self.poller.can_rest() => asked + REST, // until the poller says that something is due
            Ok(_) => asked + DUE_EVERY,
            Err(_) => Instant::now() + DUE_PAUSE,
        };
        taken.map(drop)
    }

    /// Sends parked events whose time has come, beside what is read from the log. Returns whether there were any.
    async fn take_due(&mut self) -> Result<bool> {
        let ready = self.lanes_that(Holding::takes_parked);
        if ready.is_empty() {
            return Ok(false);
        }
        let (events, bytes) = (
            self.relay.limits.lane_events,
            self.relay.limits.lane_bytes * 4,
        );
        let due = self
            .relay
            .outbox
            .due(&self.relay.subscription, &ready, events, bytes);
        let due = in_time(&self.relay.limits, due).await?;
        let any = !due.is_empty();
        for (lane, due) in by_lane(due) {
            let Some(held) = self.lanes.get(&lane) else {
                continue;
            };
            // Those that failed before go alone, so that nobody waits for them.
            let mut batches: BTreeMap<Option<Subject>, Vec<Message>> = BTreeMap::new();
            for message in due {
                let subject = subject_of(&message);
                if !held.is_busy(&subject) {
                    let alone = held.suspects.contains(&subject).then_some(subject);
                    batches.entry(alone).or_default().push(message);
                }
            }
            for batch in batches.into_values() {
                self.send_parked(lane, batch);
            }
        }
        Ok(any)
    }

    fn send_parked(&mut self, lane: u8, batch: Vec<Message>) {
        let subjects: HashSet<Subject> = batch.iter().map(subject_of).collect();
        let task = self.spawn_delivery(batch, None);
        if let Some(held) = self.lanes.get_mut(&lane) {
            held.parked
                .insert(task.id(), ParkedBatch { task, subjects });
        }
    }
}
