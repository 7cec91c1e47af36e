//! Runs all four: projections and invoices from this database's own outbox, webhooks at a port.
//!
//! `DATABASE_URL=postgres://… WEBHOOK_SECRET=whsec_… consuming 127.0.0.1:8080`

use consuming::{balance, connect, invoice, profile, webhook};
use pgonce::outbox::Subscription;
use pgonce_broker::sources::OutboxLog;
use pgonce_broker::webhooks::Scheme;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let once = connect(&std::env::var("DATABASE_URL")?).await?;
    let scheme = Scheme::standard([std::env::var("WEBHOOK_SECRET")?.as_str()])?;
    let address = std::env::args()
        .nth(1)
        .unwrap_or("127.0.0.1:8080".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;

    for (name, topic) in [
        ("balance", "money"),
        ("profile", "people"),
        ("invoice", "orders"),
    ] {
        let made = once
            .outbox()
            .create_subscription(&Subscription::new(name).topics([topic]))
            .await;
        // It is there from the last time.
        made.or_else(|error| {
            if error.code() == "42710" {
                Ok(())
            } else {
                Err(error)
            }
        })?;
    }
    let log = |name| OutboxLog::new(once.outbox(), name);
    let stop = CancellationToken::new();
    let served = stop.clone().cancelled_owned();
    tokio::try_join!(
        async {
            balance::consumer(&once, log("balance"))
                .run(stop.clone())
                .await
                .map_err(Into::into)
        },
        async {
            profile::consumer(&once, log("profile"))
                .run(stop.clone())
                .await
                .map_err(Into::into)
        },
        async {
            invoice::consumer(&once, log("invoice"))
                .run(stop.clone())
                .await
                .map_err(Into::into)
        },
        async {
            webhook::consumer(&once)
                .run(stop.clone())
                .await
                .map_err(Into::into)
        },
        async {
            let app = webhook::router(&once, scheme);
            let serving = axum::serve(listener, app).with_graceful_shutdown(served);
            serving.await.map_err(Box::<dyn std::error::Error>::from)
        },
        async {
            tokio::signal::ctrl_c().await?;
            stop.cancel();
            Ok(())
        },
    )?;
    Ok(())
}
