//! `pgonce purge`.

use pgonce::Once;
use serde_json::json;

use crate::database::Target;
use crate::exit::Result;
use crate::output;

/// How much to purge.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Maximum number of records in one transaction.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: u32,
    /// Go on until none is left.
    #[arg(long)]
    all: bool,
    /// Only count the records and ended jobs whose retention is over.
    #[arg(long, conflicts_with = "all")]
    dry_run: bool,
    /// Why it is done by hand; it is kept with your name. Without it a purge leaves no record, as a timer's does not.
    #[arg(long, value_parser = crate::confirm::reason, conflicts_with = "dry_run")]
    reason: Option<String>,
}

fn counted(records: u64, jobs: u64) -> String {
    let ending = |count: u64| if count == 1 { "" } else { "s" };
    format!(
        "{records} finished record{} and {jobs} ended job{}",
        ending(records),
        ending(jobs)
    )
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.installed().await?;
    if args.dry_run {
        database.require_intents().await?;
        // No index has the expiry: this reads the whole table.
        let query = "select count(*) as n from pgonce.intent where expires_at <= pgonce.now()";
        let expired = database.read_count(query, &[]).await?;
        // As pgonce._purge_jobs has it.
        let query = "select count(*) as n from pgonce.job_end where expires_at <= pgonce.now()";
        let jobs = database.read_count(query, &[]).await?;
        let words = format!("would purge {}", counted(expired, jobs));
        let value = json!({"would_purge": expired, "jobs": jobs});
        return output::say(database.format, &words, &value);
    }
    let once = Once::builder(database.driver.clone())
        .schema(&database.schema)
        .behind_pooler()
        .build()?;
    let mut purged = 0;
    let mut more = loop {
        let count = match &args.reason {
            None => once.purge(args.limit).await?,
            Some(reason) => {
                let query = "select pgonce.purge($1::text::integer, $2) as n";
                let limit = args.limit.to_string();
                database.count(query, &[Some(&limit), Some(reason)]).await?
            }
        };
        purged += count;
        let more = count == u64::from(args.limit);
        if !(more && args.all) {
            break more;
        }
    };
    // Relays, consumers and workers do these too; this is for where none runs.
    once.outbox().maintain().await?;
    once.inbox().maintain().await?;
    let mut jobs = 0;
    loop {
        let count = once.purge_jobs(args.limit).await?;
        jobs += count;
        let is_full = count >= u64::from(args.limit);
        if !(is_full && args.all) {
            more |= is_full;
            break;
        }
    }
    let words = format!(
        "purged {}{}",
        counted(purged, jobs),
        if more {
            "; there may be more: run it again, or with --all"
        } else {
            ""
        }
    );
    output::say(
        database.format,
        &words,
        &json!({"purged": purged, "jobs": jobs, "more": more}),
    )
}
