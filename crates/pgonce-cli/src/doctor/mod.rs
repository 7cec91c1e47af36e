//! `pgonce doctor`: reviews a live database, and says what to do about each finding.

mod check;

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use pgonce::Error;
use pgonce::driver::{Statement, read_only};
use serde::Serialize;
use serde_json::{Value, json};

use self::check::{Check, Severity, checks, filled};
use crate::database::{Database, Target};
use crate::exit::{self, CliError, Result};
use crate::output::{self, Format};

/// What to review, and how to report it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these checks; may be given several times.
    #[arg(long, value_name = "ID", conflicts_with = "skip")]
    only: Vec<String>,
    /// All checks but these; may be given several times.
    #[arg(long, value_name = "ID")]
    skip: Vec<String>,
    /// Print a script that fixes what can be fixed by SQL; read it before you run it.
    #[arg(long)]
    fix_sql: bool,
    /// The mildest finding that makes the exit code 12.
    #[arg(long, value_enum, value_name = "SEVERITY", default_value = "warning")]
    fail_on: Severity,
    /// List the checks, and look at no database.
    #[arg(long, conflicts_with_all = ["only", "skip", "fix_sql"])]
    list: bool,
}

/// What one row of a check said.
#[derive(Debug, Serialize)]
struct Finding {
    id: &'static str,
    severity: Severity,
    title: &'static str,
    evidence: String,
    why: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sql: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    if args.list {
        return list(target.format());
    }
    let all: Vec<Check> = checks().map(|(_, check)| check).collect();
    let known: BTreeSet<&str> = all.iter().map(|check| check.id).collect();
    if let Some(unknown) = args
        .only
        .iter()
        .chain(&args.skip)
        .find(|id| !known.contains(id.as_str()))
    {
        return Err(CliError::new(
            exit::NOT_FOUND,
            format!("there is no check {unknown:?}"),
            "See `pgonce doctor --list`.",
        ));
    }
    let wanted = |id: &str| {
        (args.only.is_empty() || args.only.iter().any(|only| only == id))
            && !args.skip.iter().any(|skip| skip == id)
    };
    let port = target.port();
    let database = target.installed().await?;
    let mut findings = Vec::new();
    for check in all.iter().filter(|check| wanted(check.id)) {
        let found = match check.id {
            "migration-pending" => migration(&database, check).await?,
            "clock-drift" => clock(&database, check).await?,
            "pooler-between" => pooler(&database, check, port).await?,
            _ if check.query.is_empty() => Vec::new(),
            _ => ask(&database, check).await?,
        };
        // A check that could not be made has another id. It is never left out by --only: nothing was found is not what it says.
        let skipped = |id: &str| args.skip.iter().any(|skip| skip == id);
        findings.extend(found.into_iter().filter(|finding| !skipped(finding.id)));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    exit::before_verdict(if args.fix_sql {
        script(&database, &findings)
    } else {
        let count = all.iter().filter(|check| wanted(check.id)).count();
        report(database.format, &findings, count)
    })?;
    let failing = findings
        .iter()
        .filter(|finding| finding.severity >= args.fail_on)
        .count();
    match failing {
        0 => Ok(()),
        _ => Err(CliError::quiet(exit::FINDINGS)),
    }
}

fn list(format: Format) -> Result {
    let rows = checks().map(|(_, check)| {
        // Written by hand, for the order of the columns.
        let (severity, title) = (json!(check.severity), json!(check.title));
        format!(
            r#"{{"id":{},"severity":{severity},"title":{title}}}"#,
            json!(check.id)
        )
    });
    output::rows(format, &rows.collect::<Vec<_>>(), "no checks")
}

impl Check {
    fn finding(
        &self,
        evidence: impl Into<String>,
        sql: Option<String>,
        command: Option<String>,
    ) -> Finding {
        Finding {
            id: self.id,
            severity: self.severity,
            title: self.title,
            why: self.why,
            evidence: evidence.into(),
            sql,
            command,
        }
    }
}

/// That a check could not be made.
fn unchecked(check: &Check, why: &str) -> Vec<Finding> {
    let evidence = format!("{}: {why}", check.id);
    let command = "pgonce doctor, as the owner of the schema".to_owned();
    let found = checks().find(|(_, check)| check.id == "not-checked");
    let found = found.map(|(_, found)| found.finding(evidence, None, Some(command)));
    found.into_iter().collect()
}

/// The findings of a check's query. One that cannot be asked is a finding too, except where no other could either.
async fn ask(database: &Database, check: &Check) -> Result<Vec<Finding>> {
    // Row level security would hide the rows without any error.
    if check.query.contains("from pgonce.intent i") && !database.sees_intents().await? {
        return Ok(unchecked(check, "this role does not see all intents"));
    }
    match rows(database, &filled(check.query)).await {
        Ok(rows) => Ok(rows
            .iter()
            .map(|row| {
                let text = |name: &str| row[name].as_str().map(str::to_owned);
                check.finding(
                    text("evidence").unwrap_or_default(),
                    text("sql"),
                    text("command"),
                )
            })
            .collect()),
        Err(error @ Error::Disconnected(_)) => Err(error.into()),
        Err(error) => Ok(unchecked(check, &format!("{error} ({})", error.code()))),
    }
}

/// Maximum time of one check.
const TIMEOUT: &str = "20s";

/// The rows of a query, in a transaction of its own: settings must not leak through a pooler.
async fn rows(database: &Database, query: &str) -> std::result::Result<Vec<Value>, Error> {
    let query = query.replace("pgonce.", &format!("{}.", database.schema));
    let statement = Statement {
        sql: format!("select row_to_json(q)::text from ({query}) q").into(),
        keep: false,
        pooled: true,
    };
    let settings = format!("set local statement_timeout = '{TIMEOUT}'");
    let rows = read_only(&database.driver, &settings, &statement, &[]).await?;
    let rows = rows.iter().map(|row| pgonce::unstable::json::read(row));
    Ok(rows.filter_map(|row| row.ok()).collect())
}

async fn migration(database: &Database, check: &Check) -> Result<Vec<Finding>> {
    Ok(match database.migrator().check().await {
        Ok(()) => Vec::new(),
        Err(error @ Error::Disconnected(_)) => return Err(error.into()),
        Err(error) => {
            let evidence = format!("{error} ({})", error.code());
            vec![check.finding(evidence, None, Some("pgonce migrate up".to_owned()))]
        }
    })
}

async fn clock(database: &Database, check: &Check) -> Result<Vec<Finding>> {
    let local = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.unwrap_or_default().as_secs_f64()
    };
    let before = local();
    let asked = rows(
        database,
        "select extract(epoch from clock_timestamp())::float8 as at",
    )
    .await?;
    let server = asked.first().and_then(|row| row["at"].as_f64());
    Ok(server
        .and_then(|server| drift(before, server, local()))
        .map(|evidence| {
            check.finding(
                evidence,
                None,
                Some("synchronise both clocks, with NTP".to_owned()),
            )
        })
        .into_iter()
        .collect())
}

