//! A payment provider's webhooks: verified, stored and answered; applied once from the stored inbox; published
//! through the outbox.

use std::sync::Arc;

use pgonce::inbox::{Message, Tx};
use pgonce::outbox::Event;
use pgonce::{Failure, Once, Result};
use pgonce_broker::sources::Nothing;
use pgonce_broker::webhooks::{Scheme, Webhooks};
use pgonce_broker::{Consumer, Handler};

use crate::Db;

/// Who applies the provider's messages.
pub const CONSUMER: &str = "payments";

/// Takes POST at `/webhooks/provider`. Messages of one payment keep their order.
pub fn router(once: &Once<Db>, scheme: Scheme) -> axum::Router {
    let webhooks = Webhooks::new(once, CONSUMER, "provider", scheme).read_with(|message| {
        let said = message
            .json()
            .map_err(|error| format!("it is not JSON: {error}"))?;
        message.key = said["payment"].as_str().map(str::to_owned);
        message.kind = said["type"].as_str().map(str::to_owned);
        Ok(())
    });
    webhooks.router("/webhooks/provider")
}

/// Applies what is stored. There is no source beside.
pub fn consumer(once: &Once<Db>) -> Consumer<Db, Nothing, impl Handler<Db> + use<>> {
    Consumer::new(once, CONSUMER, Nothing, apply).json()
}

async fn apply(mut tx: Tx<Db>, message: Arc<Message>) -> Result<()> {
    let status = match message.kind.as_deref() {
        Some("payment.captured") => "captured",
        Some("payment.refunded") => "refunded",
        other => {
            let why = format!("nobody knows the type {other:?}");
            return Err(Failure::permanent("unknown_type", why).into());
        }
    };
    let payment = message.key.as_deref().unwrap_or_default();
    let sql = "insert into payment values ($1, $2) on conflict (id) do update set status = excluded.status";
    let put = sqlx::query(sql).bind(payment).bind(status);
    put.execute(tx.conn()).await?;
    let event = Event::new("payments", format!("payment.{status}")).subject(payment);
    tx.publish(&event).await?;
    Ok(())
}
