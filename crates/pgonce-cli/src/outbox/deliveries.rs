//! `pgonce outbox redrive`, `recover`, `skip` and `replay`.

use serde_json::{Value, json};

use super::moment::{Bound, Moment};
use crate::confirm::{Confirm, reason};
use crate::database::Database;
use crate::exit::{self, CliError, Result};
use crate::output;

/// Subjects that come due in a second by default, as in `pgonce.redrive`.
const RATE: u32 = 200;

#[derive(Debug, clap::Args)]
pub(super) struct RedriveArgs {
    /// Whose dead letters.
    subscription: String,
    /// Only of this subject.
    #[arg(long)]
    subject: Option<String>,
    /// Only of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Why; it is kept with your name.
    #[arg(long, value_parser = reason)]
    reason: Option<String>,
    /// How many subjects come due in a second: other events need room.
    #[arg(long, value_name = "NUMBER", default_value_t = RATE, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
}

#[derive(Debug, clap::Args)]
pub(super) struct RecoverArgs {
    /// Whose.
    subscription: String,
    /// Since when: 2h is two hours ago; or '2026-05-01 12:00+02'.
    #[arg(long, value_name = "TIME")]
    since: Moment,
    /// Also what was skipped since then, by an operator or because the dead letters were full.
    #[arg(long)]
    skipped: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct SkipArgs {
    /// For whom.
    subscription: String,
    /// The number of the event; `pgonce outbox list` shows it.
    #[arg(value_name = "NUMBER")]
    seq: i64,
    /// Why it is never to be delivered; kept with your name.
    #[arg(long, value_parser = reason)]
    reason: String,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, clap::Args)]
pub(super) struct ReplayArgs {
    /// To whom; one that was evicted may read again.
    subscription: String,
    /// Go back to this event or time: a number, 2h (two hours ago), '2026-05-01 12:00+02'.
    #[arg(long, value_name = "NUMBER|TIME")]
    from: Bound,
    /// Only up to this event, or until before this time: the rest does not come again.
    #[arg(long, value_name = "NUMBER|TIME")]
    to: Option<Bound>,
    /// With --to: refuse a range of more events than this.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000), requires = "to")]
    limit: u32,
}

async fn number(database: &Database, query: &str, params: &[Option<&str>]) -> Result<u64> {
    let row = database
        .row(&format!("select {query} as n"), params)
        .await?;
    let row: Value = serde_json::from_str(&row.unwrap_or_default())?;
    Ok(row["n"].as_u64().unwrap_or_default())
}

fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

pub(super) async fn redrive(database: &Database, args: &RedriveArgs) -> Result {
    let rate = args.rate.to_string();
    let params = [
        Some(&*args.subscription),
        args.subject.as_deref(),
        args.tenant.as_deref(),
        args.reason.as_deref(),
        Some(&*rate),
    ];
    let is_distributed = database.is_distributed().await?;
    let call =
        "pgonce.redrive($1, $2, p_tenant => $3, p_reason => $4, p_rate => $5::text::integer)";
    let moved = number(database, call, &params).await?;
    let words = counted(moved, "subject moves", "subjects move");
    let seconds = seconds(moved, args.rate);
    let json = json!({ "redriven": moved, "rate": args.rate, "seconds": seconds });
    // On Citus all at once.
    let words = match is_distributed {
        true => format!("{words} again"),
        false => at_rate(&words, moved, args.rate),
    };
    output::say(database.format, &words, &json)
}

fn seconds(moved: u64, rate: u32) -> u64 {
    moved.div_ceil(u64::from(rate))
}

/// What moves again, how fast, and how long that takes.
fn at_rate(words: &str, moved: u64, rate: u32) -> String {
    let last = counted(seconds(moved, rate), "second", "seconds");
    match moved {
        0 => format!("{words} again"),
        _ => format!("{words} again, {rate} a second: the last comes due within {last}"),
    }
}

