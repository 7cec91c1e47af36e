//! Acts on many intents at once: a count first, a reason and the count typed again, then progress and a way to stop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use pgonce::Error;
use serde_json::{Value, json};

use crate::access::{Role, Who};
use crate::db::{Row, number, text};
use crate::html::{Html, el};
use crate::pages::{field, intents};
use crate::parts::{button, input};
use crate::perform::Refused;
use crate::server::{App, Fields, Shared};
use crate::view::{Column, Kind, Section, grouped};

/// Maximum number of intents of one operation.
const MAX: u64 = 10_000;
/// Intents that are looked at for those that failed permanently: the first by key. All that are stuck are.
const LOOK: u64 = 20_000;
/// Intents that a page shows.
const SHOWN: usize = 20;
/// Operations that are remembered.
const KEPT: usize = 100;

/// One operation. It lives in this process: where that ends, what is not done stays as it was.
#[derive(Debug)]
struct Operation {
    id: u64,
    op: &'static str,
    of: Selection,
    code: String,
    person: String,
    reason: String,
    total: u64,
    done: AtomicU64,
    refused: AtomicU64,
    cancelled: AtomicBool,
    /// Why it ended; nothing while it runs.
    ended: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
pub(crate) struct Operations {
    known: Mutex<Vec<Arc<Operation>>>,
    /// One begins at a time: what is counted is not yet acted on by another.
    starts: tokio::sync::Mutex<()>,
}

impl Operations {
    fn all(&self) -> Vec<Arc<Operation>> {
        let all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().rev().cloned().collect()
    }

    /// One that runs over intents of this selection.
    fn running(&self, of: &Selection) -> Option<Arc<Operation>> {
        let all = self.all();
        all.into_iter().find(|one| one.runs() && one.of.meets(of))
    }
}

impl Operation {
    fn runs(&self) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.is_none()
    }
}

/// Which intents: of one scope and tenant, by the beginning of their keys and their failure.
#[derive(Debug, Clone)]
struct Selection {
    op: &'static str,
    tenant: String,
    scope: String,
    key: String,
    failure: String,
}

impl Selection {
    fn of(fields: &Fields) -> Option<Self> {
        let ops = ["release", "fail", "retry"];
        let op = ops.into_iter().find(|op| *op == field(fields, "op"))?;
        let given = |name: &str| field(fields, name).to_owned();
        Some(Self {
            op,
            tenant: given("tenant"),
            scope: Some(given("scope")).filter(|scope| !scope.is_empty())?,
            key: given("key"),
            failure: given("failure"),
        })
    }

    /// Whether an intent could be in both.
    fn meets(&self, other: &Self) -> bool {
        let any = |one: &str, other: &str| one.is_empty() || other.is_empty() || one == other;
        (&self.tenant, &self.scope) == (&other.tenant, &other.scope)
            && (self.key.starts_with(&other.key) || other.key.starts_with(&self.key))
            && any(&self.failure, &other.failure)
            // Those that failed permanently are not stuck.
            && (self.op == "retry") == (other.op == "retry")
    }

    /// In the order of keys. Stuck ones are released or failed, those that failed permanently tried again.
    async fn rows(&self, app: &App) -> Result<Vec<Row>, Error> {
        let source = match self.op {
            "retry" => format!(
                "(select i.*, count(*) over () as looked from (select * from pgonce.intent i where i.tenant = $1 and i.scope = $2 \
                 and i.key >= $3 order by i.key limit {LOOK}) i) i where i.status = 'failed_final'"
            ),
            // As pgonce.stuck, without the contracts: pgonce.intervene asks them.
            _ => "(select i.*, 0 as looked from pgonce.intent i where i.expires_at is null and coalesce(i.lease_until, i.last_at) <= pgonce.now() \
                  order by coalesce(i.lease_until, i.last_at)) i where true"
                .to_owned(),
        };
        let sql = format!(
            "select i.tenant, i.scope, i.key, i.status, i.attempts, i.last_at, i.failure_code, i.failure_message, i.looked from {source} \
             and i.tenant = $1 and i.scope = $2 and ($3 = '' or starts_with(i.key, $3)) and ($4 = '' or i.failure_code = $4) \
             order by i.key limit {MAX}"
        );
        let params = [&self.tenant, &self.scope, &self.key, &self.failure];
        let params = params.map(|name| Some(name.as_str()));
        app.db.rows(&sql, &params).await
    }
}

