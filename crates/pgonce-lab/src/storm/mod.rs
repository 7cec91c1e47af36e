//! `pgonce storm`: every path of the protocol, cut at every message, and a verdict.

mod attempt;
mod business;
mod cached;
mod campaign;
mod config;
mod driver_ext;
mod fixture;
mod inbox;
mod migrate;
mod oracle;
mod outside;
mod partition_fixture;
mod path;
mod post;
mod projection;
mod relay;
mod report;
mod screen;
mod trial;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_testkit::{Action, Binaries, Trial};

use config::{Config, Driver, Isolation, Pooler};
use fixture::Server;
use path::Path;
use report::Ledger;
use screen::Screen;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// The major version beside the system's own.
const NEWEST: u32 = 18;

/// What to storm, and where. Without options: everything.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A shorter storm: two isolation levels, no pooler, the system's PostgreSQL, fewer actions
    #[arg(long)]
    quick: bool,
    /// Only these paths
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    path: Vec<Path>,
    /// Only these drivers
    #[arg(long, value_delimiter = ',')]
    driver: Vec<Driver>,
    /// Only these isolation levels
    #[arg(long, value_delimiter = ',')]
    isolation: Vec<Isolation>,
    /// Only with these between client and server
    #[arg(long, value_delimiter = ',')]
    pooler: Vec<Pooler>,
    /// Only on these major versions of PostgreSQL, such as 18
    #[arg(long, value_delimiter = ',')]
    major: Vec<u32>,
    /// Only this trial, as a report names it: c0:s3:cut-before
    #[arg(long, requires = "path")]
    fault: Option<Trial>,
    /// At most so many trials of each configuration, drawn by the seed
    #[arg(long, value_name = "COUNT")]
    sample: Option<usize>,
    /// Repeats the order, the sample and the random faults of an earlier storm
    #[arg(long)]
    seed: Option<u64>,
    /// Afterwards several random faults in each trial, for so long in all, such as 30s or 10m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    random: Option<Duration>,
    /// Writes what was found to this file, as JSON
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// Writes every request of the clients and its outcome into this folder
    #[arg(long, value_name = "DIR")]
    history: Option<PathBuf>,
    /// Trials at the same time
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=20))]
    workers: u64,
    /// Parts the effect from its claim, to see the storm notice it
    #[arg(long, hide = true)]
    sabotage: bool,
}

/// What every configuration goes through.
#[derive(Debug)]
struct Plan {
    quick: bool,
    paths: Vec<Path>,
    fault: Option<Trial>,
    sample: Option<usize>,
    seed: u64,
    /// For each configuration.
    random: Option<Duration>,
    history: Option<PathBuf>,
    workers: u64,
    sabotage: bool,
}

impl Plan {
    fn includes(&self, path: Path) -> bool {
        self.paths.is_empty() || self.paths.contains(&path)
    }

    fn intent_paths(&self) -> impl Iterator<Item = Path> {
        Path::of_intents().filter(|path| self.includes(*path))
    }

    /// Those that have an isolation of their own.
    fn broker_paths(&self) -> impl Iterator<Item = Path> {
        let all = Path::of_relays().chain(Path::of_consumers());
        all.filter(|path| self.includes(*path))
    }

    fn actions(&self) -> &'static [Action] {
        const ALL: [Action; 4] = [
            Action::CutBefore,
            Action::DropReply,
            Action::SecondClientBetween,
            Action::CutAfter,
        ];
        if self.quick { &ALL[..3] } else { &ALL }
    }
}

