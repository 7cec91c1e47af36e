//! The work queue: what each queue holds, what runs, dead letters by error; and one job.

use pgonce::Error;

use super::field;
use crate::access::{Role, Who};
use crate::db::{Row, number, text};
use crate::html::{Html, el, query};
use crate::look;
use crate::parts::{at_least, button, facts, reasoned};
use crate::server::{App, Fields};
use crate::view::{Column, Kind, Section};

/// What is due is counted for all queues together.
const QUEUES: &str = "
select q.queue, case when q.paused then 'paused' when q.running > 0 then 'running' else 'idle' end as state, q.ready, q.running, q.retrying, q.scheduled,
       q.blocked, q.dead, q.ready >= 10000 as ready_cut, q.due_cut, q.blocked >= 10000 as blocked_cut, q.dead >= 10000 as dead_cut,
       q.max_running, q.rate || ' per ' || q.rate_per as rate, q.max_attempts, q.keep::text
  from (select q.*, sum(q.running + q.retrying + q.scheduled) over () >= 10000 as due_cut from pgonce.queues q) q
 where ($1::text is null or q.queue > $1) and ($2::text is null or q.queue = $2) order by q.queue limit 201";

/// Queues of a page.
const MANY: usize = 200;

const HELD: &[Column] = &[
    ("Queue", "queue", Kind::Code),
    ("State", "state", Kind::Status),
    ("Ready", "ready", Kind::Counted("ready_cut")),
    ("Running", "running", Kind::Counted("due_cut")),
    ("Retrying", "retrying", Kind::Counted("due_cut")),
    ("Scheduled", "scheduled", Kind::Counted("due_cut")),
    ("Blocked", "blocked", Kind::Counted("blocked_cut")),
    ("Dead", "dead", Kind::Counted("dead_cut")),
    ("At a time", "max_running", Kind::Text),
    ("Rate", "rate", Kind::Text),
    ("Attempts", "max_attempts", Kind::Number),
    ("Keeps", "keep", Kind::Text),
];

const GROUPS: &[Column] = &[
    ("Code", "failure_code", Kind::Code),
    ("Error", "failure_message", Kind::Text),
    ("Dead letters", "n", Kind::Counted("n_cut")),
    ("First", "first_at", Kind::Time),
    ("Last", "last_at", Kind::Time),
];

