//! Sinks that only count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::outbox::{Message, Outbox};
use pgonce_broker::{Delivery, Relay, Sink};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{CONSUMER, Result};

/// Counts what it gets, and reports when it has everything. Takes a batch as a whole, as a sink does that
/// writes to a socket.
#[derive(Debug, Clone)]
pub(super) struct Counter {
    left: Arc<AtomicU64>,
    done: Arc<Notify>,
}

impl Counter {
    fn of(events: u64) -> Self {
        Self {
            left: Arc::new(AtomicU64::new(events)),
            done: Arc::default(),
        }
    }

    fn count(&self, events: u64) {
        if self.left.fetch_sub(events, Ordering::SeqCst) <= events {
            self.done.notify_one();
        }
    }
}

impl Sink for Counter {
    async fn send(&self, _: &Message) -> Delivery {
        self.count(1);
        Delivery::Acknowledged
    }

    async fn send_batch(&self, batch: &[Message], _: usize) -> Vec<Delivery> {
        self.count(batch.len() as u64);
        vec![Delivery::Acknowledged; batch.len()]
    }
}

/// The same, asked for each event by itself.
#[derive(Debug, Clone)]
pub(super) struct OneByOne(Counter);

impl Sink for OneByOne {
    async fn send(&self, message: &Message) -> Delivery {
        self.0.send(message).await
    }
}

/// Runs a relay until it has delivered so many events and has kept its cursor.
pub(super) async fn relay(
    outbox: Outbox<TokioPostgres>,
    events: u64,
    one_by_one: bool,
) -> Result<()> {
    let counter = Counter::of(events);
    if one_by_one {
        run(
            Relay::new(outbox, CONSUMER, OneByOne(counter.clone())),
            counter,
        )
        .await
    } else {
        run(Relay::new(outbox, CONSUMER, counter.clone()), counter).await
    }
}

async fn run<S: Sink>(relay: Relay<TokioPostgres, S>, counter: Counter) -> Result<()> {
    let stop = CancellationToken::new();
    let ended = relay.run(stop.clone());
    tokio::pin!(ended);
    tokio::select! {
        ended = &mut ended => {
            ended?;
            return Err("the relay ended before it had delivered everything".into());
        }
        () = counter.done.notified() => stop.cancel(),
    }
    Ok(ended.await?)
}
