//! `pgonce demo`: an orders service under a storm of duplicates, cuts and crashes, and a verdict.

mod client;
mod oracle;
mod plan;
mod screen;
mod service;
mod shop;
mod storm;
mod usual;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use pgonce_testkit::Postgres;
use serde::Serialize;

use client::Counts;
use oracle::Findings;
use plan::Plan;
use screen::{Screen, number};
use service::{Code, Service};
use storm::Storm;

/// Why the demo could not be shown.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// The comparison takes this part of the time and of the intents.
const COMPARISON: u64 = 4;

/// Name (`application_name`) of the sessions that only look, the console's among them: to end them would prove nothing.
pub const WATCH: &str = "pgonce demo watch";

/// Settings of the demo.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long the storm lasts
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..=600))]
    seconds: u64,
    /// How many things are wanted once
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(8..=100_000))]
    intents: u64,
    /// Repeats the plan of an earlier storm
    #[arg(long)]
    seed: Option<u64>,
    /// No live line
    #[arg(long)]
    plain: bool,
    /// Writes what was found to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only the storm on the usual code, which inserts and answers
    #[arg(long, conflicts_with = "only_pgonce")]
    without_pgonce: bool,
    /// Only the storm on pgonce, without the comparison before it
    #[arg(long)]
    only_pgonce: bool,
    /// Keeps server and console running after the verdict, until Ctrl-C
    #[arg(long)]
    keep: bool,
    /// The code that the verdict is about; for the tests of the verdict
    #[arg(long, hide = true, default_value = "pgonce")]
    code: Code,
    /// Runs the service instead
    #[arg(long, hide = true, requires = "database")]
    serve: Option<Code>,
    /// The service's database
    #[arg(long, hide = true)]
    database: Option<String>,
}

/// What `--json` writes.
#[derive(Debug, Serialize)]
struct Report {
    seed: u64,
    seconds: u64,
    exactly_once: bool,
    usual: Option<Findings>,
    pgonce: Option<Findings>,
}

/// Runs the demo; the exit code is the verdict. The program must mount it as its command `demo`: the service under the storm is
/// this program again, so that it can be killed. `console` serves a console of the database at this address, and gives its own.
pub async fn run<C, F>(args: Args, console: C) -> ExitCode
where
    C: FnOnce(String) -> F,
    F: Future<Output = Result<SocketAddr>>,
{
    let screen = Screen::new(args.plain);
    let done = match (args.serve, &args.database) {
        (Some(code), Some(database)) => service::serve(code, database).await.map(|()| true),
        _ => tokio::select! {
            // Dropped by a signal, it ends everything that it started.
            shown = show(&args, &screen, console) => match shown {
                Ok((good, server)) => {
                    if args.keep {
                        screen.note("Server and console run on until Ctrl-C.");
                        stop_signal().await;
                    }
                    drop(server);
                    Ok(good)
                }
                Err(error) => Err(error),
            },
            () = stop_signal() => {
                screen.end();
                screen.note("stopped; everything that was started is ended");
                return ExitCode::from(130);
            }
        },
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            screen.end();
            screen.note(&format!("pgonce demo: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The whole show; true when the verdict is good. The server runs as long as the value that is given back with it.
async fn show<C, F>(args: &Args, screen: &Screen, console: C) -> Result<(bool, Postgres)>
where
    C: FnOnce(String) -> F,
    F: Future<Output = Result<SocketAddr>>,
{
    let began = Instant::now();
    let seed = args
        .seed
        .unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let server = Postgres::builder().start().await?;
    screen.note(&format!(
        "private PostgreSQL {} on port {}, seed {seed} (the same plan again: --seed {seed})",
        server.major(),
        server.port()
    ));
    let mut report = Report {
        seed,
        seconds: args.seconds,
        exactly_once: false,
        usual: None,
        pgonce: None,
    };

    if !args.only_pgonce {
        let part = if args.without_pgonce { 1 } else { COMPARISON };
        let plan = Plan::draw(
            seed,
            (args.seconds / part).max(2),
            (args.intents / part).max(8) as usize,
        );
        screen.note("\nFirst the usual code, which inserts and answers:");
        let database = shop::database(&server, "usual").await?;
        let found = storm(&plan, Code::Usual, &server, &database, screen).await?;
        screen.note(&format!(
            "The usual code: {} intents became {} orders, {} duplicates.",
            number(found.intents),
            number(found.effects),
            number(found.duplicates)
        ));
        report.usual = Some(found);
    }
    if !args.without_pgonce {
        let plan = Plan::draw(seed, args.seconds, args.intents as usize);
        let database = shop::database(&server, "shop").await?;
        let address = console(database.clone()).await?;
        screen.note(&format!(
            "\nNow with pgonce, and its console on http://{address}/ :"
        ));
        let mut found = storm(&plan, args.code, &server, &database, screen).await?;
        if report
            .usual
            .as_ref()
            .is_some_and(|usual| usual.duplicates == 0)
        {
            let tame = "the storm was too tame to prove anything: the usual code survived it";
            found.problems.push(tame.to_owned());
        }
        report.pgonce = Some(found);
    }

    let usual = report.usual.iter().map(|found| ("the usual code", found));
    let pgonce = report.pgonce.iter().map(|found| ("with pgonce", found));
    screen.note(&format!(
        "\n{}",
        screen::table(&usual.chain(pgonce).collect::<Vec<_>>())
    ));
    let judged = report
        .pgonce
        .as_ref()
        .or(report.usual.as_ref())
        .ok_or("no storm was asked for")?;
    report.exactly_once = judged.is_exactly_once();
    let sentence = verdict(judged);
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_vec_pretty(&report)?)
            .map_err(|error| format!("could not write {}: {error}", file.display()))?;
    }
    screen.note(&format!(
        "{sentence}\n({:.0} s, seed {seed})",
        began.elapsed().as_secs_f64()
    ));
    Ok((report.exactly_once, server))
}

/// One storm on one code, in a database of its own, and what came of it.
async fn storm(
    plan: &Plan,
    code: Code,
    server: &Postgres,
    database: &str,
    screen: &Screen,
) -> Result<Findings> {
    let counts = Arc::new(Counts::default());
    let mut service = Service::start(code, database).await?;
    let storm = Storm {
        plan,
        server,
        database,
        counts: counts.clone(),
        screen,
    };
    screen.begin();
    let answers = storm.rage(&mut service).await;
    screen.end();
    service.kill().await?;
    oracle::judge(plan, &answers?, &counts, database).await
}

fn verdict(found: &Findings) -> String {
    if found.is_exactly_once() {
        return format!(
            "VERDICT: exactly once — {} intents, {} attempts, {} effects, 0 duplicates, 0 lost",
            number(found.intents),
            number(found.attempts),
            number(found.effects)
        );
    }
    let mut text = format!(
        "VERDICT: NOT exactly once — {} intents, {} attempts, {} effects, {} duplicates, {} lost",
        number(found.intents),
        number(found.attempts),
        number(found.effects),
        number(found.duplicates),
        number(found.lost)
    );
    for problem in &found.problems {
        text += &format!("\n  - {problem}");
    }
    text
}

/// Ctrl-C, or a polite kill.
async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut polite) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = polite.recv() => {}
        received = tokio::signal::ctrl_c() => if received.is_err() {
            std::future::pending::<()>().await;
        },
    }
}
