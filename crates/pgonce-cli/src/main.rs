//! The `pgonce` program.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ColorChoice, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

mod address;
mod audit;
mod codes;
mod config_file;
mod confirm;
mod consume;
mod database;
#[cfg(feature = "lab-demo")]
mod demo;
mod doctor;
mod exit;
mod explain;
mod external;
mod faults;
mod find;
mod forecast;
#[cfg(test)]
mod fuzz;
mod gateway;
mod import;
mod inbox;
mod intents;
mod intervene;
mod job_list;
mod ledger;
mod look;
mod lost;
mod migrate;
mod names;
#[cfg(feature = "otlp")]
mod otlp;
mod outbox;
mod output;
mod parts;
mod projection;
mod prometheus;
mod purge;
mod queue;
mod recover;
mod region;
mod relay;
mod scope;
mod serve;
mod shell;
mod signals;
mod starting;
mod tail;
mod tls;
mod transition;
mod watch;
mod webhooks;
mod work;

/// Exactly-once effects for services on PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "pgonce", version, propagate_version = true, after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    target: database::Target,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install pgonce in a database, and keep it up to date.
    Migrate(migrate::Args),
    /// Define, list, show and drop the contracts of scopes.
    Scope(scope::Args),
    /// Refuse scopes that nobody defined (on), or give them the contract of scope '*' (off).
    Strict(scope::StrictArgs),
    /// Look at intents: one, those of a scope, stuck ones, retried ones.
    Intent(intents::Args),
    /// Find anything by any id: keys in any form, references, correlations, messages, subjects, traces, jobs.
    Find(find::Args),
    /// List what operators did, to every part: who, why, and what was before.
    Audit(audit::Args),
    /// Count by scope the intents, the attempts and the duplicates that did nothing.
    Suppression(intents::SuppressionArgs),
    /// List intents that were acknowledged, and that this database does not know as done.
    Lost(lost::Args),
    /// Decide about work whose holder vanished, as the contracts say: it happened, try again, give up, or an operator's turn.
    Recover(recover::Args),
    /// Remove finished records, ended jobs, events and markers of messages whose retention is over.
    Purge(purge::Args),
    /// Estimate how fast what is stored grows, and how much there will be.
    Forecast(forecast::Args),
    /// Look at messages that consumers have stored: retry, skip or replay them.
    Inbox(inbox::Args),
    /// Keep a double-entry ledger: accounts, groups of entries, balances, verification.
    Ledger(ledger::Args),
    /// Look at state machines: rules, timelines of entities, due timers.
    Transition(transition::Args),
    /// Look at jobs of the work queue; enqueue, retry or cancel them.
    Job(queue::JobArgs),
    /// Look at queues, pause them, and say what they allow.
    Queue(queue::QueueArgs),
    /// Connect databases of several regions, so that they share intents; see what they lag behind, and what happened twice.
    Region(region::Args),
    /// Look at calls to providers, and settle those whose outcome is unknown.
    External(external::Args),
    /// Import a file into a table or a function, each row once; list, resume and cancel imports.
    Import(Box<import::Args>),
    /// Look at projections, build them anew, and compare that with the live ones.
    Projection(projection::Args),
    /// See how far events are; retry, skip or replay them; manage subscriptions.
    Outbox(outbox::Args),
    /// Move the events of the outbox to a broker or an endpoint.
    Relay(Box<relay::Args>),
    /// Apply the messages of a broker or of the outbox, each once, by a service in any language or a SQL function.
    Consume(Box<consume::Args>),
    /// Do the jobs of queues, each once, by a SQL function or a service in any language.
    Work(work::Args),
    /// Receive signed webhooks and store them, each once, for a consumer.
    Webhooks(Box<webhooks::Args>),
    /// Run a reverse proxy that makes the requests of services in any language happen once.
    Gateway(gateway::Args),
    /// Run everything that runs on beside the applications: console, metrics, retention, timers, recovery, relays, workers.
    Serve(Box<serve::Args>),
    /// Show or check the configuration of `pgonce serve`.
    Config(serve::ConfigArgs),
    /// Review a live database: what is at risk or stands still, why, and what fixes it.
    Doctor(doctor::Args),
    /// Show what happens while it happens: intents, duplicates, events, dead letters, operators' acts.
    Tail(tail::Args),
    /// Print what to do about each error code.
    Codes(codes::Args),
    /// Explain an error code: what happened, why, what was changed, what to do.
    Explain(explain::Args),
    /// Measure what pgonce costs, beside the bare transaction and the usual recipe.
    #[cfg(feature = "lab-bench")]
    Bench(pgonce_lab::bench::Args),
    /// See an orders service hold under a storm of duplicates, cuts and crashes.
    #[cfg(feature = "lab-demo")]
    Demo(pgonce_lab::demo::Args),
    /// Cut every path of the protocol at every message, and prove that everything happened once.
    #[cfg(feature = "lab-storm")]
    Storm(pgonce_lab::storm::Args),
    /// Simulate what cannot be waited for.
    #[cfg(feature = "lab-regions")]
    #[command(subcommand)]
    Lab(Lab),
    /// Test whether an HTTP API that claims idempotency keeps it. It makes real effects there.
    #[cfg(feature = "probe")]
    Probe(Box<pgonce_probe::Args>),
    /// Print completions for a shell.
    Completions(shell::CompletionsArgs),
    /// Print the manual page, or write one for each command.
    Man(shell::ManArgs),
    /// The same as `intent show`.
    #[command(hide = true)]
    Show(intents::ShowArgs),
    /// The same as `intent stuck`.
    #[command(hide = true)]
    Stuck(intents::ListArgs),
    /// The same as `intent retried`.
    #[command(hide = true)]
    MostRetried(intents::ListArgs),
}

