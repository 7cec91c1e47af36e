//! `pgonce outbox subscriptions`, `evict` and `retention`.

use clap::Subcommand;
use serde_json::{Value, json};

use crate::confirm::{Confirm, reason};
use crate::database::Database;
use crate::exit::Result;
use crate::output;
use crate::scope::length;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List all subscriptions.
    List,
    /// Create a subscription: it gets every event that it wants, with a cursor of its own in the log.
    Create(CreateArgs),
    /// Change what is given of a subscription; filters apply to what is read from now on.
    Alter(AlterArgs),
    /// Drop a subscription, its cursor and what is parked for it.
    Drop(DropArgs),
}

#[derive(Debug, clap::Args)]
struct DropArgs {
    /// The subscription.
    subscription: String,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Its name, such as billing.
    subscription: String,
    /// Begin with the oldest event that is kept, or with what commits from now on.
    #[arg(long, default_value = "start", value_parser = ["start", "now"])]
    from: String,
    #[command(flatten)]
    terms: Terms,
}

#[derive(Debug, clap::Args)]
struct AlterArgs {
    /// The subscription.
    subscription: String,
    #[command(flatten)]
    terms: Terms,
}

/// What a subscription wants, and how failures are handled.
#[derive(Debug, clap::Args)]
struct Terms {
    /// Only these topics, such as orders,refunds.*; '*' means all.
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    topics: Vec<String>,
    /// Only these types.
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    types: Vec<String>,
    /// Only these tenants.
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    tenants: Vec<String>,
    /// Maximum number of attempts for an event whose failure is retryable [of a new one: 30].
    #[arg(long, value_name = "COUNT")]
    max_attempts: Option<u32>,
    /// The first pause between two tries; it doubles, with jitter [of a new one: 1s].
    #[arg(long, value_name = "TIME", value_parser = length)]
    backoff: Option<String>,
    /// The longest pause between two tries [of a new one: 10m].
    #[arg(long, value_name = "TIME", value_parser = length)]
    max_backoff: Option<String>,
    /// How many events may be given up or behind one that was [of a new one: 10000].
    #[arg(long, value_name = "COUNT")]
    dead_limit: Option<u32>,
    /// When there are so many: the lane waits, or events are never delivered and that is recorded
    /// [of a new one: stop].
    #[arg(long, value_parser = ["stop", "discard"])]
    when_full: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct EvictArgs {
    /// The subscription.
    subscription: String,
    /// Why; its relays report it, and `status` shows it.
    #[arg(long, value_parser = reason)]
    reason: String,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, clap::Args)]
pub(super) struct RetentionArgs {
    /// Keep events at least so long, for replays, even when every subscription has them.
    #[arg(long, value_name = "TIME", value_parser = length)]
    keep: Option<String>,
    /// Let them go after so long although a subscription has not read them; it is evicted. Left out with
    /// --keep: never.
    #[arg(long, value_name = "TIME", value_parser = length, requires = "keep")]
    max_keep: Option<String>,
}

/// Arguments by name, so that what is left out has SQL's defaults.
#[derive(Default)]
struct Call {
    names: Vec<String>,
    values: Vec<String>,
}

impl Call {
    fn with(mut self, name: &str, kind: &str, value: Option<String>) -> Self {
        if let Some(value) = value {
            self.values.push(value);
            let number = self.values.len();
            self.names.push(match kind {
                "text[]" => format!(
                    "{name} => (select array_agg(v) from jsonb_array_elements_text(${number}::text::jsonb) v)"
                ),
                kind => format!("{name} => ${number}::text::{kind}"),
            });
        }
        self
    }

    fn terms(self, terms: Terms) -> Self {
        let list =
            |patterns: Vec<String>| (!patterns.is_empty()).then(|| json!(patterns).to_string());
        self.with("p_topics", "text[]", list(terms.topics))
            .with("p_types", "text[]", list(terms.types))
            .with("p_tenants", "text[]", list(terms.tenants))
            .with(
                "p_max_attempts",
                "integer",
                terms.max_attempts.map(|n| n.to_string()),
            )
            .with("p_backoff", "interval", terms.backoff)
            .with("p_max_backoff", "interval", terms.max_backoff)
            .with(
                "p_dead_limit",
                "integer",
                terms.dead_limit.map(|n| n.to_string()),
            )
            .with("p_when_full", "text", terms.when_full)
    }

    async fn run(self, database: &Database, function: &str) -> Result {
        let query = format!(
            "select 'done' from pgonce.{function}({})",
            self.names.join(", ")
        );
        let params: Vec<_> = self
            .values
            .iter()
            .map(|value| Some(value.as_str()))
            .collect();
        database.rows(&query, &params).await.map(drop)
    }
}

pub(super) async fn run(database: &Database, args: Args) -> Result {
    match args.action {
        None | Some(Action::List) => list(database).await,
        Some(Action::Create(args)) => {
            let call = Call::default()
                .with("p_subscription", "text", Some(args.subscription.clone()))
                .with("p_from", "text", Some(args.from))
                .terms(args.terms);
            call.run(database, "create_subscription").await?;
            show(database, &args.subscription).await
        }
        Some(Action::Alter(args)) => {
            let call = Call::default()
                .with("p_subscription", "text", Some(args.subscription.clone()))
                .terms(args.terms);
            call.run(database, "alter_subscription").await?;
            show(database, &args.subscription).await
        }
        Some(Action::Drop(args)) => drop_subscription(database, &args).await,
    }
}

async fn list(database: &Database) -> Result {
    let query = "select subscription, topics, types, tenants, max_attempts, backoff, max_backoff, dead_limit, \
         when_full, evicted_why as evicted from pgonce.outbox_subscriptions order by subscription";
    let nothing = "There is no subscription: `pgonce outbox subscriptions create NAME` makes one.";
    output::rows(database.format, &database.read(query, &[]).await?, nothing)
}

