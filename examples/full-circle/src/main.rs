//! One part of the circle as a process: `full-circle order KEY ACCOUNT AMOUNT`, `relay` or `consume`.
//!
//! `DATABASE_URL` and `NATS_URL` say where.

use std::error::Error;
use std::io::Write as _;

use full_circle::{consume, order, relay, set_up};
use sqlx::postgres::PgPoolOptions;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://postgres@127.0.0.1/shop")?;
    let nats = std::env::var("NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".to_owned());
    let pool = PgPoolOptions::new().connect(&url).await?;
    let once = set_up(&pool, &nats).await?;
    let stop = CancellationToken::new();
    let stops = stop.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        stops.cancel();
    });
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["order", key, account, amount] => {
            let id: i64 = order(&once, key, account, amount.parse()?).await?.read()?;
            writeln!(std::io::stdout(), "order {id}")?;
            Ok(())
        }
        ["relay"] => relay(&once, &nats, stop).await,
        ["consume"] => consume(&once, &nats, stop).await,
        _ => Err("say `order KEY ACCOUNT AMOUNT`, `relay` or `consume`".into()),
    }
}