#[cfg(feature = "lab-regions")]
#[derive(Debug, Subcommand)]
enum Lab {
    /// Simulate regions with cuts, lags, clocks that differ and restored backups; fail where they disagree or a double commit is not listed.
    Regions(pgonce_lab::regions::Args),
}

/// Commands without a database of their own to choose: their help does not show how to connect.
const UNCONNECTED: [&str; 12] = [
    "bench",
    "codes",
    "completions",
    "config",
    "demo",
    "explain",
    "gateway",
    "lab",
    "man",
    "probe",
    "storm",
    "work",
];

/// The command line.
fn command() -> clap::Command {
    let mut command = Cli::command();
    let connection = ["database_url", "schema"];
    let options = command.get_arguments();
    let options = options.filter(|option| connection.contains(&option.get_id().as_str()));
    let hidden: Vec<_> = options.map(|option| option.clone().hide(true)).collect();
    for sub in command.get_subcommands_mut() {
        // An option of its own takes the place of the one that all commands have.
        if UNCONNECTED.contains(&sub.get_name()) {
            *sub = std::mem::take(sub).args(&hidden);
        }
    }
    command
}

/// An option that names a database does not pass in silence where the command's file names it.
fn refuse_unused(matches: &clap::ArgMatches) -> Result<(), exit::CliError> {
    let Some((name, inner)) = matches.subcommand() else {
        return Ok(());
    };
    let has_file = match name {
        "gateway" | "work" => true,
        "relay" | "consume" | "webhooks" => inner.contains_id("file"),
        _ => false,
    };
    for (id, option) in [("database_url", "--database-url"), ("schema", "--schema")] {
        let given = [matches, inner].map(|matches| matches.value_source(id));
        if has_file && given.contains(&Some(ValueSource::CommandLine)) {
            return Err(exit::CliError::new(
                exit::USAGE,
                format!(
                    "{option} has no effect here: the file of `pgonce {name}` names the database"
                ),
                "Leave it out, and set url_env, url_file or schema under [database] in the file.",
            ));
        }
    }
    Ok(())
}

/// `--color` counts for the help too, which is printed before the command line is understood.
fn color_of_help() -> ColorChoice {
    let words: Vec<OsString> = std::env::args_os().collect();
    let after = words.iter().position(|word| word == "--color");
    let joined = words
        .iter()
        .find_map(|word| word.to_str()?.strip_prefix("--color="));
    match joined.or(after.and_then(|at| words.get(at + 1)?.to_str())) {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    }
}

