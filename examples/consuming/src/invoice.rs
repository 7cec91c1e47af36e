//! One invoice for each order that was paid, and an event that says so, in one transaction with the mark that
//! the order was received.

use std::sync::Arc;

use pgonce::inbox::{Message, Tx};
use pgonce::outbox::Event;
use pgonce::{Once, Result};
use pgonce_broker::{Consumer, Handler, Source};
use serde_json::json;

use crate::Db;

/// Writes invoices.
pub fn consumer<S: Source>(
    once: &Once<Db>,
    source: S,
) -> Consumer<Db, S, impl Handler<Db> + use<S>> {
    Consumer::new(once, "invoice", source, apply)
        .json()
        .kinds(["order.paid"])
}

async fn apply(mut tx: Tx<Db>, message: Arc<Message>) -> Result<()> {
    let order = message.json()?;
    let id = order["order"].as_str().unwrap_or_default();
    // The key is the event: even without pgonce's mark there could not be two.
    let sql = "insert into invoice (event_id, order_id, amount) values ($1, $2, $3)";
    let write = sqlx::query(sql)
        .bind(&message.id)
        .bind(id)
        .bind(order["amount"].as_i64());
    write.execute(tx.conn()).await?;
    let written = Event::new("invoices", "invoice.written").subject(id);
    tx.publish(&written.payload(&json!({"order": id}))?).await?;
    Ok(())
}
