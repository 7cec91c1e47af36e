//! Pages. Each is a list of tables, which the API has too; some have forms beside them.

mod chart;
mod copy;
mod external;
mod find;
mod hide;
mod imports;
mod intent;
pub(crate) mod intents;
mod messages;
mod overview;
mod queue;
mod records;

use axum::extract::{Extension, OriginalUri, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use pgonce::Error;

use crate::access::Who;
use crate::acts::ACTS;
use crate::html::{Html, el};
use crate::operations;
use crate::server::{App, Fields, Shared, fields};
use crate::view::{self, Page, Section};

/// A page: where it is, and its place in the navigation; one without a key is not in it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    pub(crate) label: &'static str,
    pub(crate) key: &'static str,
    live: bool,
    /// What its address may ask for.
    pub(crate) fields: &'static [&'static str],
}

const fn entry(
    name: &'static str,
    path: &'static str,
    label: &'static str,
    key: &'static str,
    live: bool,
    fields: &'static [&'static str],
) -> Entry {
    Entry {
        name,
        path,
        label,
        key,
        live,
        fields,
    }
}

pub(crate) const PAGES: &[Entry] = &[
    entry("overview", "/", "Overview", "o", true, &["range"]),
    entry(
        "intents",
        "/intents",
        "Intents",
        "i",
        true,
        &["q", "after_time", "after_tenant", "after_scope", "after"],
    ),
    entry(
        "outbox",
        "/outbox",
        "Outbox",
        "e",
        true,
        &["subscription", "after", "after_subscription"],
    ),
    entry(
        "inbox",
        "/inbox",
        "Inbox",
        "m",
        true,
        &["consumer", "after", "after_consumer", "after_tenant"],
    ),
    entry(
        "queue",
        "/queue",
        "Queue",
        "q",
        true,
        &["queue", "after", "after_queue"],
    ),
    entry(
        "external",
        "/external",
        "External calls",
        "x",
        true,
        &[
            "status",
            "provider",
            "after_deadline",
            "after_time",
            "after",
        ],
    ),
    entry(
        "imports",
        "/imports",
        "Imports",
        "f",
        true,
        &["after", "after_tenant", "after_job", "after_number"],
    ),
    entry(
        "operations",
        "/operations",
        "Operations",
        "p",
        true,
        &["op", "tenant", "scope", "key", "failure"],
    ),
    entry(
        "ledger",
        "/ledger",
        "Ledger",
        "l",
        false,
        &["check", "after_tenant", "after"],
    ),
    entry(
        "scopes",
        "/scopes",
        "Scopes",
        "s",
        false,
        &["after", "after_tenant"],
    ),
    entry(
        "audit",
        "/audit",
        "Audit",
        "a",
        true,
        &["after_time", "after"],
    ),
    entry("find", "/find", "Find", "", false, &["q", "all"]),
    entry(
        "intent",
        "/intent",
        "Intent",
        "",
        true,
        &["tenant", "scope", "key"],
    ),
    entry("job", "/job", "Job", "", true, &["tenant", "id"]),
    entry(
        "call",
        "/call",
        "External call",
        "",
        true,
        &["tenant", "effect_key"],
    ),
    entry(
        "import",
        "/import",
        "Import",
        "",
        true,
        &["tenant", "job", "number", "after"],
    ),
];

/// The tables of a page.
pub(crate) async fn sections(
    name: &str,
    app: &App,
    who: &Who,
    fields: &Fields,
) -> Result<Vec<Section>, Error> {
    match name {
        "overview" => overview::sections(app, fields).await,
        "intents" => intents::list(app, fields).await,
        "intent" => intent::one(app, who, fields).await,
        "outbox" => messages::outbox(app, fields).await,
        "inbox" => messages::inbox(app, fields).await,
        "queue" => queue::list(app, fields).await,
        "job" => queue::one(app, who, fields).await,
        "external" => external::list(app, fields).await,
        "call" => external::one(app, who, fields).await,
        "imports" => imports::list(app, fields).await,
        "import" => imports::one(app, fields).await,
        "operations" => operations::sections(app, fields).await,
        "ledger" => records::ledger(app, fields).await,
        "scopes" => records::scopes(app, fields).await,
        "audit" => records::audit(app, fields).await,
        _ => find::sections(app, fields).await,
    }
}

