//! `pgonce intent` and `pgonce suppression`.

use clap::Subcommand;

use crate::database::{Database, Target};
use crate::exit::{self, CliError, Result};
use crate::intervene::{self, ActArgs, FailArgs, SettleArgs};
use crate::look::{Found, LOOK, among};
use crate::output;

/// What to look at.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show one intent whole: did it happen once?
    Show(ShowArgs),
    /// List the intents of a scope, by key.
    List(ScopeArgs),
    /// List work that stopped on the way, the oldest first, and what may be done about it.
    Stuck(ListArgs),
    /// List intents that took more than one attempt, the worst first.
    Retried(ListArgs),
    /// It happened: every retry gets the answer given here.
    Settle(SettleArgs),
    /// It failed permanently: every retry gets this failure.
    Fail(FailArgs),
    /// It did not happen: the next attempt does it. The holder, if there is one, is turned away.
    Release(ActArgs),
    /// A permanent failure may be tried again.
    Retry(ActArgs),
    /// Remove the record: the key is free, also for another request.
    Evict(ActArgs),
}

/// Which intents to list.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Maximum number of intents.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Only this scope.
    #[arg(long)]
    scope: Option<String>,
    /// Only this tenant.
    #[arg(long)]
    tenant: Option<String>,
}

/// Which intents of a scope to list.
#[derive(Debug, clap::Args)]
struct ScopeArgs {
    /// The scope, such as orders.create.
    scope: String,
    /// The tenant.
    #[arg(long, default_value = "", hide_default_value = true)]
    tenant: String,
    /// Only intents in this state.
    #[arg(long, value_parser = ["processing", "succeeded", "failed_retryable", "failed_final"])]
    status: Option<String>,
    /// Begin after this key: the last one of the page before.
    #[arg(long, value_name = "KEY")]
    after: Option<String>,
    /// Maximum number of intents.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

/// Which intent.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The scope, such as orders.create.
    scope: String,
    /// The key.
    key: String,
    /// The tenant.
    #[arg(long, default_value = "", hide_default_value = true)]
    tenant: String,
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    match args.action {
        Action::Show(args) => show(args, target).await,
        Action::List(args) => list(args, target).await,
        Action::Stuck(args) => stuck(args, target).await,
        Action::Retried(args) => most_retried(args, target).await,
        Action::Settle(args) => intervene::settle(args, target).await,
        Action::Fail(args) => intervene::fail(args, target).await,
        Action::Release(args) => intervene::act("release", &args, [None; 3], target).await,
        Action::Retry(args) => intervene::act("retry", &args, [None; 3], target).await,
        Action::Evict(args) => intervene::act("evict", &args, [None; 3], target).await,
    }
}

impl ListArgs {
    async fn list(self, database: &Database, columns: &str, source: &str, nothing: &str) -> Result {
        if let Some(scope) = &self.scope {
            require_scope(database, scope).await?;
        }
        let query = format!(
            "select {columns} from {source} where scope = coalesce($1, scope) and tenant = coalesce($2, tenant) \
             limit $3::text::integer"
        );
        let limit = self.limit.to_string();
        let params = [self.scope.as_deref(), self.tenant.as_deref(), Some(&limit)];
        let found = Found::of(database.list(&query, &params).await?)?;
        found.print(database, self.limit, nothing, |_| {
            format!("{ATTEMPTS} attempts were looked at, those with the highest numbers; there may be more intents.")
        })
    }
}

/// A scope is known by its contract, or by an intent that was claimed in it.
pub(crate) async fn require_scope(database: &Database, scope: &str) -> Result {
    // From scope to scope by the primary key, which begins with the tenant.
    let known = "exists (select from pgonce.scope s where s.scope = $1) or exists (
                 with recursive pair (tenant, scope) as (
                     (select i.tenant, i.scope from pgonce.intent i order by i.tenant, i.scope limit 1)
                     union all
                     select n.* from pair p cross join lateral (
                         select i.tenant, i.scope from pgonce.intent i where (i.tenant, i.scope) > (p.tenant, p.scope)
                          order by i.tenant, i.scope limit 1) n)
                 select from pair p where p.scope = $1)";
    let unknown = || {
        CliError::new(
            exit::NOT_FOUND,
            format!(
                "there is no scope {scope:?}: it has no contract, and nothing was claimed in it"
            ),
            "See `pgonce scope list` and `pgonce suppression`.",
        )
    };
    database.require(known, &[Some(scope)], unknown).await
}

