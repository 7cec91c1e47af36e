//! Find anything by any id. It never says that something did not happen when it may have.

use pgonce::Error;

use super::{field, intents};
use crate::html::{Html, el, query};
use crate::server::{App, Fields};
use crate::view::{Column, Kind, Section};

const INTENTS: &[Column] = &[
    ("Key", "key", Kind::Code),
    ("Scope", "scope", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Status", "status", Kind::Status),
    ("Found as", "found_as", Kind::Text),
    ("First", "first_at", Kind::Time),
];

const EVENTS: &[Column] = &[
    ("Number", "seq", Kind::Code),
    ("Topic", "topic", Kind::Code),
    ("Type", "type", Kind::Code),
    ("Subject", "subject", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Message id", "message_id", Kind::Code),
    ("Published", "created_at", Kind::Time),
    ("Parked for", "parked", Kind::Code),
];

const MESSAGES: &[Column] = &[
    ("Consumer", "consumer", Kind::Code),
    ("Source", "source", Kind::Code),
    ("Message id", "message_id", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("State", "state", Kind::Status),
    ("Accepted", "at", Kind::Time),
];

const INCOMPLETE: &[Column] = &[("Not looked at completely", "what", Kind::Text)];

/// From scope to scope by the primary key, in each the key itself, or what the HTTP layer made of a client's key.
const BY_KEY: &str = "
with recursive steps (tenant, scope, n) as (
    (select i.tenant, i.scope, 1 from pgonce.intent i order by i.tenant, i.scope limit 1)
    union all
    select s.* from steps p cross join lateral (
        select i.tenant, i.scope, p.n + 1 from pgonce.intent i where (i.tenant, i.scope) > (p.tenant, p.scope) order by i.tenant, i.scope limit 1) s
     where p.n < 10000)
select i.tenant, i.scope, i.key, i.status, i.first_at, case when i.key = $1 then 'key' else 'key of a client' end as found_as
  from steps p cross join lateral (
       select i.* from pgonce.intent i where i.tenant = p.tenant and i.scope = p.scope and i.key = $1
       union all
       (select i.* from pgonce.intent i where i.tenant = p.tenant and i.scope = p.scope and i.key > left($1, 222) || '#' and i.key < left($1, 222) || '$'
           and octet_length(i.key) = octet_length(left($1, 222)) + 33 limit 20)) i
 limit 100";

/// There is no index on these: it takes as long as it may.
const BY_REFERENCE: &str = "
select i.tenant, i.scope, i.key, i.status, i.first_at,
       case when i.ref_id = $1 then 'reference' when i.correlation_id = $1 then 'correlation id' else 'fingerprint' end as found_as
  from pgonce.intent i
 where i.ref_id = $1 or i.correlation_id = $1 or i.ref_type || '/' || i.ref_id = $1
    or i.fingerprint = case when $1 ~ '^([0-9a-fA-F]{2}){16,}$' then decode($1, 'hex') end
 limit 100";

const BY_EVENT: &str = "
select o.seq, o.topic, o.type, o.subject, o.tenant, o.message_id, o.created_at,
       (select string_agg(k.subscription || ' (' || k.state || ')', ', ') from pgonce.parked k where k.seq = o.seq) as parked
  from pgonce.outbox o
 where o.subject = $1 or o.message_id::text = lower($1) or o.seq::text = $1
 order by o.seq desc limit 100";

const BY_MESSAGE: &str = "
select m.consumer, m.source, m.message_id, m.tenant, m.status::text as state, m.received_at as at from pgonce.inbox_message m where m.message_id = $1 or m.key = $1
union all
select k.consumer, k.source, k.message_id, k.tenant, 'accepted', k.accepted_at from pgonce.inbox_marker k where k.message_id = $1
   and not exists (select from pgonce.inbox_message m where m.tenant = k.tenant and m.consumer = k.consumer and m.source = k.source and m.message_id = k.message_id)
limit 100";

pub(super) async fn sections(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    let sought = field(fields, "q").trim();
    if sought.is_empty() {
        return Ok(Vec::new());
    }
    let mut tables = Vec::new();
    let mut incomplete = Vec::new();
    for (title, columns, sql, what) in [
        ("Intents", INTENTS, BY_KEY, "keys of intents"),
        (
            "Intents by reference",
            INTENTS,
            BY_REFERENCE,
            "references, correlation ids and fingerprints of intents",
        ),
        (
            "Events",
            EVENTS,
            BY_EVENT,
            "subjects and message ids of the outbox",
        ),
        (
            "Messages",
            MESSAGES,
            BY_MESSAGE,
            "message ids and keys of the inbox",
        ),
    ] {
        match app.db.rows(sql, &[Some(sought)]).await {
            Ok(rows) if rows.is_empty() => {}
            Ok(rows) => {
                let mut found = Section::new(title, columns, rows, "");
                found.link = match title {
                    "Events" => None,
                    "Messages" => Some(|row| {
                        format!(
                            "/inbox{}",
                            query(&[("consumer", &crate::db::text(row, "consumer"))])
                        )
                    }),
                    _ => Some(intents::link),
                };
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
        tables.push(Section::new("", INCOMPLETE, incomplete, ""));
    }
    Ok(tables)
}

pub(super) fn page(fields: &Fields, list: Html) -> Html {
    let sought = field(fields, "q").trim();
    let head = el("h1", &[], "Find");
    match (sought, list.is_empty()) {
        ("", _) => head.and(el("p", &[], "Type a key, a reference, a correlation id, a message id, a subject, or the number of an event.")),
        (_, true) => head.and(el("p", &[("class", "verdict warn")], "Nothing with this id is remembered here.")).and(el("p", &[], "That does not prove that it never happened: \
            an attempt in an open transaction has no record yet, records are purged after their retention, delivered events leave the log, and bytes may differ.")),
        _ => head.and(list),
    }
}
