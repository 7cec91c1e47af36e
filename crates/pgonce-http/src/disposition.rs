//! What happens to a response: kept, refused, retried, or forgotten.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::response::Parts;

/// What happens to an attempt once the handler has responded.
///
/// Policies choose it by the answer's status; a handler that knows better puts it into its
/// response's extensions:
///
/// ```
/// use axum::response::{IntoResponse, Response};
/// use http::StatusCode;
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
    /// key is free, in atomic mode also for another request.
    Forget,
    /// Unknown whether it happened. In leased mode the claim stays until its lease expires
    /// and then the scope's stale policy decides; in atomic mode the same as [`Disposition::Forget`].
    Unknown,
}

/// Keeps one answer for a time of its own, instead of the route's retention: put it into the
/// response's extensions. It is kept longer where the horizons of the scope's contract say that
/// a client may still retry.
///
/// ```
/// use std::time::Duration;
/// use axum::response::{IntoResponse, Response};
/// use http::StatusCode;
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

/// Which answers are kept.
#[derive(Clone)]
#[non_exhaustive]
pub enum Outcomes {
    /// The first result, whatever it is.
    Freeze,
    /// Success, and refusals that stay refusals. All 5xx and those of 4xx that pass (401, 407, 408,
    /// 409, 421, 423, 424, 425, 426, 428, 429) are tried again.
    Final,
    /// Only success: failed work is done on retry.
    Finish,
    /// As a function says.
    Custom(Arc<dyn Fn(&Parts) -> Disposition + Send + Sync>),
}

impl Outcomes {
    /// As a function of the answer's head says. For gRPC the head's status is the HTTP status that
    /// stands for the call's own.
    pub fn custom(disposition: impl Fn(&Parts) -> Disposition + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(disposition))
    }

    /// The fate of an answer.
    pub(crate) fn disposition(&self, head: &Parts) -> Disposition {
        let status = head.status;
        let done = status.as_u16() < 400;
        match self {
            Self::Custom(disposition) => disposition(head),
            _ if done => Disposition::Keep,
            Self::Freeze => Disposition::Refuse,
            Self::Final if is_final(status) => Disposition::Refuse,
            Self::Final | Self::Finish => Disposition::Retry,
        }
    }
}

/// Whether the same request would be refused again.
fn is_final(status: StatusCode) -> bool {
    status.is_client_error()
        && !matches!(
            status.as_u16(),
            401 | 407 | 408 | 409 | 421 | 423 | 424 | 425 | 426 | 428 | 429
        )
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
