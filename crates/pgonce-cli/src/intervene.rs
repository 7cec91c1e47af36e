//! `pgonce intent settle`, `fail`, `release`, `retry` and `evict`: what an operator decides, with a reason.

use serde_json::json;

use crate::confirm::{Confirm, code, document, reason};
use crate::database::{Database, Target};
use crate::exit::{self, CliError, Result};
use crate::intents::{require_scope, stored_key};
use crate::output;

/// Maximum number of intents that one command changes; where more match, it says so.
const MAX_INTENTS: usize = 10_000;

/// What an act on an intent of pgonce.intent is about: one that was changed since is not acted on. While its holder is alive, only the
/// end of its lease may move.
const BEFORE: &str = "jsonb_build_object('status', i.status, 'fence', i.fence) \
     || case when i.lease_until > pgonce.now() then '{}' else jsonb_build_object('lease_until', i.lease_until) end";

/// Which intents, and why.
#[derive(Debug, clap::Args)]
pub(crate) struct ActArgs {
    /// The scope, such as orders.create.
    scope: String,
    /// The key, as the client sent it or as it is stored.
    #[arg(required_unless_present_any = ["stuck", "failed"])]
    key: Option<String>,
    /// All intents of the scope that `pgonce intent stuck` lists, instead of one key.
    #[arg(long, conflicts_with = "key")]
    stuck: bool,
    /// All intents of the scope that failed permanently with this code, instead of one key.
    #[arg(long, value_name = "CODE", conflicts_with_all = ["key", "stuck"])]
    failed: Option<String>,
    /// With --stuck: only those with this classification, such as needs_manual_action.
    #[arg(long, value_name = "NAME", requires = "stuck")]
    classification: Option<String>,
    /// With --stuck or --failed: only those that were touched last by this owner.
    #[arg(long, conflicts_with = "key")]
    owner: Option<String>,
    /// With --stuck or --failed: only those of before so long ago.
    #[arg(long, value_name = "TIME", value_parser = crate::scope::length, conflicts_with = "key")]
    older_than: Option<String>,
    /// With --stuck or --failed: only those whose key begins so.
    #[arg(long, conflicts_with = "key")]
    prefix: Option<String>,
    /// Why, such as a ticket; it is kept with your name.
    #[arg(long, value_parser = reason)]
    reason: String,
    /// The tenant.
    #[arg(long, default_value = "", hide_default_value = true)]
    tenant: String,
    /// Do it even if that could open a second effect; confirm by writing the scope's name again.
    #[arg(long, value_name = "SCOPE")]
    force: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
}

/// It happened.
#[derive(Debug, clap::Args)]
pub(crate) struct SettleArgs {
    #[command(flatten)]
    act: ActArgs,
    /// The answer that every retry gets, a JSON document.
    #[arg(long, value_name = "JSON", value_parser = document)]
    answer: Option<String>,
}

/// It failed.
#[derive(Debug, clap::Args)]
pub(crate) struct FailArgs {
    #[command(flatten)]
    act: ActArgs,
    /// The code that every retry gets.
    #[arg(long, value_parser = code)]
    code: String,
    /// The text that every retry gets.
    #[arg(long)]
    message: Option<String>,
}

pub(crate) async fn settle(args: SettleArgs, target: Target) -> Result {
    let more = [args.answer.as_deref(), None, None];
    act("settle", &args.act, more, target).await
}

pub(crate) async fn fail(args: FailArgs, target: Target) -> Result {
    let more = [None, Some(&*args.code), args.message.as_deref()];
    act("fail", &args.act, more, target).await
}

