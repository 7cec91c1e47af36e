//! What is going on, and what needs attention.

use pgonce::Error;

use super::{chart, field};
use crate::db::{Row, flag, number, text};
use crate::html::{Html, el};
use crate::parts::at_least;
use crate::server::{App, Fields};
use crate::view::{Column, Kind, Section, grouped};

/// Every count ends at a bound: intents at what PostgreSQL estimates, what is stuck at the oldest ten thousand, all else at a thousand.
const FIGURES: &str = "
select greatest(n.known, (select c.reltuples::bigint from pg_class c where c.oid = 'pgonce.intent'::regclass and n.known > 10000)) as intents, n.known > 10000 as estimated,
       (select least(coalesce(sum(s.replays::numeric + s.refusals + s.busy + s.conflicts), 0), 9223372036854775807)::bigint from pgonce.suppressed s) as suppressed,
       coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0)
           - coalesce((select w.next_block from pgonce.sweep w where w.tenant = '' and w.name = 'outbox_skipped'), 0) as events,
       u.manual, u.stuck, u.stuck_cut,
       (select count(*) from pgonce.outbox_subscription s cross join lateral (
            select from pgonce.parked k where k.subscription = s.subscription and k.state = 'dead' limit 1000) x) as dead,
       (select count(*) from (select from pgonce.inbox_message m where m.status = 'failed_final' and m.skipped_at is null limit 1000) x) as poison,
       (select count(*) from (select from pgonce.job_end e where e.status = 'dead' order by e.queue, e.id limit 1000) x) as dead_jobs,
       (select count(*) from (select from pgonce.external_call c where c.status in ('sent', 'unknown') and c.deadline_at <= pgonce.now()
                                 and pgonce._external_status(c) = 'needs_operator' order by c.deadline_at limit 1000) x) as calls,
       (select count(*) from (select from pgonce.transition_timer t where t.ended_at is null and t.due_at < pgonce.now() - interval '1 minute' limit 1000) x) as timers,
       (select w.swept_at from pgonce.sweep w where w.tenant = '' and w.name = 'intent') as swept_at,
       pgonce.now() as now
  from (select count(*) as known from (select from pgonce.intent limit 10001) x) n
 cross join (select count(*) filter (where k.classification <> 'safe_to_retry') as manual, count(*) filter (where k.classification = 'safe_to_retry') as stuck,
                    count(*) >= 10000 as stuck_cut
               from (select k.classification from pgonce.stuck k limit 10000) k) u";

