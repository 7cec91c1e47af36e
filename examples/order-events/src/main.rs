//! Places an order, ships it, and delivers the events.

use std::error::Error;
use std::io::Write as _;

use order_events::{deliver, place, set_up, ship, sink};
use pgonce_broker::sinks::Options;
use sqlx::postgres::PgPoolOptions;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://postgres@127.0.0.1/shop")?;
    let to = std::env::var("SINK").unwrap_or_else(|_| "stdout:".to_owned());
    let pool = PgPoolOptions::new().connect(&url).await?;
    let once = set_up(&pool).await?;
    let key = std::env::args().nth(1).unwrap_or("first-order".to_owned());
    let id: i64 = place(&once, &key, "book").await?.read()?;
    let id: i64 = ship(&once, id).await?.read()?;
    deliver(&once, "shop", sink(&to, Options::new()).await?).await?;
    writeln!(
        std::io::stderr(),
        "order {id} is placed, shipped and published"
    )?;
    Ok(())
}
