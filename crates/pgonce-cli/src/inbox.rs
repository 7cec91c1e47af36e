//! `pgonce inbox`: what consumers could not apply yet.

use clap::Subcommand;
use serde_json::json;

use crate::confirm::{Confirm, reason};
use crate::database::{Database, Target};
use crate::exit::{self, CliError, Result};
use crate::look::{Found, LOOK, among};
use crate::output;

/// What to do with stored messages.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List stored messages that are not applied, the oldest first; without CONSUMER, count them by consumer.
    List(List),
    /// Show one stored message whole, with its payload and what people did to it.
    Show(One),
    /// Try failed messages once more: one, or every poison message.
    Retry(Retry),
    /// Give one message up; what waits behind it moves again.
    Skip(Skip),
    /// Apply messages again without their source.
    Replay(Replay),
}

#[derive(Debug, clap::Args)]
struct List {
    /// The consumer.
    consumer: Option<String>,
    /// Only messages in this state.
    #[arg(long, value_parser = ["received", "processing", "processed", "failed_retryable", "failed_final"])]
    status: Option<String>,
    /// Maximum number of messages.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

#[derive(Debug, clap::Args)]
struct One {
    /// The consumer.
    consumer: String,
    /// The message's number, as `list` shows it.
    seq: i64,
}

#[derive(Debug, clap::Args)]
struct Retry {
    /// The consumer.
    consumer: String,
    /// The message's number, as `list` shows it.
    #[arg(required_unless_present = "all")]
    seq: Option<i64>,
    /// Every poison message of the consumer but those whose id came before with another payload.
    #[arg(long, conflicts_with = "seq")]
    all: bool,
    /// Why; it is kept with your name.
    #[arg(long, value_parser = reason)]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Skip {
    #[command(flatten)]
    one: One,
    /// Why; it is kept with your name.
    #[arg(long, value_parser = reason)]
    reason: String,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, clap::Args)]
struct Replay {
    /// The consumer whose messages are replayed.
    consumer: String,
    /// Another consumer, which applies each once for itself.
    #[arg(long, value_name = "CONSUMER", required_unless_present = "again")]
    into: Option<String>,
    /// The same consumer applies again what it has applied: a second effect, unless its handler is gated.
    #[arg(long, conflicts_with = "into")]
    again: bool,
    /// Only messages received since then, such as '2026-01-31 12:00'.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Why; it is kept with your name.
    #[arg(long, value_parser = reason)]
    reason: String,
    #[command(flatten)]
    confirm: Confirm,
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.installed().await?;
    match args.action {
        Action::List(list) => self::list(&database, list).await,
        Action::Show(one) => show(&database, &one).await,
        Action::Retry(retry) => {
            require_consumer(&database, &retry.consumer).await?;
            let seq = retry.seq.map(|seq| seq.to_string());
            let params = [
                Some(&*retry.consumer),
                seq.as_deref(),
                retry.reason.as_deref(),
            ];
            let call = "select pgonce.retry_messages($1, $2::text::bigint, $3) as n";
            let done = database.count(call, &params).await?;
            if done == 0 && retry.seq.is_some() {
                return Err(none());
            }
            report(&database, done, "to be tried again")
        }
        Action::Skip(skip) => {
            let seq = skip.one.seq.to_string();
            let params = [Some(&*skip.one.consumer), Some(&*seq), Some(&*skip.reason)];
            // As pgonce.skip_message has it: neither applied nor skipped, and no worker has it.
            let query = "select count(*) as n from pgonce.inbox_message where consumer = $1 and seq = $2::text::bigint \
                         and skipped_at is null and status in ('received', 'failed_retryable', 'failed_final')";
            if database.read_count(query, &params[..2]).await? == 0 {
                return Err(none());
            }
            let what = format!("skip 1 message, number {seq} of {}", skip.one.consumer);
            if !skip.confirm.ask(database.format, &what, 1)? {
                return Ok(());
            }
            let call = "select pgonce.skip_message($1, $2::text::bigint, $3)::integer as n";
            match database.count(call, &params).await? {
                0 => Err(none()),
                done => report(&database, done, "skipped"),
            }
        }
        Action::Replay(replay) => self::replay(&database, &replay).await,
    }
}

