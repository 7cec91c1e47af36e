//! `pgonce audit`: who did what, to every part.

use crate::database::Target;
use crate::exit::Result;
use crate::output;

/// Which acts to list.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only acts on this part: a scope, or such as 'outbox billing', 'inbox billing', 'job mail', 'queue mail', 'ledger'.
    #[arg(long)]
    part: Option<String>,
    /// Only acts on this key, or this number of an event, message or job.
    #[arg(long)]
    key: Option<String>,
    /// Only this act, such as settle or skip.
    #[arg(long)]
    act: Option<String>,
    /// Only acts of this person or database role.
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// Only this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Only acts of so long ago or later, such as 2h.
    #[arg(long, value_name = "TIME", value_parser = crate::scope::length)]
    since: Option<String>,
    /// Maximum number of acts.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.installed().await?;
    let query = "select o.acted_at as at, o.act, o.scope as part, o.key, o.tenant, o.person, o.role, o.forced, o.reason, o.before \
                 from pgonce.operator_act o where ($1::text is null or o.scope = $1) and ($2::text is null or o.key = $2) \
                 and ($3::text is null or o.act = $3) and ($4::text is null or $4 in (o.person, o.role::text)) \
                 and ($5::text is null or o.tenant = $5) and ($6::text is null or o.acted_at >= pgonce.now() - $6::text::interval) \
                 order by o.acted_at desc, o.number desc limit $7::text::integer";
    let limit = args.limit.to_string();
    let params = [
        args.part.as_deref(),
        args.key.as_deref(),
        args.act.as_deref(),
        args.who.as_deref(),
        args.tenant.as_deref(),
        args.since.as_deref(),
        Some(&*limit),
    ];
    let rows = database.read(query, &params).await?;
    output::rows(database.format, &rows, "Nobody has intervened by hand.")
}
