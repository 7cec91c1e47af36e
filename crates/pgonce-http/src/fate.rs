//! What becomes of an answer: kept, refused for good, tried again, or forgotten.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::response::Parts;

/// What becomes of an attempt once the handler has answered.
///
/// Policies choose it by the answer's status; a handler that knows better puts it into its
/// response's extensions:
///
/// ```
/// use axum::response::{IntoResponse, Response};
/// use http::StatusCode;
/// use pgonce_http::Fate;
///
/// fn unreadable() -> Response {
///     let mut response = StatusCode::BAD_REQUEST.into_response();
///     // Nothing happened: whoever mends the request may send it again with the same key.
///     response.extensions_mut().insert(Fate::Forget);
///     response
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It is done: effect and answer are kept, and every retry is told the same.
    Keep,
    /// It failed for good: the effect is undone in joined mode, the answer is kept, and every
    /// retry is told the same.
    Refuse,
    /// It failed for now: the effect is undone in joined mode, and a retry does the work again.
    Retry,
    /// As if it had never been asked: the effect is undone in joined mode, nothing is kept and the
    /// key is free, also for another request in joined mode.
    Forget,
    /// Nobody knows whether it happened. In recorded mode the claim stays until its lease runs out
    /// and then the scope's stale policy decides; in joined mode the same as [`Fate::Forget`].
    Unknown,
}

/// Keeps one answer for a time of its own, instead of the route's retention: put it into the
/// response's extensions. It is kept longer where the horizons of the scope's contract say that
/// somebody may still come back for it.
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
    Custom(Arc<dyn Fn(&Parts) -> Fate + Send + Sync>),
}

impl Outcomes {
    /// As a function of the answer's head says. For gRPC the head's status is the HTTP status that
    /// stands for the call's own.
    pub fn custom(fate: impl Fn(&Parts) -> Fate + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(fate))
    }

    /// The fate of an answer.
    pub(crate) fn fate(&self, head: &Parts) -> Fate {
        let status = head.status;
        let done = status.as_u16() < 400;
        match self {
            Self::Custom(fate) => fate(head),
            _ if done => Fate::Keep,
            Self::Freeze => Fate::Refuse,
            Self::Final if is_final(status) => Fate::Refuse,
            Self::Final | Self::Finish => Fate::Retry,
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
