//! `pgonce bench`: what exactly-once costs, beside the bare transaction and the usual recipe, all
//! measured in the same run on the same machine.

mod beside;
mod business;
mod command;
mod cpu;
mod growth;
mod http;
mod import;
mod inbox;
mod ledger;
mod network;
mod outbox;
mod plot;
mod queue;
mod realistic;
mod replay;
mod report;
mod roles;
mod rounds;
mod server;
mod wal;
mod with_sqlx;
mod with_tokio_postgres;

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use rand::SeedableRng;
use rand::rngs::StdRng;

use self::report::Report;
use self::rounds::Plan;
use self::server::Server;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Settings of the bench.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Measure for two to three minutes: fewer rounds.
    #[arg(long)]
    quick: bool,
    /// Measure only these; all where none is named.
    #[arg(value_name = "NAME")]
    groups: Vec<Group>,
    /// The same as an option; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<Group>,
    /// Write the result to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the ratios to this file as a picture (SVG).
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// End with code 1 when a budget is missed.
    #[arg(long)]
    check: bool,
    /// Connections that work at the same time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=150))]
    connections: u32,
    /// How often each side has its turn.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// How long a turn is, in milliseconds.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=60_000))]
    turn: Option<u64>,
    /// Table sizes at which a claim is timed, such as `10k,10m`; a consumer at the largest. One size is compared with 10k.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = growth::size)]
    growth: Option<Vec<u64>>,
    /// How many events and jobs are drained, such as `100k`; twenty times as many rows are imported.
    #[arg(long, value_name = "EVENTS", value_parser = growth::size)]
    events: Option<u64>,
    /// Let the private server flush every commit to the disk.
    #[arg(long)]
    fsync: bool,
    /// Use this server instead of a private one; a scratch database is made there and dropped.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Seed of every random choice.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Do nothing but one side of the commands or of http, for a profiler to watch, such as
    /// `sqlx: atomic`.
    #[arg(long, value_name = "SIDE")]
    profile: Option<String>,
    /// The commit that is measured, for the record.
    #[arg(long, env = "PGONCE_COMMIT", hide = true)]
    commit: Option<String>,
}

/// What can be measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Commands per second, each way of doing them.
    Command,
    /// Processor time of the server for a command.
    Cpu,
    /// Commands as most users have them: fsync on, one millisecond away, 64 connections.
    Realistic,
    /// Commands by a role with the grants of an application, beside the owner's.
    Roles,
    /// Commands while what is over is purged beside them.
    Retention,
    /// Commands and a relay while their metrics are collected.
    Metrics,
    /// Answers per second to duplicates.
    Replay,
    /// Time of a claim while the table grows.
    Growth,
    /// Time of a command over a network.
    Network,
    /// Bytes of WAL of a command.
    Wal,
    /// Requests over sockets: the layer and the gateway.
    Http,
    /// Events: publishing, the relay, and what they leave behind.
    Outbox,
    /// Messages: applied once, with markers and with cursors.
    Inbox,
    /// Groups of the ledger, beside bare entries and balances.
    Ledger,
    /// Jobs: how fast a backlog burns down, and how soon a job starts.
    Queue,
    /// Files of rows, beside plain COPY.
    Import,
}

impl Args {
    fn wants(&self, group: Group) -> bool {
        let mut named = self.groups.iter().chain(&self.only).peekable();
        named.peek().is_none() || named.any(|name| *name == group)
    }

    fn plan(&self) -> Plan {
        // Many short turns: what disturbs the machine then disturbs all sides alike.
        let (rounds, turn) = if self.quick { (3, 50) } else { (7, 100) };
        Plan {
            connections: self.connections as usize,
            rounds: self.rounds.unwrap_or(rounds) as usize,
            turn: Duration::from_millis(self.turn.unwrap_or(turn)),
            random: StdRng::seed_from_u64(self.seed),
        }
    }

    fn sizes(&self) -> Vec<u64> {
        match &self.growth {
            Some(sizes) if sizes.len() == 1 => [&[10_000], sizes.as_slice()].concat(),
            Some(sizes) => sizes.clone(),
            None if self.quick => vec![10_000, 100_000],
            None => vec![10_000, 1_000_000],
        }
    }
}

