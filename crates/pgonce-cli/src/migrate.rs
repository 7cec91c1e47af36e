//! `pgonce migrate`.

use clap::Subcommand;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::{Migrator, Part, Report, Status};
use serde_json::json;

use crate::database::{Database, Target};
use crate::exit::{self, Result};
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
        /// Let a role do one part of the work: app, relay, consumer, operator or viewer; may be given several times.
        #[arg(long, value_name = "PART=ROLE", value_parser = grant)]
        grant: Vec<Grant>,
        #[command(flatten)]
        citus: Citus,
    },
    /// Print what `up` would do, and do nothing.
    Plan {
        /// Include the rights of a role in the script, as for `up`; may be given several times.
        #[arg(long, value_name = "PART=ROLE", value_parser = grant, requires = "sql")]
        grant: Vec<Grant>,
        /// Print it as one script for psql.
        #[arg(long)]
        sql: bool,
        #[command(flatten)]
        citus: Citus,
    },
    /// Print the state of the schema; the exit code says whether this program can use it.
    Status,
}

/// What to do in a database with Citus.
#[derive(Debug, clap::Args)]
struct Citus {
    /// Leave pgonce on the coordinator of Citus although other tables are distributed: no command writes those.
    #[arg(long, conflicts_with = "distribute")]
    coordinator_only: bool,
    /// Distribute pgonce's tables by tenant over the servers of Citus; once is enough.
    #[arg(long)]
    distribute: bool,
    /// Place them with this distributed table, such as public.orders.
    #[arg(long, value_name = "TABLE", requires = "distribute")]
    colocate_with: Option<String>,
}

impl Citus {
    fn migrator(&self, database: &Database) -> Migrator<TokioPostgres> {
        let migrator = database.migrator();
        match (self.coordinator_only, self.distribute) {
            (true, _) => migrator.coordinator_only(),
            (_, true) => migrator.distribute(self.colocate_with.as_deref()),
            _ => migrator,
        }
    }
}

type Grant = (Part, String);

/// PostgreSQL cuts a longer name, and another role could have what is left of it.
const MAX_NAME_BYTES: usize = 63;

fn grant(text: &str) -> std::result::Result<Grant, String> {
    let (part, role) = text
        .split_once('=')
        .filter(|(_, role)| !role.is_empty())
        .ok_or("give a part and a role, such as app=shop")?;
    let part = part.parse::<Part>().map_err(|_| {
        format!("{part:?} is no part: app, relay, consumer, operator or viewer, such as app=shop")
    })?;
    if role.len() > MAX_NAME_BYTES {
        return Err(format!("a role's name has at most {MAX_NAME_BYTES} bytes"));
    }
    Ok((part, role.to_owned()))
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.database()?;
    match args.action {
        Action::Up { grant, citus } => up(&database, &citus, &grant).await,
        Action::Plan { sql, grant, citus } => plan(&database, &citus, sql, grant).await,
        Action::Status => status(&database).await,
    }
}

async fn up(database: &Database, citus: &Citus, grant: &[Grant]) -> Result {
    let migrator = citus.migrator(database);
    let report = migrator.up().await?;
    let (mut done, mut failed) = (0, None);
    for (part, role) in grant {
        let grant = "select 1 as n from pgonce.grant_to($1::text::name, $2)";
        let params = [Some(&**role), Some(part.as_str())];
        // What was applied and granted stays, and is said first.
        if let Err(error) = database.count(grant, &params).await {
            failed = Some(error);
            break;
        }
        done += 1;
    }
    let grant = &grant[..done];
    let granted: Vec<_> = grant
        .iter()
        .map(|(part, role)| json!({"part": part.as_str(), "role": role}))
        .collect();
    let value = json!({
        "schema": database.schema, "applied": report.applied, "routines": report.routines,
        "newer": report.newer, "granted": granted,
    });
    let words = words(&report, &database.schema, grant);
    exit::before_verdict(output::say(database.format, &words, &value))?;
    failed.map_or(Ok(()), Err)
}

fn words(report: &Report, schema: &str, grant: &[Grant]) -> String {
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
            .map(|(part, role)| format!("granted {part} to role {role}")),
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

async fn plan(database: &Database, citus: &Citus, sql: bool, grant: Vec<Grant>) -> Result {
    let mut plan = citus.migrator(database).plan().await?;
    if sql {
        for (part, role) in grant {
            plan = plan.grant(part, role);
        }
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
    exit::before_verdict(show(database.format, &status))?;
    Ok(status.verdict()?)
}

fn show(format: Format, status: &Status) -> Result {
    match format {
        Format::Json => output::line(&as_json(status).to_string()),
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
            ))
        }
    }
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