async fn replay(database: &Database, replay: &Replay) -> Result {
    require_consumer(database, &replay.consumer).await?;
    if replay.into.as_ref() == Some(&replay.consumer) {
        return Err(CliError::new(
            exit::USAGE,
            "--into names the consumer itself",
            "Name another consumer; --again lets the same one apply its messages a second time.",
        ));
    }
    let params = [
        Some(&*replay.consumer),
        replay.since.as_deref(),
        replay.into.as_deref(),
    ];
    // For another consumer nothing is applied a second time: only for this one is it asked.
    if replay.again || replay.confirm.is_dry_run() {
        let query = "select count(*) as n from pgonce.inbox_message m where m.consumer = $1 and m.status = 'processed' \
                     and ($2::text is null or m.received_at >= $2::text::timestamptz) \
                     and ($3::text is null or not exists (select from pgonce.inbox_marker r where r.tenant = m.tenant \
                         and r.consumer = $3 and r.source = m.source and r.message_id = m.message_id))";
        let count = database.read_count(query, &params).await?;
        let what = match &replay.into {
            Some(into) => format!("let {into} apply {count} messages of {}", replay.consumer),
            None => format!(
                "let {} apply {count} messages a second time",
                replay.consumer
            ),
        };
        if !replay.confirm.ask(database.format, &what, count)? {
            return Ok(());
        }
    }
    let params = [
        Some(&*replay.consumer),
        Some(&*replay.reason),
        replay.into.as_deref(),
        replay.since.as_deref(),
    ];
    let call = "select pgonce.replay_messages($1, $2, $3, $4::text::timestamptz) as n";
    let done = database.count(call, &params).await?;
    report(database, done, "to be applied again")
}

async fn list(database: &Database, list: List) -> Result {
    let Some(consumer) = list.consumer else {
        let query = "select consumer, tenant, received, processing, retrying, poison, held, \
                     date_trunc('second', oldest_age) as oldest_age, partitions from pgonce.inbox_backlog order by 1, 2";
        let rows = database.list(query, &[]).await?;
        return output::rows(database.format, &rows, "Nothing waits in the inbox.");
    };
    require_consumer(database, &consumer).await?;
    let limit = list.limit.to_string();
    let params = [Some(&*consumer), Some(&*limit)];
    let columns = "m.seq, m.tenant, m.source, m.message_id, m.key, m.type, m.status, m.skipped_at is not null as skipped, m.attempts, \
         m.due_at, m.failure_code, left(m.failure_message, 200) as failure_message, m.size";
    let looked = match list.status {
        None => 1000 + list.limit,
        Some(_) => LOOK.max(list.limit),
    };
    let of = match list.status.as_deref() {
        None => format!(
            "{} union all {}",
            among(&open("asc"), looked, "true", "all"),
            all(POISON)
        ),
        // A skipped one is poison that was dealt with, among all that are stored.
        Some("failed_final") => format!(
            "{} union all {}",
            all(POISON),
            among(
                &by_number("desc"),
                looked,
                "x.status = 'failed_final' and x.skipped_at is not null",
                "all"
            )
        ),
        Some("processed") => among(
            &by_number("asc"),
            looked,
            "x.status = 'processed'",
            "$2::text::integer",
        ),
        // What a worker has, or what waits for its retry, is due later than what was received.
        Some(status) => among(
            &open(if status == "received" { "asc" } else { "desc" }),
            looked,
            &format!("x.status = '{status}'"),
            "all",
        ),
    };
    let query = format!(
        "select {columns}, m.matches, bool_or(m.stopped) over () as stopped from ({of}) m \
         order by m.stopped and not m.matches, m.seq limit $2::text::integer"
    );
    let rows = database.list(&query, &params).await?;
    // Only those that are processed are looked at in the order of the list.
    let found = match list.status.as_deref() {
        Some("processed") => Found::of(rows)?,
        _ => Found::sorted(rows)?,
    };
    let nothing = "No such message is stored for this consumer.";
    found.print(database, list.limit, nothing, |_| {
        format!("{looked} messages were looked at; pgonce.inbox_message has the others.")
    })
}

