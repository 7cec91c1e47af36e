//! What happens to a response: kept, refused, retried, or forgotten.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::response::Parts;
use http::{HeaderMap, StatusCode};

use crate::headers::{DISPOSITION, KEEP_FOR};
use crate::layer::Mode;

/// What happens to an attempt once the handler has responded.
///
/// Policies choose it by the answer's status; a handler that knows better puts it into its
/// response's extensions:
///
/// ```
/// use axum::response::{IntoResponse, Response};
/// use http::{HeaderMap, StatusCode};
/// use pgonce_http::Disposition;
///
/// fn unreadable() -> Response {
///     let mut response = StatusCode::BAD_REQUEST.into_response();
///     // Nothing happened: the client may correct the request and send it again with the same key.
///     response.extensions_mut().insert(Disposition::Forget);
///     response
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// Success: effect and response are kept, and every retry gets the same response.
    Keep,
    /// Permanent failure: the effect is rolled back in atomic mode, the response is kept, and every
    /// retry gets the same response.
    Refuse,
    /// Transient failure: the effect is rolled back in atomic mode, and a retry does the work again.
    Retry,
    /// As if it had never been requested: the effect is rolled back in atomic mode, nothing is kept and the
    /// key is free, also for another request.
    Forget,
    /// Unknown whether it happened. In leased mode the claim stays until its lease expires
    /// and then the scope's stale policy decides; in atomic mode the same as [`Disposition::Forget`].
    Unknown,
}

/// Keeps one answer for a time of its own, instead of the route's retention: put it into the
/// response's extensions. It is kept longer where the horizons of the scope's contract say that
/// a client may still retry, and for 1000 years or less.
///
/// ```
/// use std::time::Duration;
/// use axum::response::{IntoResponse, Response};
/// use http::{HeaderMap, StatusCode};
/// use pgonce_http::KeepFor;
///
/// fn offer() -> Response {
///     let mut response = StatusCode::CREATED.into_response();
///     response.extensions_mut().insert(KeepFor(Duration::from_secs(3600)));
///     response
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepFor(pub Duration);

/// Which responses are kept.
///
/// | status | `Freeze` | `Final` | `Finish` |
/// |---|---|---|---|
/// | 1xx to 3xx | keep | keep | keep |
/// | 400, 405, 406, 411, 413 to 415, 417, 422, 428, 431: the request is wrong | forget; refuse in atomic mode | forget; refuse in atomic mode | retry |
/// | 401, 403, 407, 408, 421, 425, 426, 429: not processed | forget | retry | retry |
/// | 409, 423, 424: another state may accept it | refuse | retry | retry |
/// | other 4xx | refuse | refuse | retry |
/// | 502, 503, 504: from between, it may have happened | unknown; retry in atomic mode | unknown; retry in atomic mode | retry |
/// | other 5xx | refuse | retry | retry |
///
/// [`Policy::on_status`](crate::Policy::on_status) overrides it for some statuses, and a service for one response: by a
/// [`Disposition`] in the response's extensions, or by the response header `Pgonce-Disposition`
/// (`keep`, `refuse`, `retry` or `forget`).
#[derive(Clone)]
#[non_exhaustive]
pub enum Outcomes {
    /// The first result, unless its status says that nothing was processed.
    Freeze,
    /// Success and permanent refusals.
    Final,
    /// Only success: failed work is done again on retry.
    Finish,
    /// A function of the response's head.
    Custom(Arc<dyn Fn(&Parts) -> Disposition + Send + Sync>),
}

impl Outcomes {
    /// A function of the response's head. For gRPC the head's status is the HTTP status that
    /// stands for the call's own.
    pub fn custom(disposition: impl Fn(&Parts) -> Disposition + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(disposition))
    }

    /// The disposition of a response.
    pub(crate) fn disposition(&self, head: &Parts, mode: Mode) -> Disposition {
        let atomic = mode == Mode::Atomic;
        match (self, Meaning::of(head.status)) {
            (Self::Custom(disposition), _) => disposition(head),
            (_, Meaning::Success) => Disposition::Keep,
            (Self::Finish, _) => Disposition::Retry,
            // The transaction is rolled back, so nothing happened.
            (_, Meaning::Between) if atomic => Disposition::Retry,
            (_, Meaning::Between) => Disposition::Unknown,
            // An atomic handler that has not written yet is seen by the layer itself.
            (_, Meaning::Invalid) if atomic => Disposition::Refuse,
            (_, Meaning::Invalid) | (Self::Freeze, Meaning::Unprocessed) => Disposition::Forget,
            (Self::Freeze, _) | (Self::Final, Meaning::Refusal) => Disposition::Refuse,
            (Self::Final, _) => Disposition::Retry,
        }
    }
}

