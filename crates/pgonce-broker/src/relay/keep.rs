//! What came of events, and how far lanes are, written to the database.

use std::time::Duration;

use pgonce::driver::Driver;
use pgonce::outbox::Outcome;
use pgonce::retry::Class;
use pgonce::{Error, Result};
use tokio::time::Instant;

use super::run::{Engine, in_time};
use crate::Sink;

/// How long to wait before outcomes that the database did not take, as where dead letters are full, are tried again.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

impl<D: Driver, S: Sink> Engine<D, S> {
    /// Keeps what came of batches that were not simply delivered. What fails is tried again later, so that it does not
    /// stand in the way of the other lanes.
    pub(super) async fn settle(&mut self) -> Result<()> {
        let mut failed = Ok(());
        for (&lane, held) in &mut self.lanes {
            let mut at = 0;
            while let Some(unsettled) = held.unsettled.get_mut(at) {
                if unsettled.at > Instant::now() {
                    at += 1;
                    continue;
                }
                fault_point!("relay.before_settle");
                let relay = &self.relay;
                let settlement = &mut unsettled.settlement;
                let settled =
                    relay
                        .outbox
                        .settle(&relay.subscription, lane, held.epoch, settlement);
                match in_time(&relay.limits, settled).await {
                    Ok(()) => {
                        if let Some(cursor) = settlement.cursor.take() {
                            held.saved = cursor.clone();
                            held.cursor = cursor;
                            self.next_look = Instant::now();
                        }
                        held.unsettled.remove(at);
                        fault_point!("relay.settled");
                    }
                    Err(error) if error.code() == "P4060" => {
                        tracing::warn!(%error, lane, "the lane waits");
                        unsettled.at = Instant::now() + REFUSED_PAUSE;
                        at += 1;
                    }
                    // The database said so, and may say something else of the next one.
                    Err(error @ Error::Database(_)) => {
                        unsettled.at = Instant::now() + REFUSED_PAUSE;
                        at += 1;
                        failed = failed.and(Err(error));
                    }
                    Err(error) => {
                        // It may be written: a failure would count twice. One that is not comes due again.
                        if settlement.cursor.is_none() {
                            settlement
                                .outcomes
                                .retain(|(_, what)| *what == Outcome::Sent);
                        }
                        if error.class() != Class::ClaimAgain {
                            unsettled.at = Instant::now() + REFUSED_PAUSE;
                        }
                        return Err(error);
                    }
                }
            }
        }
        failed
    }

    /// Writes down how far the lanes are, and gives back those that are too many.
    pub(super) async fn keep(&mut self) -> Result<()> {
        for release in [false, true] {
            let lanes = self.lanes_that(|held| match release {
                false => !held.is_saved() && !held.surplus,
                true => held.surplus && held.is_done(),
            });
            if lanes.is_empty() {
                continue;
            }
            fault_point!("relay.before_advance");
            let relay = &self.relay;
            let kept = relay.outbox.advance(&relay.subscription, &lanes, release);
            let kept = in_time(&relay.limits, kept).await?;
            fault_point!("relay.advanced");
            for held in &lanes {
                if release || !kept.contains(&held.lane) {
                    self.lanes.remove(&held.lane);
                } else if let Some(lane) = self.lanes.get_mut(&held.lane) {
                    lane.saved = held.cursor.clone();
                }
            }
        }
        Ok(())
    }
}
