//! A shop whose orders are published as events: if and only if they did, in order for each
//! order, with one id however often they are delivered.

use pgonce::driver::sqlx::Sqlx;
use pgonce::outbox::{Event, Subscription};
use pgonce::{Ack, Done, Intent, Once, Result, migrate::Migrator};
use pgonce_broker::sinks::{AnySink, Options, Refusal, open};
use pgonce_broker::{Relay, Sink};
use serde_json::json;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

/// Everything the shop needs in its database.
pub async fn set_up(pool: &PgPool) -> Result<Once<Sqlx>> {
    let once = Once::sqlx(pool.clone());
    Migrator::new(once.driver().clone()).up().await?;
    sqlx::raw_sql(include_str!("../schema.sql"))
        .execute(pool)
        .await?;
    // The same two as in relay.toml; there they would be created by `pgonce relay`.
    for subscription in [
        Subscription::new("shop"),
        Subscription::new("partner").types(["order.shipped"]),
    ] {
        match once.outbox().create_subscription(&subscription).await {
            Err(error) if error.code() != "42710" => return Err(error),
            _ => {}
        }
    }
    Ok(once)
}

/// Places an order, and publishes it. Retried with the same key, it does neither.
pub async fn place(once: &Once<Sqlx>, key: &str, item: &str) -> Result<Done> {
    let intent = Intent::new("orders.place", key, &json!({ "item": item }))?;
    once.run(&intent, |mut attempt| async move {
        let id: i64 = sqlx::query_scalar("insert into orders (item) values ($1) returning id")
            .bind(item)
            .fetch_one(attempt.conn())
            .await?;
        attempt.publish(&event("order.placed", id, item)?).await?;
        attempt.succeed(Ack::value(&id)?).await
    })
    .await
}

/// Ships an order, and publishes it.
pub async fn ship(once: &Once<Sqlx>, id: i64) -> Result<Done> {
    let key = format!("order-{id}");
    let intent = Intent::new("orders.ship", &*key, &json!({ "id": id }))?;
    once.run(&intent, |mut attempt| async move {
        // The row is locked: the events of one order are in the order of what happened to it.
        let item: String =
            sqlx::query_scalar("update orders set status = 'shipped' where id = $1 returning item")
                .bind(id)
                .fetch_one(attempt.conn())
                .await?;
        attempt.publish(&event("order.shipped", id, &item)?).await?;
        attempt.succeed(Ack::value(&id)?).await
    })
    .await
}

fn event(kind: &str, id: i64, item: &str) -> Result<Event> {
    Event::new("orders", kind)
        .subject(format!("order-{id}"))
        .payload(&json!({ "id": id, "item": item }))
}

/// A sink for the shop's events, such as `nats://127.0.0.1:4222?stream=ORDERS&subject=shop.{topic}`.
pub async fn sink(url: &str, options: Options) -> std::result::Result<AnySink, Refusal> {
    open(url, &options.set("source", "/shop")).await
}

/// Delivers what a subscription has not got yet. `pgonce relay` does this all the time; as many as you
/// like may, at once.
pub async fn deliver<S: Sink>(once: &Once<Sqlx>, subscription: &str, sink: S) -> Result<bool> {
    let relay = Relay::new(once.outbox(), subscription, sink);
    relay.run_once(CancellationToken::new()).await
}