pub(crate) async fn show(
    entry: &'static Entry,
    State(app): State<Shared>,
    Extension(who): Extension<Who>,
    OriginalUri(uri): OriginalUri,
) -> Response {
    let fields = fields(uri.query().unwrap_or_default().as_bytes());
    let (status, tables) = match sections(entry.name, &app, &who, &fields).await {
        Ok(tables) => (StatusCode::OK, tables),
        Err(error) => {
            let body = el("h1", &[], entry.label).and(failed(&error));
            let page = Page {
                title: entry.label.to_owned(),
                name: entry.name,
                body,
                live: entry.live,
                ..Page::default()
            };
            return (
                StatusCode::SERVICE_UNAVAILABLE,
                view::shell(&app, Some(&who), page),
            )
                .into_response();
        }
    };
    // Only what an act's own redirect could have said: anything else would be words of who made the address.
    let acted = fields
        .get("done")
        .filter(|done| ACTS.iter().any(|act| act.name == **done));
    let done = match acted {
        Some(done) => el(
            "p",
            &[("class", "done"), ("role", "status")],
            format!("Done: {done}."),
        ),
        None => Html::default(),
    };
    let list: Html = tables
        .iter()
        .map(|table| view::section(&app, &who, table))
        .collect();
    let (title, body) = match entry.name {
        "overview" => (
            "Overview".to_owned(),
            overview::page(&app, &fields, &tables),
        ),
        "intents" => (
            "Intents".to_owned(),
            intents::list_page(&app, &fields, list),
        ),
        "intent" => (
            field(&fields, "key").to_owned(),
            intent::one_page(&app, &who, &tables),
        ),
        "outbox" => (
            "Outbox".to_owned(),
            messages::outbox_page(&app, &who, &fields, &tables, list),
        ),
        "inbox" => (
            "Inbox".to_owned(),
            messages::inbox_page(&app, &who, &fields, &tables, list),
        ),
        "queue" => (
            "Queue".to_owned(),
            queue::page(&app, &who, &fields, &tables, list),
        ),
        "job" => (
            format!("Job {}", field(&fields, "id")),
            queue::one_page(&app, &who, &fields, &tables),
        ),
        "external" => (
            "External calls".to_owned(),
            external::page(&app, &fields, list),
        ),
        "call" => (
            field(&fields, "effect_key").to_owned(),
            external::one_page(&app, &who, &fields, &tables),
        ),
        "import" => (
            field(&fields, "job").to_owned(),
            imports::one_page(&app, &who, &fields, &tables),
        ),
        "operations" => (
            "Operations".to_owned(),
            operations::page(&app, &who, &fields, &tables),
        ),
        "ledger" => ("Ledger".to_owned(), records::ledger_page(&app, list)),
        "find" => ("Find".to_owned(), find::page(&fields, list)),
        _ => (entry.label.to_owned(), el("h1", &[], entry.label).and(list)),
    };
    let copied = view::copies(&copy::commands(&app, entry.name, &fields));
    let sought = if entry.name == "find" {
        field(&fields, "q").to_owned()
    } else {
        String::new()
    };
    let page = Page {
        title,
        name: entry.name,
        body: done.and(body).and(copied),
        sought,
        live: entry.live,
    };
    (status, view::shell(&app, Some(&who), page)).into_response()
}

pub(crate) fn field<'a>(fields: &'a Fields, name: &str) -> &'a str {
    fields.get(name).map_or("", String::as_str)
}

/// A page whose query did not answer says so; it never shows an empty list instead.
fn failed(error: &Error) -> Html {
    let what = match error.code() {
        "57014" => "The database took too long: narrow the filter. Nothing is known about what was not looked at.".to_owned(),
        code => format!("The database did not answer: {error} ({code})"),
    };
    el("p", &[("class", "error"), ("role", "alert")], what)
}
