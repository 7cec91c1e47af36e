//! How an act is done: what it was given is checked first, and what changed nothing is never called done.

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use pgonce::Error;
use serde_json::{Value, json};

use crate::access::{Role, Who};
use crate::acts::Act;
use crate::html::query;
use crate::server::{App, Fields, Shared, error_page, fields};
use crate::{api, operations};

/// Whether a form comes from a page of ours, or a token came with the request itself.
pub(crate) fn is_ours(who: &Who, fields: &Fields) -> bool {
    match &who.csrf {
        None => true,
        Some(expected) => fields.get("csrf") == Some(expected),
    }
}

/// Why an act was not done, or is not known to be done.
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    /// What programs go by: one word, or the code that the database gave.
    pub(crate) code: String,
    pub(crate) what: String,
    pub(crate) detail: String,
    /// The reply to the commit was lost: it may have been done.
    pub(crate) is_unknown: bool,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, code: &str, what: impl Into<String>) -> Self {
        Self {
            status,
            code: code.to_owned(),
            what: what.into(),
            detail: String::new(),
            is_unknown: false,
        }
    }

    fn unprocessable(code: &str, what: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, what)
    }

    pub(crate) fn conflict(code: &str, what: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, what)
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let status = match error.code() {
            "55000" => StatusCode::CONFLICT,
            "42704" => StatusCode::NOT_FOUND,
            "42501" => StatusCode::FORBIDDEN,
            code if code.starts_with("08") || code.starts_with("57") => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            code if code.starts_with("22") || code.starts_with("P4") => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let detail = match &error {
            Error::Database(problem) | Error::Invalid(problem) => {
                problem.hint.as_deref().unwrap_or_default().to_owned()
            }
            Error::Uncertain(_) => {
                "It may have been done. Look first, and do it again only where it was not."
                    .to_owned()
            }
            _ => String::new(),
        };
        Self {
            status,
            code: error.code().to_owned(),
            what: error.to_string(),
            detail,
            is_unknown: matches!(error, Error::Uncertain(_)),
        }
    }
}

/// Refuses what this act does not know, and what lacks a field that says which things it is about: without it, it could be all.
fn check(act: &Act, fields: &Fields) -> Result<(), Refused> {
    let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
    let confirm = Some("confirm").filter(|_| !act.confirm.is_empty());
    let known: Vec<&str> = act.fields.iter().copied().chain(confirm).collect();
    let mut unknown: Vec<_> = fields
        .keys()
        .filter(|name| !known.contains(&&***name))
        .collect();
    unknown.sort_unstable();
    if let Some(name) = unknown.first() {
        let expected = match known.is_empty() {
            true => "it has none".to_owned(),
            false => format!("it has {}", known.join(", ")),
        };
        let what = format!("{} has no field {name:?}: {expected}", act.name);
        return Err(Refused::new(StatusCode::BAD_REQUEST, "unknown_field", what));
    }
    // A reason has words of its own.
    let needs = act.needs.iter().filter(|name| **name != "reason");
    let missing: Vec<&str> = needs
        .copied()
        .filter(|name| field(name).is_empty())
        .collect();
    if !missing.is_empty() {
        let what = format!("{} needs {}", act.name, missing.join(", "));
        return Err(Refused::unprocessable("field_needed", what));
    }
    if !act.confirm.is_empty() && field("confirm") != act.confirm {
        let what = format!(
            "type \u{201c}{}\u{201d} to confirm: it cannot be undone",
            act.confirm
        );
        return Err(Refused::unprocessable("not_confirmed", what));
    }
    if act.needs.contains(&"reason") && field("reason").trim().is_empty() {
        let what = "give a reason: it is kept with your name";
        return Err(Refused::unprocessable("field_needed", what));
    }
    Ok(())
}

/// A queue is known by its rules, by a schedule, or by a job: one that is not done or a dead letter, or one of the newest. To pause one that
/// is not would make it. Those that are due after ten thousand others have no index by queue: only for a name that nothing else knows all jobs
/// that are not done are read.
async fn require_queue(app: &App, queue: &str) -> Result<(), Refused> {
    let known = [
        "select 1 as known where exists (select from pgonce.job_queue q where q.queue = $1) or exists (select from pgonce.queues q where q.queue = $1) \
         or exists (select from pgonce.job_schedule s where s.queue = $1)",
        "select 1 as known where exists (select from pgonce.job j where j.queue = $1 \
         and j.ctid >= (select format('(%s,0)', greatest(pg_relation_size('pgonce.job') / current_setting('block_size')::bigint - 150, 0))::tid))",
        "select 1 as known where exists (select from pgonce.job_live l where l.queue = $1)",
    ];
    for sql in known {
        if app.db.row(sql, &[Some(queue)]).await?.is_some() {
            return Ok(());
        }
    }
    let what = format!("there is no queue {queue:?}: nothing was changed");
    Err(Refused::new(StatusCode::NOT_FOUND, "unknown_queue", what))
}