/// `more`: the answer, the failure's code and its message.
pub(crate) async fn act(
    act: &'static str,
    args: &ActArgs,
    more: [Option<&str>; 3],
    target: Target,
) -> Result {
    if args
        .force
        .as_ref()
        .is_some_and(|typed| *typed != args.scope)
    {
        return Err(CliError::new(
            exit::NOT_CONFIRMED,
            "--force does not name the scope, nothing was done",
            format!(
                "If a second effect is what you want: --force {}",
                args.scope
            ),
        ));
    }
    let database = target.installed().await?;
    if database.is_distributed().await? {
        return Err(CliError::new(
            exit::CHANGED,
            "operators' acts on intents do not work where Citus distributes pgonce's tables",
            "See `pgonce intent stuck`: what is safe to retry is done by the next attempt.",
        )
        .coded("P4105"));
    }
    let Chosen {
        mut intents,
        refused,
    } = chosen(&database, act, args).await?;
    // One more than may be changed was asked for: so the count is never wrong without a word.
    let cut = intents.len() > MAX_INTENTS;
    intents.truncate(MAX_INTENTS);
    let mut what = match &intents[..] {
        [(key, _)] => format!("{act} {} of {}", output::printable(key), args.scope),
        intents if cut => format!(
            "{act} the first {} intents of {}, by key; more match, for which it is to be run again",
            intents.len(),
            args.scope
        ),
        intents => format!("{act} {} intents of {}", intents.len(), args.scope),
    };
    if refused > 0 {
        what += &format!(
            ", of which {refused} do not fit or need --force {}",
            args.scope
        );
    }
    let counted = json!({"count": intents.len(), "refused": refused});
    if !args.confirm.ask_about(database.format, &what, &counted)? {
        return match refused {
            0 => Ok(()),
            _ => Err(CliError::new(
                exit::FAILED,
                format!("{refused} of {} intents would be refused", intents.len()),
                find_out(args),
            )
            .coded("55000")),
        };
    }
    let (mut done, mut refused, mut failed) = (0_usize, Vec::new(), None);
    for (key, before) in &intents {
        match one(&database, act, args, [key, before], more).await {
            Ok(()) => done += 1,
            // One that was changed meanwhile does not stop the others.
            Err(error) if args.key.is_none() && matches!(error.words().1, "55000" | "42704") => {
                refused.push(error);
            }
            Err(error) if args.key.is_some() => return Err(error),
            Err(error) => {
                failed = Some((key, error));
                break;
            }
        }
    }
    let mut words = format!("{act}: {done} done, {} refused", refused.len());
    let mut value = json!({"act": act, "done": done, "refused": refused.len(), "more": cut});
    // What was done is done, whatever became of the next one.
    if let Some((key, _)) = &failed {
        let left = intents.len() - done - refused.len();
        words += &format!(", {left} left; it ended at {}", output::printable(key));
        value["left"] = json!(left);
        value["ended_at"] = json!(key);
    }
    if cut {
        words += "; more match: run it again";
    }
    exit::before_verdict(output::say(database.format, &words, &value))?;
    let failed = failed.map(|(_, error)| error);
    failed.or(refused.into_iter().next()).map_or(Ok(()), Err)
}

/// What pgonce.intervene would refuse is refused before anybody is asked, and by --dry-run too. Gives what the intent is, for
/// [`BEFORE`].
async fn require_fitting(
    database: &Database,
    act: &str,
    args: &ActArgs,
    key: &str,
) -> Result<String> {
    let query = format!(
        "select i.status, r.fits, r.risk, ({BEFORE})::text as before from pgonce.intent i cross join lateral pgonce._act_risk($4, i) r \
         where i.tenant = $1 and i.scope = $2 and i.key = $3"
    );
    let params = [
        Some(&*args.tenant),
        Some(&*args.scope),
        Some(key),
        Some(act),
    ];
    let Some(row) = database.read_row(&query, &params).await? else {
        return Ok("{}".to_owned());
    };
    let row: serde_json::Value = serde_json::from_str(&row)?;
    let status = row["status"].as_str().unwrap_or_default();
    let refused = match row["risk"].as_str().filter(|_| args.force.is_none()) {
        _ if row["fits"] == false => CliError::new(
            exit::FAILED,
            format!("an intent that is {status} cannot be changed by {act}"),
            "settle, fail: what is not finished; release: a lease, or what had a holder that vanished; retry: a permanent failure; evict: any.",
        ),
        Some(risk) => CliError::new(
            exit::FAILED,
            format!("{act} could open a second effect: {risk}"),
            find_out(args),
        ),
        None => return Ok(row["before"].as_str().unwrap_or_default().to_owned()),
    };
    Err(refused.coded("55000"))
}