/// Runs the storm; the exit code is the verdict.
pub async fn run(args: Args) -> ExitCode {
    let screen = Arc::new(Screen::new());
    match storm(args, &screen).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            screen.end();
            screen.note(&format!("pgonce storm: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The whole storm; true when nothing was broken.
async fn storm(args: Args, screen: &Arc<Screen>) -> Result<bool> {
    let configs = configurations(&args)?;
    let seed = args
        .seed
        .unwrap_or_else(|| u64::from(rand::random::<u32>()));
    if let Some(folder) = &args.history {
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("could not make the folder {}: {error}", folder.display()))?;
    }
    let share = u32::try_from(configs.len()).unwrap_or(1).max(1);
    let plan = Arc::new(Plan {
        quick: args.quick,
        paths: args.path,
        fault: args.fault,
        sample: args.sample,
        seed,
        random: args.random.map(|time| time / share),
        history: args.history,
        workers: args.workers,
        sabotage: args.sabotage,
    });
    let command: Vec<String> = std::env::args().skip(1).collect();
    let mut ledger = Ledger::new(format!("pgonce {}", command.join(" ")), seed, commit());
    ledger.planned = configs.len();
    screen.note(&format!("{} configurations, seed {seed}", configs.len()));

    let mut server: Option<Server> = None;
    for config in &configs {
        let fits = |server: &Server| server.postgres.major() == config.major;
        if !server.as_ref().is_some_and(fits) {
            drop(server.take());
            let pooled = configs
                .iter()
                .any(|other| other.major == config.major && other.pooler == Pooler::Pgbouncer);
            let started = Server::start(config.major, pooled).await?;
            ledger
                .postgresql
                .push(started.postgres.binaries().version().to_owned());
            server = Some(started);
        }
        let Some(server) = &server else { continue };
        let outcome = match config.driver {
            Driver::Sqlx => campaign::storm::<Sqlx>(server, *config, &plan, screen).await,
            Driver::TokioPostgres => {
                campaign::storm::<TokioPostgres>(server, *config, &plan, screen).await
            }
        };
        match outcome {
            Ok(outcome) => screen.note(&ledger.add(outcome)),
            Err(error) => {
                // What the configurations before it have found is shown all the same.
                screen.note(&ledger.table());
                return Err(format!("{}: {error}", config.name()).into());
            }
        }
        // Each time: what a long storm has found so far survives its end.
        if let Some(file) = &args.ledger {
            keep(&ledger, file)?;
        }
    }

    screen.note(&ledger.table());
    screen.note(&ledger.totals());
    Ok(ledger.exactly_once)
}

fn keep(ledger: &Ledger, file: &std::path::Path) -> Result<()> {
    std::fs::write(file, serde_json::to_vec_pretty(ledger)?)
        .map_err(|error| format!("could not write {}: {error}", file.display()).into())
}

/// Every place that was asked for, one server after the other.
fn configurations(args: &Args) -> Result<Vec<Config>> {
    let quick = args.quick;
    let mut majors = args.major.clone();
    if majors.is_empty() {
        majors.push(Binaries::find()?.major());
        let newest = Binaries::all()?.iter().any(|found| found.major() == NEWEST);
        if newest && !quick && !majors.contains(&NEWEST) {
            majors.push(NEWEST);
        }
    }
    use Isolation::{ReadCommitted, RepeatableRead, Serializable};
    let isolations = match quick {
        true => or(&args.isolation, &[ReadCommitted, Serializable]),
        false => or(
            &args.isolation,
            &[ReadCommitted, RepeatableRead, Serializable],
        ),
    };
    let poolers = match quick {
        true => or(&args.pooler, &[Pooler::Direct]),
        false => or(&args.pooler, &[Pooler::Direct, Pooler::Pgbouncer]),
    };
    let mut configs = Vec::new();
    for major in majors {
        for &pooler in &poolers {
            for driver in or(&args.driver, &[Driver::Sqlx, Driver::TokioPostgres]) {
                for &isolation in &isolations {
                    configs.push(Config {
                        major,
                        driver,
                        isolation,
                        pooler,
                    });
                }
            }
        }
    }
    Ok(configs)
}

fn or<T: Copy>(chosen: &[T], usual: &[T]) -> Vec<T> {
    if chosen.is_empty() { usual } else { chosen }.to_vec()
}

/// The commit of the sources that this runs in, if they are there.
fn commit() -> Option<String> {
    let described = Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .output()
        .ok()?;
    let text = String::from_utf8(described.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| described.status.success() && !text.is_empty())
}

/// Reads `30s`, `10m`, or a number of seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    let count: u64 = digits
        .parse()
        .map_err(|_| format!("{text:?} is no duration; write 30s or 10m"))?;
    Ok(Duration::from_secs(count * unit))
}
