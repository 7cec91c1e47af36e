//! Setting a rule in all regions: first it forbids everywhere, and when what it forbids has ended it permits.

use std::time::Duration;

use super::member::{Known, Member, all_are_named, deadline_of};
use super::{Mode, Rule};
use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::{Error, ErrorDetail, Result};

static DEFINE: Sql =
    Sql::seldom("select 'done' from pgonce.define_region_rule($1, $2, $3, $4::text::interval, $5)");
static APPLY: Sql = Sql::seldom("select 'done' from pgonce._apply_region_rule($1, $2)");
static OTHER_PENDING: Sql = Sql::seldom(
    "select pg_catalog.concat_ws(' ', 'mode', r.mode, 'home', r.home, 'max_lag', coalesce(r.max_lag::text, 'none')) from pgonce.region_rule r \
     where r.pending and r.scope operator(pg_catalog.=) $1 and r.tenant operator(pg_catalog.=) $5 \
     and (r.mode operator(pg_catalog.<>) $2 or r.home operator(pg_catalog.<>) $3 or r.max_lag is distinct from $4::text::interval)",
);

impl Rule {
    fn args(&self) -> Args<'_> {
        let mode = match self.mode {
            Mode::Home => "home",
            Mode::Local => "local",
            Mode::ReadOnly => "read_only",
        };
        Args::texts([&*self.scope, mode, &*self.home])
            .interval(self.max_lag)
            .text(&*self.tenant)
    }
}

/// Says where the intents of a scope are worked on, in all regions: `members` are all that are not lost.
///
/// Where a home moves, no two regions commit the same intent: the rule forbids in every region before it permits in any, work that
/// it forbids ends (transactions that have written, leases, and commands that have called a provider are waited for, up to
/// `timeout`), and its new home has what was committed. Until then claims of what moves are answered with `P4110` or `P4111`, but
/// for those of such commands at the old home, also after an error; repeat it then.
///
/// ```no_run
/// # async fn example(us: pgonce::tokio_postgres::Once, eu: pgonce::tokio_postgres::Once) -> Result<(), pgonce::Error> {
/// use std::time::Duration;
/// use pgonce::region::{Member, Mode, Rule, define_rule};
///
/// let members = [Member::new(us, ""), Member::new(eu, "")];
/// let rule = Rule::new("payments.create", Mode::Home).home("eu");
/// define_rule(&members, &rule, Duration::from_secs(60)).await?;
/// # Ok(())
/// # }
/// ```
pub async fn define_rule<D: Driver>(
    members: &[Member<D>],
    rule: &Rule,
    timeout: Duration,
) -> Result<()> {
    let deadline = deadline_of(timeout);
    if let [single] = members
        && single.if_region(deadline).await?.is_none()
    {
        return single
            .locking(&DEFINE, || rule.args(), deadline)
            .await
            .map(drop);
    }
    let mut regions = Vec::new();
    for member in members {
        regions.push((member, member.itself(deadline).await?));
    }
    // In one order, so that of two commands at once the second is refused before it has changed anything.
    regions.sort_by_key(|(_, known)| known.id);
    let known: Vec<&Known> = regions.iter().map(|(_, known)| known).collect();
    let all: Vec<&Member<D>> = regions.iter().map(|(member, _)| *member).collect();
    for (member, region) in &regions {
        if region.state == "restored" {
            return Err(must_join(region));
        }
        if let Some(other) = member.text(&OTHER_PENDING, rule.args(), deadline).await? {
            return Err(Error::Invalid(ErrorDetail::new(
                "55000",
                format!(
                    "another rule of this scope is pending in region {:?}: {other}",
                    region.name
                ),
                "It may be in force in some regions: run `pgonce region rule` with that one again, and then with this one.",
            )));
        }
    }
    all_are_named(&all, &known).await?;
    for (member, _) in &regions {
        member.locking(&DEFINE, || rule.args(), deadline).await?;
    }
    // Again: one that joined meanwhile may have copied the rules before.
    all_are_named(&all, &known).await?;
    for (member, region) in &regions {
        member.drain(&region.name, deadline).await?;
    }
    for (member, region) in &regions {
        let others: Vec<_> = regions
            .iter()
            .filter(|(_, other)| other.id != region.id)
            .map(|(member, known)| (*member, known))
            .collect();
        if !member.reaches(region, &others, deadline).await? {
            return Err(must_join(region));
        }
    }
    for (member, _) in &regions {
        let args = || Args::texts([&*rule.scope, &*rule.tenant]);
        member.locking(&APPLY, args, deadline).await?;
    }
    Ok(())
}

fn must_join(region: &Known) -> Error {
    Error::Invalid(ErrorDetail::new(
        "55000",
        format!("region {:?} was restored or promoted", region.name),
        "Run `pgonce region join` for it again, then this command.",
    ))
}
