//! The outbox and the inbox.

use pgonce::Error;

use super::{field, overview};
use crate::access::{Role, Who};
use crate::db::{Row, flag, number, text};
use crate::html::{Html, el, query};
use crate::parts::{at_least, button, reasoned};
use crate::server::{App, Fields};
use crate::view::{Column, Kind, Section};

const LANES: &[Column] = &[
    ("Lane", "lane", Kind::Number),
    ("Waiting", "waiting", Kind::Counted("waiting_cut")),
    ("Oldest", "oldest_age", Kind::Text),
    ("Parked", "parked", Kind::Counted("parked_cut")),
    ("Dead", "dead", Kind::Counted("parked_cut")),
    ("Relay", "relay", Kind::Code),
    ("Moved", "advanced_at", Kind::Time),
];

const GROUPS: &[Column] = &[
    ("Error", "reason", Kind::Text),
    ("Dead letters", "n", Kind::Counted("n_cut")),
    ("Type", "types", Kind::Code),
    ("First", "first_at", Kind::Time),
    ("Last", "last_at", Kind::Time),
];

const DEAD: &[Column] = &[
    ("Number", "seq", Kind::Code),
    ("Type", "type", Kind::Code),
    ("Subject", "subject", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Attempts", "attempts", Kind::Number),
    ("Behind it", "behind", Kind::Counted("behind_cut")),
    ("Error", "reason", Kind::Text),
    ("Parked", "parked_at", Kind::Time),
];

const PAGE: usize = 50;

/// Where `pgonce.outbox_backlog` stops to count.
const MAX_COUNTED: i64 = 10_000;

pub(super) async fn outbox(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    let mut tables = vec![overview::subscriptions(app, fields).await?];
    let chosen = field(fields, "subscription");
    if chosen.is_empty() {
        return Ok(tables);
    }
    // Grouped from at most ten thousand: a subscription's limit may be far above.
    let groups = "select coalesce(d.reason, '') as reason, count(*) as n, sum(count(*)) over () > 10000 as n_cut, string_agg(distinct d.type, ', ') as types, min(d.parked_at) as first_at, max(d.parked_at) as last_at \
         from (select k.reason, k.type, k.parked_at from pgonce.parked k where k.subscription = $1 and k.state = 'dead' limit 10001) d group by 1 order by 2 desc limit 51";
    let dead = "select d.*, d.behind >= 1000 as behind_cut from (select k.subscription, k.seq, k.type, k.subject, k.tenant, k.attempts, k.reason, k.parked_at, k.message_id, \
         (select count(*) from (select from pgonce.parked b where b.tenant = k.tenant and b.subscription = k.subscription and b.subject = k.subject and b.state = 'behind' limit 1000) x) as behind \
         from pgonce.parked k where k.subscription = $1 and k.state = 'dead' and ($2::text is null or k.seq > $2::text::bigint) order by k.seq limit $3::text::int) d order by d.seq";
    let lanes = format!(
        "select l.lane, l.waiting, l.waiting >= 500 or {} as waiting_cut, date_trunc('second', l.oldest_age)::text as oldest_age, l.parked, l.dead, \
         sum(l.parked) over () >= 10000 as parked_cut, l.relay, l.advanced_at \
         from pgonce.outbox_lanes l join pgonce.outbox_subscription s on s.subscription = l.subscription where l.subscription = $1 order by l.lane",
        overview::has_more_unread(1000, "k.lane = l.lane")
    );
    let after = fields
        .get("after")
        .filter(|after| after.parse::<i64>().is_ok())
        .map(String::as_str);
    let rows = app
        .db
        .rows(dead, &[Some(chosen), after, Some(&(PAGE + 1).to_string())])
        .await?;
    let groups = Section::new(
        format!("Dead letters of {chosen}, by error"),
        GROUPS,
        app.db.rows(groups, &[Some(chosen)]).await?,
        "There are no dead letters.",
    );
    tables.push(groups.cut(50));
    if !rows.is_empty() {
        let page = ("outbox", "/outbox");
        let keep = [("subscription", chosen)];
        let dead = Section::new("Dead letters", DEAD, rows, "");
        tables.push(Section {
            act: Some(dead_acts),
            ..dead.paged(PAGE, page, &keep, &[("after", "seq")])
        });
    }
    tables.push(Section::new(
        format!("Lanes of {chosen}"),
        LANES,
        app.db.rows(&lanes, &[Some(chosen)]).await?,
        "It has no lanes.",
    ));
    Ok(tables)
}

fn dead_acts(app: &App, who: &Who, row: &Row) -> Html {
    if who.role < Role::Operator {
        return Html::default();
    }
    let (subscription, seq, subject, tenant) = (
        text(row, "subscription"),
        text(row, "seq"),
        text(row, "subject"),
        text(row, "tenant"),
    );
    let retry = button(
        app,
        who,
        "redrive",
        "Redrive",
        &[
            ("subscription", &subscription),
            ("subject", &subject),
            ("tenant", &tenant),
        ],
        Html::default(),
    );
    retry.and(reasoned("Skip", &seq, "skip", |inside| {
        button(
            app,
            who,
            "skip",
            "Skip",
            &[("subscription", &subscription), ("seq", &seq)],
            inside,
        )
    }))
}

pub(super) fn outbox_page(
    app: &App,
    who: &Who,
    fields: &Fields,
    tables: &[Section],
    list: Html,
) -> Html {
    let chosen = field(fields, "subscription");
    let row = tables.first().and_then(|section| {
        section
            .rows
            .iter()
            .find(|row| text(row, "subscription") == chosen)
    });
    let all = match row {
        Some(row) if who.role >= Role::Operator && number(row, "dead") > 0 => {
            let count = at_least(number(row, "dead"), MAX_COUNTED);
            let label = format!("Redrive all {count} dead letters of {chosen}");
            let names = [("subscription", chosen)];
            reasoned(&label, "all", "redrive", |inside| {
                button(app, who, "redrive-all", &label, &names, inside)
            })
        }
        _ => Html::default(),
    };
    el("h1", &[], "Outbox").and(list).and(all)
}

const INBOX: &[Column] = &[
    ("Consumer", "consumer", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Received", "received", Kind::Counted("open_cut")),
    ("Processing", "processing", Kind::Counted("open_cut")),
    ("Retrying", "retrying", Kind::Counted("open_cut")),
    ("Poison", "poison", Kind::Counted("poison_cut")),
    ("Held back", "held", Kind::Counted("held_cut")),
    ("Oldest", "oldest_age", Kind::Text),
    ("Partitions", "partitions", Kind::Number),
];

/// Consumers of a page.
const CONSUMERS: usize = 200;

const POISON: &[Column] = &[
    ("Number", "seq", Kind::Code),
    ("Consumer", "consumer", Kind::Code),
    ("Message id", "message_id", Kind::Code),
    ("Type", "type", Kind::Code),
    ("Key", "key", Kind::Code),
    ("Attempts", "attempts", Kind::Number),
    ("Code", "failure_code", Kind::Code),
    ("Error", "failure_message", Kind::Text),
    ("Received", "received_at", Kind::Time),
];

/// How many a retry of all reaches, as `pgonce.retry_messages` has it: those of every tenant, none whose payload was cut when it was stored, and
/// none whose id came before with another payload.
const RETRYABLE: &str = "select least(count(*) filter (where x.is_reached), 1000) as retryable, count(*) > 1000 as retryable_cut \
     from (select m.holds_key and octet_length(m.payload) = m.size as is_reached from pgonce.inbox_message m \
           where m.consumer = $1 and m.status = 'failed_final' and m.skipped_at is null order by m.seq limit 1001) x";

pub(super) async fn inbox(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    let chosen = Some(field(fields, "consumer")).filter(|name| !name.is_empty());
    // Counted for a consumer of all tenants, those that are open together.
    let backlog = "select b.consumer, b.tenant, b.received, b.processing, b.retrying, b.open_cut, b.poison, b.poison_cut, b.held, b.open_cut or b.poison_cut as held_cut, \
         date_trunc('second', b.oldest_age)::text as oldest_age, b.partitions \
         from (select b.*, sum(b.received + b.processing + b.retrying) over (partition by b.consumer) >= 1000 as open_cut, \
                      sum(b.poison) over (partition by b.consumer) >= 1000 as poison_cut from pgonce.inbox_backlog b where $3::text is null or b.consumer = $3) b \
         where $1::text is null or (b.consumer, b.tenant) > ($1, $2) order by b.consumer, b.tenant limit 201";
    let poison = "select m.seq, m.consumer, m.tenant, m.source, m.message_id, m.type, m.key, m.attempts, m.failure_code, m.failure_message, m.received_at from pgonce.inbox_message m \
         where m.status = 'failed_final' and m.skipped_at is null and ($1::text is null or m.consumer = $1) and ($2::text is null or m.seq > $2::text::bigint) \
         order by m.consumer, m.seq limit $3::text::int";
    let after = fields
        .get("after")
        .filter(|after| chosen.is_some() && after.parse::<i64>().is_ok())
        .map(String::as_str);
    let rows = app
        .db
        .rows(poison, &[chosen, after, Some(&(PAGE + 1).to_string())])
        .await?;
    let poison = Section::new("Poison messages", POISON, rows, "No message is poisoned.");
    let keep = [("consumer", chosen.unwrap_or_default())];
    let mut poison = Section {
        act: Some(poison_acts),
        ..poison.paged(PAGE, ("inbox", "/inbox"), &keep, &[("after", "seq")])
    };
    // Numbers are those of one consumer.
    if chosen.is_none() && poison.next.take().is_some() {
        poison.is_cut = true;
        let more = "There are more: choose a consumer.";
        poison.foot = el("p", &[("class", "muted")], more);
    }
    let from = ["after_consumer", "after_tenant"].map(|name| fields.get(name).map(String::as_str));
    let params = [from[0], from[1].or(Some("")), None];
    let none = "Nothing is stored, and no partition is read.";
    let consumers = Section::new(
        "Consumers",
        INBOX,
        app.db.rows(backlog, &params).await?,
        none,
    );
    let cursor = [("after_consumer", "consumer"), ("after_tenant", "tenant")];
    let mut consumers = consumers.paged(CONSUMERS, ("inbox", "/inbox"), &[], &cursor);
    // The one that is looked at, wherever it is.
    if let Some(chosen) = chosen
        && !consumers
            .rows
            .iter()
            .any(|row| text(row, "consumer") == chosen)
    {
        let mut own = app.db.rows(backlog, &[None, None, Some(chosen)]).await?;
        if own.len() > CONSUMERS {
            own.truncate(CONSUMERS);
            consumers.is_cut = true;
            let words = format!("Of {chosen} these are the first {CONSUMERS}: there are more.");
            consumers.foot = el("p", &[("class", "muted")], words);
        }
        consumers.rows.splice(0..0, own);
    }
    if let Some(chosen) = chosen {
        let reached = app.db.row(RETRYABLE, &[Some(chosen)]).await?;
        let reached = reached.unwrap_or_default();
        for row in &mut consumers.rows {
            if text(row, "consumer") == chosen {
                row.extend(reached.clone());
            }
        }
    }
    consumers.link =
        Some(|row| format!("/inbox{}", query(&[("consumer", &text(row, "consumer"))])));
    Ok(vec![consumers, poison])
}

fn poison_acts(app: &App, who: &Who, row: &Row) -> Html {
    if who.role < Role::Operator {
        return Html::default();
    }
    let (consumer, seq) = (text(row, "consumer"), text(row, "seq"));
    let names = [("consumer", consumer.as_str()), ("seq", seq.as_str())];
    let retry = button(
        app,
        who,
        "retry-messages",
        "Retry",
        &[names[0], names[1], ("reason", "retried in the console")],
        Html::default(),
    );
    retry.and(reasoned(
        "Skip",
        &format!("{consumer}-{seq}"),
        "skip",
        |inside| button(app, who, "skip-message", "Skip", &names, inside),
    ))
}

pub(super) fn inbox_page(
    app: &App,
    who: &Who,
    fields: &Fields,
    tables: &[Section],
    list: Html,
) -> Html {
    let chosen = field(fields, "consumer");
    let row = tables.first().and_then(|section| {
        section
            .rows
            .iter()
            .find(|row| text(row, "consumer") == chosen)
    });
    let reached = row.map(|row| (number(row, "retryable"), flag(row, "retryable_cut")));
    let all = match reached {
        Some((count, cut)) if (count > 0 || cut) && who.role >= Role::Operator => {
            let count = format!("{count}{}", if cut { "+" } else { "" });
            let label = format!("Retry all {count} poison messages of {chosen}");
            let names = [("consumer", chosen)];
            reasoned(&label, "all", "retry", |inside| {
                button(app, who, "retry-all-messages", &label, &names, inside)
            })
        }
        _ => Html::default(),
    };
    el("h1", &[], "Inbox").and(list).and(all)
}