/// What a command line says; one that cannot be understood ends the program.
fn parsed(words: &[OsString]) -> clap::ArgMatches {
    command().color(color_of_help()).get_matches_from(words)
}

#[tokio::main]
async fn main() -> ExitCode {
    let code = run().await;
    #[cfg(feature = "otlp")]
    otlp::flush().await;
    code
}

async fn run() -> ExitCode {
    let (mut every, words) = watch::asked(std::env::args_os());
    let mut matches = parsed(&words);
    // It has an option of this name.
    if every.is_some() && matches.subcommand_name() == Some("recover") {
        every = None;
        matches = parsed(&std::env::args_os().collect::<Vec<_>>());
    }
    let Cli { command, target } = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    target.shown.apply(&names::command(&matches));
    let format = target.format();
    if let Some(every) = every {
        let done = every.and_then(|every| watch::run(every, &matches, &words));
        return done.unwrap_or_else(|error| error.report(format));
    }
    if let Err(error) = refuse_unused(&matches) {
        return error.report(format);
    }
    let done = match command {
        #[cfg(feature = "lab-bench")]
        Command::Bench(args) => return pgonce_lab::bench::run(args).await,
        #[cfg(feature = "lab-demo")]
        Command::Demo(args) => return pgonce_lab::demo::run(args, demo::console).await,
        #[cfg(feature = "lab-storm")]
        Command::Storm(args) => return pgonce_lab::storm::run(args).await,
        #[cfg(feature = "lab-regions")]
        Command::Lab(Lab::Regions(args)) => return pgonce_lab::regions::run(&args),
        #[cfg(feature = "probe")]
        Command::Probe(args) => {
            let format = match format {
                output::Format::Table => pgonce_probe::Format::Table,
                output::Format::Json => pgonce_probe::Format::Json,
            };
            return pgonce_probe::run(*args, format).await;
        }
        Command::Gateway(args) => return gateway::run(args, format).await,
        Command::Relay(args) => relay::run(*args, target).await,
        Command::Consume(args) => return consume::run(*args, target).await,
        Command::Work(args) => return work::run(args, format).await,
        Command::Webhooks(args) => return webhooks::run(*args, target).await,
        Command::Migrate(args) => migrate::run(args, target).await,
        Command::Scope(args) => scope::run(args, target).await,
        Command::Strict(args) => scope::set_strict(args, target).await,
        Command::Intent(args) => intents::run(args, target).await,
        Command::Stuck(args) => intents::stuck(args, target).await,
        Command::MostRetried(args) => intents::most_retried(args, target).await,
        Command::Show(args) => intents::show(args, target).await,
        Command::Find(args) => find::run(args, target).await,
        Command::Audit(args) => audit::run(args, target).await,
        Command::Suppression(args) => intents::suppression(args, target).await,
        Command::Lost(args) => lost::run(args, target).await,
        Command::Outbox(args) => outbox::run(args, target).await,
        Command::Recover(args) => recover::run(args, target).await,
        Command::Purge(args) => purge::run(args, target).await,
        Command::Forecast(args) => forecast::run(args, target).await,
        Command::Inbox(args) => inbox::run(args, target).await,
        Command::Ledger(args) => ledger::run(args, target).await,
        Command::Transition(args) => transition::run(args, target).await,
        Command::Job(args) => queue::job(args, target).await,
        Command::Queue(args) => queue::queue(args, target).await,
        Command::External(args) => external::run(args, target).await,
        Command::Region(args) => region::run(args, target).await,
        Command::Import(args) => import::run(*args, target).await,
        Command::Projection(args) => projection::run(args, target).await,
        Command::Serve(args) => serve::run(*args, target).await,
        Command::Config(args) => serve::config(args, format),
        Command::Doctor(args) => doctor::run(args, target).await,
        Command::Tail(args) => tail::run(args, target).await,
        Command::Codes(args) => codes::run(&args, format),
        Command::Explain(args) => explain::run(&args, format),
        Command::Completions(args) => shell::completions(&args, self::command()),
        Command::Man(args) => shell::man(&args, self::command()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(format),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_does_not_contradict_itself() {
        super::command().debug_assert();
    }
}