/// By which index each kind of message is found.
fn open(order: &str) -> String {
    format!(
        "select * from pgonce.inbox_message m where m.consumer = $1 and m.status in ('received', 'processing', 'failed_retryable') \
         order by m.due_at {order}, m.seq {order}"
    )
}

const POISON: &str = "select * from pgonce.inbox_message m where m.consumer = $1 and m.status = 'failed_final' and m.skipped_at is null \
     order by m.seq limit $2::text::integer";

fn by_number(order: &str) -> String {
    format!("select * from pgonce.inbox_message m where m.consumer = $1 order by m.seq {order}")
}

fn all(of: &str) -> String {
    format!("select x.*, true as matches, false as stopped from ({of}) x")
}

/// A consumer is known by its contract, by what it has stored or read, or by what was marked. Markers have no index by
/// consumer: only a name that nothing else knows is looked for in all of them.
async fn require_consumer(database: &Database, consumer: &str) -> Result {
    let known = "exists (select from pgonce.inbox_contract c where c.consumer = $1) \
                 or exists (select from pgonce.inbox_message m where m.consumer = $1) \
                 or exists (select from pgonce.inbox_cursor k where k.consumer = $1) \
                 or exists (select from pgonce.inbox_marker r where r.consumer = $1)";
    let unknown = || {
        CliError::new(
            exit::NOT_FOUND,
            format!("there is no consumer {consumer:?}"),
            "`pgonce inbox list` shows the consumers with a backlog.",
        )
    };
    database.require(known, &[Some(consumer)], unknown).await
}

async fn show(database: &Database, one: &One) -> Result {
    let query = "select m.seq, m.tenant, m.consumer, m.source, m.message_id, m.key, m.type, m.status, m.attempts, m.received_at, \
         m.due_at, m.settled_at, m.skipped_at, m.owner, m.failure_code, m.failure_message, m.headers, m.size, \
         encode(m.hash, 'hex') as hash, \
         (select count(*) from pgonce.inbox_message b where b.tenant = m.tenant and b.consumer = m.consumer and b.key = m.key \
             and b.seq > m.seq and b.status <> 'processed' and b.skipped_at is null) as behind, \
         (select jsonb_agg(jsonb_build_object('at', o.acted_at, 'who', coalesce(o.person || ' (' || o.role || ')', o.role), 'act', o.act, 'reason', o.reason) order by o.number) \
             from pgonce.operator_act o where o.tenant = m.tenant and o.scope = 'inbox ' || m.consumer and o.key = m.seq::text) as acts, \
         case when octet_length(m.payload) < m.size then 'cut: ' else '' end || encode(m.payload, 'escape') as payload \
         from pgonce.inbox_message m where m.consumer = $1 and m.seq = $2::text::bigint";
    let seq = one.seq.to_string();
    let row = database
        .read_row(query, &[Some(&*one.consumer), Some(&*seq)])
        .await?;
    output::fields(database.format, &row.ok_or_else(none)?)
}

fn report(database: &Database, done: u64, what: &str) -> Result {
    let words = match done {
        1 => format!("1 message is {what}"),
        _ => format!("{done} messages are {what}"),
    };
    output::say(database.format, &words, &json!({"messages": done}))
}

fn none() -> CliError {
    CliError::new(
        exit::NOT_FOUND,
        "there is no such stored message, or it is not in a state for this",
        "`pgonce inbox list CONSUMER` shows what is stored and not applied; a worker may be applying it.",
    )
}
