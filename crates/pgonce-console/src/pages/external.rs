//! Calls to providers: what is not decided, what waits for an operator, and one call with the act that settles it.

use pgonce::Error;

use super::field;
use crate::access::{Role, Who};
use crate::db::{Row, text};
use crate::html::{Html, el, query};
use crate::look::{self, LOOK};
use crate::parts::{button, chips, facts, input};
use crate::server::{App, Fields};
use crate::view::{Column, Kind, Section};

const PROVIDERS: &[Column] = &[
    ("Provider", "provider", Kind::Code),
    ("State", "state", Kind::Status),
    ("Need an operator", "manual", Kind::Counted("manual_cut")),
    ("Failures in a row", "failures", Kind::Number),
    ("Keys honoured for", "keys_for", Kind::Text),
    ("Decided within", "deadline", Kind::Text),
    ("Rate", "rate", Kind::Text),
    ("Stopped until", "open_until", Kind::Time),
];

const CALLS: &[Column] = &[
    ("Effect key", "effect_key", Kind::Code),
    ("Status", "status", Kind::Status),
    ("Provider", "provider", Kind::Code),
    ("Step", "step", Kind::Code),
    ("Scope", "scope", Kind::Code),
    ("Key", "key", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Reference", "reference", Kind::Code),
    ("Sends", "sends", Kind::Number),
    ("Looks", "looks", Kind::Number),
    ("Sent", "sent_at", Kind::Time),
    ("Deadline", "deadline_at", Kind::Time),
    ("Decided by", "decided_by", Kind::Text),
    ("Failure", "failure_code", Kind::Code),
    ("Disputed", "disputed", Kind::Text),
];

const FIELDS: &str = "c.tenant, c.effect_key::text, c.provider, c.scope, c.key, c.step, \
     case when c.status in ('sent', 'unknown') then pgonce._external_status(c) else c.status::text end as status, c.reference, c.sends, c.looks, \
     c.failure_code, c.decided_by, c.disputed, c.sent_at, c.deadline_at";

const PAGE: usize = 50;

fn link(row: &Row) -> String {
    let [tenant, key] = ["tenant", "effect_key"].map(|name| text(row, name));
    let pairs = [("tenant", tenant.as_str()), ("effect_key", &key)];
    format!("/call{}", query(&pairs))
}

const OF_PROVIDER: &str = "($1::text is null or x.provider = $1)";

fn undecided() -> String {
    let look = format!(
        "select {FIELDS}, c.deadline_at::text as cursor from pgonce.external_call c where c.status in ('sent', 'unknown') \
         and ($3::text is null or (c.deadline_at, c.effect_key) > ($3::text::timestamptz, $4::text::uuid)) order by c.deadline_at, c.effect_key"
    );
    let condition = format!("{OF_PROVIDER} and ($2 = 'open' or x.status = $2)");
    look::among(&look, LOOK, &condition, "$5::text::int")
}

fn newest(status: &str) -> String {
    let disputed = match status {
        "disputed" => "c.disputed is not null",
        _ => "true",
    };
    let look = format!(
        "select {FIELDS}, c.requested_at::text as cursor from pgonce.external_call c where {disputed} \
         and ($3::text is null or (c.requested_at, c.effect_key) < ($3::text::timestamptz, $4::text::uuid)) order by c.requested_at desc, c.effect_key desc"
    );
    let condition = format!("{OF_PROVIDER} and ($2 in ('all', 'disputed') or x.status = $2)");
    look::among(&look, LOOK, &condition, "$5::text::int")
}

pub(super) async fn list(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    // Those of all providers are counted together.
    let providers = "with due as materialized (select c.provider from pgonce.external_call c \
              where c.status in ('sent', 'unknown') and c.deadline_at <= pgonce.now() and pgonce._external_status(c) = 'needs_operator' order by c.deadline_at limit 10001) \
         select p.provider, case when p.open_until > pgonce.now() then 'stopped' else 'open' end as state, p.failures, r.keys_for::text, r.deadline::text, \
         r.rate || ' per ' || r.rate_per as rate, case when p.open_until > pgonce.now() then p.open_until end as open_until, coalesce(m.n, 0) as manual, (select count(*) > 10000 from due) as manual_cut \
         from pgonce.external_provider p \
         join pgonce.external_provider r on r.provider = case when p.defined_at is null then '*' else p.provider end \
         left join (select d.provider, count(*) as n from due d group by 1) m on m.provider = p.provider \
         order by p.provider limit 201";
    let providers = app.db.rows(providers, &[]).await?;
    let status = match field(fields, "status") {
        "" => "needs_operator",
        chosen => chosen,
    };
    let provider = fields.get("provider").map(String::as_str);
    let limit = (PAGE + 1).to_string();
    let after = |name: &str| fields.get(name).map(String::as_str);
    // What is not decided by deadline, all the others the newest first.
    let by_deadline = matches!(status, "needs_operator" | "open" | "sent" | "unknown");
    let none = "00000000-0000-0000-0000-000000000000";
    let params = [
        provider,
        Some(status),
        after(if by_deadline {
            "after_deadline"
        } else {
            "after_time"
        }),
        after("after").or(Some(none)),
        Some(&*limit),
    ];
    let sql = if by_deadline {
        undecided()
    } else {
        newest(status)
    };
    let rows = app.db.rows(&sql, &params).await?;
    let keep = [
        ("status", status),
        ("provider", provider.unwrap_or_default()),
    ];
    let cursor: &[(&str, &str)] = match by_deadline {
        true => &[("after_deadline", "cursor"), ("after", "effect_key")],
        false => &[("after_time", "cursor"), ("after", "effect_key")],
    };
    let empty = match status {
        "needs_operator" => "No call waits for an operator.",
        _ => "No call matches.",
    };
    let title = format!("Calls: {}", status.replace('_', " "));
    let calls = Section::new(title, CALLS, rows, empty);
    Ok(vec![
        Section {
            link: Some(|row| {
                let provider = text(row, "provider");
                let pairs = [("status", "open"), ("provider", provider.as_str())];
                format!("/external{}", query(&pairs))
            }),
            ..Section::new("Providers", PROVIDERS, providers, "No provider is known.").cut(200)
        },
        Section {
            link: Some(link),
            ..calls.looked(PAGE, ("external", "/external"), &keep, cursor)
        },
    ])
}

pub(super) fn page(app: &App, fields: &Fields, list: Html) -> Html {
    let status = match field(fields, "status") {
        "" => "needs_operator",
        chosen => chosen,
    };
    let all = [
        ("need an operator", "needs_operator"),
        ("not decided", "open"),
        ("disputed", "disputed"),
        ("confirmed", "confirmed"),
        ("failed", "failed"),
        ("all", "all"),
    ];
    el("h1", &[], "External calls")
        .and(chips(
            &format!("{}/external", app.base),
            status,
            "status",
            &all,
        ))
        .and(list)
}

/// `before` is what an act on the page is about: a call that was decided or sent again since, or that has a reference or a dispute which
/// the page did not show, is not acted on. That it was looked up, or passed its deadline, changes nothing.
const ONE: &str = "
select c.tenant, c.effect_key::text, c.provider, c.scope, c.key, c.step, pgonce._external_status(c) as status, c.reference, c.sends, c.looks, c.decides,
       c.failure_code, c.failure_message, c.decided_by, c.disputed, c.requested_at, c.first_sent_at, c.sent_at, c.next_look_at, c.deadline_at, c.decided_at,
       (jsonb_build_object('status', c.status, 'sends', c.sends, 'fence', c.fence, 'sent_at', c.sent_at)
         || case when c.reference is null then jsonb_build_object('reference', c.reference) else '{}' end
         || case when c.disputed is null then jsonb_build_object('disputed', c.disputed) else '{}' end)::text as before,
       case when $3 = 'yes' then jsonb_pretty(c.request) end as request, case when $3 = 'yes' then jsonb_pretty(c.response) end as response
  from pgonce.external_call c where c.tenant = $1 and c.effect_key::text = lower($2) and c.effect_key = case when $2 ~ '^[0-9a-fA-F-]{36}$' then $2::text::uuid end";

const REPORTED: &[Column] = &[
    ("Seen", "seen_at", Kind::Time),
    ("Event", "event_id", Kind::Code),
    ("Says", "outcome", Kind::Status),
    ("Reference", "reference", Kind::Code),
    ("Failure", "failure_code", Kind::Code),
    ("Applied", "applied_at", Kind::Time),
];

const FACTS: &[Column] = &[
    ("Status", "status", Kind::Status),
    ("Provider", "provider", Kind::Code),
    ("Step", "step", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Reference", "reference", Kind::Code),
    ("Sends", "sends", Kind::Number),
    ("Looks", "looks", Kind::Number),
    ("Requested", "requested_at", Kind::Time),
    ("First sent", "first_sent_at", Kind::Time),
    ("Last sent", "sent_at", Kind::Time),
    ("Looked up next", "next_look_at", Kind::Time),
    ("Deadline", "deadline_at", Kind::Time),
    ("Decided", "decided_at", Kind::Time),
    ("Decided by", "decided_by", Kind::Text),
    ("Failure", "failure_code", Kind::Code),
    ("Error", "failure_message", Kind::Text),
    ("Disputed", "disputed", Kind::Text),
];

pub(super) async fn one(app: &App, who: &Who, fields: &Fields) -> Result<Vec<Section>, Error> {
    let seen = if who.role >= Role::Operator {
        "yes"
    } else {
        "no"
    };
    let names = ["tenant", "effect_key"].map(|name| Some(field(fields, name)));
    let mut record = app.db.rows(ONE, &[names[0], names[1], Some(seen)]).await?;
    for row in &mut record {
        for member in ["request", "response"] {
            super::hide::hide(row, member, &app.redact);
        }
    }
    let (mut reported, mut acts) = (Vec::new(), Vec::new());
    if let Some(row) = record.first() {
        let events = "select e.seen_at, e.event_id, e.outcome, e.reference, e.failure_code, e.applied_at from pgonce.external_event e \
             where e.tenant = $1 and e.effect_key = $2::text::uuid order by e.seen_at limit 51";
        let [tenant, effect_key, scope, key] =
            ["tenant", "effect_key", "scope", "key"].map(|name| text(row, name));
        reported = app
            .db
            .rows(events, &[Some(&tenant), Some(&effect_key)])
            .await?;
        let operated = super::intent::OPERATED;
        acts = app
            .db
            .rows(operated, &[Some(&tenant), Some(&scope), Some(&key)])
            .await?;
    }
    let nobody = "Nobody has touched its intent by hand.";
    Ok(vec![
        Section::new("Record", &[], record, ""),
        Section::new(
            "What the provider reported",
            REPORTED,
            reported,
            "Nothing by webhook.",
        )
        .cut(50),
        Section::new("Operator acts", super::intent::ACTED, acts, nobody).cut(200),
    ])
}

fn verdict(status: &str) -> (&'static str, &'static str) {
    match status {
        "confirmed" => (
            "good",
            "It happened: the provider, or an operator, confirmed it.",
        ),
        "failed" => ("muted", "It did not happen, and will not."),
        "needs_operator" => (
            "bad",
            "It may have happened, and its deadline is over. Ask the provider, then settle it.",
        ),
        "requested" => ("warn", "It is recorded and was not sent."),
        _ => (
            "warn",
            "It was sent, and its outcome is not known yet: it is being looked up.",
        ),
    }
}

pub(super) fn one_page(app: &App, who: &Who, fields: &Fields, tables: &[Section]) -> Html {
    let head = el("h1", &[], el("code", &[], field(fields, "effect_key")));
    let Some(row) = tables.first().and_then(|section| section.rows.first()) else {
        let none = "There is no such call: it was purged after its retention, or effect key or tenant differ.";
        return head.and(el("p", &[("class", "verdict warn")], none));
    };
    let intent = format!("{}{}", app.base, super::intents::link(row));
    let crumb = format!("{} {}", text(row, "scope"), text(row, "key"));
    let (mood, words) = verdict(&text(row, "status"));
    let documents = [("Request", "request"), ("Response", "response")];
    let documents = documents.map(|(label, name)| match text(row, name) {
        none if none.is_empty() => Html::default(),
        shown => el(
            "details",
            &[],
            el("summary", &[], label).and(el("pre", &[("tabindex", "0")], shown)),
        ),
    });
    let rest = tables.iter().skip(1);
    let rest = rest.map(|section| crate::view::section(app, who, section));
    el(
        "p",
        &[("class", "crumb")],
        el("a", &[("href", &intent)], crumb),
    )
    .and(head)
    .and(el("p", &[("class", &format!("verdict {mood}"))], words))
    .and(el(
        "section",
        &[("class", "card")],
        facts(row, FACTS).and(documents.into_iter().collect::<Html>()),
    ))
    .and(forms(app, who, row))
    .and(rest.collect::<Html>())
}

/// The three decisions that an operator has.
fn forms(app: &App, who: &Who, row: &Row) -> Html {
    if who.role < Role::Operator {
        return Html::default();
    }
    let [tenant, key, before] = ["tenant", "effect_key", "before"].map(|name| text(row, name));
    let decides = row.get("decides") == Some(&serde_json::Value::Bool(true));
    let all = [
        (
            "confirmed",
            "It happened",
            "The provider did it: the command goes on with this outcome.",
        ),
        (
            "failed",
            "It did not happen",
            "It did not and will not: the command fails.",
        ),
        (
            "resend",
            "Send it again",
            "It did not happen: the next attempt sends it.",
        ),
    ];
    let forms = all.map(|(outcome, title, words)| {
        let names = [
            ("tenant", tenant.as_str()),
            ("effect_key", &key),
            ("outcome", outcome),
            ("before", &before),
        ];
        let own = match outcome {
            "confirmed" => {
                let answer = match decides {
                    true => input(outcome, "answer", "Answer of the command, as JSON", false),
                    false => Html::default(),
                };
                input(outcome, "reference", "The provider's reference", false)
                    .and(input(outcome, "response", "Its response, as JSON", false))
                    .and(answer)
            }
            "failed" => input(outcome, "code", "Failure code", true),
            _ => Html::default(),
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
        let inside = own
            .and(input(outcome, "reason", "Reason, such as a ticket", true))
            .and(input(
                outcome,
                "confirm",
                "Type \u{201c}settle\u{201d} to confirm",
                true,
            ))
            .and(force);
        el(
            "details",
            &[("class", "act")],
            el("summary", &[], title)
                .and(el("p", &[], words))
                .and(button(app, who, "settle-call", title, &names, inside)),
        )
    });
    el("h2", &[], "Settle").and(el(
        "div",
        &[("class", "acts")],
        forms.into_iter().collect::<Html>(),
    ))
}