/// The server's clock was read between two readings of ours: only what is outside of them is known to be wrong.
fn drift(before: f64, server: f64, after: f64) -> Option<String> {
    const ALLOWED: f64 = 2.0;
    let (behind, ahead) = (before - server, server - after);
    if ahead > ALLOWED {
        Some(format!("the server's clock is at least {ahead:.0} s ahead"))
    } else if behind > ALLOWED {
        Some(format!(
            "the server's clock is at least {behind:.0} s behind"
        ))
    } else {
        None
    }
}

async fn pooler(database: &Database, check: &Check, port: Option<u16>) -> Result<Vec<Finding>> {
    let asked = rows(database, "select inet_server_port() as port").await?;
    let server = asked.first().and_then(|row| row["port"].as_u64());
    Ok(match (port, server) {
        (Some(ours), Some(server)) if u64::from(ours) != server => {
            let evidence =
                format!("the address has port {ours}, the server listens on port {server}");
            let command = "read docs/src/how-to/poolers.md; where the port is only mapped: --skip pooler-between";
            vec![check.finding(evidence, None, Some(command.to_owned()))]
        }
        _ => Vec::new(),
    })
}

fn report(format: Format, findings: &[Finding], checked: usize) -> Result {
    if format == Format::Json {
        return output::line(&json!({ "findings": findings }).to_string());
    }
    for finding in findings {
        let Finding {
            id,
            severity,
            title,
            evidence,
            why,
            ..
        } = finding;
        output::line(&format!("{}: {title} [{id}]", severity.as_str()))?;
        let fixes = [("fix", &finding.sql), ("fix", &finding.command)];
        let fixes = fixes
            .into_iter()
            .filter_map(|(name, text)| Some((name, text.as_deref()?)));
        for (name, text) in [("found", evidence.as_str()), ("why", why)]
            .into_iter()
            .chain(fixes)
        {
            output::line(&format!("  {name:>5}: {}", output::printable(text)))?;
        }
    }
    let count = |severity| {
        findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    };
    output::line(&match findings.len() {
        0 => format!(
            "nothing found in {checked} check{}",
            if checked == 1 { "" } else { "s" }
        ),
        _ => format!(
            "{} critical, {} warnings, {} notices",
            count(Severity::Critical),
            count(Severity::Warning),
            count(Severity::Notice)
        ),
    })
}

fn script(database: &Database, findings: &[Finding]) -> Result {
    for finding in findings {
        let comment = |text: &str| format!("-- {}", output::printable(text));
        output::line(&comment(&format!("{}: {}", finding.id, finding.evidence)))?;
        if let Some(command) = &finding.command {
            output::line(&comment(&format!("run: {command}")))?;
        }
        if let Some(sql) = &finding.sql {
            output::line(&output::printable(sql))?;
        }
    }
    match findings {
        [] => output::line(&format!("-- schema {}: nothing to fix", database.schema)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::drift;

    #[test]
    fn a_clock_is_wrong_only_by_what_the_round_trip_cannot_explain() {
        assert_eq!(drift(100.0, 101.0, 100.5), None);
        assert_eq!(
            drift(100.0, 109.0, 110.0),
            None,
            "a slow answer is no drift"
        );
        assert!(drift(100.0, 161.0, 101.0).is_some_and(|text| text.contains("60 s ahead")));
        assert!(drift(100.0, 40.0, 101.0).is_some_and(|text| text.contains("60 s behind")));
    }
}
