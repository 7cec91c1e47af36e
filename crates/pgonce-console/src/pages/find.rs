//! Find anything by any id. It never says that something did not happen when it may have.

use pgonce::Error;

use super::field;
use crate::db::Row;
use crate::html::{Html, el, query};
use crate::server::{App, Fields};
use crate::view::{Column, Kind, Section};

const COLUMNS: &[Column] = &[
    ("What", "what", Kind::Text),
    ("Found as", "found_as", Kind::Text),
    ("Place", "place", Kind::Code),
    ("Id", "id", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Status", "status", Kind::Status),
    ("Since", "at", Kind::Time),
    ("", "verdict", Kind::Text),
];

const INCOMPLETE: &[Column] = &[("Not looked at completely", "what", Kind::Text)];

/// The parts of `pgonce.find`: by index first, then those that read whole tables.
const PARTS: [(&str, &str, &str); 8] = [
    (
        "Intents",
        "intents",
        "keys, references and correlation ids of intents",
    ),
    (
        "Events",
        "events",
        "numbers of events, parked and skipped ones",
    ),
    ("Messages", "messages", "ids of accepted messages"),
    ("Jobs", "jobs", "keys of jobs"),
    (
        "Calls",
        "calls",
        "effect keys, references and events of calls to providers",
    ),
    (
        "Intents by hash",
        "all_intents",
        "hashed keys and fingerprints of intents",
    ),
    (
        "Events in the log",
        "all_events",
        "subjects, message ids and trace ids of the outbox",
    ),
    (
        "Stored messages",
        "all_messages",
        "message ids and keys of the stored inbox",
    ),
];

/// Where each look-up of `pgonce.find` ends.
const MAX_FOUND: usize = 100;

/// Which of them read so much that somebody must ask for it.
const LARGE: &str = "
select (select count(*) from (select from pgonce.intent limit 20001) x) > 20000 as all_intents,
       (select count(*) from (select from pgonce.outbox limit 20001) x) > 20000 as all_events,
       (select count(*) from (select from pgonce.inbox_message limit 20001) x) > 20000 as all_messages";

/// Where a row of `pgonce.find` leads.
fn link(row: &crate::db::Row) -> String {
    let [tenant, place, id] = ["tenant", "place", "id"].map(|name| crate::db::text(row, name));
    match crate::db::text(row, "what").as_str() {
        "message" | "stored message" => format!("/inbox{}", query(&[("consumer", &place)])),
        "intent" | "attempt" | "operator act" | "external call" => format!(
            "/intent{}",
            query(&[("tenant", &tenant), ("scope", &place), ("key", &id)])
        ),
        "job" => format!("/job{}", query(&[("tenant", &tenant), ("id", &id)])),
        _ => format!("/find{}", query(&[("q", &id)])),
    }
}

pub(super) async fn sections(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    let sought = field(fields, "q").trim();
    if sought.is_empty() {
        return Ok(Vec::new());
    }
    let mut tables = Vec::new();
    let mut incomplete = Vec::new();
    let large = match field(fields, "all") {
        "yes" => Row::new(),
        _ => app.db.row(LARGE, &[]).await?.unwrap_or_default(),
    };
    let mut asked = false;
    for (title, part, what) in PARTS {
        if large.get(part) == Some(&true.into()) {
            asked = true;
            incomplete.push([("what".to_owned(), what.into())].into_iter().collect());
            continue;
        }
        let sql = "select * from pgonce.find($1, $2)";
        match app.db.rows(sql, &[Some(sought), Some(part)]).await {
            Ok(rows) if rows.is_empty() => {}
            Ok(rows) => {
                let mut found = Section::new(title, COLUMNS, rows, "");
                found.link = Some(link);
                if found.rows.len() >= MAX_FOUND {
                    found.is_cut = true;
                    let words = "A look-up ends after 100: there may be more.";
                    found.foot = el("p", &[("class", "muted")], words);
                }
                tables.push(found);
            }
            // Out of time; the others may answer.
            Err(error) if error.code() == "57014" => {
                incomplete.push([("what".to_owned(), what.into())].into_iter().collect())
            }
            Err(error) => return Err(error),
        }
    }
    if !incomplete.is_empty() {
        let mut rest = Section::new("", INCOMPLETE, incomplete, "");
        if asked {
            let address = query(&[("q", sought), ("all", "yes")]);
            let link = el(
                "a",
                &[("href", &format!("{}/find{address}", app.base))],
                "Look there too",
            );
            rest.foot = el(
                "p",
                &[],
                link.and(": it reads whole tables, for up to three seconds each."),
            );
        }
        tables.push(rest);
    }
    Ok(tables)
}

pub(super) fn page(fields: &Fields, list: Html) -> Html {
    let sought = field(fields, "q").trim();
    let head = el("h1", &[], "Find");
    match (sought, list.is_empty()) {
        ("", _) => head.and(el("p", &[], "Type a key, as the client sent it, as it is stored or hashed as in logs; a reference, a correlation id, a message id, a subject, a trace id, the key of a job, or the number of an event.")),
        (_, true) => head.and(el("p", &[("class", "verdict warn")], "Nothing with this id is remembered here.")).and(el("p", &[], "That does not prove that it never happened: \
            an attempt in an open transaction has no record yet, records are purged after their retention, delivered events leave the log, and bytes may differ.")),
        _ => head.and(list),
    }
}