const SUPPRESSED: &[Column] = &[
    ("Scope", "scope", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Suppressed", "suppressed", Kind::Number),
    ("Replays", "replays", Kind::Number),
    ("Refusals", "refusals", Kind::Number),
    ("Busy", "busy", Kind::Number),
    ("Conflicts", "conflicts", Kind::Number),
];

pub(super) const BACKLOG: &[Column] = &[
    ("Subscription", "subscription", Kind::Code),
    ("State", "state", Kind::Status),
    ("Waiting", "waiting", Kind::Counted("waiting_cut")),
    ("Oldest", "oldest_age", Kind::Text),
    ("Retrying", "retrying", Kind::Counted("retrying_cut")),
    ("Dead", "dead", Kind::Counted("dead_cut")),
    ("Behind", "behind", Kind::Counted("behind_cut")),
    ("Relays", "relays", Kind::Number),
    ("Moved", "advanced_at", Kind::Time),
];

/// Whether the subscription `s` has filters, and a lane `k` more unread events than were looked at for those that it wants. A limit that is no
/// constant leads the planner to the index also while the log is short.
pub(super) fn has_more_unread(looked: u32, of_lane: &str) -> String {
    format!(
        "coalesce(s.topics, s.types, s.tenants) is not null and exists (select from pgonce.outbox_cursor k cross join lateral (select from ( \
             select from pgonce.outbox o where o.lane = k.lane and o.seq > pgonce._unread_above(k.cursor) \
                and pgonce._is_unread(o.seq, o.xid, k.cursor, (select f.base_seq from pgonce.outbox_state f)) order by o.seq \
              limit case when coalesce(s.topics, s.types, s.tenants) is null then 1 else {looked} + 1 end) o offset {looked}) o \
         where k.subscription = s.subscription and {of_lane})"
    )
}

/// An evicted or an idle subscription is never called stuck.
fn backlog() -> String {
    format!(
        "with cut as materialized (
             select s.subscription from (select * from pgonce.outbox_subscription s
                        where ($1::text is null or s.subscription > $1) and ($2::text is null or s.subscription = $2) order by s.subscription limit 201) s
              where {})
         select b.subscription, case when b.evicted_at is not null then 'evicted' when b.stuck then 'stuck'
                    when b.lanes_held = 0 and b.oldest_age > interval '1 minute' then 'no_relay' when b.waiting > 0 or b.waiting_cut then 'behind'
                    when b.lanes_held = 0 then 'idle' else 'up_to_date' end as state,
                b.waiting, b.waiting_cut, date_trunc('second', b.oldest_age)::text as oldest_age, b.retrying, b.retrying >= 10000 as retrying_cut,
                b.dead, b.dead >= 10000 as dead_cut, b.behind, b.behind >= 10000 as behind_cut, b.relays, b.advanced_at
           from (select b.*, b.waiting >= 10000 or b.subscription in (select c.subscription from cut c) as waiting_cut from pgonce.outbox_backlog b) b
          where ($1::text is null or b.subscription > $1) and ($2::text is null or b.subscription = $2) order by b.subscription limit 201",
        has_more_unread(500, "true")
    )
}

/// Subscriptions of a page.
const PAGE: usize = 200;

/// The subscriptions, from where the last page ended, and the one that is looked at, wherever it is.
pub(super) async fn subscriptions(app: &App, fields: &Fields) -> Result<Section, Error> {
    let after = fields.get("after_subscription").map(String::as_str);
    let backlog = backlog();
    let rows = app.db.rows(&backlog, &[after, None]).await?;
    let none = "No subscription: nobody reads events.";
    let cursor = [("after_subscription", "subscription")];
    let list = Section::new("Subscriptions", BACKLOG, rows, none);
    let mut list = list.paged(PAGE, ("outbox", "/outbox"), &[], &cursor);
    let chosen = field(fields, "subscription");
    let is_there = |row: &Row| text(row, "subscription") == chosen;
    if !chosen.is_empty() && !list.rows.iter().any(is_there) {
        let one = app.db.row(&backlog, &[None, Some(chosen)]).await?;
        list.rows.splice(0..0, one);
    }
    list.link = Some(|row| {
        let name = text(row, "subscription");
        format!("/outbox{}", crate::html::query(&[("subscription", &name)]))
    });
    Ok(list)
}

pub(super) async fn sections(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    let suppressed = "select s.scope, s.tenant, s.replays + s.refusals + s.busy + s.conflicts as suppressed, s.replays, s.refusals, s.busy, s.conflicts \
         from pgonce.suppressed s order by 3 desc, 1, 2 limit 21";
    Ok(vec![
        Section::new("Figures", &[], app.db.rows(FIGURES, &[]).await?, ""),
        chart::section(app, fields).await?,
        subscriptions(app, &Fields::new()).await?,
        Section::new(
            "Duplicates that did nothing, by scope",
            SUPPRESSED,
            app.db.rows(suppressed, &[]).await?,
            "No duplicate was reported yet.",
        )
        .cut(20),
    ])
}