async fn show(database: &Database, subscription: &str) -> Result {
    let query = "select * from pgonce.outbox_subscriptions where subscription = $1";
    match database
        .read_after_act(query, &[Some(subscription)])
        .await?
    {
        Some(row) => output::fields(database.format, &row),
        None => Ok(()),
    }
}

/// Unread events of each lane that are counted before an act, and parked ones: more take too long.
const COUNTED: u32 = 20_000;

/// What a subscription has not had: events in the log, and parked ones.
struct Undelivered {
    count: u64,
    /// There may be more.
    cut: bool,
}

impl Undelivered {
    async fn of(database: &Database, subscription: &str) -> Result<Self> {
        super::inspect::require_subscription(database, subscription).await?;
        // On Citus the view counts all of them. Here it is for every subscription at once, so it looks at fewer.
        let query = match database.is_distributed().await? {
            true => {
                "select (waiting + delayed + retrying + dead + behind) as n, false as cut \
                 from pgonce.outbox_backlog where subscription = $1 and $2::text is not null"
            }
            false => {
                "select w.wanted + p.parked as n, w.cut or p.parked > $2::text::bigint as cut \
                 from (select coalesce(sum(u.wanted), 0) as wanted, coalesce(bool_or(u.unread > $2::text::bigint), false) as cut \
                         from pgonce.outbox_subscription c join pgonce.outbox_cursor l on l.subscription = c.subscription \
                        cross join lateral ( \
                              select count(*) as unread, count(*) filter (where \
                                     pgonce._is_wanted(o.topic, o.type, o.tenant, c.topics, c.types, c.tenants)) as wanted \
                                from (select o.topic, o.type, o.tenant from pgonce.outbox o \
                                       where o.lane = l.lane and o.seq > pgonce._unread_above(l.cursor) \
                                         and pgonce._is_unread(o.seq, o.xid, l.cursor, (select f.base_seq from pgonce.outbox_state f)) \
                                       order by o.seq limit $2::text::bigint + 1) o) u \
                        where c.subscription = $1) w \
                 cross join (select count(*) as parked from (select from pgonce.parked k where k.subscription = $1 \
                         limit $2::text::bigint + 1) k) p"
            }
        };
        let counted = COUNTED.to_string();
        let row = database
            .read_row(query, &[Some(subscription), Some(&*counted)])
            .await?;
        let row: Value = serde_json::from_str(&row.unwrap_or_default())?;
        Ok(Self {
            count: row["n"].as_u64().unwrap_or_default(),
            cut: row["cut"] == true,
        })
    }

    fn words(&self) -> String {
        let at_least = if self.cut { "at least " } else { "" };
        format!("with {at_least}{} undelivered events", self.count)
    }

    fn value(&self) -> Value {
        json!({"count": self.count, "at_least": self.cut})
    }
}

async fn drop_subscription(database: &Database, args: &DropArgs) -> Result {
    let left = Undelivered::of(database, &args.subscription).await?;
    let what = format!("drop subscription {}, {}", args.subscription, left.words());
    if !args
        .confirm
        .ask_about(database.format, &what, &left.value())?
    {
        return Ok(());
    }
    let query = "select pgonce.drop_subscription($1) as dropped";
    database.row(query, &[Some(&args.subscription)]).await?;
    let words = format!(
        "dropped subscription {}",
        output::printable(&args.subscription)
    );
    output::say(database.format, &words, &json!({"dropped": true}))
}

/// Whether a subscription was evicted, and not admitted again.
pub(super) async fn is_evicted(database: &Database, subscription: &str) -> Result<bool> {
    let query = "select 1 as evicted from pgonce.outbox_subscription where subscription = $1 and evicted_at is not null";
    let row = database.read_row(query, &[Some(subscription)]).await?;
    Ok(row.is_some())
}

pub(super) async fn evict(database: &Database, args: &EvictArgs) -> Result {
    let name = output::printable(&args.subscription);
    if is_evicted(database, &args.subscription).await? {
        let words = format!("{name} was evicted before");
        return output::say(database.format, &words, &json!({ "evicted": false }));
    }
    let left = Undelivered::of(database, &args.subscription).await?;
    let what = format!("evict {}, {}", args.subscription, left.words());
    if !args
        .confirm
        .ask_about(database.format, &what, &left.value())?
    {
        return Ok(());
    }
    let is_distributed = database.is_distributed().await?;
    let query = "select pgonce.evict_subscription($1, $2) as evicted";
    let params = [Some(&*args.subscription), Some(&*args.reason)];
    let row = database.row(query, &params).await?.unwrap_or_default();
    let evicted = row.contains("true");
    let words = match evicted {
        true if is_distributed => {
            format!(
                "evicted {name}: nothing more is kept for it, and what waits goes when it is dropped"
            )
        }
        true => format!(
            "evicted {name}: it no longer holds the log; `pgonce outbox replay` lets it read again"
        ),
        false => format!("{name} was evicted before"),
    };
    output::say(database.format, &words, &json!({ "evicted": evicted }))
}

pub(super) async fn retention(database: &Database, args: &RetentionArgs) -> Result {
    if let Some(keep) = &args.keep {
        Call::default()
            .with("p_keep", "interval", Some(keep.clone()))
            .with("p_max_keep", "interval", args.max_keep.clone())
            .run(database, "set_outbox_retention")
            .await?;
    }
    let query = "select * from pgonce.outbox_log";
    let row = match args.keep {
        Some(_) => database.read_after_act(query, &[]).await?,
        None => database.read_row(query, &[]).await?,
    };
    match row {
        Some(row) => output::fields(database.format, &row),
        None => Ok(()),
    }
}
