//! What a request means: its operation, who asks, and the fingerprint that guards its key.

mod exact;
mod multipart;

use std::borrow::Cow;

use axum::extract::{MatchedPath, OriginalUri};
use bytes::Bytes;
use http::request::Parts;
use http::{StatusCode, header};
use pgonce::{Fingerprint, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::policy::{ApiVersion, Caller, Policy, RequestPrint, Scope};
use crate::{Problem, grpc};

/// The operation's name: method and path template.
pub(crate) fn operation(head: &Parts, policy: &Policy) -> String {
    if let Some(name) = &policy.operation {
        return name.clone();
    }
    // tonic routes a whole service with one template.
    let matched = head
        .extensions
        .get::<MatchedPath>()
        .filter(|_| !grpc::is_grpc(&head.headers));
    let path = matched.map_or_else(|| path(head).0, MatchedPath::as_str);
    format!("{} {path}", head.method)
}

/// The path and query that the client sent, whatever nested routers have cut off since.
fn path(head: &Parts) -> (&str, Option<&str>) {
    let uri = head
        .extensions
        .get::<OriginalUri>()
        .map_or(&head.uri, |uri| &uri.0);
    (uri.path(), uri.query())
}

/// The scope's name.
pub(crate) fn scope<'a>(policy: &'a Policy, operation: &'a str) -> Cow<'a, str> {
    match &policy.scope {
        Scope::Named(name) => name.into(),
        Scope::Operation if operation.len() <= pgonce::MAX_NAME_BYTES => operation.into(),
        Scope::Operation => pgonce::key::derived("pgonce-http.operation", &[operation]).into(),
    }
}

/// Who asks; `None` where the policy does not want to know.
pub(crate) fn principal(head: &Parts, policy: &Policy) -> Result<Option<String>, Problem> {
    let missing = || {
        Problem::ours(
            StatusCode::UNAUTHORIZED,
            "principal_missing",
            "the request does not name its caller; log in and send it again with the same key",
        )
    };
    who(head, &policy.principal).map_err(|()| missing())
}

/// The tenant; empty where there are none.
pub(crate) fn tenant(head: &Parts, policy: &Policy) -> Result<String, Problem> {
    let found = who(head, &policy.tenant).map_err(|()| {
        Problem::ours(
            StatusCode::BAD_REQUEST,
            "tenant_missing",
            "the request does not name its tenant",
        )
    })?;
    Ok(found.unwrap_or_default())
}

fn who(head: &Parts, caller: &Caller) -> Result<Option<String>, ()> {
    let found = match caller {
        Caller::None => return Ok(None),
        Caller::Header(name) => {
            let mut values = head.headers.get_all(name).iter();
            let only = values.next().filter(|_| values.next().is_none());
            only.and_then(|value| {
                std::str::from_utf8(value.as_bytes())
                    .ok()
                    .map(str::to_owned)
            })
        }
        Caller::With(find) => find(head),
    };
    // An empty name is not a way to the data of no tenant.
    found.filter(|name| !name.is_empty()).map(Some).ok_or(())
}

/// The id that ties the record to logs and traces, where the client or a proxy sent one.
pub(crate) fn correlation(head: &Parts, policy: &Policy) -> Option<String> {
    let id = head
        .headers
        .get(policy.correlation.as_ref()?)?
        .to_str()
        .ok()?;
    (id.len() <= pgonce::MAX_NAME_BYTES).then(|| id.to_owned())
}

/// The fingerprint: operation, version, path, query and body, each as the policy says.
pub(crate) fn fingerprint(
    head: &Parts,
    body: &Bytes,
    operation: &str,
    policy: &Policy,
) -> Result<Fingerprint> {
    let version = match &policy.version {
        ApiVersion::None => Cow::Borrowed(""),
        ApiVersion::Fixed(version) => Cow::Borrowed(&**version),
        ApiVersion::Header(name) => {
            let values = head.headers.get_all(name).iter();
            let values: Vec<_> = values.map(|value| hex(value.as_bytes())).collect();
            values.join(",").into()
        }
    };
    let canon = Fingerprint::canon().operation(operation).version(version);
    let (path, query) = path(head);
    let mut request = json!({ "path": path });
    if let Some(query) = query.filter(|_| policy.with_query) {
        request["query"] = query.into();
    }
    let (name, meaning) = meaning(head, body, &policy.fingerprint);
    request[name] = meaning;
    let has = |pointer: &String| request[name].pointer(pointer).is_some();
    match &policy.fingerprint {
        // Of a body that has none of them, all counts: else any other would pass for the same request.
        RequestPrint::Only(pointers) if name == JSON && pointers.iter().any(has) => {
            let fixed = ["/path".to_owned(), "/query".to_owned()];
            let chosen = pointers.iter().map(|pointer| format!("/{JSON}{pointer}"));
            canon.include(fixed.into_iter().chain(chosen)).of(&request)
        }
        RequestPrint::Except(pointers) if name == JSON => {
            let chosen = pointers.iter().map(|pointer| format!("/{JSON}{pointer}"));
            canon.exclude(chosen).of(&request)
        }
        _ => canon.of(&request),
    }
}

const JSON: &str = "json";

/// What the body means, and the member that carries it.
fn meaning(head: &Parts, body: &Bytes, print: &RequestPrint) -> (&'static str, Value) {
    let (as_json, as_parts) = match print {
        RequestPrint::Custom(print) => {
            return ("custom", hex(print.0(head, body).as_bytes()).into());
        }
        RequestPrint::Bytes => (false, false),
        RequestPrint::Json | RequestPrint::Only(_) | RequestPrint::Except(_) => (true, false),
        RequestPrint::Multipart => (false, true),
        RequestPrint::ByContentType => {
            let kind = content_type(head).to_ascii_lowercase();
            let kind = kind.split(';').next().unwrap_or_default().trim();
            let json = kind == "application/json" || kind.ends_with("+json");
            (json, kind == "multipart/form-data")
        }
    };
    if as_json && let Some(value) = exact::json(body) {
        return (JSON, value);
    }
    if as_parts && let Some(parts) = multipart::parts(content_type(head), body) {
        return ("parts", parts);
    }
    ("bytes", hex(&Sha256::digest(body)).into())
}

fn content_type(head: &Parts) -> &str {
    let kind = head.headers.get(header::CONTENT_TYPE);
    kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut hex, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}