pub(super) fn page(app: &App, fields: &Fields, tables: &[Section]) -> Html {
    let Some(figures) = tables.first().and_then(|section| section.rows.first()) else {
        return el("h1", &[], "Overview");
    };
    let tile = |name: &'static str, value: String, address: &str, bad: bool| {
        let address = format!("{}{address}", app.base);
        el(
            "a",
            &[
                ("href", &address),
                ("class", if bad { "tile bad" } else { "tile" }),
            ],
            el("strong", &[], value).and(el("span", &[], name)),
        )
    };
    let about = |field: &str| at_least(number(figures, field), 1000);
    // Counted together: where that stopped, each is at least what was found of it.
    let unfinished = |field: &str| {
        let count = number(figures, field);
        match flag(figures, "stuck_cut") {
            true => at_least(count, count.min(1000)),
            false => at_least(count, 1000),
        }
    };
    let total = |field: &str| grouped(&number(figures, field).to_string());
    let subscriptions = tables
        .get(2)
        .map(|section| section.rows.as_slice())
        .unwrap_or_default();
    let others = tables.get(2).is_some_and(|section| section.next.is_some());
    let halted = subscriptions
        .iter()
        .filter(|row| matches!(text(row, "state").as_str(), "stuck" | "no_relay"))
        .count();
    let troubles = [
        (
            "need manual action",
            unfinished("manual"),
            "/intents?q=state%3Astuck",
            number(figures, "manual") > 0,
        ),
        (
            "unfinished, may be retried",
            unfinished("stuck"),
            "/intents?q=state%3Astuck",
            false,
        ),
        (
            "dead letters",
            about("dead"),
            "/outbox",
            number(figures, "dead") > 0,
        ),
        (
            "poison messages",
            about("poison"),
            "/inbox",
            number(figures, "poison") > 0,
        ),
        (
            "dead jobs",
            about("dead_jobs"),
            "/queue",
            number(figures, "dead_jobs") > 0,
        ),
        (
            "calls need an operator",
            about("calls"),
            "/external",
            number(figures, "calls") > 0,
        ),
        (
            "subscriptions halted",
            format!("{halted}{}", if others { "+" } else { "" }),
            "/outbox",
            halted > 0,
        ),
        (
            "timers overdue",
            about("timers"),
            "/",
            number(figures, "timers") > 0,
        ),
    ];
    let others = if others {
        " There are more subscriptions than this page looks at."
    } else {
        ""
    };
    let trouble = troubles.iter().any(|(_, _, _, bad)| *bad);
    let verdict = match trouble {
        true => el(
            "p",
            &[("class", "verdict bad")],
            "Something needs attention.",
        ),
        false => el(
            "p",
            &[("class", "verdict good")],
            format!("All is well: nothing is stuck, dead or poisoned.{others}"),
        ),
    };
    let troubles = troubles
        .into_iter()
        .map(|(name, value, address, bad)| tile(name, value, address, bad));
    let estimated = flag(figures, "estimated");
    let intents = format!("{}{}", if estimated { "~" } else { "" }, total("intents"));
    let counts = tile("intents remembered", intents, "/intents", false)
        .and(tile(
            "duplicates suppressed",
            total("suppressed"),
            "/intents",
            false,
        ))
        .and(tile("events published", total("events"), "/outbox", false));
    let swept = match text(figures, "swept_at").as_str() {
        "" => Html::text("Purge has never run."),
        at => Html::text("Last purge: ").and(crate::view::time(at)),
    };
    let rest = tables
        .iter()
        .skip(2)
        .map(|section| crate::view::section(app, &nobody(), section));
    el("h1", &[], "Overview")
        .and(verdict)
        .and(el("div", &[("class", "tiles")], counts))
        .and(el("div", &[("class", "tiles")], troubles.collect::<Html>()))
        .and(chart::draw(app, fields, tables.get(1)))
        .and(rest.collect::<Html>())
        .and(el("p", &[("class", "muted")], swept))
}

/// These tables have no acts, so nobody needs to be known.
pub(super) fn nobody() -> crate::access::Who {
    crate::access::Who {
        name: String::new(),
        role: crate::access::Role::Viewer,
        csrf: None,
        session: false,
    }
}
