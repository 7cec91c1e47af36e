//! `pgonce projection`: read models, built anew and compared.

use clap::Subcommand;
use pgonce::Once;
use serde_json::json;

use crate::database::{Database, Target};
use crate::exit::{self, CliError, Result};
use crate::output;

/// What to do with projections.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the projections, and how far they are.
    Status(Status),
    /// Build a projection anew from its events, and put that in its place.
    Rebuild(Name),
    /// Build a projection anew beside the live one and compare them; exit code 1 where they differ.
    Verify(Name),
}

#[derive(Debug, clap::Args)]
struct Status {
    /// Count what was applied, however much it is; above 20000 it is left out.
    #[arg(long)]
    count: bool,
}

#[derive(Debug, clap::Args)]
struct Name {
    /// The projection.
    projection: String,
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.installed().await?;
    match args.action {
        Action::Status(status) => {
            // To count what was applied reads markers and gates.
            let query = match status.count || !has_many(&database).await? {
                true => "select * from pgonce.projections order by projection",
                false => {
                    "select projection, into_table, apply, gate, coalesce(from_consumer, 'the outbox log') as events_from, defined_at, rebuilt_at \
                     from pgonce.projection order by projection"
                }
            };
            let rows = database.read(query, &[]).await?;
            output::rows(database.format, &rows, "No projection is defined here.")
        }
        Action::Rebuild(name) => {
            let done = once(&database)?.inbox().rebuild(&name.projection).await;
            let done = done.map_err(not_found)?;
            let words = format!(
                "{} events applied; {} rows removed, {} rows added",
                done.events, done.removed, done.added
            );
            let value =
                json!({"events": done.events, "removed": done.removed, "added": done.added});
            output::say(database.format, &words, &value)
        }
        Action::Verify(name) => {
            let found = once(&database)?.inbox().verify(&name.projection).await;
            let found = found.map_err(not_found)?;
            let equal = found.is_equal();
            let words = format!(
                "{}: {} rows live, {} rebuilt; {} missing, {} surplus; {} events not applied yet",
                if equal { "equal" } else { "different" },
                found.rows.0,
                found.rows.1,
                found.missing,
                found.surplus,
                found.pending
            );
            let value = json!({
                "equal": equal, "live_rows": found.rows.0, "rebuilt_rows": found.rows.1, "missing": found.missing,
                "surplus": found.surplus, "live_hash": found.hashes.0, "rebuilt_hash": found.hashes.1, "pending": found.pending,
            });
            exit::before_verdict(output::say(database.format, &words, &value))?;
            if equal {
                return Ok(());
            }
            Err(CliError::new(
                exit::FAILED,
                format!(
                    "projection {:?} is not what its events make",
                    name.projection
                ),
                "Find out who else writes to its table, then `pgonce projection rebuild`.",
            ))
        }
    }
}

/// Whether there are more markers or gates than a list may read.
async fn has_many(database: &Database) -> Result<bool> {
    let query = "select greatest((select count(*) from (select from pgonce.inbox_marker limit 20001) x), \
                 (select count(*) from (select from pgonce.projection_gate limit 20001) x)) as n";
    Ok(database.read_count(query, &[]).await? > 20_000)
}

fn once(database: &Database) -> Result<Once<pgonce::driver::tokio_postgres::TokioPostgres>> {
    let builder = Once::builder(database.driver.clone()).schema(&database.schema);
    Ok(builder.build()?)
}

fn not_found(error: pgonce::Error) -> CliError {
    CliError::from(error).with_exit("42704", exit::NOT_FOUND)
}
