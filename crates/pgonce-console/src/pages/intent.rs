//! The page of one intent: did it happen once, how it went, and what may be done.

use std::collections::BTreeMap;

use pgonce::Error;
use serde_json::{Value, json};

use super::field;
use crate::access::{Role, Who};
use crate::acts::ACTS;
use crate::db::{Row, flag, number, text};
use crate::html::{Html, el, query};
use crate::parts::{facts, input};
use crate::server::{App, Fields};
use crate::view::{Column, Kind, Section, csrf, time};

const ONE: &str = "
select i.tenant, i.scope, i.key, i.status, i.attempts, i.fence, i.ref_type, i.ref_id, i.failure_code, i.failure_message, i.owner,
       i.correlation_id, i.first_at, i.last_at, i.lease_until, i.vanished_at, i.expires_at, i.gone_at, encode(i.fingerprint, 'hex') as fingerprint,
       i.lease_until > pgonce.now() as alive, pgonce._verdict(i) as verdict,
       case when $4 = 'yes' then jsonb_pretty(i.answer) end as answer, i.answer is not null as has_answer
  from pgonce.intent i where i.tenant = $1 and i.scope = $2 and i.key = $3";

pub(super) const OPERATED: &str = "select o.acted_at as at, o.act, coalesce(o.person, o.role::text) as who, o.reason, o.forced, o.before ->> 'status' as before from pgonce.operator_act o \
     where o.tenant = $1 and o.scope = $2 and o.key = $3 order by o.number limit 201";

/// Operator acts are in a table of their own.
const HISTORY: &str = "select h.at, h.what, h.who, h.detail from pgonce._history($1, $2, $3) h \
     where h.what ^@ 'attempt' or h.what ^@ 'call ' or h.what in ('reference', 'event', 'delivery', 'consumed')";

const UNDER_WAY: &str = "select l.pid from pg_locks l where l.locktype = 'advisory' and l.objsubid = 1 and l.granted \
     and l.database = (select d.oid from pg_database d where d.datname = current_database()) \
     and (l.classid::bigint << 32) | l.objid::bigint = pgonce._lock_id($1, $2, $3)";

/// Where else it may be known, which is not here yet.
const ELSEWHERE: &str = "select case when pg_is_in_recovery() then 'primary' else 'region' end as elsewhere \
     where pg_is_in_recovery() or exists (select from pgonce.region r where not r.is_self)";

pub(super) const ACTED: &[Column] = &[
    ("When", "at", Kind::Time),
    ("Act", "act", Kind::Status),
    ("Who", "who", Kind::Text),
    ("Why", "reason", Kind::Text),
    ("Before", "before", Kind::Status),
];

pub(super) async fn one(app: &App, who: &Who, fields: &Fields) -> Result<Vec<Section>, Error> {
    let names = ["tenant", "scope", "key"].map(|name| Some(field(fields, name)));
    let seen = if who.role >= Role::Operator {
        "yes"
    } else {
        "no"
    };
    let mut record = app
        .db
        .rows(ONE, &[names[0], names[1], names[2], Some(seen)])
        .await?;
    for row in &mut record {
        super::hide::hide(row, "answer", &app.redact);
    }
    let (under_way, elsewhere) = match record.is_empty() {
        true => (
            app.db.rows(UNDER_WAY, &names).await?,
            app.db.row(ELSEWHERE, &[]).await?,
        ),
        false => (Vec::new(), None),
    };
    let contract = "select c.* from pgonce._contract_of($1, $2, true) c";
    let contract = match app.db.row(contract, &names[..2]).await {
        // An undefined scope has none where strict mode is older than what it puts aside.
        Err(error) if error.code() == "P4000" => None,
        contract => contract?,
    };
    let mut tables = vec![
        Section::new("Record", &[], record, ""),
        Section::new(
            "Operator acts",
            ACTED,
            app.db.rows(OPERATED, &names).await?,
            "Nobody has touched it by hand.",
        )
        .cut(200),
        Section::new("Contract", &[], contract.into_iter().collect(), ""),
        Section::new("Open attempts", &[], under_way, ""),
        Section::new("History", &[], app.db.rows(HISTORY, &names).await?, ""),
    ];
    let asked: Row = ["tenant", "scope", "key"]
        .iter()
        .map(|name| ((*name).to_owned(), Value::from(field(fields, name))))
        .chain(elsewhere.into_iter().flatten())
        .collect();
    tables.push(Section::new("Asked for", &[], vec![asked], ""));
    Ok(tables)
}

/// How the verdict is shown.
fn mood(row: &Row) -> &'static str {
    match text(row, "status").as_str() {
        _ if !text(row, "gone_at").is_empty() => "muted",
        "succeeded" => "good",
        "failed_retryable" => "warn",
        "processing" if flag(row, "alive") => "warn",
        _ => "bad",
    }
}

