//! `pgonce recover`: decides about work whose holder vanished, as the contracts say.

use std::time::Duration;

use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::recovery::Recovered;
use serde_json::json;

use crate::database::{Target, person, pool};
use crate::exit::{CliError, Result};
use crate::output::{self, Format};
use crate::scope;
use crate::signals::Signals;

/// How long the database is waited for.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(10);

/// As long as the library lets a probe take.
const MAX_PROBE_TIMEOUT: Duration = Duration::from_secs(86_400);

/// When to decide.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Decide what is due, and end. The default.
    #[arg(long)]
    once: bool,
    /// Go on until a signal stops it.
    #[arg(long, conflicts_with = "once")]
    watch: bool,
    /// With --watch: pause between two looks.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = scope::pause)]
    every: Duration,
    /// Maximum time of one probe.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = probe_timeout)]
    probe_timeout: Duration,
    /// Maximum number of probes at a time.
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    concurrency: u8,
    /// Only count what stopped before its end, by scope and what may be done.
    #[arg(long, conflicts_with_all = ["once", "watch"])]
    dry_run: bool,
}

fn probe_timeout(text: &str) -> std::result::Result<Duration, String> {
    let timeout = scope::duration(text)?;
    match timeout <= MAX_PROBE_TIMEOUT {
        true => Ok(timeout),
        false => Err("give at most 1d".to_owned()),
    }
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    if args.dry_run {
        let database = target.installed().await?;
        let query = "select tenant, scope, classification, count(*) as intents, \
                     date_trunc('second', max(stuck_for)) as stuck_for \
                     from pgonce.stuck where status = 'processing' group by 1, 2, 3 order by 1, 2, 3";
        let rows = database.read(query, &[]).await?;
        return output::rows(database.format, &rows, "Nothing is stuck.");
    }
    let format = target.format();
    let (address, schema) = target.address()?;
    let size = usize::from(args.concurrency) + 1;
    let pool = pool(address, "pgonce recover", size, DATABASE_TIMEOUT)?;
    let once = Once::builder(TokioPostgres::new(pool))
        .schema(&schema)
        .behind_pooler()
        .build()?;
    let recovery = once
        .recovery()
        .owner(format!("recovery of {}", person()))
        .probe_timeout(args.probe_timeout)
        .concurrency(args.concurrency.into());
    if !args.watch {
        return say(format, recovery.run_once().await?);
    }
    let mut stop = Signals::listen()?;
    loop {
        // To end here is as safe as a crash: what was taken is taken again after its time.
        let ran = tokio::select! {
            () = stop.next() => return Ok(()),
            ran = recovery.run_once() => ran,
        };
        match ran {
            Ok(recovered) if recovered != Recovered::default() => say(format, recovered)?,
            Ok(_) => {}
            // It may be reachable again at the next look.
            Err(error) => {
                CliError::from(error).print(format);
            }
        }
        tokio::select! {
            () = stop.next() => return Ok(()),
            () = tokio::time::sleep(args.every) => {}
        }
    }
}

fn say(format: Format, recovered: Recovered) -> Result {
    let counts = [
        ("succeeded", recovered.succeeded),
        ("released", recovered.released),
        ("abandoned", recovered.abandoned),
        ("needs_manual_action", recovered.needs_manual_action),
        ("unknown", recovered.unknown),
        ("overtaken", recovered.overtaken),
    ];
    let words: Vec<String> = counts
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{count} {}", name.replace('_', " ")))
        .collect();
    let words = match words.is_empty() {
        true => "nothing to recover".to_owned(),
        false => format!("recovered: {}", words.join(", ")),
    };
    let value: serde_json::Map<_, _> = counts
        .iter()
        .map(|(name, count)| ((*name).to_owned(), json!(count)))
        .collect();
    output::say(format, &words, &value.into())
}
