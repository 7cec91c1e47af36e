//! `pgonce find`: anything by any id.

use std::time::Duration;

use pgonce::driver::{Param, Statement, read_only};
use serde_json::json;

use crate::database::{Database, Target};
use crate::exit::{self, CliError, Result};
use crate::output::{self, Format};

/// What to find.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A key (the client's, as stored, or hashed as in logs), reference, correlation, message id, subject, trace id, a job's key, or a provider's reference, event or effect key.
    id: String,
    /// Only look where an index leads: no hashed keys, no subjects, ids and traces of events, no keys and traces of stored messages.
    #[arg(long)]
    quick: bool,
    /// Maximum time of each look.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::scope::duration)]
    timeout: Duration,
}

/// The parts of `pgonce.find`, whether an index leads there, and what they look at.
const PARTS: [(&str, bool, &str); 8] = [
    (
        "intents",
        true,
        "keys, references and correlations of intents",
    ),
    ("events", true, "numbers of events, parked and skipped ones"),
    ("messages", true, "ids of accepted and stored messages"),
    ("jobs", true, "keys of jobs"),
    (
        "calls",
        true,
        "effect keys, references and events of calls to providers",
    ),
    ("all_intents", false, "hashed keys and fingerprints"),
    (
        "all_events",
        false,
        "subjects, message ids and trace ids of the outbox",
    ),
    (
        "all_messages",
        false,
        "keys, trace ids and hashed ids of stored messages",
    ),
];

/// Where each look-up of `pgonce.find` ends.
const MAX_FOUND: usize = 100;

const NOTHING: &str =
    "nothing with this id is remembered here; that does not prove that it never happened";

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.installed().await?;
    let (mut found, mut incomplete, mut cut) = (Vec::new(), Vec::new(), Vec::new());
    for (part, indexed, what) in PARTS {
        if args.quick && !indexed {
            incomplete.push(what);
            continue;
        }
        match look(&database, &args, part).await {
            Ok(rows) => {
                cut.extend(Some(what).filter(|_| rows.len() >= MAX_FOUND));
                found.extend(rows);
            }
            // Out of time; the others may answer.
            Err(error) if error.code() == "57014" => incomplete.push(what),
            Err(error) => return Err(error.into()),
        }
    }
    if output::is_by_row() {
        output::rows(database.format, &found, "")?;
    } else if database.format == Format::Json {
        // The rows as they are: some hold numbers that no Value does.
        let (found, incomplete, cut) = (found.join(","), json!(incomplete), json!(cut));
        output::line(&format!(
            r#"{{"found":[{found}],"not_looked_at":{incomplete},"more":{cut}}}"#
        ))?;
    } else if !found.is_empty() {
        output::rows(database.format, &found, "")?;
    }
    let notes = [
        ("not looked at, or not completely", incomplete),
        ("a look-up ends after 100, there may be more", cut),
    ];
    for (words, parts) in notes.iter().filter(|(_, parts)| !parts.is_empty()) {
        let words = format!("{words}: {}", parts.join("; "));
        match database.format {
            Format::Table => output::line(&words)?,
            Format::Json if output::is_by_row() => output::note(&words)?,
            // The document has it.
            Format::Json => {}
        }
    }
    if found.is_empty() {
        return Err(CliError::new(
            exit::NOT_FOUND,
            NOTHING,
            "An attempt in an open transaction has no record yet, records are purged after their retention (`pgonce scope show SCOPE`), \
             delivered events leave the log, and bytes may differ.",
        ));
    }
    Ok(())
}

async fn look(
    database: &Database,
    args: &Args,
    part: &str,
) -> std::result::Result<Vec<String>, pgonce::Error> {
    let statement = Statement {
        sql: format!(
            "select row_to_json(q)::text from {}.find($1, $2) q",
            database.schema
        )
        .into(),
        keep: false,
        pooled: false,
    };
    let limit = args.timeout.as_millis().max(1);
    let settings = format!("set local statement_timeout = {limit}");
    let params = [Param::Text(Some(&args.id)), Param::Text(Some(part))];
    read_only(&database.driver, &settings, &statement, &params).await
}