async fn perform(app: &Shared, who: &Who, act: &Act, fields: &Fields) -> Result<Value, Refused> {
    let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
    let forced = field("force") == "on";
    let needed = if forced { Role::Admin } else { act.role };
    if who.role < needed {
        let what = format!(
            "this needs the role {}; you are {}",
            needed.as_str(),
            who.role.as_str()
        );
        return Err(Refused::new(StatusCode::FORBIDDEN, "role_needed", what));
    }
    check(act, fields)?;
    // One job is named by its number.
    if act.needs.contains(&"queue") && !act.needs.contains(&"id") {
        require_queue(app, field("queue")).await?;
    }
    let done = match act.name {
        "bulk" => operations::start(app, who, fields).await?,
        "cancel-bulk" => operations::cancel(app, fields)?,
        _ => call(app, who, act, fields).await?,
    };
    // A purge that found nothing has done what it is for; all others are about something.
    if !act.fields.is_empty() && (done == json!(false) || done == json!(0)) {
        let what = "nothing was changed: there is no such thing, or it is not in a state for this";
        return Err(Refused::conflict("nothing_changed", what));
    }
    tracing::info!(
        act = act.name,
        person = who.name,
        role = who.role.as_str(),
        forced,
        "console: an act was done"
    );
    Ok(done)
}

async fn call(app: &App, who: &Who, act: &Act, fields: &Fields) -> Result<Value, Error> {
    let mut params: Vec<Option<&str>> = act
        .fields
        .iter()
        .map(|name| fields.get(*name).map(String::as_str))
        .collect();
    // One more, since an act may have no fields.
    params.push(None);
    // Every parameter has a type, whether the call uses it or not.
    let typed: Vec<String> = (1..=params.len())
        .map(|number| format!("${number}::text"))
        .collect();
    let call = format!(
        "select {} as result from (values ({})) as given",
        act.call,
        typed.join(", ")
    );
    let row = app.db.act(&who.name, &call, &params).await;
    if let Err(Error::Uncertain(why)) = &row {
        tracing::warn!(
            act = act.name,
            person = who.name,
            why,
            "console: whether an act was done is not known"
        );
    }
    Ok(row?
        .and_then(|row| row.get("result").cloned())
        .unwrap_or(Value::Null))
}

pub(crate) async fn by_form(
    act: &'static Act,
    State(app): State<Shared>,
    Extension(who): Extension<Who>,
    body: Bytes,
) -> Response {
    let mut fields = fields(&body);
    if !is_ours(&who, &fields) {
        let refused = Refused {
            detail: "Go back, load the page again, and send it once more.".to_owned(),
            ..Refused::new(
                StatusCode::FORBIDDEN,
                "expired_form",
                "this form has expired",
            )
        };
        return error_page(&app, &who, &refused, None);
    }
    fields.remove("csrf");
    let (page, names) = act.back;
    let subject: Vec<(&str, &str)> = names
        .iter()
        .map(|name| (*name, fields.get(*name).map_or("", String::as_str)))
        .collect();
    match perform(&app, &who, act, &fields).await {
        Ok(_) => {
            let pairs: Vec<_> = subject.into_iter().chain([("done", act.name)]).collect();
            Redirect::to(&format!("{}{page}{}", app.base, query(&pairs))).into_response()
        }
        Err(refused) => {
            let back = format!("{}{page}{}", app.base, query(&subject));
            error_page(&app, &who, &refused, Some(&back))
        }
    }
}

pub(crate) async fn by_api(
    act: &'static Act,
    State(app): State<Shared>,
    Extension(who): Extension<Who>,
    headers: axum::http::HeaderMap,
    body: Bytes,
) -> Response {
    // A page elsewhere cannot send JSON without being asked first, and it never is allowed to.
    let is_json = headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let parsed = serde_json::from_slice::<serde_json::Map<String, Value>>(&body);
    let (true, Ok(object)) = (is_json, parsed) else {
        let what = "send a JSON object as application/json";
        return (
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            api::problem(415, "not_json", what),
        )
            .into_response();
    };
    let fields = object.into_iter().map(|(name, value)| {
        let value = match value {
            Value::String(text) => text,
            Value::Bool(true) => "on".to_owned(),
            Value::Null | Value::Bool(false) => String::new(),
            other => other.to_string(),
        };
        (name, value)
    });
    match perform(&app, &who, act, &fields.collect()).await {
        Ok(result) => axum::Json(json!({"act": act.name, "result": result})).into_response(),
        Err(refused) => {
            let what = match refused.is_unknown {
                true => format!("{} {}", refused.what, refused.detail),
                false => refused.what,
            };
            let status = refused.status;
            (status, api::problem(status.as_u16(), &refused.code, &what)).into_response()
        }
    }
}
