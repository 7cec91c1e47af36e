//! `pgonce job` and `pgonce queue`: jobs of the work queue, and what queues allow.

use clap::Subcommand;
use serde_json::json;

use crate::confirm::reason;
use crate::database::{Database, Target};
use crate::exit::{self, CliError, Result};
use crate::job_list::List;
use crate::output;

/// What to do with jobs.
#[derive(Debug, clap::Args)]
pub(crate) struct JobArgs {
    #[command(subcommand)]
    action: JobAction,
    /// The tenant; empty where there are none.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    tenant: String,
}

#[derive(Debug, Subcommand)]
enum JobAction {
    /// List jobs, the newest first.
    List(List),
    /// Show one job whole, with its payload, progress and result, and what operators did to it.
    Show(One),
    /// Put a job into a queue.
    Enqueue(Enqueue),
    /// Try dead letters again: one, or all of a queue.
    Retry(Retry),
    /// End a job that is not done; one that runs is taken from its worker.
    Cancel(Cancel),
}

#[derive(Debug, clap::Args)]
struct One {
    /// The job's number, as `list` shows it.
    id: i64,
}

#[derive(Debug, clap::Args)]
struct Enqueue {
    /// The queue.
    queue: String,
    /// The payload, a JSON document.
    payload: Option<String>,
    /// Names the job: enqueued again it is the same job.
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,
    /// Jobs of one key run in order.
    #[arg(long)]
    key: Option<String>,
    /// A higher one comes first.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i16,
    /// Time from now before it may run, such as '10 minutes'.
    #[arg(long, value_name = "INTERVAL", value_parser = crate::scope::length)]
    delay: Option<String>,
    /// The group it is counted with.
    #[arg(long)]
    group: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Retry {
    /// The queue.
    queue: String,
    /// The job's number, as `list` shows it.
    #[arg(required_unless_present = "all")]
    id: Option<i64>,
    /// Every dead letter of the queue.
    #[arg(long, conflicts_with = "id")]
    all: bool,
    /// Why; it is kept with your name.
    #[arg(long, value_parser = reason)]
    reason: String,
}

#[derive(Debug, clap::Args)]
struct Cancel {
    #[command(flatten)]
    one: One,
    /// Why; it is kept with your name.
    #[arg(long, value_parser = reason)]
    reason: String,
}

/// What to do with queues.
#[derive(Debug, clap::Args)]
pub(crate) struct QueueArgs {
    #[command(subcommand)]
    action: QueueAction,
}

#[derive(Debug, Subcommand)]
enum QueueAction {
    /// List queues: what they hold, and what they allow.
    List,
    /// Let the jobs of a queue wait; those that run go on.
    Pause(Named),
    /// Let the jobs of a queue run again.
    Resume(Named),
    /// Say what a queue allows; what is left out stays.
    Limit(Limit),
    /// List schedules, and when each enqueues its next job.
    Schedules,
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The queue.
    queue: String,
}

#[derive(Debug, clap::Args)]
struct Limit {
    /// The queue; '*' for all that are not defined.
    queue: String,
    /// Maximum number of jobs that run at a time; 0: none.
    #[arg(long, value_name = "JOBS")]
    max_running: Option<u32>,
    /// Maximum number of jobs of one key that run at a time.
    #[arg(long, value_name = "JOBS")]
    max_per_key: Option<u32>,
    /// Maximum number of jobs that are started in a period; 0: none.
    #[arg(long, value_name = "JOBS")]
    rate: Option<u32>,
    /// The period of --rate, such as '1 minute'.
    #[arg(long, value_name = "INTERVAL", value_parser = crate::scope::length)]
    rate_per: Option<String>,
    /// Maximum number of tries before a job is a dead letter.
    #[arg(long, value_name = "TIMES")]
    max_attempts: Option<u32>,
    /// Retention of ended jobs, such as '30 days'.
    #[arg(long, value_name = "INTERVAL", value_parser = crate::scope::length)]
    keep: Option<String>,
}

fn none() -> CliError {
    CliError::new(
        exit::NOT_FOUND,
        "there is no such job, or it is not in a state for this",
        "`pgonce job list` shows the jobs; those that are done cannot be cancelled or retried.",
    )
}

/// A queue is known by its rules, by a schedule, or by a job: one that is not done or a dead letter, or one of the newest. Those that are due
/// after ten thousand others have no index by queue: only for a name that nothing else knows all jobs that are not done are read.
async fn require_queue(database: &Database, queue: &str) -> Result {
    let known = "exists (select from pgonce.job_queue q where q.queue = $1) or exists (select from pgonce.queues q where q.queue = $1) \
         or exists (select from pgonce.job_schedule s where s.queue = $1) or exists (select from pgonce.job j where j.queue = $1 \
         and j.ctid >= (select format('(%s,0)', greatest(pg_relation_size('pgonce.job') / current_setting('block_size')::bigint - 150, 0))::tid)) \
         or exists (select from pgonce.job_live l where l.queue = $1)";
    let known = match database.is_distributed().await? {
        true => "(select count(*) from pgonce.queues q where q.queue = $1) > 0",
        false => known,
    };
    let unknown = || {
        CliError::new(
            exit::NOT_FOUND,
            format!("there is no queue {queue:?}: it has no rules, and no job was put into it"),
            "`pgonce queue list` shows the queues; `pgonce queue limit` makes one.",
        )
    };
    database.require(known, &[Some(queue)], unknown).await
}

/// A group is known by its jobs.
async fn require_group(database: &Database, tenant: Option<&str>, group: &str) -> Result {
    let known = "exists (select from pgonce.job j where j.tenant = $1 and j.group_name = $2)";
    let unknown = || {
        CliError::new(
            exit::NOT_FOUND,
            format!("there is no group {group:?} of jobs"),
            "--tenant names the tenant; a group is forgotten with its last job.",
        )
    };
    database
        .require(known, &[tenant, Some(group)], unknown)
        .await
}

pub(crate) async fn job(args: JobArgs, target: Target) -> Result {
    let database = target.installed().await?;
    let tenant = Some(&*args.tenant);
    match args.action {
        JobAction::List(list) => {
            if let Some(queue) = &list.queue {
                require_queue(&database, queue).await?;
            }
            if let Some(group) = &list.group {
                require_group(&database, tenant, group).await?;
            }
            list.run(&database, tenant).await
        }
        JobAction::Show(one) => show(&database, &args.tenant, one.id).await,
        JobAction::Enqueue(new) => {
            let priority = new.priority.to_string();
            let params = [
                Some(&*new.queue),
                new.payload.as_deref(),
                new.unique_key.as_deref(),
                new.key.as_deref(),
                Some(&*priority),
                new.delay.as_deref(),
                new.group.as_deref(),
                tenant,
            ];
            let call = "select id, made_now from pgonce.enqueue($1, $2::text::jsonb, $3, $4, $5::text::int, pgonce.now() + $6::text::interval, $7, $8)";
            let rows = database.rows(call, &params).await?;
            output::rows(database.format, &rows, "")
        }
        JobAction::Retry(retry) => {
            require_queue(&database, &retry.queue).await?;
            let id = retry.id.map(|id| id.to_string());
            let params = [
                Some(&*retry.queue),
                id.as_deref(),
                Some(&*retry.reason),
                tenant,
            ];
            let call = "select pgonce.retry_jobs($1, $2::text::bigint, $3, $4) as n";
            let done = database.count(call, &params).await?;
            if done == 0 && retry.id.is_some() {
                return Err(none());
            }
            let words = format!("{done} to be tried again");
            output::say(database.format, &words, &json!({"retried": done}))
        }
        JobAction::Cancel(cancel) => {
            let id = cancel.one.id.to_string();
            let params = [Some(&*id), Some(&*cancel.reason), tenant];
            let call = "select pgonce.cancel_job($1::text::bigint, $2, $3)::int as n";
            match database.count(call, &params).await? {
                0 => Err(none()),
                _ => output::say(
                    database.format,
                    "cancelled",
                    &json!({"cancelled": cancel.one.id}),
                ),
            }
        }
    }
}

/// On Citus, where no acts of operators are recorded.
const SHOW_OF_TENANT: &str = "select j.*, p.payload from pgonce.jobs j join pgonce.job p on p.tenant = j.tenant and p.id = j.id \
     where j.tenant = $1 and j.id = $2::text::bigint";

async fn show(database: &Database, tenant: &str, id: i64) -> Result {
    let id = id.to_string();
    let params = [Some(tenant), Some(&*id)];
    let query = "select j.*, p.payload, (select json_agg(json_build_object('at', o.acted_at, 'act', o.act, 'role', o.role, 'person', o.person, 'reason', o.reason) order by o.number) \
        from pgonce.operator_act o where o.tenant = j.tenant and o.scope = 'job ' || j.queue and o.key = j.id::text) as acts \
        from pgonce.jobs j join pgonce.job p using (tenant, id) where j.tenant = $1 and j.id = $2::text::bigint";
    let query = match database.is_distributed().await? {
        true => SHOW_OF_TENANT,
        false => query,
    };
    let rows = database.read(query, &params).await?;
    if rows.is_empty() {
        return Err(none());
    }
    output::rows(database.format, &rows, "")
}

pub(crate) async fn queue(args: QueueArgs, target: Target) -> Result {
    let database = target.installed().await?;
    let (queue, paused, limit) = match &args.action {
        QueueAction::List => {
            let rows = database
                .list("select * from pgonce.queues order by queue", &[])
                .await?;
            return output::rows(database.format, &rows, "No queues.");
        }
        QueueAction::Schedules => {
            let query = "select name, cron, zone, queue, next_at, last_at from pgonce.job_schedule order by tenant, name";
            let rows = database.read(query, &[]).await?;
            return output::rows(database.format, &rows, "No schedules.");
        }
        QueueAction::Pause(named) => (&named.queue, Some("true"), None),
        QueueAction::Resume(named) => (&named.queue, Some("false"), None),
        QueueAction::Limit(limit) => (&limit.queue, None, Some(limit)),
    };
    // What is allowed may be said of a queue before its first job.
    if limit.is_none() {
        require_queue(&database, queue).await?;
    }
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    let attempts = number(limit.and_then(|limit| limit.max_attempts));
    let running = number(limit.and_then(|limit| limit.max_running));
    let per_key = number(limit.and_then(|limit| limit.max_per_key));
    let rate = number(limit.and_then(|limit| limit.rate));
    let params = [
        Some(&**queue),
        paused,
        attempts.as_deref(),
        limit.and_then(|limit| limit.keep.as_deref()),
        running.as_deref(),
        per_key.as_deref(),
        rate.as_deref(),
        limit.and_then(|limit| limit.rate_per.as_deref()),
    ];
    let call = "select 1 as n from pgonce.define_queue($1, $2::text::boolean, $3::text::int, p_keep => $4::text::interval, \
        p_max_running => $5::text::int, p_max_per_key => $6::text::int, p_rate => $7::text::int, p_rate_per => $8::text::interval)";
    database.count(call, &params).await?;
    output::say(database.format, "done", &json!({"queue": queue}))
}