pub(super) fn one_page(app: &App, who: &Who, tables: &[Section]) -> Html {
    let asked = tables
        .last()
        .and_then(|section| section.rows.first())
        .cloned()
        .unwrap_or_default();
    let (scope, key) = (text(&asked, "scope"), text(&asked, "key"));
    let head = el(
        "p",
        &[("class", "crumb")],
        el(
            "a",
            &[(
                "href",
                &format!(
                    "{}/intents{}",
                    app.base,
                    query(&[("q", &format!("scope:{scope}"))])
                ),
            )],
            scope.as_str(),
        ),
    )
    .and(el("h1", &[], el("code", &[], key.as_str())));
    let Some(row) = tables.first().and_then(|section| section.rows.first()) else {
        let has = |place: usize| {
            let section = tables.get(place);
            section.is_some_and(|section| !section.rows.is_empty())
        };
        // One that was never sent did nothing.
        let history = tables.get(4).map_or(&[][..], |section| &section.rows);
        let called = history.iter().any(|row| {
            text(row, "what").starts_with("call ") && !text(row, "detail").starts_with("requested")
        });
        let what = match (has(3), has(1)) {
            (true, _) => "There is no record yet: an attempt is under way in an open transaction.",
            (_, true) => {
                "There is no record any more, and operators have acted on it: it may have happened. Who removed the record, and why, is below."
            }
            _ if called => {
                "There is no record, and it has called a provider: it may have happened. A search for its key shows the calls."
            }
            _ if text(&asked, "elsewhere") == "primary" => {
                "There is no record on this server, which is a standby and may be behind: it may have happened. Ask the primary."
            }
            _ if !text(&asked, "elsewhere").is_empty() => {
                "There is no record in this region: it may have happened in another. Ask its home."
            }
            _ => {
                "There is no record: it has not happened, or its record was purged after its retention, or scope, key or tenant differ in a byte."
            }
        };
        return head.and(el("p", &[("class", "verdict warn")], what)).and(
            tables
                .get(1)
                .map(|acts| crate::view::section(app, who, acts))
                .unwrap_or_default(),
        );
    };
    let (mood, verdict) = (mood(row), text(row, "verdict"));
    const FACTS: &[Column] = &[
        ("Status", "status", Kind::Status),
        ("Tenant", "tenant", Kind::Code),
        ("Attempts", "attempts", Kind::Number),
        ("Owner", "owner", Kind::Code),
        ("Correlation", "correlation_id", Kind::Code),
        ("Reference", "reference", Kind::Code),
        ("Failure", "failure_code", Kind::Code),
        ("", "failure_message", Kind::Text),
        ("Fence", "fence", Kind::Code),
        ("Fingerprint", "fingerprint", Kind::Code),
    ];
    let mut row = row.clone();
    if !text(&row, "ref_id").is_empty() {
        let reference = format!("{}/{}", text(&row, "ref_type"), text(&row, "ref_id"));
        row.insert("reference".to_owned(), Value::from(reference));
    }
    let answer = match (text(&row, "answer"), flag(&row, "has_answer")) {
        (_, false) => Html::default(),
        (hidden, true) if hidden.is_empty() => el(
            "p",
            &[("class", "muted")],
            "An answer is stored; the role viewer does not see it.",
        ),
        (shown, true) => el(
            "details",
            &[],
            el("summary", &[], "Stored answer").and(el("pre", &[("tabindex", "0")], shown)),
        ),
    };
    head.and(el("p", &[("class", &format!("verdict {mood}"))], verdict))
        .and(el(
            "div",
            &[("class", "columns")],
            el(
                "section",
                &[],
                el("h2", &[], "Timeline").and(timeline(&row, tables)),
            )
            .and(el(
                "section",
                &[],
                el("h2", &[], "Record").and(facts(&row, FACTS)).and(answer),
            )),
        ))
        .and(forms(app, who, &row))
}

