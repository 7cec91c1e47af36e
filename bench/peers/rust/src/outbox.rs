//! A log of events, read from its start.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use futures_util::StreamExt as _;
use obix::out::Outbox;
use obix::{EventSequence, MailboxConfig};
use pgonce::outbox::Message;
use pgonce_broker::{Delivery, Relay, Sink};
use serde_json::Value;
use tokio::sync::Notify;
use tokio_postgres::NoTls;
use tokio_util::sync::CancellationToken;

use super::Result;

/// Events a second until all of them were given.
pub(super) async fn measure(postgres: &str, side: &str, messages: u64) -> Result<f64> {
    let start = Instant::now();
    match side {
        "obix" => obix(postgres, messages).await?,
        "pgonce" => pgonce(postgres, messages).await?,
        other => return Err(format!("no side {other}").into()),
    }
    Ok(messages as f64 / start.elapsed().as_secs_f64())
}

/// A listener of obix; its place in the log is kept nowhere.
async fn obix(postgres: &str, messages: u64) -> Result<()> {
    let pool = sqlx::PgPool::connect(postgres).await?;
    let outbox = Outbox::<Value>::init(&pool, MailboxConfig::builder().build()).await?;
    let mut events = outbox.listen_persisted(EventSequence::BEGIN);
    for _ in 0..messages {
        events.next().await.ok_or("the listener ended")??;
    }
    Ok(())
}

/// The relay of pgonce, to a sink that counts; its cursors are kept in the database.
async fn pgonce(postgres: &str, messages: u64) -> Result<()> {
    let manager = deadpool_postgres::Manager::new(postgres.parse()?, NoTls);
    let pool = deadpool_postgres::Pool::builder(manager)
        .max_size(4)
        .build()?;
    let counter = Counter(Arc::new((AtomicU64::new(messages), Notify::new())));
    let outbox = pgonce::Once::tokio_postgres(pool).outbox();
    let relay = Relay::new(outbox, "relay", counter.clone());
    let stop = CancellationToken::new();
    let ended = relay.run(stop.clone());
    tokio::pin!(ended);
    tokio::select! {
        ended = &mut ended => {
            ended?;
            return Err("the relay ended before it had delivered everything".into());
        }
        () = counter.0.1.notified() => stop.cancel(),
    }
    Ok(ended.await?)
}

#[derive(Debug, Clone)]
struct Counter(Arc<(AtomicU64, Notify)>);

impl Sink for Counter {
    async fn send(&self, message: &Message) -> Delivery {
        self.send_batch(std::slice::from_ref(message), 1)
            .await
            .remove(0)
    }

    async fn send_batch(&self, batch: &[Message], _: usize) -> Vec<Delivery> {
        let count = batch.len() as u64;
        if self.0.0.fetch_sub(count, Ordering::SeqCst) <= count {
            self.0.1.notify_one();
        }
        vec![Delivery::Acknowledged; batch.len()]
    }
}
