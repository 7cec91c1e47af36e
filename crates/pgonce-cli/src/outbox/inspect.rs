//! `pgonce outbox status`, `list` and `show`.

use uuid::Uuid;

use crate::database::Database;
use crate::exit::{self, CliError, Result};
use crate::output::{self, Format};

#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    /// Only this subscription.
    subscription: Option<String>,
    /// Lane by lane.
    #[arg(long)]
    lanes: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Only of this subscription.
    subscription: Option<String>,
    /// What is parked for this reason: given up, to be tried again, not due yet, behind one of these.
    #[arg(long, default_value = "dead", value_parser = ["dead", "retry", "delayed", "behind", "all"])]
    state: String,
    /// Only of this subject.
    #[arg(long)]
    subject: Option<String>,
    /// Only of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Maximum number of events, the oldest first.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    /// For whom.
    subscription: String,
    /// The number of the event, or its message id (which is looked for in the whole log).
    event: String,
}

/// An error where there is no such subscription.
pub(super) async fn require_subscription(database: &Database, name: &str) -> Result {
    let known = "exists (select from pgonce.outbox_subscriptions s where s.subscription = $1)";
    let unknown = || {
        CliError::new(
            exit::NOT_FOUND,
            format!("there is no subscription {name:?}"),
            "`pgonce outbox subscriptions` lists them.",
        )
        .coded("42704")
    };
    database.require(known, &[Some(name)], unknown).await
}

pub(super) async fn status(database: &Database, args: &StatusArgs) -> Result {
    let subscription = args.subscription.as_deref();
    if let Some(name) = subscription {
        require_subscription(database, name).await?;
    }
    if args.lanes && database.is_distributed().await? {
        return Err(as_jobs("there are no lanes", "pgonce outbox status"));
    }
    let query = if args.lanes {
        "select subscription, lane, waiting, date_trunc('milliseconds', oldest_age) as oldest_age, parked, dead, relay, \
         lease_until, advanced_at from pgonce.outbox_lanes where $1::text is null or subscription = $1 \
         order by subscription, lane"
    } else {
        "select subscription, waiting, date_trunc('milliseconds', oldest_age) as oldest_age, delayed, retrying, dead, \
         behind, lanes_held, relays, advanced_at, stuck, evicted_why as evicted from pgonce.outbox_backlog \
         where $1::text is null or subscription = $1 order by subscription"
    };
    let rows = database.list(query, &[subscription]).await?;
    output::rows(
        database.format,
        &rows,
        "There is no subscription: `pgonce outbox subscriptions create NAME` makes one.",
    )?;
    let stuck = rows.iter().any(|row| row.contains("\"stuck\":true"));
    if stuck && database.format == Format::Table {
        output::line(
            "A stuck subscription holds the log: run its relay, or let go of it with `pgonce outbox evict`.",
        )?;
    }
    super::tail::mention(database).await
}

/// What this program has no view of on Citus, where events are jobs, and the command that has.
fn as_jobs(what: &str, command: &str) -> CliError {
    CliError::new(
        exit::USAGE,
        format!("on Citus, where events travel as jobs, {what}"),
        format!("See `{command}`."),
    )
}

/// What is parked, on Citus.
const DEAD_LETTERS: &str = "select subscription, seq, message_id, tenant, topic, type, subject, 'dead' as state, attempts, \
     null::timestamptz as due_at, reason, behind, parked_at from pgonce.dead_letters \
     where ($1::text is null or subscription = $1) and $2::text is not null and ($3::text is null or subject = $3) \
     and ($4::text is null or tenant = $4) order by subscription, seq limit $5::text::integer";