fn timeline(row: &Row, tables: &[Section]) -> Html {
    let mut points: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, words: String| {
        let at = text(row, name);
        if !at.is_empty() && at != "infinity" {
            points.push((at, words));
        }
    };
    add("first_at", "first claimed".to_owned());
    let attempts = number(row, "attempts");
    let ended = match text(row, "status").as_str() {
        "succeeded" => "the effect was committed with its answer",
        "failed_final" => "failed permanently",
        "failed_retryable" => "failed; may be retried",
        _ => "last attempt began",
    };
    match text(row, "last_at").is_empty() {
        true => add("first_at", format!("{ended}, in one transaction")),
        false => add("last_at", format!("{ended}, attempt {attempts}")),
    }
    let lease = if flag(row, "alive") {
        "the lease ends"
    } else {
        "the lease ended"
    };
    add("lease_until", lease.to_owned());
    add(
        "vanished_at",
        "a holder was found to have vanished; what it did outside is not known".to_owned(),
    );
    add(
        "gone_at",
        "its answer was dropped; the key stays gone".to_owned(),
    );
    add("expires_at", "the record expires".to_owned());
    for act in tables
        .get(1)
        .map(|section| section.rows.as_slice())
        .unwrap_or_default()
    {
        points.push((
            text(act, "at"),
            format!(
                "{} by {}: {}",
                text(act, "act"),
                text(act, "who"),
                text(act, "reason")
            ),
        ));
    }
    let history = tables.iter().find(|section| section.title == "History");
    for point in history
        .map(|section| section.rows.as_slice())
        .unwrap_or_default()
    {
        let words = ["what", "who", "detail"].map(|name| text(point, name));
        let words = words.iter().filter(|word| !word.is_empty());
        points.push((
            text(point, "at"),
            words.cloned().collect::<Vec<_>>().join(" \u{b7} "),
        ));
    }
    points.sort_by(|a, b| a.0.cmp(&b.0));
    let points = points
        .into_iter()
        .map(|(at, words)| el("li", &[], time(&at).and(el("span", &[], words))));
    el("ol", &[("class", "timeline")], points.collect::<Html>())
}

/// What an act on this page is about: an intent that was changed since is not acted on. While its holder is alive, only the end of
/// its lease may move.
fn before(row: &Row) -> String {
    let names = ["status", "fence", "lease_until"].iter();
    let names = names.filter(|name| **name != "lease_until" || !flag(row, "alive"));
    let before = names.map(|name| ((*name).to_owned(), row.get(*name).cloned()));
    json!(before.collect::<BTreeMap<_, _>>()).to_string()
}

/// The acts that fit its status.
fn forms(app: &App, who: &Who, row: &Row) -> Html {
    if who.role < Role::Operator {
        return Html::default();
    }
    let status = text(row, "status");
    let fits = |act: &str| match act {
        "settle" | "fail" => matches!(status.as_str(), "processing" | "failed_retryable"),
        "release" => {
            status == "processing"
                || status == "failed_retryable" && !text(row, "vanished_at").is_empty()
        }
        "retry" => status == "failed_final",
        "evict" => true,
        _ => false,
    };
    let before = before(row);
    let forms = ACTS
        .iter()
        .filter(|act| fits(act.name) && who.role >= act.role)
        .map(|act| {
            let names = ["tenant", "scope", "key"].map(|name| (name, text(row, name)));
            let hidden = names.into_iter().chain([("before", before.clone())]);
            let hidden = hidden.map(|(name, value)| {
                el(
                    "input",
                    &[("type", "hidden"), ("name", name), ("value", &value)],
                    "",
                )
            });
            let input = |name, hint: &str, required: bool| input(act.name, name, hint, required);
            let own = match act.name {
                "settle" => input("answer", "Answer, as JSON", false),
                "fail" => {
                    input("code", "Failure code", true).and(input("message", "Message", false))
                }
                _ => Html::default(),
            };
            let confirm = match act.confirm {
                "" => Html::default(),
                word => input(
                    "confirm",
                    &format!("Type \u{201c}{word}\u{201d} to confirm"),
                    true,
                ),
            };
            let force = match who.role {
                Role::Admin => el(
                    "label",
                    &[("class", "check")],
                    el("input", &[("type", "checkbox"), ("name", "force")], "")
                        .and(" force, although it could open a second effect"),
                ),
                _ => Html::default(),
            };
            let (title, words) = match act.name {
                "settle" => (
                    "Settle",
                    "It happened: every retry gets the answer given here.",
                ),
                "fail" => (
                    "Fail",
                    "It failed permanently: every retry gets this failure.",
                ),
                "release" => ("Release", "It did not happen: the next attempt does it."),
                "retry" => (
                    "Allow a retry",
                    "The failure is forgotten: it may be tried again.",
                ),
                _ => (
                    "Evict",
                    "Remove the record: the key is free, also for another request.",
                ),
            };
            let danger = if act.confirm.is_empty() { "" } else { "danger" };
            el(
                "details",
                &[("class", "act")],
                el("summary", &[], title).and(el("p", &[], words)).and(el(
                    "form",
                    &[
                        ("method", "post"),
                        ("action", &format!("{}/act/{}", app.base, act.name)),
                    ],
                    csrf(who)
                        .and(hidden.collect::<Html>())
                        .and(own)
                        .and(input("reason", "Reason, such as a ticket", true))
                        .and(confirm)
                        .and(force)
                        .and(el("button", &[("class", danger)], title)),
                )),
            )
        });
    el("h2", &[], "Acts").and(el("div", &[("class", "acts")], forms.collect::<Html>()))
}
