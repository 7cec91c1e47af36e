//! The `pgonce` program.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod codes;
mod database;
mod exit;
mod faults;
mod gateway;
mod inbox;
mod intents;
mod lost;
mod migrate;
mod outbox;
mod output;
mod projection;
mod prometheus;
mod purge;
mod relay;
mod scope;
mod signals;
mod tls;

/// Exactly-once effects for services on PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "pgonce", version, about, propagate_version = true, after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install pgonce in a database, and keep it up to date.
    Migrate(migrate::Args),
    /// Define, list, show and drop the contracts of scopes.
    Scope(scope::Args),
    /// Refuse scopes that nobody defined (on), or let them have the contract of scope '*' (off).
    Strict(scope::StrictArgs),
    /// List work that stopped on the way, the oldest first, and what may be done about it.
    Stuck(intents::ListArgs),
    /// List intents that took more than one attempt, the worst first.
    MostRetried(intents::ListArgs),
    /// Count by scope the wishes, the attempts and the duplicates that did nothing.
    Suppression(intents::AllArgs),
    /// Show one intent whole: did it happen once?
    Show(intents::ShowArgs),
    /// List intents that callers were told are done, and that this database does not know as done.
    Lost(lost::Args),
    /// Remove finished records whose retention is over, and partitions of the outbox that nobody needs.
    Purge(purge::Args),
    /// Look at messages that consumers have stored: retry, skip or replay them.
    Inbox(inbox::Args),
    /// Look at projections, build them anew, and compare that with the live ones.
    Projection(projection::Args),
    /// See how far events are, and give dead letters, ranges and consumers another chance or none.
    Outbox(outbox::Args),
    /// Move the events of the outbox to where they go.
    Relay(Box<relay::Args>),
    /// Say for every error code what to do about it.
    Codes(codes::Args),
    /// Measure what pgonce costs, beside the bare transaction and the usual recipe.
    #[cfg(feature = "lab-bench")]
    Bench(pgonce_lab::bench::Args),
    /// See an orders service hold under a storm of duplicates, cuts and crashes.
    #[cfg(feature = "lab-demo")]
    Demo(pgonce_lab::demo::Args),
    /// Cut every path of the protocol at every message, and prove that everything happened once.
    #[cfg(feature = "lab-storm")]
    Storm(pgonce_lab::storm::Args),
    /// Run a reverse proxy that makes the requests of services in any language happen once.
    Gateway(gateway::Args),
    /// Test whether an HTTP API that claims idempotency keeps it. It makes real effects there.
    #[cfg(feature = "probe")]
    Probe(Box<Probe>),
}

#[cfg(feature = "probe")]
#[derive(Debug, clap::Args)]
struct Probe {
    #[command(flatten)]
    probe: pgonce_probe::Args,
    #[command(flatten)]
    shown: output::Shown,
}

#[tokio::main]
async fn main() -> ExitCode {
    let (format, done) = match Cli::parse().command {
        #[cfg(feature = "lab-bench")]
        Command::Bench(args) => return pgonce_lab::bench::run(args).await,
        #[cfg(feature = "lab-demo")]
        Command::Demo(args) => return pgonce_lab::demo::run(args).await,
        #[cfg(feature = "lab-storm")]
        Command::Storm(args) => return pgonce_lab::storm::run(args).await,
        Command::Gateway(args) => return gateway::run(args).await,
        Command::Relay(args) => relay::run(*args).await,
        #[cfg(feature = "probe")]
        Command::Probe(args) => {
            let format = match args.shown.format {
                output::Format::Table => pgonce_probe::Format::Table,
                output::Format::Json => pgonce_probe::Format::Json,
            };
            return pgonce_probe::run(args.probe, format).await;
        }
        Command::Migrate(args) => (args.format(), migrate::run(args).await),
        Command::Scope(args) => (args.format(), scope::run(args).await),
        Command::Strict(args) => (args.format(), scope::set_strict(args).await),
        Command::Stuck(args) => (args.format(), intents::stuck(args).await),
        Command::MostRetried(args) => (args.format(), intents::most_retried(args).await),
        Command::Suppression(args) => (args.format(), intents::suppression(args).await),
        Command::Show(args) => (args.format(), intents::show(args).await),
        Command::Lost(args) => (args.format(), lost::run(args).await),
        Command::Outbox(args) => (args.format(), outbox::run(args).await),
        Command::Purge(args) => (args.format(), purge::run(args).await),
        Command::Inbox(args) => (args.format(), inbox::run(args).await),
        Command::Projection(args) => (args.format(), projection::run(args).await),
        Command::Codes(args) => (args.format(), codes::run(&args)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => trouble.report(format),
    }
}
