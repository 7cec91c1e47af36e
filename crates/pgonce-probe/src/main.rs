//! `pgonce-probe`: the probe as a program of its own, for those who need nothing else of pgonce.

use std::process::ExitCode;

use clap::Parser;
use pgonce_probe::{Args, Format};

/// Test whether an HTTP API that claims idempotency keeps it. It makes real effects there.
#[derive(Debug, Parser)]
#[command(name = "pgonce-probe", version)]
struct Cli {
    #[command(flatten)]
    probe: Args,
    /// Output format of results and errors
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    pgonce_probe::run(cli.probe, cli.format).await
}
