//! On a plain connection a marker, an event or a claim would commit without its effect.

use pgonce_misuse::{pgonce, sqlx, tokio_postgres};
use pgonce::sqlx::Once;
use pgonce::{Event, Intent, Message, Result};
use sqlx::PgConnection;

async fn accepts(once: Once, conn: &mut PgConnection, message: Message) -> Result<bool> {
    once.accept(conn, "billing", "shop", &message).await
}

async fn accepts_many(once: Once, conn: &mut PgConnection) -> Result<Vec<String>> {
    once.accept_batch(conn, "billing", "shop", &[], "").await
}

async fn publishes(once: Once, conn: &mut PgConnection) -> Result<()> {
    once.publish(conn, Event::new("orders", "order.created")).await.map(drop)
}

async fn joins(once: Once, conn: &mut PgConnection, intent: Intent) -> Result<()> {
    once.join(conn, &intent).await.map(drop)
}

async fn accepts_on_a_client(
    once: pgonce::tokio_postgres::Once,
    client: &mut tokio_postgres::Client,
    message: Message,
) -> Result<bool> {
    once.accept(client, "billing", "shop", &message).await
}

fn main() {}
