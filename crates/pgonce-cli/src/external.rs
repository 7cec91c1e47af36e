//! `pgonce external`: calls to providers, and what an operator decides about those with an unknown outcome.

use clap::Subcommand;
use serde_json::json;

use crate::confirm::{Confirm, code, document, reason};
use crate::database::{Database, Target};
use crate::exit::{self, CliError, Result};
use crate::look::{Found, LOOK, among};
use crate::output;

/// What to do with calls to providers.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// The tenant; empty where there are none.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    tenant: String,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List calls, the newest first.
    List(List),
    /// Show one call whole, with what the provider reported and what operators decided.
    Show(One),
    /// Decide a call: it happened, it did not and will not, or it did not and is to be sent again.
    Settle(Settle),
    /// List providers: what they can do, what they allow, and how they are doing.
    Providers,
}

#[derive(Debug, clap::Args)]
struct List {
    /// Only calls to this provider.
    #[arg(long)]
    provider: Option<String>,
    /// Only calls with this status; open: those that are not decided; disputed: what the provider said of them differs.
    #[arg(long, value_parser = ["requested", "sent", "unknown", "needs_operator", "confirmed", "failed", "open", "disputed"])]
    status: Option<String>,
    /// Maximum number of calls. The newest 20000 are looked at; of those without an outcome, the ones whose deadline comes first.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

#[derive(Debug, clap::Args)]
struct One {
    /// The call's effect key, as `list` shows it.
    effect_key: String,
}

#[derive(Debug, clap::Args)]
struct Settle {
    #[command(flatten)]
    one: One,
    /// confirmed: it happened; failed: it did not and will not; resend: it did not, send it again.
    #[arg(value_parser = ["confirmed", "failed", "resend"])]
    outcome: String,
    /// Why, such as a ticket; it is kept with your name.
    #[arg(long, value_parser = reason)]
    reason: String,
    /// What the provider calls it.
    #[arg(long, value_parser = reference)]
    reference: Option<String>,
    /// The provider's response, a JSON document, for the next attempt of the command.
    #[arg(long, value_name = "JSON", value_parser = document)]
    response: Option<String>,
    /// The answer of the command, a JSON document, where the call decides it.
    #[arg(long, value_name = "JSON", value_parser = document)]
    answer: Option<String>,
    /// The code of the failure.
    #[arg(long, value_parser = code)]
    code: Option<String>,
    /// Do it even if that could open a second effect; confirm by writing the effect key again.
    #[arg(long, value_name = "EFFECT_KEY")]
    force: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
}

/// As long as the database stores one.
fn reference(text: &str) -> std::result::Result<String, String> {
    match text.len() {
        ..=1000 => Ok(text.to_owned()),
        bytes => Err(format!(
            "a reference has at most 1000 bytes, this one has {bytes}"
        )),
    }
}

/// Of the calls of the tenant that may be meant, at most 20000 are looked at: of those without an outcome the ones whose deadline comes first, of
/// all others the newest.
fn list(status: Option<&str>) -> String {
    let of = |which: &str, order: &str, only: &str, limit: &str| {
        let look = format!(
            "select c.*, case when c.status in ('sent', 'unknown') then pgonce._external_status(c) else c.status::text end as shown \
             from pgonce.external_call c where {which} and c.tenant = $1 order by {order}"
        );
        let condition = format!(
            "{only} and x.provider = coalesce($2, x.provider) and case coalesce($3, 'any') when 'any' then true \
             when 'open' then x.shown not in ('confirmed', 'failed') when 'disputed' then x.disputed is not null else x.shown = $3 end"
        );
        among(&look, LOOK, &condition, limit)
    };
    let newest = "c.requested_at desc, c.effect_key desc";
    let first = |which: &str, only: &str| of(which, newest, only, "$4::text::int");
    // The newest of them are shown, and they come by deadline.
    let undecided = || {
        of(
            "c.status in ('sent', 'unknown')",
            "c.deadline_at",
            "true",
            "all",
        )
    };
    let look = match status {
        Some("sent" | "unknown" | "needs_operator") => undecided(),
        Some("open") => format!(
            "{} union all {}",
            undecided(),
            first("true", "x.status = 'requested'")
        ),
        Some("disputed") => first("c.disputed is not null", "true"),
        _ => first("true", "true"),
    };
    format!(
        "select c.effect_key, c.provider, c.step, c.scope, c.key, c.shown as status, c.reference, c.sends, c.looks, c.sent_at, c.deadline_at, \
         c.decided_at, c.decided_by, c.failure_code, c.disputed, c.matches, bool_or(c.stopped) over () as stopped from ({look}) c \
         order by c.stopped and not c.matches, {newest} limit $4::text::int"
    )
}

/// Whether calls that are looked at by their deadline are among those listed.
fn is_by_deadline(status: Option<&str>) -> bool {
    matches!(status, Some("sent" | "unknown" | "needs_operator" | "open"))
}

const SHOW: &str = "select c.*, \
    (select json_agg(json_build_object('at', e.seen_at, 'event_id', e.event_id, 'outcome', e.outcome, 'reference', e.reference) order by e.seen_at) \
    from pgonce.external_event e where e.tenant = c.tenant and e.provider = c.provider and e.effect_key = c.effect_key) as events, \
    (select json_agg(json_build_object('at', o.acted_at, 'act', o.act, 'role', o.role, 'person', o.person, 'reason', o.reason, 'forced', o.forced) order by o.number) \
    from pgonce.operator_act o where o.tenant = c.tenant and o.scope = c.scope and o.key = c.key) as acts \
    from pgonce.external_calls c where c.tenant = $1 and c.effect_key = case when $2 ~ '^[0-9a-fA-F-]{36}$' then $2::text::uuid end";

// One that nobody defined has the rules of '*'.
const PROVIDERS: &str = "select p.provider, r.keys_for, r.deadline, r.look_after, r.backoff, r.max_backoff, r.rate, r.rate_per, \
    r.trip_after, r.trip_for, p.failures, p.open_until from pgonce.external_provider p \
    join pgonce.external_provider r on r.provider = case when p.defined_at is null then '*' else p.provider end order by p.provider";

/// Whether a decision would be refused: by a risk, unless it is forced, or because the command is over. And what the call is, so that one
/// that was decided or sent again since, or has got a reference or a dispute, is not settled.
const RISK: &str = "select pgonce._external_risk(c, i, $3) as risk, $3 = 'resend' and c.status in ('confirmed', 'failed') \
    and (c.ended_at is not null or c.expires_at <= coalesce(i.first_at, pgonce.now())) as ended, \
    (jsonb_build_object('status', c.status, 'sends', c.sends, 'fence', c.fence, 'sent_at', c.sent_at) \
     || case when c.reference is null then jsonb_build_object('reference', c.reference) else '{}' end \
     || case when c.disputed is null then jsonb_build_object('disputed', c.disputed) else '{}' end)::text as before from pgonce.external_call c \
    left join pgonce.intent i on i.tenant = c.tenant and i.scope = c.scope and i.key = c.key \
    where c.tenant = $1 and c.effect_key = case when $2 ~ '^[0-9a-fA-F-]{36}$' then $2::text::uuid end";

const SETTLE: &str = "select pgonce.external_settle($1::text::uuid, $2, $3, $4::text::boolean, $5, $6::text::jsonb, $7::text::jsonb, $8, \
    null, $9, p_before => $10::text::jsonb) as before";

fn none() -> CliError {
    CliError::new(
        exit::NOT_FOUND,
        "there is no such call",
        "`pgonce external list` shows the calls; --tenant names the tenant.",
    )
}

/// A provider is known by its rules, or by one of the newest calls.
async fn require_provider(database: &Database, provider: &str) -> Result {
    let known = "exists (select from pgonce.external_provider p where p.provider = $1) or exists (select from ( \
                 select c.provider from pgonce.external_call c order by c.requested_at desc, c.effect_key desc limit 20000) c \
                 where c.provider = $1)";
    let unknown = || {
        CliError::new(
            exit::NOT_FOUND,
            format!("there is no provider {provider:?}: it has no rules, and was not called"),
            "`pgonce external providers` lists those with rules.",
        )
    };
    database.require(known, &[Some(provider)], unknown).await
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.installed().await?;
    let tenant = Some(&*args.tenant);
    match args.action {
        Action::List(list) => {
            if let Some(provider) = &list.provider {
                require_provider(&database, provider).await?;
            }
            let limit = list.limit.to_string();
            let params = [
                tenant,
                list.provider.as_deref(),
                list.status.as_deref(),
                Some(&*limit),
            ];
            let query = self::list(list.status.as_deref());
            let rows = database.list(&query, &params).await?;
            let found = match is_by_deadline(list.status.as_deref()) {
                true => Found::sorted(rows)?,
                false => Found::of(rows)?,
            };
            found.print(&database, list.limit, "No calls.", |_| {
                format!("{LOOK} calls were looked at; pgonce.external_calls has the others.")
            })
        }
        Action::Show(one) => {
            let rows = database
                .read(SHOW, &[tenant, Some(&one.effect_key)])
                .await?;
            if rows.is_empty() {
                return Err(none());
            }
            output::rows(database.format, &rows, "")
        }
        Action::Providers => {
            let rows = database.read(PROVIDERS, &[]).await?;
            output::rows(database.format, &rows, "")
        }
        Action::Settle(settle) => {
            let (key, outcome) = (&*settle.one.effect_key, &*settle.outcome);
            if settle.force.as_deref().is_some_and(|typed| typed != key) {
                return Err(CliError::new(
                    exit::NOT_CONFIRMED,
                    "--force does not name the call, nothing was done",
                    format!("If a second effect is what you want: --force {key}"),
                ));
            }
            let again =
                format!("Ask the provider first; if a second effect is acceptable: --force {key}");
            let row = database
                .read_row(RISK, &[tenant, Some(key), Some(outcome)])
                .await?;
            let row: serde_json::Value = serde_json::from_str(&row.ok_or_else(none)?)?;
            if row["ended"] == true {
                let what = "a call whose command's retention is over is not sent again";
                let hint = "The next command of this key makes a call of its own, under another effect key.";
                return Err(CliError::new(exit::FAILED, what, hint).coded("55000"));
            }
            if let (Some(risk), None) = (row["risk"].as_str(), &settle.force) {
                let what = format!("{outcome} could be wrong or open a second effect: {risk}");
                return Err(CliError::new(exit::FAILED, what, again).coded("55000"));
            }
            let what = format!("settle call {} as {outcome}", output::printable(key));
            if !settle.confirm.ask(database.format, &what, 1)? {
                return Ok(());
            }
            let force = settle.force.is_some().to_string();
            let params = [
                Some(key),
                Some(outcome),
                Some(&settle.reason),
                Some(&force),
                settle.reference.as_deref(),
                settle.response.as_deref(),
                settle.answer.as_deref(),
                settle.code.as_deref(),
                tenant,
                row["before"].as_str(),
            ];
            let before = database.row(SETTLE, &params).await?;
            let before: serde_json::Value = serde_json::from_str(&before.unwrap_or_default())?;
            let words = format!(
                "{outcome}; it was {}",
                before["before"].as_str().unwrap_or("")
            );
            let value = json!({"effect_key": key, "outcome": outcome, "before": before["before"]});
            output::say(database.format, &words, &value)
        }
    }
}
