//! Runs the orders service.

use std::error::Error;
use std::io::Write as _;

use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://postgres@127.0.0.1/shop")?;
    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".to_owned());

    let once = orders::connect(&url)?;
    orders::set_up(&once).await?;
    let listener = TcpListener::bind(&listen).await?;
    writeln!(
        std::io::stdout(),
        "orders on http://{}",
        listener.local_addr()?
    )?;
    axum::serve(listener, orders::router(once)).await?;
    Ok(())
}
