//! Imports: which files, how far each is, and the rows of one that need attention.

use pgonce::Error;

use super::field;
use crate::access::{Role, Who};
use crate::db::{Row, number, text};
use crate::html::{Html, el, query};
use crate::parts::{button, facts};
use crate::server::{App, Fields};
use crate::view::{Column, Kind, Section};

const LIST: &[Column] = &[
    ("Job", "job", Kind::Code),
    ("File", "number", Kind::Number),
    ("Tenant", "tenant", Kind::Code),
    ("State", "state", Kind::Status),
    ("Rows", "row_count", Kind::Number),
    ("Applied", "applied", Kind::Number),
    ("Skipped", "skipped", Kind::Number),
    ("Changed", "changed", Kind::Number),
    ("Failed", "failed", Kind::Number),
    ("Source", "source", Kind::Code),
    ("Started", "started_at", Kind::Time),
    ("Ended", "ended_at", Kind::Time),
];

const FACTS: &[Column] = &[
    ("State", "state", Kind::Status),
    ("Tenant", "tenant", Kind::Code),
    ("Source", "source", Kind::Code),
    ("Rows with a result", "row_count", Kind::Number),
    ("Applied", "applied", Kind::Number),
    ("Skipped, their key came before", "skipped", Kind::Number),
    (
        "Changed, their key came with other content",
        "changed",
        Kind::Number,
    ),
    ("Failed", "failed", Kind::Number),
    ("Bytes read", "bytes", Kind::Number),
    ("Rows a second", "rate", Kind::Number),
    ("Started", "started_at", Kind::Time),
    ("Last rows", "last_at", Kind::Time),
    ("Ended", "ended_at", Kind::Time),
    ("SHA-256 of the file", "file_hash", Kind::Code),
];

const GROUPS: &[Column] = &[
    ("Code", "code", Kind::Code),
    ("Status", "status", Kind::Status),
    ("Field", "field", Kind::Code),
    ("Rows", "n", Kind::Counted("n_cut")),
    ("First", "first_row", Kind::Number),
    ("Reason of the first", "reason", Kind::Text),
];

const ROWS: &[Column] = &[
    ("Row", "row", Kind::Number),
    ("Line", "line", Kind::Number),
    ("Status", "status", Kind::Status),
    ("Key", "key", Kind::Code),
    ("Field", "field", Kind::Code),
    ("Code", "code", Kind::Code),
    ("Reason", "reason", Kind::Text),
];

const PAGE: usize = 50;

fn link(row: &Row) -> String {
    let [tenant, job, number] = ["tenant", "job", "number"].map(|name| text(row, name));
    let pairs = [
        ("tenant", tenant.as_str()),
        ("job", &job),
        ("number", &number),
    ];
    format!("/import{}", query(&pairs))
}

pub(super) async fn list(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    let sql = "select i.tenant, i.job, i.number, i.state, i.row_count, i.applied, i.skipped, i.changed, i.failed, i.source, i.started_at, i.ended_at, \
         i.started_at::text as cursor from pgonce.imports i \
         where ($1::text is null or (i.started_at, i.tenant, i.job, i.number) < ($1::text::timestamptz, $2, $3, $4::text::int)) \
         order by i.started_at desc, i.tenant desc, i.job desc, i.number desc limit $5::text::int";
    let after = |name: &str| fields.get(name).map(String::as_str);
    let limit = (PAGE + 1).to_string();
    let params = [
        after("after"),
        after("after_tenant").or(Some("")),
        after("after_job").or(Some("")),
        after("after_number").or(Some("0")),
        Some(&*limit),
    ];
    let rows = app.db.rows(sql, &params).await?;
    let cursor = [
        ("after", "cursor"),
        ("after_tenant", "tenant"),
        ("after_job", "job"),
        ("after_number", "number"),
    ];
    let list = Section::new("", LIST, rows, "No file was imported.");
    Ok(vec![Section {
        link: Some(link),
        ..list.paged(PAGE, ("imports", "/imports"), &[], &cursor)
    }])
}

