//! What people do. Each act is one call of SQL, which records who (the setting `pgonce.person`) and why.

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use pgonce::Error;
use serde_json::{Value, json};

use crate::access::{Role, Who};
use crate::api;
use crate::html::query;
use crate::operations;
use crate::server::{Fields, Shared, error_page, fields};

/// An act: who may do it, what it needs, and the call. Fields are its parameters, in order.
#[derive(Debug)]
pub(crate) struct Act {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    /// The word that must be typed to confirm it, where it cannot be undone.
    pub(crate) confirm: &'static str,
    pub(crate) fields: &'static [&'static str],
    /// In SQL; empty for what this process does step by step.
    call: &'static str,
    /// The page to go back to, and the fields that name its subject.
    back: (&'static str, &'static [&'static str]),
}

const INTENT: (&str, &[&str]) = ("/intent", &["tenant", "scope", "key"]);
const NAMES: &[&str] = &["tenant", "scope", "key", "reason", "force"];

pub(crate) const ACTS: &[Act] = &[
    Act {
        name: "settle",
        role: Role::Operator,
        confirm: "",
        fields: &["tenant", "scope", "key", "reason", "force", "answer"],
        call: "pgonce.intervene('settle', $2, $3, $4, coalesce($5, '') = 'on', nullif($6, '')::jsonb, p_tenant => coalesce($1, ''))",
        back: INTENT,
    },
    Act {
        name: "fail",
        role: Role::Operator,
        confirm: "",
        fields: &[
            "tenant", "scope", "key", "reason", "force", "code", "message",
        ],
        call: "pgonce.intervene('fail', $2, $3, $4, coalesce($5, '') = 'on', p_code => $6, p_message => nullif($7, ''), p_tenant => coalesce($1, ''))",
        back: INTENT,
    },
    Act {
        name: "release",
        role: Role::Operator,
        confirm: "",
        fields: NAMES,
        call: "pgonce.intervene('release', $2, $3, $4, coalesce($5, '') = 'on', p_tenant => coalesce($1, ''))",
        back: INTENT,
    },
    Act {
        name: "retry",
        role: Role::Operator,
        confirm: "",
        fields: NAMES,
        call: "pgonce.intervene('retry', $2, $3, $4, coalesce($5, '') = 'on', p_tenant => coalesce($1, ''))",
        back: INTENT,
    },
    Act {
        name: "evict",
        role: Role::Admin,
        confirm: "evict",
        fields: NAMES,
        call: "pgonce.intervene('evict', $2, $3, $4, coalesce($5, '') = 'on', p_tenant => coalesce($1, ''))",
        back: INTENT,
    },
    Act {
        name: "redrive",
        role: Role::Operator,
        confirm: "",
        fields: &["subscription", "subject", "tenant"],
        call: "pgonce.redrive($1, nullif($2, ''), p_tenant => $3, p_reason => 'console')",
        back: ("/outbox", &["subscription"]),
    },
    Act {
        name: "skip",
        role: Role::Operator,
        confirm: "skip",
        fields: &["subscription", "seq", "reason"],
        call: "pgonce.skip($1, $2::text::bigint, $3)",
        back: ("/outbox", &["subscription"]),
    },
    Act {
        name: "retry-messages",
        role: Role::Operator,
        confirm: "",
        fields: &["consumer", "seq", "reason"],
        call: "pgonce.retry_messages($1, nullif($2, '')::bigint, nullif($3, ''))",
        back: ("/inbox", &["consumer"]),
    },
    Act {
        name: "skip-message",
        role: Role::Operator,
        confirm: "skip",
        fields: &["consumer", "seq", "reason"],
        call: "pgonce.skip_message($1, $2::text::bigint, nullif($3, ''))",
        back: ("/inbox", &["consumer"]),
    },
    Act {
        name: "retry-jobs",
        role: Role::Operator,
        confirm: "",
        fields: &["tenant", "id", "queue", "reason"],
        call: "pgonce.retry_jobs($3, $2::text::bigint, $4, coalesce($1, ''))",
        back: ("/queue", &["queue"]),
    },
    Act {
        name: "retry-all-jobs",
        role: Role::Operator,
        confirm: "retry",
        fields: &["queue", "reason"],
        call: "pgonce.retry_jobs($1, null, $2)",
        back: ("/queue", &["queue"]),
    },
    Act {
        name: "cancel-job",
        role: Role::Operator,
        confirm: "cancel",
        fields: &["tenant", "id", "queue", "reason"],
        call: "pgonce.cancel_job($2::text::bigint, $4, coalesce($1, ''))",
        back: ("/queue", &["queue"]),
    },
    Act {
        name: "pause-queue",
        role: Role::Operator,
        confirm: "",
        fields: &["queue"],
        call: "pgonce.define_queue($1, p_paused => true)",
        back: ("/queue", &["queue"]),
    },
    Act {
        name: "resume-queue",
        role: Role::Operator,
        confirm: "",
        fields: &["queue"],
        call: "pgonce.define_queue($1, p_paused => false)",
        back: ("/queue", &["queue"]),
    },
    Act {
        name: "settle-call",
        role: Role::Operator,
        confirm: "settle",
        fields: &[
            "tenant",
            "effect_key",
            "outcome",
            "reason",
            "force",
            "reference",
            "response",
            "answer",
            "code",
        ],
        call: "pgonce.external_settle($2::text::uuid, $3, $4, coalesce($5, '') = 'on', nullif($6, ''), nullif($7, '')::jsonb, nullif($8, '')::jsonb, nullif($9, ''), p_tenant => coalesce($1, ''))",
        back: ("/call", &["tenant", "effect_key"]),
    },
    Act {
        name: "cancel-import",
        role: Role::Operator,
        confirm: "",
        fields: &["tenant", "job", "number"],
        call: "pgonce.import_cancel($2, coalesce($1, ''))",
        back: ("/import", &["tenant", "job", "number"]),
    },
    Act {
        name: "bulk",
        role: Role::Operator,
        confirm: "",
        fields: &[
            "op", "tenant", "scope", "key", "failure", "code", "reason", "confirm",
        ],
        call: "",
        back: ("/operations", &[]),
    },
    Act {
        name: "cancel-bulk",
        role: Role::Operator,
        confirm: "",
        fields: &["id"],
        call: "",
        back: ("/operations", &[]),
    },
    Act {
        name: "purge",
        role: Role::Admin,
        confirm: "",
        fields: &[],
        call: "pgonce.purge(10000, p_reason => 'console')",
        back: ("/", &[]),
    },
];

/// Whether a form comes from a page of ours, or a token came with the request itself.
pub(crate) fn is_ours(who: &Who, fields: &Fields) -> bool {
    match &who.csrf {
        None => true,
        Some(expected) => fields.get("csrf") == Some(expected),
    }
}

/// Why an act was not done.
pub(crate) struct Refused {
    status: StatusCode,
    what: String,
    detail: String,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, what: impl Into<String>) -> Self {
        Self {
            status,
            what: what.into(),
            detail: String::new(),
        }
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
            _ => String::new(),
        };
        Self {
            status,
            what: error.to_string(),
            detail,
        }
    }
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
        return Err(Refused::new(StatusCode::FORBIDDEN, what));
    }
    if !act.confirm.is_empty() && field("confirm") != act.confirm {
        let what = format!(
            "type \u{201c}{}\u{201d} to confirm: it cannot be undone",
            act.confirm
        );
        return Err(Refused::new(StatusCode::UNPROCESSABLE_ENTITY, what));
    }
    if act.fields.contains(&"reason") && field("reason").trim().is_empty() {
        return Err(Refused::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "give a reason: it is kept with your name",
        ));
    }
    let logged = || {
        tracing::info!(
            act = act.name,
            person = who.name,
            role = who.role.as_str(),
            forced,
            "console: an act was done"
        );
    };
    if act.call.is_empty() {
        let done = match act.name {
            "bulk" => operations::start(app, who, fields).await?,
            _ => operations::cancel(app, fields)?,
        };
        logged();
        return Ok(done);
    }
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
    let row = app.db.act(&who.name, &call, &params).await?;
    logged();
    Ok(row
        .and_then(|row| row.get("result").cloned())
        .unwrap_or(Value::Null))
}

pub(crate) async fn by_form(
    act: &'static Act,
    State(app): State<Shared>,
    Extension(who): Extension<Who>,
    body: Bytes,
) -> Response {
    let fields = fields(&body);
    if !is_ours(&who, &fields) {
        return error_page(
            &app,
            &who,
            StatusCode::FORBIDDEN,
            "this form has expired",
            "Go back, load the page again, and send it once more.",
        );
    }
    match perform(&app, &who, act, &fields).await {
        Ok(_) => {
            let (page, names) = act.back;
            let mut pairs: Vec<(&str, &str)> = names
                .iter()
                .map(|name| (*name, fields.get(*name).map_or("", String::as_str)))
                .collect();
            pairs.push(("done", act.name));
            Redirect::to(&format!("{}{page}{}", app.base, query(&pairs))).into_response()
        }
        Err(Refused {
            status,
            what,
            detail,
        }) => error_page(&app, &who, status, &what, &detail),
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
        return (
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            api::problem(415, "send a JSON object as application/json"),
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
        Err(Refused { status, what, .. }) => {
            (status, api::problem(status.as_u16(), &what)).into_response()
        }
    }
}
