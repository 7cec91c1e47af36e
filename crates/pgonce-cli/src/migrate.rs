//! `pgonce migrate`.

use clap::Subcommand;
use pgonce::migrate::{Report, Status};
use serde_json::json;

use crate::database::{Database, Target};
use crate::exit::Result;
use crate::output::{self, Format};

/// What to do with the schema.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Bring the schema up to this program; run it as the role that owns the schema.
    Up {
        /// Let this role use pgonce, as far as an application needs it; may be given several times.
        #[arg(long, value_name = "ROLE", alias = "admit")]
        grant: Vec<String>,
    },
    /// Print what `up` would do, and do nothing.
    Plan {
        /// Print it as one script for psql.
        #[arg(long)]
        sql: bool,
    },
    /// Print the state of the schema; the exit code says whether this program can use it.
    Status,
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.database()?;
    match args.action {
        Action::Up { grant } => up(&database, &grant).await,
        Action::Plan { sql } => plan(&database, sql).await,
        Action::Status => status(&database).await,
    }
}

async fn up(database: &Database, grant: &[String]) -> Result {
    let migrator = database.migrator();
    let report = migrator.up().await?;
    for role in grant {
        migrator.admit(role).await?;
    }
    let value = json!({
        "schema": database.schema, "applied": report.applied, "routines": report.routines,
        "newer": report.newer, "granted": grant,
    });
    output::say(
        database.format,
        &words(&report, &database.schema, grant),
        &value,
    )
}

fn words(report: &Report, schema: &str, grant: &[String]) -> String {
    let mut lines: Vec<String> = report
        .applied
        .iter()
        .map(|name| format!("applied {name}"))
        .collect();
    if report.routines {
        lines.push("loaded functions, views and triggers".to_owned());
    }
    lines.extend(
        grant
            .iter()
            .map(|role| format!("granted access to role {role}")),
    );
    lines.push(if report.newer.is_empty() {
        format!("schema {schema} is up to date")
    } else {
        format!(
            "schema {schema} was migrated by a newer pgonce ({}), which is compatible with this program: unchanged",
            report.newer.join(", ")
        )
    });
    lines.join("\n")
}

async fn plan(database: &Database, sql: bool) -> Result {
    let plan = database.migrator().plan().await?;
    if sql {
        return output::raw(&plan.sql());
    }
    let names: Vec<&str> = plan
        .migrations()
        .iter()
        .map(|migration| migration.name)
        .collect();
    let value =
        json!({"schema": database.schema, "migrations": names, "routines": plan.routines()});
    let mut lines: Vec<String> = plan
        .migrations()
        .iter()
        .map(|m| {
            format!(
                "would apply {}{}",
                m.name,
                if m.is_breaking() {
                    ", which is breaking"
                } else {
                    ""
                }
            )
        })
        .collect();
    if plan.routines() {
        lines.push("would load functions, views and triggers".to_owned());
    }
    if plan.is_empty() {
        lines.push(format!("schema {}: nothing to do", database.schema));
    }
    output::say(database.format, &lines.join("\n"), &value)
}

async fn status(database: &Database) -> Result {
    let status = database.migrator().status().await?;
    match database.format {
        Format::Json => output::line(&as_json(&status).to_string())?,
        Format::Table => {
            let rows: Vec<String> = status
                .migrations
                .iter()
                .map(|entry| {
                    // Written by hand, for the order of the columns.
                    format!(
                        r#"{{"migration":{},"state":{},"breaking":{},"applied_at":{},"applied_by":{}}}"#,
                        json!(entry.name),
                        json!(entry.state.as_str()),
                        json!(if entry.breaking { "yes" } else { "no" }),
                        json!(entry.applied_at),
                        json!(entry.applied_by)
                    )
                })
                .collect();
            output::rows(Format::Table, &rows, "no migrations")?;
            let routines = status.routines.as_str();
            output::line(&format!(
                "schema {}; functions, views and triggers: {routines}",
                status.schema
            ))?;
        }
    }
    Ok(status.verdict()?)
}

fn as_json(status: &Status) -> serde_json::Value {
    let migrations: Vec<_> = status
        .migrations
        .iter()
        .map(|entry| {
            json!({
                "number": entry.number, "name": entry.name, "breaking": entry.breaking,
                "state": entry.state.as_str(), "applied_at": entry.applied_at, "applied_by": entry.applied_by,
            })
        })
        .collect();
    json!({
        "schema": status.schema, "installed": status.installed,
        "migrations": migrations, "routines": status.routines.as_str(),
    })
}