async fn list(args: ScopeArgs, target: Target) -> Result {
    let database = target.installed().await?;
    database.require_intents().await?;
    require_scope(&database, &args.scope).await?;
    let limit = args.limit.to_string();
    let params = [
        Some(&*args.tenant),
        Some(&*args.scope),
        args.after.as_deref(),
        args.status.as_deref(),
        Some(&*limit),
    ];
    const COLUMNS: &str =
        "key, status, attempts, first_at, last_at, expires_at, owner, failure_code";
    const NOTHING: &str = "There is no such intent in this scope.";
    // What is not finished has an index of its own, in which the scope is compared so that no other index is chosen. Where a scope has very
    // many of them, they are found by key as well.
    if matches!(
        args.status.as_deref(),
        Some("processing" | "failed_retryable")
    ) {
        let query = format!(
            "select {COLUMNS}, true as matches, count(*) over () = {LOOK} as stopped from (select i.* from pgonce.intent i \
             where i.expires_at is null and i.tenant = $1 and i.scope = coalesce($2, i.scope) and ($3::text is null or i.key > $3) and i.status::text = $4 \
             order by coalesce(i.lease_until, i.last_at) limit {LOOK}) x order by key limit $5::text::integer"
        );
        let found = Found::of(database.list(&query, &params).await?)?;
        if found.stopped.is_none() {
            return found.print(&database, args.limit, NOTHING, |_| String::new());
        }
    }
    let of_scope = "select * from pgonce.intent i where i.tenant = $1 and i.scope = $2 and i.key > coalesce($3, '') order by i.key";
    let query = match args.status.is_some() {
        true => format!(
            "select {COLUMNS}, matches, stopped from {} i",
            among(of_scope, LOOK, "x.status::text = $4", "$5::text::integer")
        ),
        false => format!(
            "select {COLUMNS}, true as matches, false as stopped from ({of_scope} limit $5::text::integer) i where $4::text is null"
        ),
    };
    let found = Found::of(database.list(&query, &params).await?)?;
    found.print(&database, args.limit, NOTHING, |last| {
        let key = output::printable(last["key"].as_str().unwrap_or_default());
        format!("{LOOK} intents were looked at. To look further: --after {key}")
    })
}

pub(crate) async fn stuck(args: ListArgs, target: Target) -> Result {
    let columns = "tenant, scope, key, status, classification, date_trunc('second', stuck_for) as stuck_for, \
                   attempts, owner, correlation_id, failure_code, failure_message, true as matches, false as stopped";
    let database = target.installed().await?;
    args.list(&database, columns, "pgonce.stuck", "Nothing is stuck.")
        .await
}

pub(crate) async fn most_retried(args: ListArgs, target: Target) -> Result {
    let columns = "tenant, scope, key, attempts, status, first_at, last_at, owner, failure_code, failure_message, true as matches, stopped";
    let database = target.installed().await?;
    // Where intents are many, from their attempts: only those that were followed by another are rows of their own. What came from
    // another region has none here.
    let of_attempts = format!(
        "(select i.*, a.stopped from (select distinct a.tenant, a.scope, a.key, count(*) over () = {ATTEMPTS} as stopped from ( \
             select * from pgonce.attempt a where a.scope = coalesce($1, a.scope) and a.tenant = coalesce($2, a.tenant) order by a.attempt desc limit {ATTEMPTS}) a) a \
          join pgonce.intent i on i.tenant = a.tenant and i.scope = a.scope and i.key = a.key \
          where i.attempts > 1 order by i.attempts desc, i.first_at) r"
    );
    let source = match has_many_intents(&database).await? {
        false => "(select *, false as stopped from pgonce.most_retried) r",
        true => &of_attempts,
    };
    args.list(
        &database,
        columns,
        source,
        "No intent took more than one attempt.",
    )
    .await
}

/// Attempts that are looked at for the intents that were tried most often.
const ATTEMPTS: u32 = 10_000;

/// Whether there are more intents than a list may read.
async fn has_many_intents(database: &Database) -> Result<bool> {
    let query = "select count(*) as n from (select from pgonce.intent limit 10001) x";
    Ok(database.read_count(query, &[]).await? > 10_000)
}

/// How `pgonce suppression` counts.
#[derive(Debug, clap::Args)]
pub(crate) struct SuppressionArgs {
    /// Count intents and attempts, however many there are; above 10000 intents they are left out.
    #[arg(long)]
    count: bool,
}

pub(crate) async fn suppression(args: SuppressionArgs, target: Target) -> Result {
    let database = target.installed().await?;
    let (query, nothing) = match args.count || !has_many_intents(&database).await? {
        true => (
            "select * from pgonce.suppression order by suppressed desc, scope, tenant",
            "No intent was ever claimed here.",
        ),
        false => (
            "select tenant, scope, replays, refusals, busy, conflicts, replays + refusals + busy + conflicts as suppressed \
             from pgonce.suppressed order by 7 desc, scope, tenant",
            "No duplicate was reported yet.",
        ),
    };
    output::rows(database.format, &database.read(query, &[]).await?, nothing)
}

/// One intent, whole.
const SHOW: &str = "
select pgonce._verdict(i) as verdict, i.tenant, i.scope, i.key, i.status, i.attempts, i.fence, i.answer, i.ref_type, i.ref_id,
       i.failure_code, i.failure_message, i.owner, i.correlation_id, i.first_at, i.last_at,
       i.lease_until, i.vanished_at, i.expires_at, i.gone_at, encode(i.fingerprint, 'hex') as fingerprint,
       (select json_agg(json_build_object('at', date_trunc('second', h.at), 'what', h.what, 'who', h.who, 'detail', h.detail))
          from pgonce._history(i.tenant, i.scope, i.key) h) as timeline
  from pgonce.intent i
 where i.tenant = $1 and i.scope = $2 and i.key = $3";