pub(super) async fn recover(database: &Database, args: &RecoverArgs) -> Result {
    let query = format!(
        "pgonce.recover($1, {}, $3::text::boolean)",
        args.since.sql(2)
    );
    let params = [
        Some(&*args.subscription),
        Some(args.since.text()),
        Some(if args.skipped { "true" } else { "false" }),
    ];
    let moved = number(database, &query, &params).await?;
    let what = match args.skipped {
        true => (
            "subject or skipped event moves",
            "subjects and skipped events move",
        ),
        false => ("subject moves", "subjects move"),
    };
    let words = at_rate(&counted(moved, what.0, what.1), moved, RATE);
    output::say(database.format, &words, &json!({ "recovered": moved }))
}

pub(super) async fn skip(database: &Database, args: &SkipArgs) -> Result {
    let seq = args.seq.to_string();
    let params = [Some(&*args.subscription), Some(&*seq), Some(&*args.reason)];
    super::inspect::require_subscription(database, &args.subscription).await?;
    let query = match database.is_distributed().await? {
        true => {
            "select count(*) as n from pgonce.dead_letters where subscription = $1 and seq = $2::text::bigint"
        }
        false => {
            "select count(*) as n from pgonce.parked where subscription = $1 and seq = $2::text::bigint"
        }
    };
    if database.read_count(query, &params[..2]).await? == 0 {
        return Err(CliError::new(
            exit::NOT_FOUND,
            format!(
                "event {seq} is not parked for subscription {:?}",
                args.subscription
            ),
            "Only what is parked can be skipped: see `pgonce outbox list SUBSCRIPTION --state all`.",
        ));
    }
    let what = format!(
        "never deliver 1 event, number {seq}, to {}",
        args.subscription
    );
    if !args.confirm.ask(database.format, &what, 1)? {
        return Ok(());
    }
    let query = "select pgonce.skip($1, $2::text::bigint, $3) as skipped";
    let row = database.row(query, &params).await?.unwrap_or_default();
    let skipped = row.contains("true");
    let name = output::printable(&args.subscription);
    let words = match skipped {
        true => format!("event {seq} is never delivered to {name}"),
        false => format!("event {seq} was delivered to {name} meanwhile"),
    };
    output::say(database.format, &words, &json!({ "skipped": skipped }))
}

pub(super) async fn replay(database: &Database, args: &ReplayArgs) -> Result {
    let subscription = Some(&*args.subscription);
    let (from, parameter) = bound(&args.from, "p_from", 2);
    let Some(to) = &args.to else {
        // Whatever it has passed, one that was evicted is admitted again.
        let readmitted = super::subscriptions::is_evicted(database, &args.subscription).await?;
        let query = format!("select pgonce.replay($1, {parameter}) as first");
        let row = database.row(&query, &[subscription, Some(from)]).await?;
        let mut row: Value = serde_json::from_str(&row.unwrap_or_default())?;
        row["readmitted"] = readmitted.into();
        let what = match (row["first"].as_i64(), readmitted) {
            (Some(first), false) => format!("goes back to event {first}"),
            (None, false) => {
                "does not go back: it has not passed any event from there on".to_owned()
            }
            (Some(first), true) => format!("reads again, from event {first}"),
            (None, true) => "reads again, from the next event on".to_owned(),
        };
        let words = format!("{} {what}", output::printable(&args.subscription));
        return output::say(database.format, &words, &row);
    };
    let (to, until) = bound(to, "p_to", 3);
    let limit = args.limit.to_string();
    let query =
        format!("pgonce.replay_range($1, {parameter}, {until}, p_limit => $4::text::integer)");
    let params = [subscription, Some(from), Some(to), Some(&*limit)];
    let again = number(database, &query, &params).await?;
    let words = format!("{} again", counted(again, "event comes", "events come"));
    output::say(database.format, &words, &json!({ "replayed": again }))
}

/// The text of a bound, and the parameter that it is given as.
fn bound<'a>(bound: &'a Bound, name: &str, number: usize) -> (&'a str, String) {
    match bound {
        Bound::Number(seq) => (seq, format!("{name}_seq => ${number}::text::bigint")),
        Bound::Time(time) => (time.text(), format!("{name}_time => {}", time.sql(number))),
    }
}
