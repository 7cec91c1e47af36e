//! Runs the payments API with a fault: `cargo run -p not-idempotent -- --fault check-then-act`.

use std::io::Write as _;

use clap::Parser;
use not_idempotent::Fault;
use tokio::net::TcpListener;

/// A payments API that is not idempotent.
#[derive(Debug, Parser)]
struct Args {
    /// What it does wrong
    #[arg(long, env = "FAULT", default_value = "no-dedup")]
    fault: Fault,
    /// Where it listens
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:8081")]
    listen: String,
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let args = Args::parse();
    let listener = TcpListener::bind(&args.listen).await?;
    let address = listener.local_addr()?;
    writeln!(
        std::io::stdout(),
        "payments on http://{address}/payments, fault: {:?}",
        args.fault
    )?;
    axum::serve(listener, not_idempotent::router(args.fault)).await
}