fn find_out(args: &ActArgs) -> String {
    format!(
        "Find out whether it happened, then settle or fail it; if a second effect is acceptable: --force {}",
        args.scope
    )
}

/// An act that fits none of those that are selected, whatever their states.
fn require_fitting_selection(act: &str, args: &ActArgs) -> Result {
    let (option, selected, acts) = match (&args.failed, act) {
        (Some(_), "settle" | "fail" | "release") => {
            ("--failed", "what failed permanently", "retry and evict")
        }
        (None, "retry") => (
            "--stuck",
            "what is not finished",
            "settle, fail, release and evict",
        ),
        _ => return Ok(()),
    };
    Err(CliError::new(
        exit::USAGE,
        format!("{option} selects {selected}, which {act} cannot change"),
        format!("With {option}: {acts}."),
    ))
}

/// The intents that an act is about, each by its key and what it is, and how many of them it would refuse.
#[derive(Default)]
struct Chosen {
    intents: Vec<(String, String)>,
    refused: usize,
}

async fn chosen(database: &Database, act: &str, args: &ActArgs) -> Result<Chosen> {
    if let Some(key) = &args.key {
        let names = [Some(&*args.tenant), Some(&*args.scope), Some(&**key)];
        let key = stored_key(database, names).await?;
        let before = require_fitting(database, act, args, &key).await?;
        return Ok(Chosen {
            intents: vec![(key, before)],
            refused: 0,
        });
    }
    require_scope(database, &args.scope).await?;
    require_fitting_selection(act, args)?;
    let source = match &args.failed {
        None => {
            "(select *, stuck_for as age from pgonce.stuck) i where ($6::text is null or classification = $6)"
        }
        Some(_) => {
            "(select *, pgonce.now() - last_at as age from pgonce.intent) i where status = 'failed_final' and failure_code = $6"
        }
    };
    let query = format!(
        "select k.key, r.fits and (r.risk is null or $9::text::boolean) as goes, ({BEFORE})::text as before \
         from (select tenant, scope, key from {source} and tenant = $1 and scope = $2 and ($4::text is null or owner = $4) \
               and ($5::text is null or age >= $5::text::interval) and ($7::text is null or starts_with(key, $7)) \
               order by key limit $3::text::integer) k \
         join pgonce.intent i on i.tenant = k.tenant and i.scope = k.scope and i.key = k.key \
         cross join lateral pgonce._act_risk($8, i) r order by k.key"
    );
    let limit = (MAX_INTENTS + 1).to_string();
    let force = args.force.is_some().to_string();
    let params = [
        Some(&*args.tenant),
        Some(&*args.scope),
        Some(&*limit),
        args.owner.as_deref(),
        args.older_than.as_deref(),
        args.failed.as_deref().or(args.classification.as_deref()),
        args.prefix.as_deref(),
        Some(act),
        Some(&*force),
    ];
    let mut chosen = Chosen::default();
    for row in database.read(&query, &params).await? {
        let row: serde_json::Value = serde_json::from_str(&row)?;
        if chosen.intents.len() < MAX_INTENTS && row["goes"] == false {
            chosen.refused += 1;
        }
        let [key, before] = ["key", "before"].map(|name| row[name].as_str().map(str::to_owned));
        chosen.intents.extend(key.zip(before));
    }
    Ok(chosen)
}

async fn one(
    database: &Database,
    act: &str,
    args: &ActArgs,
    [key, before]: [&str; 2],
    [answer, code, message]: [Option<&str>; 3],
) -> Result {
    let query = "select pgonce.intervene($1, $2, $3, $4, $5::text::boolean, $6::text::jsonb, $7, $8, $9, p_before => $10::text::jsonb) as before";
    let force = args.force.is_some().to_string();
    let params = [
        Some(act),
        Some(&args.scope),
        Some(key),
        Some(&args.reason),
        Some(&force),
        answer,
        code,
        message,
        Some(&args.tenant),
        Some(before),
    ];
    database
        .row(query, &params)
        .await
        .map(|_| ())
        .map_err(|error| {
            let error = match &args.force {
                None => error.with_hint("55000", &find_out(args)),
                Some(_) => error,
            };
            error.with_exit("42704", exit::NOT_FOUND)
        })
}