/// An attempt that lives in one transaction has no record before it ends, only a lock.
const HELD: &str = "
select l.pid from pg_catalog.pg_locks l
 where l.locktype = 'advisory' and l.objsubid = 1 and l.mode = 'ExclusiveLock' and l.granted
   and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
   and (l.classid::bigint << 32) | l.objid::bigint = pgonce._lock_id($1, $2, $3)";

pub(crate) async fn show(args: ShowArgs, target: Target) -> Result {
    let names = [
        Some(args.tenant.as_str()),
        Some(&args.scope),
        Some(&args.key),
    ];
    let database = target.installed().await?;
    let key = stored_key(&database, names).await?;
    let names = [names[0], names[1], Some(&*key)];
    match database.read_row(SHOW, &names).await? {
        Some(row) => output::fields(database.format, &row),
        None => Err(no_record(&database, &names).await?),
    }
}

/// The HTTP layer stores a client's key with a digest of its principal and operation behind it.
const STORED_AS: &str = "
select i.key from pgonce.intent i
 where i.tenant = $1 and i.scope = $2 and i.key > left($3, 222) || '#' and i.key < left($3, 222) || '$'
   and octet_length(i.key) = octet_length(left($3, 222)) + 33
 order by i.first_at, i.key limit 21";

/// How many stored keys of one client key are named.
const NAMED: usize = 20;

/// The key as it is stored, from the key as it is stored or as the client sent it.
pub(crate) async fn stored_key(database: &Database, names: [Option<&str>; 3]) -> Result<String> {
    let known =
        "select i.key from pgonce.intent i where i.tenant = $1 and i.scope = $2 and i.key = $3";
    if database.read_row(known, &names).await?.is_some() {
        return Ok(names[2].unwrap_or_default().to_owned());
    }
    let mut stored = Vec::new();
    for row in database.read(STORED_AS, &names).await? {
        let row: serde_json::Value = serde_json::from_str(&row).map_err(std::io::Error::from)?;
        stored.extend(row["key"].as_str().map(str::to_owned));
    }
    match stored.as_mut_slice() {
        [] => Err(no_record(database, &names).await?),
        [only] => Ok(std::mem::take(only)),
        several => Err(CliError::new(
            exit::NOT_FOUND,
            format!(
                "this client key has records of several principals or operations: {}{}",
                several[..several.len().min(NAMED)].join(", "),
                if several.len() > NAMED {
                    ", and others"
                } else {
                    ""
                }
            ),
            "Name one of them as the key.",
        )),
    }
}

async fn no_record(database: &Database, names: &[Option<&str>; 3]) -> Result<CliError> {
    let held = database.read_row(HELD, names).await?.is_some();
    let acts = "select o.act from pgonce.operator_act o where o.tenant = $1 and o.scope = $2 and o.key = $3 limit 1";
    let acted = database.read_row(acts, names).await?.is_some();
    let called = "select c.step from pgonce.external_call c \
                  where c.tenant = $1 and c.scope = $2 and c.key = $3 and c.status <> 'requested' limit 1";
    let called = database.read_row(called, names).await?.is_some();
    let standby = "select 1 as here where pg_is_in_recovery()";
    let standby = database.read_row(standby, &[]).await?.is_some();
    let region = "select 1 as here where exists (select from pgonce.region r where not r.is_self)";
    let region = database.read_row(region, &[]).await?.is_some();
    Ok(if acted && !held {
        CliError::new(
            exit::NOT_FOUND,
            "there is no record of this intent any more, and operators have acted on it: it may have happened",
            "`pgonce find KEY` shows who removed the record, and why.",
        )
    } else if called && !held {
        CliError::new(
            exit::NOT_FOUND,
            "there is no record of this intent, and it has called a provider: it may have happened",
            "`pgonce find KEY` shows the calls and how they ended.",
        )
    } else if held {
        CliError::new(
            exit::NOT_FOUND,
            "there is no record of this intent yet: an attempt is under way in an open transaction",
            "Ask again when it has ended.",
        )
    } else if standby {
        CliError::new(
            exit::NOT_FOUND,
            "there is no record of this intent on this server, which is a standby: it may have happened",
            "Ask the primary: what a standby shows is behind it.",
        )
    } else if region {
        CliError::new(
            exit::NOT_FOUND,
            "there is no record of this intent in this region: it may have happened in another",
            "Ask its home, and look at `pgonce region status`: what another region did comes here later.",
        )
    } else {
        CliError::new(
            exit::NOT_FOUND,
            "there is no record of this intent: it has not happened, or its record was purged after its retention",
            "Compare scope, key and tenant byte by byte; `pgonce scope show SCOPE` says how long records are kept.",
        )
    })
}
