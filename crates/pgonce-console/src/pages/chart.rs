//! What happened over time, drawn by the server: no script is needed, and the table below says the same.

use pgonce::Error;

use super::field;
use crate::db::{Row, number, text};
use crate::html::{Html, el};
use crate::parts::chips;
use crate::server::{App, Fields};
use crate::view::{Column, Kind, Section, grouped, time};

/// Name, how far back, and how wide a step is: at most 170 points.
const RANGES: [(&str, &str, &str); 4] = [
    ("1h", "1 hour", "1 minute"),
    ("24h", "24 hours", "10 minutes"),
    ("7d", "7 days", "1 hour"),
    ("90d", "90 days", "1 day"),
];

const COLUMNS: &[Column] = &[
    ("From", "at", Kind::Time),
    ("Intents recorded", "intents", Kind::Number),
    ("Duplicates suppressed", "suppressed", Kind::Number),
    ("Events", "events", Kind::Number),
    ("Jobs", "jobs", Kind::Number),
];

/// Counts only grow, so a step is the difference of two; where one is below the last, counting began anew.
const STEPS: &str = "
select d.at, d.intents, d.suppressed, d.events, d.jobs from (
    select b.at, case when b.intents >= lag(b.intents) over w then b.intents - lag(b.intents) over w when lag(b.intents) over w is not null then b.intents end as intents,
           case when b.suppressed >= lag(b.suppressed) over w then b.suppressed - lag(b.suppressed) over w when lag(b.suppressed) over w is not null then b.suppressed end as suppressed,
           case when b.events >= lag(b.events) over w then b.events - lag(b.events) over w when lag(b.events) over w is not null then b.events end as events,
           case when b.jobs >= lag(b.jobs) over w then b.jobs - lag(b.jobs) over w when lag(b.jobs) over w is not null then b.jobs end as jobs
      from (select distinct on (1) date_bin($2::text::interval, s.at, '2000-01-01') as at, s.intents, s.suppressed, s.events, s.jobs
              from pgonce.sample s where s.at > pgonce.now() - $1::text::interval - $2::text::interval order by 1, s.at desc) b
    window w as (order by b.at)) d
 where d.intents is not null order by d.at limit 200";

fn range(fields: &Fields) -> (&'static str, &'static str, &'static str) {
    let chosen = field(fields, "range");
    let found = RANGES.iter().find(|(name, _, _)| *name == chosen);
    *found.unwrap_or(&RANGES[1])
}

pub(super) async fn section(app: &App, fields: &Fields) -> Result<Section, Error> {
    let (_, back, step) = range(fields);
    let rows = app.db.rows(STEPS, &[Some(back), Some(step)]).await?;
    Ok(Section::new("Over time", COLUMNS, rows, ""))
}

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 150.0;

/// A line through the values of a column.
fn line(rows: &[Row], column: &str, most: i64, class: &'static str) -> Html {
    let last = rows.len().saturating_sub(1).max(1) as f64;
    let points = rows.iter().enumerate().map(|(place, row)| {
        let x = place as f64 * WIDTH / last;
        let y = HEIGHT - 3.0 - number(row, column) as f64 / most as f64 * (HEIGHT - 8.0);
        format!("{x:.1} {y:.1}")
    });
    let points = format!("M{}", points.collect::<Vec<_>>().join("L"));
    el("path", &[("class", class), ("d", &points)], "")
}

pub(super) fn draw(app: &App, fields: &Fields, section: Option<&Section>) -> Html {
    let ranges = RANGES.map(|(name, back, _)| (back, name));
    let head = el("h2", &[], "Intents and duplicates over time").and(chips(
        &format!("{}/", app.base),
        range(fields).0,
        "range",
        &ranges,
    ));
    let Some(section) = section.filter(|section| section.rows.len() > 1) else {
        let none =
            "Nothing to draw yet: counts are taken once a minute, when `pgonce serve` purges.";
        return head.and(el("p", &[("class", "empty")], none));
    };
    let rows = &section.rows;
    let sum = |column: &str| rows.iter().map(|row| number(row, column)).sum::<i64>();
    let most = |column: &str| rows.iter().map(|row| number(row, column)).max();
    let top = most("intents").max(most("suppressed")).unwrap_or(0).max(1);
    let (intents, suppressed) = (
        grouped(&sum("intents").to_string()),
        grouped(&sum("suppressed").to_string()),
    );
    let label = format!(
        "{intents} intents recorded, {suppressed} duplicates suppressed; at most {top} in one step"
    );
    let key = |class: &'static str, total: &str, name: &'static str| {
        el(
            "span",
            &[("class", class)],
            el("strong", &[], total).and(" ").and(name),
        )
    };
    let caption = key("key", &intents, "intents recorded")
        .and(key("key two", &suppressed, "duplicates suppressed"))
        .and(el(
            "span",
            &[],
            format!("highest: {}", grouped(&top.to_string())),
        ));
    let floor = format!("{}", HEIGHT - 2.0);
    let picture = el(
        "svg",
        &[
            ("viewBox", "0 0 1000 150"),
            ("preserveAspectRatio", "none"),
            ("role", "img"),
            ("aria-label", &label),
        ],
        el(
            "line",
            &[("x1", "0"), ("x2", "1000"), ("y1", &floor), ("y2", &floor)],
            "",
        )
        .and(line(rows, "intents", top, "first"))
        .and(line(rows, "suppressed", top, "second")),
    );
    let ends = [rows.first(), rows.last()].map(|row| {
        let at = row.map(|row| text(row, "at")).unwrap_or_default();
        time(&at)
    });
    let axis = el(
        "div",
        &[("class", "axis")],
        ends.into_iter().collect::<Html>(),
    );
    let nobody = super::overview::nobody();
    let table = el(
        "details",
        &[],
        el("summary", &[], "As a table").and(crate::view::section(app, &nobody, section)),
    );
    let figure = el("figcaption", &[], caption).and(picture).and(axis);
    head.and(el("figure", &[("class", "chart")], figure))
        .and(table)
}
