//! `pgonce stuck`, `most-retried`, `suppression` and `show`.

use crate::database::{Database, Target};
use crate::exit::{self, Result, Trouble};
use crate::output::{self, Format};

/// How many to list.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// List at most so many.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Only this scope.
    #[arg(long)]
    scope: Option<String>,
    /// Only this tenant.
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    target: Target,
}

/// No choice.
#[derive(Debug, clap::Args)]
pub(crate) struct AllArgs {
    #[command(flatten)]
    target: Target,
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
    #[command(flatten)]
    target: Target,
}

impl ListArgs {
    pub(crate) fn format(&self) -> Format {
        self.target.format()
    }

    async fn list(self, columns: &str, view: &str, nothing: &str) -> Result {
        let database = self.target.installed().await?;
        let query = format!(
            "select {columns} from pgonce.{view} where scope = coalesce($1, scope) and tenant = coalesce($2, tenant) \
             limit $3::text::integer"
        );
        let limit = self.limit.to_string();
        let rows = database
            .rows(
                &query,
                &[self.scope.as_deref(), self.tenant.as_deref(), Some(&limit)],
            )
            .await?;
        output::rows(database.format, &rows, nothing)
    }
}

impl AllArgs {
    pub(crate) fn format(&self) -> Format {
        self.target.format()
    }
}

impl ShowArgs {
    pub(crate) fn format(&self) -> Format {
        self.target.format()
    }
}

pub(crate) async fn stuck(args: ListArgs) -> Result {
    let columns = "tenant, scope, key, status, classification, date_trunc('second', stuck_for) as stuck_for, \
                   attempts, owner, correlation_id, failure_code, failure_message";
    args.list(columns, "stuck", "Nothing is stuck.").await
}

pub(crate) async fn most_retried(args: ListArgs) -> Result {
    let columns = "tenant, scope, key, attempts, status, first_at, last_at, owner, failure_code, failure_message";
    args.list(
        columns,
        "most_retried",
        "No intent took more than one attempt.",
    )
    .await
}

pub(crate) async fn suppression(args: AllArgs) -> Result {
    let database = args.target.installed().await?;
    let rows = database
        .rows(
            "select * from pgonce.suppression order by suppressed desc, scope, tenant",
            &[],
        )
        .await?;
    output::rows(database.format, &rows, "No intent was ever claimed here.")
}

/// Did it happen once? In words, from what is recorded and nothing else.
const SHOW: &str = "
select case
           when i.gone_at is not null
               then 'It finished, and its answer is no longer kept: a retry is told that it is gone.'
           when i.status = 'succeeded' and i.expires_at <= pgonce.now()
               then 'It happened once. Its retention is over: the contract says what a retry gets.'
           when i.status = 'succeeded'
               then 'It happened once. Every retry gets the stored answer.'
           when i.status = 'failed_final'
               then 'It was refused for good. Every retry is told the same.'
           when i.status = 'failed_retryable'
               then 'The last attempt failed and nothing is acknowledged: the next attempt may try again.'
           when i.lease_until > pgonce.now()
               then 'Somebody is at it now: the lease holds until lease_until.'
           else 'Its holder stopped on the way. Nothing is acknowledged; what it did outside this database is not known.'
       end as verdict,
       i.tenant, i.scope, i.key, i.status, i.attempts, i.fence, i.answer, i.ref_type, i.ref_id,
       i.failure_code, i.failure_message, i.owner, i.correlation_id, i.first_at, i.last_at,
       i.lease_until, i.expires_at, i.gone_at, encode(i.fingerprint, 'hex') as fingerprint
  from pgonce.intent i
 where i.tenant = $1 and i.scope = $2 and i.key = $3";

/// An attempt that lives in one transaction has no record before it ends, only a lock.
const HELD: &str = "
select l.pid from pg_catalog.pg_locks l
 where l.locktype = 'advisory' and l.objsubid = 1 and l.mode = 'ExclusiveLock' and l.granted
   and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
   and (l.classid::bigint << 32) | l.objid::bigint = pgonce._lock_id($1, $2, $3)";

pub(crate) async fn show(args: ShowArgs) -> Result {
    let names = [
        Some(args.tenant.as_str()),
        Some(&args.scope),
        Some(&args.key),
    ];
    let database = args.target.installed().await?;
    match database.row(SHOW, &names).await? {
        Some(row) => output::fields(database.format, &row),
        None => Err(no_record(&database, &names).await?),
    }
}

async fn no_record(database: &Database, names: &[Option<&str>; 3]) -> Result<Trouble> {
    let held = database.row(HELD, names).await?.is_some();
    Ok(if held {
        Trouble::new(
            exit::NOT_FOUND,
            "there is no record of this intent yet: an attempt is under way in an open transaction",
            "Ask again when it has ended.",
        )
    } else {
        Trouble::new(
            exit::NOT_FOUND,
            "there is no record of this intent: it has not happened, or its record was purged after its retention",
            "Compare scope, key and tenant byte by byte; `pgonce scope show SCOPE` says how long records are kept.",
        )
    })
}