pub(super) async fn one(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    let [tenant, job, chosen] = ["tenant", "job", "number"].map(|name| field(fields, name));
    let chosen = if chosen.parse::<i32>().is_ok() {
        chosen
    } else {
        "0"
    };
    let names = [Some(tenant), Some(job), Some(chosen)];
    let record = "select i.tenant, i.job, i.number, i.source, i.state, i.row_count, i.applied, i.skipped, i.changed, i.failed, i.bytes, i.file_hash, i.settings, \
         i.started_at, i.ended_at, c.at as last_at, \
         round(i.row_count / greatest(extract(epoch from coalesce(c.at, i.ended_at, pgonce.now()) - i.started_at), 1))::bigint as rate from pgonce.imports i \
         left join lateral (select c.at from pgonce.import_chunk c where c.tenant = i.tenant and c.job = i.job and c.number = i.number order by c.first_row desc limit 1) c on true \
         where i.tenant = $1 and i.job = $2 and i.number = $3::text::int";
    let groups = "select d.code, d.status, d.field, count(*) as n, sum(count(*)) over () > 10000 as n_cut, min(d.row) as first_row, (array_agg(d.reason order by d.row))[1] as reason \
         from (select r.* from pgonce.import_row r where r.tenant = $1 and r.job = $2 and r.number = $3::text::int order by r.row limit 10001) d \
         group by 1, 2, 3 order by 4 desc, 1, 2, 3 limit 51";
    let rejects = "select r.row, r.line, r.status, r.key, r.field, r.code, r.reason from pgonce.import_row r \
         where r.tenant = $1 and r.job = $2 and r.number = $3::text::int and ($4::text is null or r.row > $4::text::bigint) order by r.row limit $5::text::int";
    let after = fields
        .get("after")
        .filter(|after| after.parse::<i64>().is_ok())
        .map(String::as_str);
    let limit = (PAGE + 1).to_string();
    let rows = [names[0], names[1], names[2], after, Some(&*limit)];
    let rows = app.db.rows(rejects, &rows).await?;
    let keep = [("tenant", tenant), ("job", job), ("number", chosen)];
    let rejects = Section::new(
        "Rows that need attention",
        ROWS,
        rows,
        "Every row has its effect.",
    );
    Ok(vec![
        Section::new("Record", &[], app.db.rows(record, &names).await?, ""),
        Section::new(
            "By reason",
            GROUPS,
            app.db.rows(groups, &names).await?,
            "No row was refused.",
        )
        .cut(50),
        rejects.paged(PAGE, ("import", "/import"), &keep, &[("after", "row")]),
    ])
}

pub(super) fn one_page(app: &App, who: &Who, fields: &Fields, tables: &[Section]) -> Html {
    let title = format!("{} {}", field(fields, "job"), field(fields, "number"));
    let all = el(
        "a",
        &[("href", &format!("{}/imports", app.base))],
        "Imports",
    );
    let head = el("p", &[("class", "crumb")], all).and(el("h1", &[], el("code", &[], title)));
    let Some(row) = tables.first().and_then(|section| section.rows.first()) else {
        let none = "There is no such import: job, number or tenant differ.";
        return head.and(el("p", &[("class", "verdict warn")], none));
    };
    let state = text(row, "state");
    let (mood, words) = match (state.as_str(), number(row, "failed")) {
        ("done", 0) => ("good", "It is done: every row has its effect once."),
        ("done", _) => (
            "warn",
            "It is done; some rows were refused, and had no effect.",
        ),
        ("running", _) => ("warn", "It is being imported."),
        ("cancelled", _) => (
            "muted",
            "It was cancelled: what was applied stays applied. Import the file again to go on.",
        ),
        _ => (
            "bad",
            "No process goes on with it. Import the file again to go on; applied rows are not applied twice.",
        ),
    };
    let cancel = match state.as_str() {
        "running" | "stopped" if who.role >= Role::Operator => {
            let [tenant, job, number] = ["tenant", "job", "number"].map(|name| text(row, name));
            let names = [
                ("tenant", tenant.as_str()),
                ("job", &job),
                ("number", &number),
            ];
            let label = format!("Cancel the imports of {job}");
            button(app, who, "cancel-import", &label, &names, Html::default())
        }
        _ => Html::default(),
    };
    let rest = tables.iter().skip(1);
    let rest = rest.map(|section| crate::view::section(app, who, section));
    head.and(el("p", &[("class", &format!("verdict {mood}"))], words))
        .and(el("section", &[("class", "card")], facts(row, FACTS)))
        .and(el("div", &[("class", "bar")], cancel))
        .and(rest.collect::<Html>())
}
