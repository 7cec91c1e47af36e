//! The service of the tutorial, docs/src/tutorial/first-service.md, which includes this file part by part.
//! The README shows parts of it, too.

#![allow(missing_docs, reason = "the tutorial says what each item is for")]

// ANCHOR: uses
use std::sync::Arc;

use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use pgonce::driver::sqlx::Sqlx;
use pgonce::inbox::Message;
use pgonce::outbox::Subscription;
use pgonce::sqlx::{Migrator, Once, Tx};
use pgonce::{Event, Failure, Intent, Result};
use pgonce_broker::{Consumer, sources::OutboxLog};
use pgonce_http::{Caller, HandlerError, IdempotencyLayer, Policy};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
// ANCHOR_END: uses

// ANCHOR: types
/// The request: what a client wants.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlaceOrder {
    pub item: String,
    pub qty: i32,
}

/// The answer: what every attempt gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub id: i64,
}
// ANCHOR_END: types

// ANCHOR: connect
/// Connects, installs pgonce where it is missing, and creates the tables of the shop.
pub async fn set_up(url: &str) -> Result<Once> {
    let options = pgonce::sqlx::with_limits(url.parse()?);
    let pool = sqlx::PgPool::connect_with(options).await?;
    let once = Once::new(pool.clone());
    Migrator::new(once.driver().clone()).up().await?;
    sqlx::raw_sql(include_str!("../schema.sql"))
        .execute(&pool)
        .await?;
    Ok(once)
}
// ANCHOR_END: connect

// ANCHOR: command
/// Places an order. However often it is called with this key: one order, and the same receipt.
pub async fn place_order(once: &Once, key: &str, cmd: &PlaceOrder) -> Result<Receipt> {
    let intent = Intent::new("orders.create", key, cmd)?;
    once.run(&intent, |mut tx| async move {
        let receipt = insert_order(&mut tx, cmd).await?;
        tx.succeed(&receipt).await // order, event and answer commit together
    })
    .await?
    .into_answer()
}
// ANCHOR_END: command

// ANCHOR: effect
/// The work itself, in an open transaction.
async fn insert_order(tx: &mut Tx, cmd: &PlaceOrder) -> Result<Receipt> {
    if cmd.qty < 1 {
        // Stored: every retry gets this failure.
        return Err(Failure::permanent("bad_quantity", "qty must be at least 1").into());
    }
    let id: i64 = sqlx::query_scalar("insert into orders (item, qty) values ($1, $2) returning id")
        .bind(&cmd.item)
        .bind(cmd.qty)
        .fetch_one(tx.conn())
        .await?;
    let event = Event::new("orders", "order.created").subject(id);
    tx.publish(event.payload(cmd)?).await?;
    Ok(Receipt { id })
}
// ANCHOR_END: effect

// ANCHOR: http
/// `POST /orders` with an `Idempotency-Key`: order, event and response commit together.
async fn create(
    mut tx: pgonce_http::Tx<Sqlx>,
    Json(cmd): Json<PlaceOrder>,
) -> Result<(StatusCode, Json<Receipt>), HandlerError> {
    let receipt = insert_order(&mut tx, &cmd).await?;
    Ok((StatusCode::CREATED, Json(receipt)))
}

pub fn router(once: &Once) -> Result<Router> {
    let policy = Policy::new("orders.create", Caller::None); // Caller: whose keys these are
    let layer = IdempotencyLayer::atomic(once.clone(), policy)?;
    Ok(Router::new().route("/orders", post(create).layer(layer)))
}
// ANCHOR_END: http

// ANCHOR: consumer
/// Reads the events of this database, and applies each of them once, until `stop` is cancelled.
pub async fn keep_stock(once: Once, stop: CancellationToken) -> Result<()> {
    let outbox = once.outbox();
    let subscription = Subscription::new("stock").topics(["orders"]);
    match outbox.create_subscription(&subscription).await {
        Err(error) if error.code() != "42710" => return Err(error), // 42710: it exists already
        _ => {}
    }
    let events = OutboxLog::new(outbox, "stock");
    let consumer = Consumer::new(&once, "stock", events, take_from_stock);
    consumer.json().run(stop).await
}

/// Runs in a transaction together with the marker that says that this message was applied.
async fn take_from_stock(mut tx: Tx, message: Arc<Message>) -> Result<()> {
    let order: PlaceOrder = serde_json::from_value(message.json()?)?;
    sqlx::query("update stock set qty = qty - $2 where item = $1")
        .bind(order.item)
        .bind(order.qty)
        .execute(tx.conn())
        .await?;
    Ok(())
}
// ANCHOR_END: consumer