/// Begins an operation. Who does it has typed how many intents it is about: another number than there are now is refused.
pub(crate) async fn start(app: &Shared, who: &Who, fields: &Fields) -> Result<Value, Refused> {
    let unprocessable =
        |what: &str| Refused::new(StatusCode::UNPROCESSABLE_ENTITY, "field_needed", what);
    let Some(of) = Selection::of(fields) else {
        return Err(unprocessable(
            "say what to do (release, fail or retry) and in which scope",
        ));
    };
    let code = field(fields, "code").to_owned();
    if of.op == "fail" && code.is_empty() {
        return Err(unprocessable("a failure needs its code"));
    }
    let starts = app.operations.starts.lock().await;
    if let Some(other) = app.operations.running(&of) {
        let what = format!(
            "operation {} runs over these intents: it has done {} of {}; wait for its end, or stop it",
            other.id,
            other.done.load(Ordering::SeqCst),
            other.total
        );
        return Err(Refused::conflict("already_running", what));
    }
    let rows = of.rows(app).await?;
    let keys: Vec<String> = rows.iter().map(|row| text(row, "key")).collect();
    let total = keys.len() as u64;
    if total == 0 || field(fields, "confirm") != total.to_string() {
        let what = format!("it is about {total} intents now: look again, and type that number");
        return Err(Refused::conflict("count_changed", what));
    }
    let operation = {
        let operations = &app.operations.known;
        let mut all = operations.lock().unwrap_or_else(PoisonError::into_inner);
        let operation = Arc::new(Operation {
            id: all.last().map_or(1, |last| last.id + 1),
            op: of.op,
            of,
            code,
            person: who.name.clone(),
            reason: field(fields, "reason").to_owned(),
            total,
            done: AtomicU64::default(),
            refused: AtomicU64::default(),
            cancelled: AtomicBool::default(),
            ended: Mutex::default(),
        });
        // The oldest that has ended is forgotten; one that runs can still be stopped.
        if all.len() >= KEPT
            && let Some(oldest) = all.iter().position(|one| !one.runs())
        {
            all.remove(oldest);
        }
        all.push(operation.clone());
        operation
    };
    drop(starts);
    let id = operation.id;
    tokio::spawn(run(app.clone(), operation, keys));
    Ok(json!({"id": id, "total": total}))
}

async fn run(app: Shared, operation: Arc<Operation>, keys: Vec<String>) {
    let ended = match work(&app, &operation, &keys).await {
        Ok(()) if operation.cancelled.load(Ordering::SeqCst) => "cancelled".to_owned(),
        Ok(()) => "finished".to_owned(),
        Err(error) => format!("failed: {error}"),
    };
    let mut slot = operation
        .ended
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    *slot = Some(ended);
}

/// Acts on the intents that were confirmed, and on no other that has come since.
async fn work(app: &App, operation: &Operation, keys: &[String]) -> Result<(), Error> {
    let call = "select pgonce.intervene($1, $2, $3, $4, p_code => nullif($5, ''), p_tenant => $6) as before";
    for key in keys {
        if operation.cancelled.load(Ordering::SeqCst) {
            break;
        }
        let params = [
            Some(operation.op),
            Some(&*operation.of.scope),
            Some(key.as_str()),
            Some(&*operation.reason),
            Some(&*operation.code),
            Some(&*operation.of.tenant),
        ];
        match app.db.act(&operation.person, call, &params).await {
            Ok(_) => operation.done.fetch_add(1, Ordering::SeqCst),
            // Settled or claimed meanwhile, or it could open a second effect.
            Err(error) if matches!(error.code(), "55000" | "42704") => {
                operation.refused.fetch_add(1, Ordering::SeqCst)
            }
            // Nothing is counted that may not have been done.
            Err(Error::Uncertain(why)) => {
                return Err(Error::Uncertain(format!("{why}, at the key {key}")));
            }
            Err(error) => return Err(error),
        };
    }
    Ok(())
}

/// Stops an operation before its next intent; answers whether it ran.
pub(crate) fn cancel(app: &App, fields: &Fields) -> Result<Value, Refused> {
    let id = field(fields, "id").parse::<u64>().unwrap_or_default();
    let found = app.operations.all().into_iter().find(|one| one.id == id);
    let Some(operation) = found else {
        let what = "this process knows no such operation";
        return Err(Refused::new(
            StatusCode::NOT_FOUND,
            "unknown_operation",
            what,
        ));
    };
    let runs = operation.runs();
    operation.cancelled.store(true, Ordering::SeqCst);
    Ok(json!(runs))
}

