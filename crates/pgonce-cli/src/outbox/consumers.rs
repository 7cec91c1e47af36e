//! `pgonce outbox consumers`, `evict` and `retention`.

use clap::Subcommand;
use serde_json::json;

use crate::database::Database;
use crate::exit::{self, Result, Trouble};
use crate::output;
use crate::scope::length;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List all consumers.
    List,
    /// Create a consumer: it gets every event that it wants, with a place of its own in the log.
    Create(CreateArgs),
    /// Change what is given of a consumer; filters apply to what is read from now on.
    Alter(AlterArgs),
    /// Forget a consumer, its place and what is parked for it.
    Drop {
        /// The consumer.
        consumer: String,
    },
}

#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Its name, such as billing.
    consumer: String,
    /// Begin with the oldest event that is kept, or with what commits from now on.
    #[arg(long, default_value = "start", value_parser = ["start", "now"])]
    from: String,
    #[command(flatten)]
    terms: Terms,
}

#[derive(Debug, clap::Args)]
struct AlterArgs {
    /// The consumer.
    consumer: String,
    #[command(flatten)]
    terms: Terms,
}

/// What a consumer wants, and how its troubles are dealt with.
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
    /// How often an event that fails for now is tried before it is given up [default: 10].
    #[arg(long, value_name = "COUNT")]
    max_attempts: Option<u32>,
    /// The first pause between two tries; it doubles, with jitter [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = length)]
    backoff: Option<String>,
    /// The longest pause between two tries [default: 10m].
    #[arg(long, value_name = "TIME", value_parser = length)]
    backoff_at_most: Option<String>,
    /// How many events may be given up or behind one that was [default: 10000].
    #[arg(long, value_name = "COUNT")]
    dead_limit: Option<u32>,
    /// When there are so many: the lane waits, or events are never delivered and that is recorded
    /// [default: stop].
    #[arg(long, value_parser = ["stop", "discard"])]
    when_full: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct EvictArgs {
    /// The consumer.
    consumer: String,
    /// Why; its relays are told, and so is whoever looks.
    #[arg(long)]
    reason: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct RetentionArgs {
    /// Keep events at least so long, for replays, even when every consumer has them.
    #[arg(long, value_name = "TIME", value_parser = length)]
    keep: Option<String>,
    /// Let them go after so long although a consumer has not read them; it is evicted. Left out with
    /// --keep: never.
    #[arg(long, value_name = "TIME", value_parser = length, requires = "keep")]
    keep_at_most: Option<String>,
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
            .with("p_backoff_at_most", "interval", terms.backoff_at_most)
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
                .with("p_consumer", "text", Some(args.consumer.clone()))
                .with("p_from", "text", Some(args.from))
                .terms(args.terms);
            call.run(database, "create_consumer").await?;
            show(database, &args.consumer).await
        }
        Some(Action::Alter(args)) => {
            let call = Call::default()
                .with("p_consumer", "text", Some(args.consumer.clone()))
                .terms(args.terms);
            call.run(database, "alter_consumer").await?;
            show(database, &args.consumer).await
        }
        Some(Action::Drop { consumer }) => drop_consumer(database, &consumer).await,
    }
}

async fn list(database: &Database) -> Result {
    let query = "select consumer, topics, types, tenants, max_attempts, backoff, backoff_at_most, dead_limit, \
         when_full, evicted_why as evicted from pgonce.outbox_consumers order by consumer";
    let nothing = "There is no consumer: `pgonce outbox consumers create NAME` makes one.";
    output::rows(database.format, &database.rows(query, &[]).await?, nothing)
}

async fn show(database: &Database, consumer: &str) -> Result {
    let query = "select * from pgonce.outbox_consumers where consumer = $1";
    match database.row(query, &[Some(consumer)]).await? {
        Some(row) => output::fields(database.format, &row),
        None => Ok(()),
    }
}

async fn drop_consumer(database: &Database, consumer: &str) -> Result {
    let query = "select pgonce.drop_consumer($1) as dropped";
    let row = database.row(query, &[Some(consumer)]).await?;
    if row.is_some_and(|row| row.contains("true")) {
        let words = format!("dropped consumer {}", output::printable(consumer));
        return output::say(database.format, &words, &json!({"dropped": true}));
    }
    Err(Trouble::new(
        exit::NOT_FOUND,
        format!("there is no consumer {consumer:?}"),
        "See `pgonce outbox consumers`.",
    ))
}

pub(super) async fn evict(database: &Database, args: &EvictArgs) -> Result {
    let query = "select pgonce.evict_consumer($1, $2) as evicted";
    let params = [Some(&*args.consumer), Some(&*args.reason)];
    let row = database.row(query, &params).await?.unwrap_or_default();
    let evicted = row.contains("true");
    let name = output::printable(&args.consumer);
    let words = match evicted {
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
            .with("p_keep_at_most", "interval", args.keep_at_most.clone())
            .run(database, "set_outbox_retention")
            .await?;
    }
    match database.row("select * from pgonce.outbox_log", &[]).await? {
        Some(row) => output::fields(database.format, &row),
        None => Ok(()),
    }
}