/// What a status says about the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Success,
    /// The request is wrong; a corrected one may be sent with the same key.
    Invalid,
    /// Not processed for a reason outside of the request: credentials, time, load.
    Unprocessed,
    /// Refused in the present state.
    Conflict,
    Refusal,
    /// From a proxy or load balancer: the service may have done its work.
    Between,
    Error,
}

impl Meaning {
    fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            ..400 => Self::Success,
            400 | 405 | 406 | 411 | 413..=415 | 417 | 422 | 428 | 431 => Self::Invalid,
            401 | 403 | 407 | 408 | 421 | 425 | 426 | 429 => Self::Unprocessed,
            409 | 423 | 424 => Self::Conflict,
            code if code < 500 => Self::Refusal,
            502..=504 => Self::Between,
            _ => Self::Error,
        }
    }
}

impl Disposition {
    /// The disposition that a service names in `Pgonce-Disposition`.
    fn named(word: &str) -> Option<Self> {
        Some(match word.trim().to_ascii_lowercase().as_str() {
            "keep" => Self::Keep,
            "refuse" => Self::Refuse,
            "retry" => Self::Retry,
            "forget" => Self::Forget,
            _ => return None,
        })
    }
}

/// Moves what a service says in `Pgonce-Disposition` and `Pgonce-Keep-For` into the response's
/// extensions: the headers are for the layer, never for clients.
pub(crate) fn take_headers(head: &mut Parts) {
    if let Some(value) = head.headers.remove(DISPOSITION) {
        match value.to_str().ok().and_then(Disposition::named) {
            Some(disposition) => drop(head.extensions.insert(disposition)),
            None => tracing::warn!(
                ?value,
                "Pgonce-Disposition is none of keep, refuse, retry, forget"
            ),
        }
    }
    if let Some(value) = head.headers.remove(KEEP_FOR) {
        let seconds = value
            .to_str()
            .ok()
            .and_then(|text| text.trim().parse().ok());
        match seconds {
            Some(seconds) => drop(
                head.extensions
                    .insert(KeepFor(Duration::from_secs(seconds))),
            ),
            None => tracing::warn!(?value, "Pgonce-Keep-For is not a number of seconds"),
        }
    }
}

/// Takes the headers for the layer off a response that it does not judge.
pub(crate) fn strip_headers(headers: &mut HeaderMap) {
    headers.remove(DISPOSITION);
    headers.remove(KEEP_FOR);
}

impl fmt::Debug for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Freeze => "Freeze",
            Self::Final => "Final",
            Self::Finish => "Finish",
            Self::Custom(_) => "Custom(..)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table that the middleware of every client is held to.
    #[test]
    fn a_status_means_the_same_to_every_client() {
        let text = include_str!("../../../conformance/vectors/dispositions.json");
        let vectors: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
        let mut seen = 0;
        for vector in &vectors {
            for status in vector["statuses"].as_array().unwrap() {
                let (mut head, ()) = http::Response::new(()).into_parts();
                let code = u16::try_from(status.as_u64().unwrap()).unwrap();
                head.status = StatusCode::from_u16(code).unwrap();
                for (mode, of_mode) in [(Mode::Atomic, "atomic"), (Mode::Leased, "leased")] {
                    for outcomes in [Outcomes::Freeze, Outcomes::Final, Outcomes::Finish] {
                        let found = outcomes.disposition(&head, mode);
                        let named = format!("{outcomes:?}").to_lowercase();
                        let expected = vector[of_mode][&named].as_str().unwrap();
                        let found = format!("{found:?}").to_lowercase();
                        assert_eq!(found, expected, "{status} {of_mode} {named}");
                        seen += 1;
                    }
                }
            }
        }
        assert!(seen > 200);
    }

    #[test]
    fn what_was_not_processed_is_never_frozen_by_default() {
        for status in [400, 401, 403, 408, 413, 415, 422, 425, 429, 502, 503, 504] {
            let (mut head, ()) = http::Response::new(()).into_parts();
            head.status = StatusCode::from_u16(status).unwrap();
            for outcomes in [Outcomes::Freeze, Outcomes::Final, Outcomes::Finish] {
                let disposition = outcomes.disposition(&head, Mode::Leased);
                let frozen = matches!(disposition, Disposition::Keep | Disposition::Refuse);
                assert!(!frozen, "{status} {outcomes:?}: {disposition:?}");
            }
        }
    }
}