const LIST: &[Column] = &[
    ("Operation", "id", Kind::Number),
    ("What", "what", Kind::Text),
    ("Scope", "scope", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("State", "state", Kind::Status),
    ("Of", "total", Kind::Number),
    ("Done", "done", Kind::Number),
    ("Refused", "refused", Kind::Number),
    ("Who", "person", Kind::Text),
    ("Why", "reason", Kind::Text),
];

const NONE: &str = "No intent matches. Of those that failed permanently, 20,000 intents of the scope are looked at, the first by key: \
     the beginning of keys narrows it.";

const MATCHING: &[Column] = &[
    ("Key", "key", Kind::Code),
    ("Status", "status", Kind::Status),
    ("Attempts", "attempts", Kind::Number),
    ("Last", "last_at", Kind::Time),
    ("Failure", "failure_code", Kind::Code),
    ("Error", "failure_message", Kind::Text),
];

pub(crate) async fn sections(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    let rows = app.operations.all().into_iter().map(|one| {
        let ended = one.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let row = json!({"id": one.id, "what": one.op, "scope": one.of.scope, "tenant": one.of.tenant, "total": one.total,
            "state": ended.unwrap_or_else(|| "running".to_owned()), "done": one.done.load(Ordering::SeqCst),
            "refused": one.refused.load(Ordering::SeqCst), "person": one.person, "reason": one.reason});
        row.as_object().cloned().unwrap_or_default()
    });
    let empty = "No operation was started in this process.";
    let mut tables = vec![Section {
        act: Some(cancel_button),
        ..Section::new("Operations", LIST, rows.collect(), empty)
    }];
    if let Some(of) = Selection::of(fields) {
        let rows = of.rows(app).await?;
        let looked = rows.first().map_or(0, |row| number(row, "looked"));
        let count = [
            ("count".to_owned(), Value::from(rows.len())),
            ("looked".to_owned(), Value::from(looked)),
        ];
        tables.push(Section::new(
            "Count",
            &[],
            vec![count.into_iter().collect()],
            "",
        ));
        tables.push(Section {
            link: Some(intents::link),
            ..Section::new("The first that match", MATCHING, rows, NONE).cut(SHOWN)
        });
    }
    Ok(tables)
}

fn cancel_button(app: &App, who: &Who, row: &Row) -> Html {
    if who.role < Role::Operator || text(row, "state") != "running" {
        return Html::default();
    }
    let names = [("id", &*text(row, "id"))];
    button(app, who, "cancel-bulk", "Stop", &names, Html::default())
}

pub(crate) fn page(app: &App, who: &Who, fields: &Fields, tables: &[Section]) -> Html {
    let show = |place: usize| {
        let table = tables.get(place);
        table
            .map(|table| crate::view::section(app, who, table))
            .unwrap_or_default()
    };
    let head = el("h1", &[], "Operations").and(el(
        "p",
        &[("class", "muted")],
        "Act on many intents of a scope: look at how many it is about, confirm that number with a reason, watch, stop.",
    ));
    if who.role < Role::Operator {
        return head.and(show(0));
    }
    let choice = |value: &'static str, label: &'static str| {
        let chosen = if field(fields, "op") == value {
            "selected"
        } else {
            ""
        };
        el("option", &[("value", value), (chosen, "")], label)
    };
    let filled = |name: &'static str, label: &str, required: &'static str| {
        let id = format!("bulk-{name}");
        el(
            "div",
            &[],
            el("label", &[("for", &id)], label).and(el(
                "input",
                &[
                    ("name", name),
                    ("id", &id),
                    ("value", field(fields, name)),
                    (required, ""),
                    ("autocomplete", "off"),
                ],
                "",
            )),
        )
    };
    let ops = choice("retry", "allow a retry of those that failed permanently")
        .and(choice("release", "release stuck ones: they did not happen"))
        .and(choice("fail", "fail stuck ones permanently"));
    let select = el("label", &[("for", "bulk-op")], "What to do").and(el(
        "select",
        &[("name", "op"), ("id", "bulk-op")],
        ops,
    ));
    let look = el(
        "form",
        &[
            ("class", "card fields"),
            ("action", &format!("{}/operations", app.base)),
        ],
        el("div", &[], select)
            .and(filled("scope", "Scope", "required"))
            .and(filled("tenant", "Tenant", ""))
            .and(filled("key", "Keys that begin with", ""))
            .and(filled("failure", "Failure code", ""))
            .and(el("button", &[], "Look")),
    );
    let count = tables.get(1).and_then(|table| table.rows.first());
    let start = match (count.map(|row| number(row, "count")), Selection::of(fields)) {
        (Some(count), Some(of)) if count > 0 => {
            let names = [
                ("op", of.op),
                ("scope", &of.scope),
                ("tenant", &of.tenant),
                ("key", &of.key),
                ("failure", &of.failure),
            ];
            let code = match of.op {
                "fail" => input("start", "code", "Failure code that every retry gets", true),
                _ => Html::default(),
            };
            let looked = tables.get(1).and_then(|table| table.rows.first());
            let more = match looked.map_or(0, |row| number(row, "looked")) {
                _ if count as u64 >= MAX => ", the most at a time; there may be more",
                looked if looked as u64 >= LOOK => {
                    " of the 20,000 of the scope that are looked at, the first by key; there may be more"
                }
                _ => "",
            };
            let words = format!("{} intents match{more}.", grouped(&count.to_string()));
            let confirm = format!("Type {count} to confirm");
            let inside = code
                .and(input("start", "reason", "Reason, such as a ticket", true))
                .and(input("start", "confirm", &confirm, true));
            let label = format!("{} {}", of.op, grouped(&count.to_string()));
            el(
                "section",
                &[("class", "card narrow")],
                el("p", &[], words).and(button(app, who, "bulk", &label, &names, inside)),
            )
        }
        _ => Html::default(),
    };
    head.and(look).and(start).and(show(2)).and(show(0))
}
