//! `pgonce ledger`: accounts, groups of entries, and whether they are what was recorded.

use clap::Subcommand;
use serde_json::{Value, json};

use crate::confirm::{Confirm, reason};
use crate::database::{Database, Target};
use crate::exit::{self, CliError, Result};
use crate::look::{Found, LOOK};
use crate::output;

/// What to do with the ledger.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// The tenant; empty where there are none.
    #[arg(long, global = true)]
    tenant: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List accounts with their balances.
    Accounts(Page),
    /// Open an account.
    Open(Open),
    /// Show the balance of an account, now or as it was.
    Balance(At),
    /// Show the entries of an account between two times, with opening and closing balance.
    Statement(Statement),
    /// List groups, the latest first.
    Groups(Groups),
    /// Record a balanced group of entries, once.
    Post(Post),
    /// Post a pending group, or void it.
    Settle(Settle),
    /// Record a group that undoes another one.
    Reverse(Reverse),
    /// Recompute the ledgers of all tenants, or of one, from their entries; exit code 1 where something is wrong.
    Verify(Verify),
    /// Set cached balances to what the entries say, and record who did it and why.
    Repair(Repair),
}

#[derive(Debug, clap::Args)]
struct Page {
    /// Begin after this account: the last one of the page before.
    #[arg(long, value_name = "ACCOUNT")]
    after: Option<String>,
    /// Maximum number of accounts.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

#[derive(Debug, clap::Args)]
struct Open {
    /// The account.
    account: String,
    /// Its currency, such as EUR.
    currency: String,
    /// The side that makes its balance grow.
    #[arg(value_parser = ["debit", "credit"])]
    normal: String,
    /// The least balance, in minor units.
    #[arg(long, allow_negative_numbers = true)]
    floor: Option<String>,
    /// Rows to spread a busy account over.
    #[arg(long, default_value = "1")]
    shards: String,
}

#[derive(Debug, clap::Args)]
struct At {
    /// The account.
    account: String,
    /// As it was at this time, such as '2026-01-31 12:00'.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Statement {
    /// The account.
    account: String,
    /// The first time.
    #[arg(long, value_name = "TIME", default_value = "1970-01-01")]
    from: String,
    /// The time after the last entry.
    #[arg(long, value_name = "TIME", default_value = "infinity")]
    to: String,
}

#[derive(Debug, clap::Args)]
struct Groups {
    /// Only groups in this state.
    #[arg(long, value_parser = ["posted", "pending", "voided"])]
    state: Option<String>,
    /// Maximum number of groups.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

#[derive(Debug, clap::Args)]
struct Name {
    /// The system that the group comes from.
    source: String,
    /// That system's name for it.
    operation: String,
}

#[derive(Debug, clap::Args)]
struct Post {
    #[command(flatten)]
    name: Name,
    /// An account and how much to debit, in minor units; may be given several times.
    #[arg(long, value_name = "ACCOUNT=N", required = true, value_parser = line)]
    debit: Vec<(String, String)>,
    /// An account and how much to credit, in minor units; may be given several times.
    #[arg(long, value_name = "ACCOUNT=N", required = true, value_parser = line)]
    credit: Vec<(String, String)>,
    /// What it is about.
    #[arg(long)]
    memo: Option<String>,
    /// Only hold the amounts, under this fence.
    #[arg(long, value_name = "FENCE")]
    pending: Option<i64>,
}

#[derive(Debug, clap::Args)]
struct Settle {
    #[command(flatten)]
    name: Name,
    /// What to make of it.
    #[arg(value_parser = ["posted", "voided"])]
    state: String,
    /// The fence that it is pending under.
    #[arg(long)]
    fence: i64,
}

#[derive(Debug, clap::Args)]
struct Reverse {
    #[command(flatten)]
    name: Name,
    /// The source of the group to undo.
    of_source: String,
    /// The operation of the group to undo.
    of_operation: String,
    /// Why.
    #[arg(long)]
    memo: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Verify {
    /// The ledgers of all tenants, as without --tenant.
    #[arg(long)]
    all_tenants: bool,
}

#[derive(Debug, clap::Args)]
struct Repair {
    /// Why; it is kept with your name.
    #[arg(long, value_parser = reason)]
    reason: String,
    #[command(flatten)]
    confirm: Confirm,
}

/// The newest groups. They have no index by time: those of a tenant are looked at by name, and, since they are never changed, the end of their
/// table, or of that of pending groups, which has the newest. Where the tenant has more than are looked at by name, the list says so.
fn groups(state: Option<&str>) -> String {
    // Each by itself: a join would read the other table whole.
    let of_pending = "(select g.recorded_at from pgonce.ledger_group g where g.tenant = n.tenant and g.source = n.source and g.operation = n.operation)";
    let (table, at, condition) = match state {
        Some("pending" | "voided") => ("ledger_pending", of_pending, "n.state = $2"),
        Some(_) => (
            "ledger_group",
            "n.recorded_at",
            "(not n.pending or (select p.state from pgonce.ledger_pending p where p.tenant = n.tenant and p.source = n.source \
              and p.operation = n.operation) = $2)",
        ),
        None => ("ledger_group", "n.recorded_at", "$2::text is null"),
    };
    format!(
        "with look as materialized (select n.* from pgonce.{table} n where n.tenant = $1 order by n.source, n.operation limit {LOOK}), \
              found as (select n.source, n.operation, {at} as recorded_at from look n where {condition} \
                        union select n.source, n.operation, {at} from pgonce.{table} n where n.tenant = $1 and {condition} \
                           and n.ctid >= (select format('(%s,0)', greatest(pg_relation_size('pgonce.{table}') / current_setting('block_size')::bigint - 150, 0))::tid)) \
         (select g.source, g.operation, g.state, g.accounts, g.amounts, g.memo, g.reverses_operation, g.fence, g.recorded_at, true as matches, false as stopped \
            from (select f.* from found f order by f.recorded_at desc, f.source, f.operation limit $3::text::integer) n \
           cross join lateral (select v.* from pgonce.ledger_groups v where v.tenant = $1 and v.source = n.source and v.operation = n.operation limit 1) g \
           order by g.recorded_at desc, g.source, g.operation) \
         union all \
         (select n.source, n.operation, null, null, null, null, null, null, null, false, true from look n order by n.source, n.operation offset {LOOK} - 1)"
    )
}

/// An account and an amount. The account's name may hold a `=`.
fn line(text: &str) -> std::result::Result<(String, String), String> {
    let (account, amount) = text
        .rsplit_once('=')
        .ok_or("write ACCOUNT=AMOUNT, such as cash=4200")?;
    Ok((account.to_owned(), amount.to_owned()))
}

fn texts(texts: &[Option<String>]) -> Vec<Option<&str>> {
    texts.iter().map(Option::as_deref).collect()
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.installed().await?;
    let named = args.tenant;
    let tenant = named.clone().unwrap_or_default();
    let shown = |rows: Result<Vec<String>>, nothing: &str| {
        let rows = rows.map_err(|error| error.with_exit("P4072", exit::NOT_FOUND))?;
        output::rows(database.format, &rows, nothing)
    };
    let read = async |query: &str, params: Vec<Option<String>>, nothing: &str| {
        shown(database.read(query, &texts(&params)).await, nothing)
    };
    let act = async |query: &str, params: Vec<Option<String>>| {
        shown(database.rows(query, &texts(&params)).await, "")
    };
    match args.action {
        Action::Accounts(page) => {
            let query = "select a.account, a.currency, a.normal, a.balance, a.available, a.pending_debit, a.pending_credit, a.entries, a.closed_at \
                         from (select n.account from pgonce.ledger_account n where n.tenant = $1 and n.shard = 0 and n.account > coalesce($2, '') \
                               order by n.account limit $3::text::integer) n \
                         cross join lateral (select v.* from pgonce.ledger_accounts v where v.tenant = $1 and v.account = n.account limit 1) a \
                         order by a.account";
            let params = vec![Some(tenant), page.after, Some(page.limit.to_string())];
            read(query, params, "No account is open here.").await
        }
        Action::Open(open) => {
            let query = "select $1::text as account, pgonce.ledger_open($1, $2, $3, $4::text::numeric, \
                         $5::text::integer, $6) as made_now";
            let params = [Some(open.account), Some(open.currency), Some(open.normal)];
            let rest = [open.floor, Some(open.shards), Some(tenant)];
            act(query, params.into_iter().chain(rest).collect()).await
        }
        Action::Balance(At { account, at }) => {
            let query = "select * from pgonce.ledger_balance($1, $2::text::timestamptz, $3)";
            read(query, vec![Some(account), at, Some(tenant)], "").await
        }
        Action::Statement(Statement { account, from, to }) => {
            let query = "select * from pgonce.ledger_statement($1, $2::text::timestamptz, $3::text::timestamptz, $4)";
            let params = vec![Some(account), Some(from), Some(to), Some(tenant)];
            read(query, params, "").await
        }
        Action::Groups(Groups { state, limit }) => {
            let params = [Some(tenant), state.clone(), Some(limit.to_string())];
            let rows = database
                .list(&groups(state.as_deref()), &texts(&params))
                .await?;
            Found::sorted(rows)?.print(&database, limit, "There is no such group.", |_| {
                format!("{LOOK} groups of the tenant were looked at, and the newest of all; pgonce.ledger_groups has the others.")
            })
        }
        Action::Post(post) => {
            let side = |lines: &[(String, String)], side: &str| -> Vec<Value> {
                let entry = |(account, amount): &(String, String)| json!({"account": account, side: amount});
                lines.iter().map(entry).collect()
            };
            let entries = [side(&post.debit, "debit"), side(&post.credit, "credit")].concat();
            let query = "select made_now, state, recorded_at from pgonce.ledger_post($1, $2, $3::text::jsonb, \
                         to_jsonb($4::text), $5::text::bigint, $6)";
            let params = vec![
                Some(post.name.source),
                Some(post.name.operation),
                Some(Value::from(entries).to_string()),
                post.memo,
                post.pending.map(|fence| fence.to_string()),
                Some(tenant),
            ];
            act(query, params).await
        }
        Action::Settle(settle) => {
            let query = "select pgonce.ledger_settle($1, $2, $3, $4::text::bigint, $5) as made_now, $3::text as state";
            let Name { source, operation } = settle.name;
            require_group(&database, [&tenant, &source, &operation]).await?;
            let fence = settle.fence.to_string();
            let params = [source, operation, settle.state, fence, tenant];
            act(query, params.map(Some).to_vec()).await
        }
        Action::Reverse(reverse) => {
            let query = "select made_now, state, recorded_at from pgonce.ledger_reverse($1, $2, $3, $4, to_jsonb($5::text), $6)";
            let Name { source, operation } = reverse.name;
            let of = [reverse.of_source, reverse.of_operation];
            require_group(&database, [&tenant, &of[0], &of[1]]).await?;
            let params = [source, operation].into_iter().chain(of).map(Some);
            let params = params.chain([reverse.memo, Some(tenant)]).collect();
            act(query, params).await
        }
        Action::Verify(verify) if verify.all_tenants && named.is_some() => Err(CliError::new(
            exit::USAGE,
            "--all-tenants and --tenant contradict each other",
            "Give one of them.",
        )),
        Action::Verify(_) => verify(&database, named.as_deref()).await,
        Action::Repair(repair) => self::repair(&database, repair, &tenant).await,
    }
}

async fn require_group(database: &Database, [tenant, source, operation]: [&String; 3]) -> Result {
    let known = "exists (select from pgonce.ledger_group g where g.tenant = $1 and g.source = $2 and g.operation = $3)";
    let params = [tenant, source, operation].map(|text| Some(&**text));
    let unknown = || {
        CliError::new(
            exit::NOT_FOUND,
            format!("there is no group of operation {operation:?} of source {source:?}"),
            "`pgonce ledger groups` lists the groups; --tenant names the tenant.",
        )
    };
    database.require(known, &params, unknown).await
}

async fn verify(database: &Database, tenant: Option<&str>) -> Result {
    let query = "select * from pgonce.ledger_verify($1)";
    let rows = database.read(query, &[tenant]).await?;
    let nothing = "The ledger is what was recorded.";
    exit::before_verdict(output::rows(database.format, &rows, nothing))?;
    if rows.is_empty() {
        return Ok(());
    }
    Err(CliError::new(
        exit::FAILED,
        format!("{} problems were found in the ledger", rows.len()),
        "`pgonce ledger repair` fixes problems of kind balance, of the tenant that --tenant names. Others mean that tables were changed by hand: find out by whom.",
    ))
}

/// Wrong balances, and those among them that a repair leaves alone: their entries themselves were changed.
const WRONG: &str = "select count(*) filter (where not w.broken) as wrong, count(*) filter (where w.broken) as broken \
     from (select bool_or(v.problem = 'chain') as broken from pgonce.ledger_verify($1) v where v.problem in ('balance', 'chain') \
           group by v.tenant, v.account, substring(v.detail from 'shard ([0-9]+)') having bool_or(v.problem = 'balance')) w";

/// What a repair leaves alone is still wrong.
fn refuse_broken(count: u64) -> Result {
    match count {
        0 => Ok(()),
        _ => Err(CliError::new(
            exit::FAILED,
            format!(
                "{count} balances are left as they are: the entries of their accounts were changed or removed"
            ),
            "`pgonce ledger verify` lists these entries, with problem chain: find out by whom, and restore them.",
        )),
    }
}

async fn repair(database: &Database, repair: Repair, tenant: &str) -> Result {
    let row = database.read_row(WRONG, &[Some(tenant)]).await?;
    let row: Value = serde_json::from_str(&row.unwrap_or_default())?;
    let [wrong, broken] = ["wrong", "broken"].map(|name| row[name].as_u64().unwrap_or_default());
    // What becomes wrong only now was asked about by nobody.
    if wrong == 0 && (broken > 0 || !repair.confirm.is_dry_run()) {
        refuse_broken(broken)?;
        return output::rows(database.format, &[], "Every balance is right.");
    }
    let what = format!("set {wrong} cached balances to what their entries say");
    if !repair.confirm.ask(database.format, &what, wrong)? {
        return refuse_broken(broken);
    }
    let query = "select * from pgonce.ledger_repair($1, $2)";
    let params = [Some(&*repair.reason), Some(tenant)];
    let rows = database.rows(query, &params).await?;
    let nothing = "Every balance is right.";
    exit::before_verdict(output::rows(database.format, &rows, nothing))?;
    let broken = rows
        .iter()
        .filter(|row| row.contains(r#""repaired":false"#));
    refuse_broken(broken.count() as u64)
}
