//! `pgonce region`: databases in several regions that share intents.

use std::time::Duration;

use clap::Subcommand;
use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::region::{self, Member, Mode};
use serde_json::json;

use crate::confirm::Confirm;
use crate::database::{Database, Target};
use crate::exit::{self, CliError, Result};
use crate::output;

/// What to do with regions.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make this database a region and connect it with the others; again after it was restored or promoted.
    Join(Join),
    /// List the regions that this one knows.
    List,
    /// Show how far behind the other regions this one is, and what needs an operator; exits with 12 where something does.
    Status,
    /// Take a region out, or this one: its intents get another home. With its own database among those that are named it ends its
    /// work first, and the others receive the last of it; otherwise they share what they have received.
    Leave(Leave),
    /// Say where the intents of a scope are worked on, in every region, once what the rule forbids has ended.
    Rule(Rule),
    /// List what more than one region committed, and what was done about it.
    Tasks(Tasks),
    /// Record what was done about the surplus effects of an intent, in all regions.
    Resolve(Resolve),
}

#[derive(Debug, clap::Args)]
struct Others {
    /// Address of the database of another region, as the databases reach it too. Once for each region that is not lost.
    #[arg(long = "with", value_name = "URL", hide_env_values = true)]
    with: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct Join {
    /// Number of this region, from 1 to 63; it never changes.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=63))]
    id: u8,
    /// Name of this region, such as eu.
    #[arg(long)]
    name: String,
    /// Where its services are reached, such as https://eu.shop.example.
    #[arg(long, value_name = "URL", default_value = "")]
    address: String,
    /// Address by which the other databases reach this one [default: that of --database-url].
    #[arg(long, value_name = "URL")]
    reached_at: Option<String>,
    #[command(flatten)]
    others: Others,
    #[command(flatten)]
    limit: Limit,
}

#[derive(Debug, clap::Args)]
struct Limit {
    /// Maximum time to wait for the regions to receive what was committed, and for what is under way to end.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(..=86_400))]
    timeout: u64,
}

impl Limit {
    fn get(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

#[derive(Debug, clap::Args)]
struct Leave {
    /// The region.
    name: String,
    #[command(flatten)]
    others: Others,
    #[command(flatten)]
    limit: Limit,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, clap::Args)]
struct Rule {
    /// The scope; '*' for all without a rule.
    scope: String,
    /// What other regions than the home may do with an intent that has no answer.
    #[arg(long, value_parser = ["home", "local", "read_only"])]
    mode: String,
    /// What the home follows from: key, tenant, or the name of a region.
    #[arg(long, default_value = "key")]
    home: String,
    /// With --mode local: beyond this lag behind the home, requests go there [default: no limit].
    #[arg(long, value_parser = crate::scope::duration)]
    max_lag: Option<Duration>,
    /// Only for this tenant.
    #[arg(long, default_value = "", hide_default_value = true)]
    tenant: String,
    #[command(flatten)]
    others: Others,
    #[command(flatten)]
    limit: Limit,
}

#[derive(Debug, clap::Args)]
struct Tasks {
    /// Also those that are resolved.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, clap::Args)]
struct Resolve {
    /// The scope.
    scope: String,
    /// The key.
    key: String,
    /// What was done, such as a ticket or the number of a refund.
    #[arg(long)]
    resolution: String,
    /// The tenant; empty where there are none.
    #[arg(long, default_value = "", hide_default_value = true)]
    tenant: String,
}

const LIST: &str = "select id, name, address, is_self, state, epoch, last_beat_at, lag, connected from pgonce.regions order by id";
const NO_REGIONS: &str = "This database is no region; `pgonce region join` makes it one.";

pub(crate) async fn run(args: Args, target: Target) -> Result {
    match args.action {
        Action::Join(join) => join.run(target).await,
        Action::Leave(leave) => leave.run(target).await,
        Action::Rule(rule) => rule.run(target).await,
        Action::Status => status(target.installed().await?).await,
        Action::List => {
            let database = target.installed().await?;
            output::rows(
                database.format,
                &database.read(LIST, &[]).await?,
                NO_REGIONS,
            )
        }
        Action::Tasks(tasks) => {
            let database = target.installed().await?;
            let query = "select * from pgonce.double_commits where $1::text = 'true' or resolved_at is null order by found_at";
            let all = tasks.all.to_string();
            let rows = database.read(query, &[Some(&all)]).await?;
            output::rows(database.format, &rows, "Nothing was committed twice.")
        }
        Action::Resolve(resolve) => resolve.run(target.installed().await?).await,
    }
}

/// A database as a member, for which several statements are made.
async fn member(target: Target, reached_at: &str) -> Result<Member<TokioPostgres>> {
    let database = target.installed().await?;
    database.name_person().await?;
    let once = Once::builder(database.driver).schema(database.schema);
    Ok(Member::new(once.build()?, reached_at))
}

async fn members(target: &Target, others: &Others) -> Result<Vec<Member<TokioPostgres>>> {
    let mut members = Vec::new();
    for url in &others.with {
        members.push(member(target.elsewhere(url), url).await?);
    }
    Ok(members)
}

impl Join {
    async fn run(self, target: Target) -> Result {
        let format = target.format();
        let reached_at = self.reached_at.as_deref().or(target.given_url());
        let reached_at = reached_at.ok_or_else(|| {
            CliError::new(
                exit::USAGE,
                "how the other databases reach this one is not known",
                "Give --reached-at, or --database-url.",
            )
        })?;
        let reached_at = reached_at.to_owned();
        let others = members(&target, &self.others).await?;
        let this = member(target, &reached_at).await?;
        let timeout = self.limit.get();
        region::join(&this, self.id, &self.name, &self.address, &others, timeout).await?;
        let words = format!("region {} has joined {} others", self.name, others.len());
        output::say(
            format,
            &words,
            &json!({"joined": self.name, "others": others.len()}),
        )
    }
}

impl Leave {
    async fn run(self, target: Target) -> Result {
        let format = target.format();
        let mut survivors = Vec::new();
        let mut itself = None;
        let others = self.others.with.iter().map(|url| target.elsewhere(url));
        let mut targets: Vec<Target> = others.collect();
        targets.push(target);
        for target in targets {
            let database = target.installed().await?;
            let query =
                "select exists (select from pgonce.region where is_self and name = $1) as is_it";
            let row = database.read_row(query, &[Some(&self.name)]).await?;
            database.name_person().await?;
            let once = Once::builder(database.driver).schema(database.schema);
            let member = Member::new(once.build()?, "");
            match row.unwrap_or_default().contains("true") {
                true => itself = Some(member),
                false => survivors.push(member),
            }
        }
        let what = format!(
            "take region {} out of {} others",
            self.name,
            survivors.len()
        );
        let timeout = self.limit.get();
        region::check_leave(&self.name, &survivors, itself.as_ref(), timeout).await?;
        if !self.confirm.ask(format, &what, 1)? {
            return Ok(());
        }
        let after = region::leave(&self.name, &survivors, itself.as_ref(), timeout).await?;
        let after = after.map(|time| humantime::format_rfc3339_millis(time).to_string());
        let words = match &after {
            None => format!(
                "region {} has left; the others have all that it committed",
                self.name
            ),
            Some(after) => format!(
                "region {} was taken out; what it committed after {after} is not known until it joins again",
                self.name
            ),
        };
        output::say(
            format,
            &words,
            &json!({"left": self.name, "unknown_after": after}),
        )
    }
}

impl Rule {
    async fn run(self, target: Target) -> Result {
        let format = target.format();
        let mode = match &*self.mode {
            "home" => Mode::Home,
            "local" => Mode::Local,
            _ => Mode::ReadOnly,
        };
        let mut rule = region::Rule::new(&*self.scope, mode).home(&*self.home);
        rule = rule.tenant(&*self.tenant);
        if let Some(max_lag) = self.max_lag {
            rule = rule.max_lag(max_lag);
        }
        let mut all = members(&target, &self.others).await?;
        all.push(member(target, "").await?);
        region::define_rule(&all, &rule, self.limit.get()).await?;
        let count = all.len();
        let words = format!(
            "the rule of scope {} is in force in {count} regions",
            self.scope
        );
        output::say(
            format,
            &words,
            &json!({"scope": self.scope, "regions": count}),
        )
    }
}

impl Resolve {
    async fn run(self, database: Database) -> Result {
        let query = "select pgonce.resolve_double_commit($1, $2, $3, $4) as n";
        let params = [&*self.scope, &*self.key, &*self.resolution, &*self.tenant].map(Some);
        let count = database.count(query, &params).await?;
        if count == 0 {
            return Err(CliError::new(
                exit::NOT_FOUND,
                "nothing is to be resolved for this intent",
                "`pgonce region tasks` lists what is.",
            ));
        }
        let words = format!("{count} surplus effects are resolved");
        output::say(database.format, &words, &json!({"resolved": count}))
    }
}

async fn status(database: Database) -> Result {
    let query = "select name, is_self, state, lag, connected, pending, double_commits, concat_ws('; ',
        case when state = 'restored' then 'join again' end,
        case when state = 'joining' then 'has not joined' end,
        case when state = 'leaving' then 'is leaving: run pgonce region leave again' end,
        case when is_self and pending_rules is not null then 'the rule of ' || pending_rules || ' is pending: run pgonce region rule again' end,
        case when not is_self and state = 'active' and missed then 'facts were missed: join again' end,
        case when not is_self and state = 'active' and connected is not true then 'nothing arrives: look at the server''s log' end,
        case when not is_self and state = 'active' and (lag > interval '1 minute' or lag is null and not missed) then 'no heartbeat: does pgonce serve run there?' end,
        case when is_self and pending > 0 then 'facts are not merged' end,
        case when is_self and double_commits > 0 then 'pgonce region tasks' end) as needs from pgonce.regions order by id";
    let rows = database.read(query, &[]).await?;
    exit::before_verdict(output::rows(database.format, &rows, NO_REGIONS))?;
    match rows.iter().any(|row| !row.contains(r#""needs":"""#)) {
        true => Err(CliError::quiet(exit::FINDINGS)),
        false => Ok(()),
    }
}
