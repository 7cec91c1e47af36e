//! From an order to a balance: an intent writes the order and its event, a relay sends the event to NATS, a
//! consumer adds it up. Every step may be repeated, and every process killed: each order is counted once.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use pgonce::driver::sqlx::Sqlx;
use pgonce::inbox::{Message, Tx};
use pgonce::outbox::{Event, Subscription};
use pgonce::{Ack, Done, Failure, Intent, Once, Result, migrate::Migrator};
use pgonce_broker::sinks::{Options, open};
use pgonce_broker::sources::{Nats, NatsConfig};
use pgonce_broker::{Consumer, Relay};
use serde_json::json;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

/// The stream's name at NATS.
pub const STREAM: &str = "CIRCLE";
/// The name of the relay's place in the outbox.
pub const RELAY: &str = "circle";
/// The name of the consumer, here and at NATS.
pub const CONSUMER: &str = "balances";

/// How long what a killed process had in hand stays with it.
const GONE_AFTER: Duration = Duration::from_secs(2);

/// Everything that the circle needs in its database and at NATS; nothing where it is there.
pub async fn set_up(pool: &PgPool, nats: &str) -> Result<Once<Sqlx>, Box<dyn Error>> {
    let once = Once::sqlx(pool.clone());
    Migrator::new(once.driver().clone()).up().await?;
    sqlx::raw_sql(include_str!("../schema.sql"))
        .execute(pool)
        .await?;
    match once
        .outbox()
        .create_subscription(&Subscription::new(RELAY))
        .await
    {
        Err(error) if error.code() != "42710" => return Err(error.into()),
        _ => {}
    }
    let config = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["circle.>".to_owned()],
        // So short that NATS forgets ids: what is sent again is delivered again, and the consumer has to know it.
        duplicate_window: Duration::from_millis(100),
        ..stream::Config::default()
    };
    let context = jetstream::new(async_nats::connect(nats).await?);
    context.get_or_create_stream(config).await?;
    Ok(once)
}

/// Takes an order, and publishes it. Retried with the same key, it does neither.
pub async fn order(once: &Once<Sqlx>, key: &str, account: &str, amount: i64) -> Result<Done> {
    let body = json!({ "account": account, "amount": amount });
    let intent = Intent::new("orders.create", key, &body)?;
    let (body, insert) = (
        &body,
        "insert into orders (account, amount) values ($1, $2) returning id",
    );
    once.run(&intent, |mut attempt| async move {
        let id: i64 = sqlx::query_scalar(insert)
            .bind(account)
            .bind(amount)
            .fetch_one(attempt.conn())
            .await?;
        let event = Event::new("orders", "order.paid").subject(account);
        attempt.publish(&event.payload(body)?).await?;
        attempt.succeed(Ack::value(&id)?).await
    })
    .await
}

/// Sends what the outbox has to NATS, until cancelled. As many as you like may run.
pub async fn relay(
    once: &Once<Sqlx>,
    nats: &str,
    stop: CancellationToken,
) -> Result<(), Box<dyn Error>> {
    let url = format!("{nats}?stream={STREAM}&subject=circle.{{topic}}");
    let sink = open(&url, &Options::new()).await?;
    let relay = Relay::new(once.outbox(), RELAY, sink).lease(GONE_AFTER);
    Ok(relay.run(stop).await?)
}

/// Adds up what comes from NATS, until cancelled. As many as you like may run.
pub async fn consume(
    once: &Once<Sqlx>,
    nats: &str,
    stop: CancellationToken,
) -> Result<(), Box<dyn Error>> {
    let mut config = NatsConfig::durable(nats, STREAM, CONSUMER);
    config.ack_wait = GONE_AFTER;
    let source = Nats::connect(config).await?;
    let consumer = Consumer::new(once, CONSUMER, source, add)
        .json()
        .kinds(["order.paid"])
        .lease(GONE_AFTER);
    Ok(consumer.run(stop).await?)
}

/// The whole of the bank. It knows neither NATS nor duplicates.
async fn add(mut tx: Tx<Sqlx>, message: Arc<Message>) -> Result<()> {
    let event = message.json()?;
    let (Some(account), Some(amount)) = (event["account"].as_str(), event["amount"].as_i64())
    else {
        return Err(
            Failure::permanent("bad_order", "an account and an amount are expected").into(),
        );
    };
    sqlx::query(
        "insert into balance as b values ($1, 1, $2) on conflict (account) \
         do update set orders = b.orders + 1, amount = b.amount + excluded.amount",
    )
    .bind(account)
    .bind(amount)
    .execute(tx.conn())
    .await?;
    Ok(())
}
