//! Tests whether an HTTP API that claims idempotency keeps it.
//!
//! It knows nothing of pgonce and needs no database: it sends requests, sends them again, hangs up,
//! and compares the responses and the number of effects. `pgonce probe` and the program
//! `pgonce-probe` run it.

mod answer;
mod case;
mod cases;
mod evidence;
mod exit;
mod finding;
mod json;
mod ledger;
mod options;
mod output;
mod prober;
mod report;
mod statuses;
mod tls;
mod wire;

use std::process::ExitCode;

use clap::ValueEnum as _;
use tokio::time::{Instant, timeout_at};

use case::Case;
use finding::Finding;
pub use options::Args;
pub use output::Format;
use prober::Prober;
use report::{Report, Tried};

use exit::{CliError, Result};

/// Probes an API, and prints the report.
pub async fn run(args: Args, format: Format) -> ExitCode {
    match probe(args, format).await {
        Ok(code) => code,
        Err(trouble) => trouble.report(format),
    }
}

async fn probe(args: Args, format: Format) -> Result<ExitCode> {
    let Some(url) = args.url.clone().filter(|_| !args.list) else {
        report::list(format)?;
        return Ok(ExitCode::SUCCESS);
    };
    let seed = args
        .seed
        .unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let prober = Prober::new(&args, &url, seed).await?;
    confirm(&prober, args.yes)?;

    let begun = Instant::now();
    let until = begun + args.deadline;
    let chosen = Case::value_variants().iter().copied().filter(|case| {
        (args.only.is_empty() || args.only.contains(case)) && !args.skip.contains(case)
    });
    // Where not even a plain intent is accepted, whatever follows says nothing about idempotency.
    let useless = match prober.open().await {
        Ok(answer) if args.seed.is_some() && answer.replay_mark().is_some() => {
            Some(Finding::inconclusive(
                "a fresh key was answered with a replay: was this seed used before?",
            ))
        }
        plain => plain.err(),
    };
    let mut tried = Vec::new();
    for case in chosen {
        let since = Instant::now();
        let finding = match &useless {
            Some(why) => Ok(why.clone()),
            None => timeout_at(until, cases::run(case, &prober)).await,
        };
        let finding = finding.unwrap_or_else(|_| {
            Finding::inconclusive(format!(
                "the time of {:?} for all cases was up",
                args.deadline
            ))
        });
        tried.push(Tried::new(case, finding, since.elapsed()));
    }
    let report = Report {
        url,
        method: args.method.to_string(),
        seed,
        version: env!("CARGO_PKG_VERSION"),
        counted: prober.counts(),
        requests: prober.requests(),
        seconds: begun.elapsed().as_secs_f64(),
        verdict: report::verdict(&tried),
        cases: tried,
    };
    if let Some(file) = &args.junit {
        report.write_junit(file)?;
    }
    report.print(format)?;
    Ok(ExitCode::from(report.verdict.exit()))
}

/// What is asked for is done: orders are placed, money is moved. On a machine that is not this one,
/// somebody has to want that.
fn confirm(prober: &Prober, yes: bool) -> Result {
    let endpoints = std::iter::once(&prober.at).chain(&prober.other);
    let Some(far) = endpoints.into_iter().find(|at| !at.is_this_machine()) else {
        return Ok(());
    };
    if yes {
        return Ok(());
    }
    Err(CliError::new(
        exit::NOT_CONFIRMED,
        format!(
            "probing makes real effects: dozens of real requests would be sent to {}, which is not this machine",
            far.host()
        ),
        "If you may do that there (a test system, a sandbox account), say so with --yes.",
    ))
}
