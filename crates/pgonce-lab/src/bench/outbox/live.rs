//! How soon after its commit an event is at the sink, at a thousand events a second.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use pgonce::outbox::Message;
use pgonce_broker::{Delivery, Relay, Sink};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{CONSUMER, Result, Size, from_the_start, outbox};
use crate::bench::report::{Budget, Line, Unit};
use crate::bench::rounds::percentile;
use crate::bench::server::{Server, connect};

const WRITERS: u64 = 4;

pub(super) async fn measure(server: &Server, size: &Size) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (what, subjects) in [("100 k subjects", 100_000), ("one hot subject", 1)] {
        let url = server.database("live").await?;
        let delays = delays(&url, size.live, subjects).await?;
        server.remove(&url).await?;
        for (part, word, ms) in [(0.5, "median", 5.0), (0.99, "p99", 50.0)] {
            let name = format!("outbox: commit to sink at 1000 /s, {what}, {word}");
            let line = Line::new(name, percentile(delays.clone(), part), Unit::Microseconds);
            lines.push(line.within(Budget::AtMost(ms * 1000.0)));
        }
    }
    Ok(lines)
}

/// Microseconds between the answer to each commit and the arrival of its event.
async fn delays(url: &str, events: u64, subjects: u64) -> Result<Vec<f64>> {
    let outbox = outbox(url)?;
    from_the_start(&outbox).await?;
    let (sender, mut arrivals) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let relay = tokio::spawn(Relay::new(outbox, CONSUMER, Clock(sender)).run(stop.clone()));
    let each = events / WRITERS;
    let writers =
        (0..WRITERS).map(|writer| tokio::spawn(write(url.to_owned(), writer, each, subjects)));
    let mut committed = HashMap::new();
    for commits in try_join_all(writers).await? {
        committed.extend(commits?);
    }
    let mut delays = Vec::with_capacity(committed.len());
    while delays.len() < committed.len() {
        let (at, number): (Instant, u64) = arrivals.recv().await.ok_or("the relay ended")?;
        let commit = committed
            .get(&number)
            .ok_or("an event that nobody published")?;
        delays.push(at.saturating_duration_since(*commit).as_secs_f64() * 1e6);
    }
    stop.cancel();
    relay.await??;
    Ok(delays)
}

/// Publishes in a transaction of its own every four milliseconds. Answers when each was committed.
async fn write(
    url: String,
    writer: u64,
    events: u64,
    subjects: u64,
) -> Result<Vec<(u64, Instant)>> {
    let client = connect(&url).await?;
    let publish = client
        .prepare("select pgonce.publish('orders', 'order.placed', $1, to_jsonb($2::bigint))")
        .await?;
    let mut tick = tokio::time::interval(Duration::from_millis(WRITERS));
    let mut committed = Vec::new();
    for n in 0..events {
        tick.tick().await;
        let number = writer * events + n;
        let subject = format!("order-{}", number * 7919 % subjects);
        client
            .execute(&publish, &[&subject, &i64::try_from(number)?])
            .await?;
        committed.push((number, Instant::now()));
    }
    Ok(committed)
}

/// Records when each event came.
#[derive(Debug)]
struct Clock(mpsc::UnboundedSender<(Instant, u64)>);

impl Sink for Clock {
    async fn send(&self, message: &Message) -> Delivery {
        let at = Instant::now();
        let number = message.payload.as_deref().and_then(|n| n.parse().ok());
        match number.map(|number| self.0.send((at, number))) {
            Some(Ok(())) => Delivery::Acknowledged,
            _ => Delivery::Poison {
                reason: "nobody waits for it".into(),
            },
        }
    }
}
