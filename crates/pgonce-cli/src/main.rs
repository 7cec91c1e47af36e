//! The `pgonce` program.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod demo;

/// Exactly-once effects for services on PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "pgonce", version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure what pgonce costs, beside the bare transaction and the usual recipe.
    Bench(bench::Args),
    /// See an orders service hold under a storm of duplicates, cuts and crashes.
    Demo(demo::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Bench(args) => bench::run(args).await,
        Command::Demo(args) => demo::run(args).await,
    }
}