pub(super) async fn list(database: &Database, args: &ListArgs) -> Result {
    let distributed = database.is_distributed().await?;
    if distributed && args.state != "dead" {
        let queue = args.subscription.as_deref().unwrap_or("SUBSCRIPTION");
        let command = format!("pgonce job list outbox/{queue} --tenant TENANT");
        return Err(as_jobs("only dead letters are listed here", &command));
    }
    // From subscription to subscription, of each no more than are shown. A subject is found by its index, which begins with the tenant.
    let parked = match &args.subject {
        Some(_) => {
            "with recursive t (tenant) as (
                 (select p.tenant from pgonce.parked p order by p.tenant limit 1)
                 union all
                 select n.tenant from t cross join lateral (
                     select p.tenant from pgonce.parked p where p.tenant > t.tenant order by p.tenant limit 1) n)
             select p.* from t cross join lateral (
                 select * from pgonce.parked p where p.tenant = t.tenant and p.subscription = s.subscription and p.subject = $3 \
                    and ($2 = 'all' or p.state = $2) order by p.seq limit $5::text::integer) p where $4::text is null or t.tenant = $4"
        }
        None => {
            "select * from pgonce.parked p where p.subscription = s.subscription and ($2 = 'all' or p.state = $2) and $3::text is null \
                and ($4::text is null or p.tenant = $4) order by p.seq limit $5::text::integer"
        }
    };
    let query = format!(
        "select k.subscription, k.seq, k.message_id, k.tenant, k.topic, k.type, k.subject, k.state, k.attempts, k.due_at, k.reason, \
         (select count(*) from (select from pgonce.parked b where b.tenant = k.tenant and b.subscription = k.subscription \
             and b.subject = k.subject and b.state = 'behind' limit 1000) x) as behind, k.parked_at \
         from pgonce.outbox_subscription s cross join lateral ({parked}) k where ($1::text is null or s.subscription = $1) \
         order by k.subscription, k.seq limit $5::text::integer"
    );
    let query = if distributed { DEAD_LETTERS } else { &query };
    if let Some(name) = &args.subscription {
        require_subscription(database, name).await?;
    }
    let limit = args.limit.to_string();
    let params = [
        args.subscription.as_deref(),
        Some(&*args.state),
        args.subject.as_deref(),
        args.tenant.as_deref(),
        Some(&limit),
    ];
    let rows = database.list(query, &params).await?;
    let nothing = match &*args.state {
        "dead" => "There are no dead letters.",
        _ => "Nothing is parked.",
    };
    output::rows(database.format, &rows, nothing)
}

pub(super) async fn show(database: &Database, args: &ShowArgs) -> Result {
    if database.is_distributed().await? {
        let command = "pgonce job show NUMBER --tenant TENANT";
        return Err(as_jobs("an event is shown as its job", command));
    }
    let number = match args.event.parse::<i64>() {
        Ok(number) => Some(number.to_string()),
        Err(_) => number_of(database, args).await?,
    };
    let query = "select f.*, (select s.skipped_by from pgonce.outbox_skipped s \
         where s.subscription = $1 and s.seq = f.seq) as skipped_by from pgonce.event_status($1, $2::text::bigint) f";
    let row = match &number {
        Some(number) => {
            database
                .read_row(query, &[Some(&args.subscription), Some(number)])
                .await?
        }
        None => None,
    };
    match row {
        Some(row) => output::fields(database.format, &row),
        None => Err(CliError::new(
            exit::NOT_FOUND,
            format!("there is no event {:?}", args.event),
            "It may have been delivered long ago: `pgonce outbox retention` says how long events are kept.",
        )),
    }
}

async fn number_of(database: &Database, args: &ShowArgs) -> Result<Option<String>> {
    let Ok(id) = args.event.parse::<Uuid>() else {
        return Err(CliError::new(
            exit::USAGE,
            format!(
                "{:?} is neither the number of an event nor a message id",
                args.event
            ),
            "`pgonce outbox list` shows both.",
        ));
    };
    let query = "select seq from pgonce.parked where message_id = $1::text::uuid union all \
         select seq from pgonce.outbox_skipped where message_id = $1::text::uuid union all \
         select seq from pgonce.outbox where message_id = $1::text::uuid limit 1";
    let row = database.read_row(query, &[Some(&id.to_string())]).await?;
    let row: Option<serde_json::Value> = row.map(|row| serde_json::from_str(&row)).transpose()?;
    Ok(row.map(|row| row["seq"].to_string()))
}
