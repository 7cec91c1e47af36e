//! `pgonce scope` and `pgonce strict`.

use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use serde_json::json;

use crate::confirm::Confirm;
use crate::database::{Database, Target};
use crate::exit::{self, CliError, Result};
use crate::output;

/// What to do with contracts.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Define a scope's contract, or replace it: fields that are left out get their defaults.
    Define(Box<Contract>),
    /// List all contracts.
    List,
    /// Show the contract in force for a scope: the tenant's own, the general one, or that of '*'.
    Show(Name),
    /// Forget a contract; intents keep their records.
    Drop(DropArgs),
}

#[derive(Debug, clap::Args)]
struct DropArgs {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, clap::Args)]
struct Name {
    /// The scope, such as orders.create.
    scope: String,
    /// The tenant whose own contract is meant.
    #[arg(long, default_value = "", hide_default_value = true)]
    tenant: String,
}

/// A contract. Lengths of time are written 30s, 15m, 7d, or as PostgreSQL's interval.
#[derive(Debug, clap::Args)]
struct Contract {
    #[command(flatten)]
    name: Name,
    /// How long answers are kept.
    #[arg(long, value_parser = length)]
    retention: String,
    /// The usual length of a lease [default: 30s].
    #[arg(long, value_parser = length)]
    lease: Option<String>,
    /// Response to a duplicate while the first attempt is in progress [default: reject].
    #[arg(long, value_parser = ["reject", "wait", "accept"])]
    busy: Option<String>,
    /// How long a duplicate waits for the answer, with --busy wait [default: 5s].
    #[arg(long, value_parser = length)]
    wait_timeout: Option<String>,
    /// What is kept of an answer [default: answer].
    #[arg(long, value_parser = ["answer", "reference", "status", "error"])]
    storage: Option<String>,
    /// What a key means after its retention: free again, or gone [default: rerun].
    #[arg(long, value_parser = ["rerun", "gone"])]
    after_expiry: Option<String>,
    /// How long a key stays gone [default: no limit].
    #[arg(long, value_parser = length)]
    tombstone_for: Option<String>,
    /// What happens to leased work whose holder vanished [default: takeover].
    #[arg(long, value_parser = ["takeover", "hold", "refuse"])]
    stale: Option<String>,
    /// Where keys come from [default: client].
    #[arg(long, value_parser = ["client", "derived", "message", "file"])]
    key_source: Option<String>,
    /// How far effects reach [default: database].
    #[arg(long, value_parser = ["database", "external", "messages"])]
    boundary: Option<String>,
    /// How long clients may retry; retention is at least that [default: 0s].
    #[arg(long, value_parser = length)]
    client_retry: Option<String>,
    /// How long brokers may redeliver; retention is at least that [default: 0s].
    #[arg(long, value_parser = length)]
    redelivery: Option<String>,
    /// How long reconciliation may look back; retention is at least that [default: 0s].
    #[arg(long, value_parser = length)]
    reconciliation: Option<String>,
    /// How long audit may look back; retention is at least that [default: 0s].
    #[arg(long, value_parser = length)]
    audit: Option<String>,
    /// Maximum size of an answer in bytes, as JSON text [default: 1048576].
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(..=i64::from(i32::MAX)))]
    max_answer: Option<u32>,
    /// Maximum number of keys of a tenant in the scope [default: no limit].
    #[arg(long, value_name = "KEYS", value_parser = clap::value_parser!(u32).range(1..))]
    max_keys: Option<u32>,
    /// Refuse a commit with an atomic claim that has no recorded outcome.
    #[arg(long)]
    commit_guard: bool,
    /// SQL function that looks for the effect of work whose holder vanished, such as shop.find_order.
    #[arg(long, value_name = "FUNCTION")]
    probe: Option<String>,
    /// Queue in which `pgonce recover` enqueues a job for what is safe to retry.
    #[arg(long, value_name = "QUEUE")]
    retry_queue: Option<String>,
    /// Number of attempts after which `pgonce recover` enqueues no further job [default: 10].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_attempts: Option<u32>,
    /// Maximum number of earlier attempts that the history of an intent keeps [default: 20].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    keep_attempts: Option<u32>,
    /// A note for the readers of the contract.
    #[arg(long)]
    note: Option<String>,
}