/// Measures, prints the report, and says in the exit code whether it could and, with `--check`, whether every budget was met.
pub async fn run(args: Args) -> ExitCode {
    let shown = measure(&args).await.and_then(|(report, ended)| {
        // What was measured before a failure, or an interruption, is not lost with it.
        writeln!(std::io::stdout(), "{report}")?;
        if let Some(file) = &args.json {
            std::fs::write(file, report.to_json()?)
                .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
        if let Some(file) = &args.plot {
            std::fs::write(file, report.to_svg())
                .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
        ended.map(|()| report)
    });
    match shown {
        Ok(report) if args.check && report.missed() > 0 => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed; the exit code still shows it.
            let _ = writeln!(std::io::stderr(), "pgonce bench: {error}");
            ExitCode::from(2)
        }
    }
}

/// What was measured, and whether all of it was.
async fn measure(args: &Args) -> Result<(Report, Result<()>)> {
    let server = Server::start(args).await?;
    let mut plan = args.plan();
    let mut report = Report::new(server.facts(args, &plan).await?);
    let measured = tokio::select! {
        measured = measure_on(&server, args, &mut plan, &mut report) => measured,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    };
    // Scratch databases go, whatever came of the measurement.
    let removed = server.end().await;
    Ok((report, measured.and(removed)))
}

async fn measure_on(
    server: &Server,
    args: &Args,
    plan: &mut Plan,
    report: &mut Report,
) -> Result<()> {
    if let Some(side) = &args.profile {
        report.add(match http::profile(server, plan, side).await? {
            Some(lines) => lines,
            None => command::profile(server, plan, side).await?,
        });
        return Ok(());
    }
    if args.wants(Group::Command) {
        say("commands per second");
        report.add(command::measure(server, plan).await?);
    }
    if args.wants(Group::Cpu) {
        say("the server's processor time");
        report.add(cpu::measure(server, plan).await?);
    }
    if args.wants(Group::Realistic) {
        say("commands as most users have them");
        report.add(realistic::measure(server, plan).await?);
    }
    if args.wants(Group::Roles) {
        say("what roles and limits cost");
        report.add(roles::measure(server, plan).await?);
    }
    if args.wants(Group::Retention) {
        say("commands beside retention");
        report.add(beside::retention(server, plan).await?);
    }
    if args.wants(Group::Metrics) {
        say("commands beside metrics");
        let size = outbox::Size::of(args.quick, args.events);
        report.add(beside::metrics(server, plan, &size).await?);
    }
    if args.wants(Group::Wal) {
        say("WAL per command");
        report.add(wal::measure(server, plan).await?);
    }
    if args.wants(Group::Network) {
        say("commands over a network");
        report.add(network::measure(server, plan).await?);
    }
    if args.wants(Group::Replay) {
        say("answers to duplicates");
        report.add(replay::measure(server, plan, &args.sizes()).await?);
    }
    if args.wants(Group::Http) {
        say("requests over HTTP");
        report.add(http::measure(server, plan).await?);
    }
    if args.wants(Group::Outbox) {
        let size = outbox::Size::of(args.quick, args.events);
        report.add(outbox::measure(server, plan, &size).await?);
    }
    if args.wants(Group::Inbox) {
        let size = inbox::Size::of(&args.sizes());
        report.add(inbox::measure(server, plan, &size).await?);
    }
    if args.wants(Group::Ledger) {
        say("groups of the ledger");
        report.add(ledger::measure(server, plan, &args.sizes()).await?);
    }
    if args.wants(Group::Queue) {
        say("jobs of a queue");
        let size = queue::Size::of(args.quick, args.events);
        report.add(queue::measure(server, plan, &size).await?);
    }
    if args.wants(Group::Import) {
        say("imports");
        // A row costs far less than an event.
        let usual = if args.quick { 100_000 } else { 500_000 };
        let rows = args.events.map_or(usual, |events| events * 20);
        report.add(import::measure(server, rows).await?);
    }
    if args.wants(Group::Growth) {
        report.add(growth::measure(server, plan, &args.sizes()).await?);
    }
    Ok(())
}

/// Reports progress.
fn say(what: &str) {
    // Nobody listening is no reason to stop.
    let _ = writeln!(std::io::stderr(), "measuring {what} …");
}
