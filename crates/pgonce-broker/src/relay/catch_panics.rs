//! A sink that panics: on an event, which then failed, and no other; or always, as one that is unavailable.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use pgonce::outbox::Message;

use super::health::{Blame, SinkHealth, subject_of};
use crate::panics::panic_text;
use crate::sink::one_by_one_in_each_subject;
use crate::{Delivery, Sink};

/// A sink that never panics.
pub(super) struct CatchPanics<S> {
    pub(super) sink: Arc<S>,
    pub(super) health: Arc<SinkHealth>,
}

impl<S: Sink> Sink for CatchPanics<S> {
    async fn send(&self, message: &Message) -> Delivery {
        // A function that is not `async` may panic before there is a future.
        let sending = async { self.sink.send(message).await };
        match AssertUnwindSafe(sending).catch_unwind().await {
            Ok(delivery) => delivery,
            Err(panic) => {
                let reason = format!("the sink panicked: {}", panic_text(&*panic));
                let after = Duration::ZERO;
                match self.health.unavailable(subject_of(message)) {
                    // Events of other subjects fail as well, and none passes: no attempt of theirs counts.
                    Blame::Sink => Delivery::Unavailable { reason },
                    Blame::Event | Blame::Unknown => Delivery::Retry { reason, after },
                }
            }
        }
    }

    async fn send_batch(&self, batch: &[Message], in_flight: usize) -> Vec<Delivery> {
        let sending = async { self.sink.send_batch(batch, in_flight).await };
        match AssertUnwindSafe(sending).catch_unwind().await {
            Ok(deliveries) => deliveries,
            Err(panic) => {
                tracing::error!(
                    events = batch.len(),
                    panic = panic_text(&*panic),
                    "the sink panicked: its batch is sent again, each event by itself"
                );
                one_by_one_in_each_subject(self, batch, in_flight).await
            }
        }
    }
}
