//! `pgonce inbox`: what consumers could not apply yet.

use clap::Subcommand;
use serde_json::json;

use crate::database::{Database, Target};
use crate::exit::{self, Result, Trouble};
use crate::output::{self, Format};

/// What to do with stored messages.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List stored messages that are not applied, the oldest first; without CONSUMER, count them by consumer.
    List(List),
    /// Show one stored message whole, with its payload and what people did to it.
    Show(One),
    /// Try failed messages once more: one, or all that failed for good.
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
    /// List at most so many.
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
    /// Every message of the consumer that failed for good.
    #[arg(long, conflicts_with = "seq")]
    all: bool,
    /// Why; it is kept with your name.
    #[arg(long)]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Skip {
    #[command(flatten)]
    one: One,
    /// Why; it is kept with your name.
    #[arg(long)]
    reason: String,
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
    #[arg(long)]
    reason: String,
}

impl Args {
    pub(crate) fn format(&self) -> Format {
        self.target.format()
    }
}

pub(crate) async fn run(args: Args) -> Result {
    let database = args.target.installed().await?;
    match args.action {
        Action::List(list) => self::list(&database, list).await,
        Action::Show(one) => show(&database, &one).await,
        Action::Retry(retry) => {
            let seq = retry.seq.map(|seq| seq.to_string());
            let params = [
                Some(&*retry.consumer),
                seq.as_deref(),
                retry.reason.as_deref(),
            ];
            let call = "select pgonce.retry_messages($1, $2::text::bigint, $3) as done";
            let done = count(&database, call, &params).await?;
            if done == 0 && retry.seq.is_some() {
                return Err(none());
            }
            told(&database, done, "to be tried again")
        }
        Action::Skip(skip) => {
            let seq = skip.one.seq.to_string();
            let params = [Some(&*skip.one.consumer), Some(&*seq), Some(&*skip.reason)];
            let call = "select pgonce.skip_message($1, $2::text::bigint, $3)::integer as done";
            match count(&database, call, &params).await? {
                0 => Err(none()),
                done => told(&database, done, "skipped"),
            }
        }
        Action::Replay(replay) => {
            let params = [
                Some(&*replay.consumer),
                Some(&*replay.reason),
                replay.into.as_deref(),
                replay.since.as_deref(),
            ];
            let call = "select pgonce.replay_messages($1, $2, $3, $4::text::timestamptz) as done";
            let done = count(&database, call, &params).await?;
            told(&database, done, "to be applied again")
        }
    }
}

async fn list(database: &Database, list: List) -> Result {
    let Some(consumer) = list.consumer else {
        let query = "select consumer, tenant, received, processing, retrying, poison, held, \
                     date_trunc('second', oldest_age) as oldest_age, partitions from pgonce.inbox_backlog order by 1, 2";
        let rows = database.rows(query, &[]).await?;
        return output::rows(database.format, &rows, "Nothing waits in the inbox.");
    };
    let query = "select seq, tenant, source, message_id, key, type, status, skipped_at is not null as skipped, attempts, \
                 due_at, failure_code, left(failure_message, 200) as failure_message, size from pgonce.inbox_message \
                 where consumer = $1 and case when $2 is null then status <> 'processed' and skipped_at is null \
                 else status::text = $2 end order by seq limit $3::text::integer";
    let limit = list.limit.to_string();
    let params = [Some(&*consumer), list.status.as_deref(), Some(&*limit)];
    let rows = database.rows(query, &params).await?;
    output::rows(
        database.format,
        &rows,
        "No such message is stored for this consumer.",
    )
}

async fn show(database: &Database, one: &One) -> Result {
    let query = "select m.seq, m.tenant, m.consumer, m.source, m.message_id, m.key, m.type, m.status, m.attempts, m.received_at, \
         m.due_at, m.settled_at, m.skipped_at, m.owner, m.failure_code, m.failure_message, m.headers, m.size, \
         encode(m.hash, 'hex') as hash, \
         (select count(*) from pgonce.inbox_message b where b.tenant = m.tenant and b.consumer = m.consumer and b.key = m.key \
             and b.seq > m.seq and b.status <> 'processed' and b.skipped_at is null) as behind, \
         (select jsonb_agg(jsonb_build_object('at', a.at, 'who', a.who, 'act', a.act, 'reason', a.reason) order by a.entry) \
             from pgonce.inbox_audit a where a.tenant = m.tenant and a.consumer = m.consumer and a.seq = m.seq) as acts, \
         case when octet_length(m.payload) < m.size then 'cut: ' else '' end || encode(m.payload, 'escape') as payload \
         from pgonce.inbox_message m where m.consumer = $1 and m.seq = $2::text::bigint";
    let seq = one.seq.to_string();
    let row = database
        .row(query, &[Some(&*one.consumer), Some(&*seq)])
        .await?;
    output::fields(database.format, &row.ok_or_else(none)?)
}

async fn count(database: &Database, call: &str, params: &[Option<&str>]) -> Result<u64> {
    let row = database.row(call, params).await?.unwrap_or_default();
    let row: serde_json::Value = serde_json::from_str(&row)?;
    Ok(row["done"].as_u64().unwrap_or_default())
}

fn told(database: &Database, done: u64, what: &str) -> Result {
    let words = match done {
        1 => format!("1 message is {what}"),
        _ => format!("{done} messages are {what}"),
    };
    output::say(database.format, &words, &json!({"messages": done}))
}

fn none() -> Trouble {
    Trouble::new(
        exit::NOT_FOUND,
        "there is no such stored message, or it is not in a state for this",
        "`pgonce inbox list CONSUMER` shows what is stored and not applied; a worker may have it in hand.",
    )
}