/// Whether strict mode is on.
#[derive(Debug, clap::Args)]
pub(crate) struct StrictArgs {
    /// On: claims in scopes that nobody defined are refused.
    switch: Switch,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// PostgreSQL understands 7d, 15m, 1h30m and many words. Only a bare number it takes for seconds,
/// which nobody can have meant for sure.
pub(crate) fn length(text: &str) -> std::result::Result<String, String> {
    if text.trim().is_empty() || text.trim().parse::<f64>().is_ok() {
        return Err(
            "give a unit: 30s, 15m, 12h, 7d, or a PostgreSQL interval such as '1 day 12 hours'"
                .to_owned(),
        );
    }
    // What begins with P is ISO 8601, where it is plain which one is meant.
    if !text.trim_start().starts_with(['P', 'p']) {
        refuse_lone_m(text)?;
    }
    Ok(text.to_owned())
}

/// A month elsewhere, a minute for PostgreSQL.
fn refuse_lone_m(text: &str) -> std::result::Result<(), String> {
    let is_lone = |(at, _): (usize, &str)| {
        let before = text[..at].trim_end();
        let after = text[at + 1..].chars().next();
        before.ends_with(|c: char| c.is_ascii_digit())
            && !after.is_some_and(|c| c.is_ascii_alphabetic())
    };
    match text.match_indices('M').any(is_lone) {
        true => Err("M may mean minutes or months: write 15m, or '1 month'".to_owned()),
        false => Ok(()),
    }
}

/// A length of time that the program measures itself.
pub(crate) fn duration(text: &str) -> std::result::Result<Duration, String> {
    refuse_lone_m(text)?;
    humantime::parse_duration(text).map_err(|why| why.to_string())
}

/// A pause between two looks: without any they would keep a processor busy.
pub(crate) fn pause(text: &str) -> std::result::Result<Duration, String> {
    let pause = duration(text)?;
    match pause.is_zero() {
        true => Err("give more than nothing, such as 1s".to_owned()),
        false => Ok(pause),
    }
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.installed().await?;
    match args.action {
        Action::Define(contract) => define(&database, &contract).await,
        Action::List => list(&database).await,
        Action::Show(name) => show(&database, &name).await,
        Action::Drop(args) => drop_scope(&database, &args).await,
    }
}

async fn define(database: &Database, contract: &Contract) -> Result {
    // (parameter of define_scope, type, value): only what was given, so that SQL has the defaults.
    let max_answer = contract.max_answer.map(|bytes| bytes.to_string());
    let max_keys = contract.max_keys.map(|keys| keys.to_string());
    let commit_guard = contract.commit_guard.then(|| "true".to_owned());
    let max_attempts = contract.max_attempts.map(|number| number.to_string());
    let keep_attempts = contract.keep_attempts.map(|number| number.to_string());
    let given = [
        ("p_scope", "text", Some(&contract.name.scope)),
        ("p_tenant", "text", Some(&contract.name.tenant)),
        ("p_retention", "interval", Some(&contract.retention)),
        ("p_lease", "interval", contract.lease.as_ref()),
        ("p_busy", "text", contract.busy.as_ref()),
        ("p_wait_timeout", "interval", contract.wait_timeout.as_ref()),
        ("p_storage", "text", contract.storage.as_ref()),
        ("p_after_expiry", "text", contract.after_expiry.as_ref()),
        (
            "p_tombstone_for",
            "interval",
            contract.tombstone_for.as_ref(),
        ),
        ("p_stale", "text", contract.stale.as_ref()),
        ("p_key_source", "text", contract.key_source.as_ref()),
        ("p_boundary", "text", contract.boundary.as_ref()),
        ("p_client_retry", "interval", contract.client_retry.as_ref()),
        ("p_redelivery", "interval", contract.redelivery.as_ref()),
        (
            "p_reconciliation",
            "interval",
            contract.reconciliation.as_ref(),
        ),
        ("p_audit", "interval", contract.audit.as_ref()),
        ("p_max_answer", "integer", max_answer.as_ref()),
        ("p_max_keys", "bigint", max_keys.as_ref()),
        ("p_commit_guard", "boolean", commit_guard.as_ref()),
        ("p_probe", "text", contract.probe.as_ref()),
        ("p_retry_queue", "text", contract.retry_queue.as_ref()),
        ("p_max_attempts", "integer", max_attempts.as_ref()),
        ("p_keep_attempts", "integer", keep_attempts.as_ref()),
        ("p_note", "text", contract.note.as_ref()),
    ];
    let given: Vec<_> = given
        .into_iter()
        .filter_map(|(name, kind, value)| Some((name, kind, value?)))
        .collect();
    let arguments: Vec<String> = given
        .iter()
        .zip(1..)
        .map(|((name, kind, _), number)| format!("{name} => ${number}::text::{kind}"))
        .collect();
    let params: Vec<Option<&str>> = given
        .iter()
        .map(|(_, _, value)| Some(value.as_str()))
        .collect();
    let query = format!(
        "select * from pgonce.define_scope({})",
        arguments.join(", ")
    );
    match database.row(&query, &params).await? {
        Some(row) => output::fields(database.format, &row),
        None => Ok(()),
    }
}

async fn list(database: &Database) -> Result {
    let query = "select tenant, scope, retention, lease, busy, storage, after_expiry, stale, probe, boundary, note \
                 from pgonce.scope order by scope, tenant";
    let nothing = "No scope is defined, and the database is strict: every claim is refused.";
    output::rows(database.format, &database.read(query, &[]).await?, nothing)
}

async fn show(database: &Database, name: &Name) -> Result {
    let query = "select * from pgonce._contract($1, $2)";
    let row = database
        .read_row(query, &[Some(&name.tenant), Some(&name.scope)])
        .await;
    match row {
        Ok(Some(row)) => output::fields(database.format, &row),
        Ok(None) => Ok(()),
        Err(error) => Err(error.with_exit("P4000", exit::NOT_FOUND)),
    }
}

async fn drop_scope(database: &Database, args: &DropArgs) -> Result {
    let name = &args.name;
    // As the database would refuse it: a dry run does not ask it.
    if name.tenant.is_empty() && ["*", "*off"].contains(&&*name.scope) {
        return Err(CliError::new(
            exit::USAGE,
            "the contract of scope '*' cannot be dropped by itself",
            "To refuse scopes without a contract: `pgonce strict on`.",
        )
        .coded("22023"));
    }
    let params = [Some(&*name.scope), Some(&*name.tenant)];
    let query = "select count(*) as n from pgonce.scope where scope = $1 and tenant = $2";
    if database.read_count(query, &params).await? == 0 {
        return Err(CliError::new(
            exit::NOT_FOUND,
            format!("scope {:?} has no contract of its own", name.scope),
            "See `pgonce scope list`; give --tenant for a tenant's own contract.",
        ));
    }
    let what = format!("drop 1 contract, that of scope {}", name.scope);
    if !args.confirm.ask(database.format, &what, 1)? {
        return Ok(());
    }
    let query = "select pgonce.drop_scope($1, $2) as dropped";
    database.row(query, &params).await?;
    output::say(
        database.format,
        &format!(
            "dropped the contract of scope {}",
            output::printable(&name.scope)
        ),
        &json!({"dropped": true}),
    )
}

pub(crate) async fn set_strict(args: StrictArgs, target: Target) -> Result {
    let database = target.installed().await?;
    let on = matches!(args.switch, Switch::On);
    database
        .rows(
            "select 'done' from pgonce.set_strict($1::text::boolean)",
            &[Some(if on { "true" } else { "false" })],
        )
        .await?;
    let words = if on {
        "strict: claims in scopes that nobody defined are refused"
    } else {
        "not strict: scopes that nobody defined have the contract of scope '*'"
    };
    output::say(database.format, words, &json!({"strict": on}))
}

#[cfg(test)]
mod tests {
    use super::{duration, length, pause};

    #[test]
    fn a_length_of_time_needs_a_unit() {
        for text in [
            "30s",
            "15m",
            "7d",
            "1h30m",
            "1 day 12 hours",
            "P1DT2H",
            "PT5M",
            "5 Minutes",
            "01:30:00",
        ] {
            assert_eq!(length(text).as_deref(), Ok(text));
        }
        for text in ["", " ", "30", "-1", "1.5", "inf", "1M", "2h 1 M"] {
            assert!(length(text).is_err(), "{text}");
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(duration("1 month").is_ok() && duration("0s").is_ok());
        assert!(pause("0s").is_err() && pause("1ms").is_ok());
    }
}