const JOBS: &[Column] = &[
    ("Number", "id", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Key", "key", Kind::Code),
    ("State", "status", Kind::Status),
    ("Attempts", "attempts", Kind::Number),
    ("Worker", "owner", Kind::Code),
    ("Code", "failure_code", Kind::Code),
    ("Error", "failure_message", Kind::Text),
    ("Lease ends, or is due", "due_at", Kind::Time),
    ("Ended", "ended_at", Kind::Time),
];

const SCHEDULES: &[Column] = &[
    ("Schedule", "name", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Cron", "cron", Kind::Code),
    ("Zone", "zone", Kind::Text),
    ("Queue", "queue", Kind::Code),
    ("Next", "next_at", Kind::Time),
    ("Last", "last_at", Kind::Time),
];

const PAGE: usize = 50;

/// Where `pgonce.queues` stops to count.
const MAX_COUNTED: i64 = 10_000;

/// Jobs that are looked at for those of one queue: no index has both the queue and the time. `pgonce.queues` counts among the same.
const DUE: usize = 10_000;
const LOOKED: &str =
    "The 10,000 jobs of all queues that are due first were looked at: there may be more.";

fn running() -> String {
    let due = "select * from pgonce.job_live l where l.state in ('scheduled', 'retrying', 'running', 'limited') order by l.due_at";
    let of_it = look::among(due, DUE, "x.queue = $1", "all");
    format!(
        "select l.tenant, l.id, l.key, l.queue, case l.state when 'limited' then 'running' else l.state::text end as status, l.attempts, l.owner, \
         l.failure_code, l.failure_message, l.due_at, l.matches, bool_or(l.stopped) over () as stopped from ({of_it}) l \
         order by l.stopped and not l.matches, l.state not in ('running', 'limited'), l.due_at limit 51"
    )
}

fn of_queue(row: &Row) -> String {
    format!("/queue{}", query(&[("queue", &text(row, "queue"))]))
}

fn of_job(row: &Row) -> String {
    let [tenant, id] = ["tenant", "id"].map(|name| text(row, name));
    format!("/job{}", query(&[("tenant", &tenant), ("id", &id)]))
}

pub(super) async fn list(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    let chosen = field(fields, "queue");
    let from = fields.get("after_queue").map(String::as_str);
    let held = app.db.rows(QUEUES, &[from, None]).await?;
    let held = Section::new("Queues", HELD, held, "No queue: nothing was enqueued.");
    let mut held = held.paged(MANY, ("queue", "/queue"), &[], &[("after_queue", "queue")]);
    // The one that is looked at, wherever it is.
    if !chosen.is_empty() && !held.rows.iter().any(|row| text(row, "queue") == chosen) {
        let own = app.db.row(QUEUES, &[None, Some(chosen)]).await?;
        held.rows.splice(0..0, own);
    }
    let mut tables = vec![Section {
        link: Some(of_queue),
        ..held
    }];
    if chosen.is_empty() {
        let sql = "select s.name, s.tenant, s.cron, s.zone, s.queue, s.next_at, s.last_at from pgonce.job_schedule s order by s.next_at limit 101";
        let rows = app.db.rows(sql, &[]).await?;
        tables.push(Section {
            link: Some(of_queue),
            ..Section::new("Schedules", SCHEDULES, rows, "No schedule is defined.").cut(100)
        });
        return Ok(tables);
    }
    let groups = "select d.failure_code, d.failure_message, count(*) as n, sum(count(*)) over () > 10000 as n_cut, min(d.ended_at) as first_at, max(d.ended_at) as last_at \
         from (select e.failure_code, left(e.failure_message, 300) as failure_message, e.ended_at from pgonce.job_end e \
               where e.queue = $1 and e.status = 'dead' limit 10001) d group by 1, 2 order by 3 desc, 1, 2 limit 51";
    let dead = "select e.tenant, e.id, j.key, e.queue, e.status, e.attempts, e.owner, e.failure_code, e.failure_message, e.ended_at \
         from pgonce.job_end e left join pgonce.job j on j.tenant = e.tenant and j.id = e.id \
         where e.queue = $1 and e.status = 'dead' and ($2::text is null or e.id > $2::text::bigint) order by e.id limit $3::text::int";
    let ready = "select l.tenant, l.id, l.key, l.queue, 'ready' as status, l.attempts, l.failure_code, l.failure_message from pgonce.job_live l \
         where l.queue = $1 and l.state = 'ready' order by l.priority desc, l.id limit 21";
    let after = fields
        .get("after")
        .filter(|after| after.parse::<i64>().is_ok())
        .map(String::as_str);
    let of_it = [Some(chosen)];
    let title = format!("Dead letters of {chosen}, by error");
    let rows = app.db.rows(groups, &of_it).await?;
    let groups = Section::new(title, GROUPS, rows, "There are no dead letters.");
    tables.push(groups.cut(50));
    let limit = (PAGE + 1).to_string();
    let rows = app
        .db
        .rows(dead, &[Some(chosen), after, Some(&limit)])
        .await?;
    if !rows.is_empty() {
        let dead = Section::new("Dead letters", JOBS, rows, "");
        let (page, keep) = (("queue", "/queue"), [("queue", chosen)]);
        tables.push(Section {
            link: Some(of_job),
            act: Some(job_acts),
            ..dead.paged(PAGE, page, &keep, &[("after", "id")])
        });
    }
    let rows = app.db.rows(&running(), &of_it).await?;
    let none = "Nothing runs, and nothing waits for its time.";
    let running = Section::new("Running, and due next", JOBS, rows, none);
    let rows = app.db.rows(ready, &of_it).await?;
    let ready = Section::new(
        "Ready, in the order of claims",
        JOBS,
        rows,
        "Nothing is ready.",
    );
    for section in [running.looked_once(50, LOOKED), ready.cut(20)] {
        tables.push(Section {
            link: Some(of_job),
            act: Some(job_acts),
            ..section
        });
    }
    Ok(tables)
}

fn job_acts(app: &App, who: &Who, row: &Row) -> Html {
    if who.role < Role::Operator {
        return Html::default();
    }
    let [tenant, id, queue, status] =
        ["tenant", "id", "queue", "status"].map(|name| text(row, name));
    let names = [("tenant", tenant.as_str()), ("id", &id), ("queue", &queue)];
    let id = format!("{tenant}-{id}");
    let retry = match status.as_str() {
        "dead" | "retrying" | "scheduled" => reasoned("Retry", &id, "", |inside| {
            button(app, who, "retry-jobs", "Retry", &names, inside)
        }),
        _ => Html::default(),
    };
    match status.as_str() {
        "succeeded" | "cancelled" => Html::default(),
        _ => retry.and(reasoned("Cancel", &id, "cancel", |inside| {
            button(app, who, "cancel-job", "Cancel the job", &names, inside)
        })),
    }
}

pub(super) fn page(app: &App, who: &Who, fields: &Fields, tables: &[Section], list: Html) -> Html {
    let head = el("h1", &[], "Queue");
    let chosen = field(fields, "queue");
    let queues = tables.first().map(|section| section.rows.as_slice());
    let row = queues
        .unwrap_or_default()
        .iter()
        .find(|row| text(row, "queue") == chosen);
    let Some(row) = row.filter(|_| who.role >= Role::Operator) else {
        return head.and(list);
    };
    let names = [("queue", chosen)];
    let turn = match text(row, "state").as_str() {
        "paused" => ("resume-queue", "Resume"),
        _ => ("pause-queue", "Pause"),
    };
    let label = format!("{} {chosen}", turn.1);
    let turn = button(app, who, turn.0, &label, &names, Html::default());
    let all = match number(row, "dead") {
        0 => Html::default(),
        count => {
            let count = at_least(count, MAX_COUNTED);
            let label = format!("Retry all {count} dead letters");
            reasoned(&label, "all", "retry", |inside| {
                button(app, who, "retry-all-jobs", &label, &names, inside)
            })
        }
    };
    head.and(el("div", &[("class", "bar")], turn.and(all)))
        .and(list)
}

const ONE: &str = "
select j.tenant, j.id, j.queue, j.status, j.unique_key, j.key, j.group_name, j.priority, j.attempts, j.owner, j.failure_code, j.failure_message,
       j.created_at, j.due_at, j.ended_at, case when $3 = 'yes' then jsonb_pretty(p.payload) end as payload,
       case when $3 = 'yes' then jsonb_pretty(j.progress) end as progress, case when $3 = 'yes' then jsonb_pretty(j.result) end as result
  from pgonce.jobs j join pgonce.job p on p.tenant = j.tenant and p.id = j.id where j.tenant = $1 and j.id = $2::text::bigint";

const FACTS: &[Column] = &[
    ("Status", "status", Kind::Status),
    ("Queue", "queue", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Unique key", "unique_key", Kind::Code),
    ("Key", "key", Kind::Code),
    ("Group", "group_name", Kind::Code),
    ("Priority", "priority", Kind::Number),
    ("Attempts", "attempts", Kind::Number),
    ("Worker", "owner", Kind::Code),
    ("Failure", "failure_code", Kind::Code),
    ("Error", "failure_message", Kind::Text),
    ("Enqueued", "created_at", Kind::Time),
    ("Lease ends, or is due", "due_at", Kind::Time),
    ("Ended", "ended_at", Kind::Time),
];

pub(super) async fn one(app: &App, who: &Who, fields: &Fields) -> Result<Vec<Section>, Error> {
    let seen = if who.role >= Role::Operator {
        "yes"
    } else {
        "no"
    };
    let (tenant, id) = (field(fields, "tenant"), field(fields, "id"));
    let id = if id.parse::<i64>().is_ok() { id } else { "0" };
    let mut record = app
        .db
        .rows(ONE, &[Some(tenant), Some(id), Some(seen)])
        .await?;
    for row in &mut record {
        for member in ["payload", "progress", "result"] {
            super::hide::hide(row, member, &app.redact);
        }
    }
    let scope = record
        .first()
        .map(|row| format!("job {}", text(row, "queue")));
    let acts = super::intent::OPERATED;
    let acts = match &scope {
        Some(scope) => {
            app.db
                .rows(acts, &[Some(tenant), Some(scope), Some(id)])
                .await?
        }
        None => Vec::new(),
    };
    let none = "Nobody has touched it by hand.";
    Ok(vec![
        Section::new("Record", &[], record, ""),
        Section::new("Operator acts", super::intent::ACTED, acts, none).cut(200),
    ])
}

pub(super) fn one_page(app: &App, who: &Who, fields: &Fields, tables: &[Section]) -> Html {
    let head = el(
        "h1",
        &[],
        el("code", &[], format!("job {}", field(fields, "id"))),
    );
    let Some(row) = tables.first().and_then(|section| section.rows.first()) else {
        let none =
            "There is no such job: it was purged after its retention, or number or tenant differ.";
        return head.and(el("p", &[("class", "verdict warn")], none));
    };
    let crumb = el(
        "a",
        &[("href", &format!("{}{}", app.base, of_queue(row)))],
        text(row, "queue"),
    );
    let documents = [
        ("Payload", "payload"),
        ("Progress", "progress"),
        ("Result", "result"),
    ];
    let documents = documents.map(|(label, name)| match text(row, name) {
        none if none.is_empty() => Html::default(),
        shown => el(
            "details",
            &[],
            el("summary", &[], label).and(el("pre", &[("tabindex", "0")], shown)),
        ),
    });
    let acts = tables
        .get(1)
        .map(|acts| crate::view::section(app, who, acts));
    el("p", &[("class", "crumb")], crumb)
        .and(head)
        .and(el(
            "section",
            &[("class", "card")],
            facts(row, FACTS).and(documents.into_iter().collect::<Html>()),
        ))
        .and(el("div", &[("class", "bar")], job_acts(app, who, row)))
        .and(acts.unwrap_or_default())
}
