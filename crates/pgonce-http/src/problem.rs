//! Why a request was not fulfilled, as `application/problem+json`.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use pgonce::retry::Class;
use pgonce::{Error, Failure};
use serde_json::{Map, Value, json};

use crate::errors::ERRORS_AT;

/// Why a request was not fulfilled, answered as `application/problem+json` with a stable code.
///
/// ```
/// use axum::response::IntoResponse;
/// use http::StatusCode;
/// use pgonce_http::Problem;
///
/// let problem = Problem::new(StatusCode::BAD_REQUEST, "amount_not_positive", "send it in cents, 1 or more");
/// assert_eq!(problem.into_response().status(), 400);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    status: StatusCode,
    code: Cow<'static, str>,
    detail: Cow<'static, str>,
    more: Map<String, Value>,
    retry_after: Option<Duration>,
    ours: bool,
}

impl Problem {
    /// A problem of your own: a stable code for programs and a sentence for people.
    pub fn new(
        status: StatusCode,
        code: impl Into<Cow<'static, str>>,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            code: code.into(),
            detail: detail.into(),
            more: Map::new(),
            retry_after: None,
            ours: false,
        }
    }

    /// One that has a page in [`crate::errors`].
    pub(crate) fn ours(
        status: StatusCode,
        code: impl Into<Cow<'static, str>>,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            ours: true,
            ..Self::new(status, code, detail)
        }
    }

    /// Adds a member to the document.
    #[must_use]
    pub fn with(mut self, member: impl Into<String>, value: impl Into<Value>) -> Self {
        self.more.insert(member.into(), value.into());
        self
    }

    /// Says when it is worth asking again.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Says that it is worth asking again in some seconds, not to everybody in the same: those whom one failure turned
    /// away would all come back at once.
    #[must_use]
    pub(crate) fn retry_soon(self, seconds: u64) -> Self {
        self.retry_after(Duration::from_secs(rand::random_range(
            seconds..=3 * seconds,
        )))
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The stable code.
    pub fn code(&self) -> &str {
        &self.code
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// A refusal that is stored without an answer of its own.
    pub(crate) fn refused(failure: &Failure) -> Self {
        // Never 409 or 5xx, which clients retry: no retry changes it.
        Self::ours(
            StatusCode::UNPROCESSABLE_ENTITY,
            "P4030",
            failure.message().to_owned(),
        )
        .with("reason", failure.code())
    }

    /// The document, whose `type` leads to the page at `base`.
    pub(crate) fn document(&self, base: &str) -> String {
        let mut document = json!({
            "title": title(&self.code).or_else(|| self.status.canonical_reason()),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        if let Value::Object(members) = &mut document {
            if self.ours {
                let page = format!("{base}{}", self.code.to_ascii_lowercase());
                members.insert("type".to_owned(), page.into());
            }
            members.extend(self.more.clone());
        }
        document.to_string()
    }

    /// As a response.
    pub(crate) fn into_response_at(self, base: &str) -> Response {
        let mut response = Response::new(Body::from(self.document(base)));
        *response.status_mut() = self.status;
        response.extensions_mut().insert(OwnResponse);
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        if self.status == StatusCode::UNAUTHORIZED {
            // RFC 9110 requires a challenge; which scheme to use is up to the authentication in front.
            let challenge = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let Some(after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds(after).into());
        }
        response
    }
}

/// Marks a response that is this crate's and not the service's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnResponse;

/// Whole seconds, never 0: that would ask for a busy loop.
pub(crate) fn seconds(after: Duration) -> u32 {
    let seconds = after.min(Duration::from_secs(3600)).as_millis();
    u32::try_from(seconds.div_ceil(1000)).map_or(1, |s| s.max(1))
}

fn title(code: &str) -> Option<&'static str> {
    Some(match code {
        "P4001" => "Key missing",
        "P4002" => "Key reused with another request",
        "P4029" => "Under way",
        "P4030" => "Refused",
        "P4031" => "Gone",
        "P4110" => "Wrong region",
        "22023" => "Key unusable",
        "08006" => "Database unavailable",
        "08007" => "Not known",
        _ => return None,
    })
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        const COME_BACK: &str = "send the same request with the same key again";
        match error {
            Error::Conflict(problem) if &*problem.code == "P4002" => {
                Self::ours(StatusCode::UNPROCESSABLE_ENTITY, "P4002", summary(problem))
            }
            // Of something that the handler wrote, such as a posting: not of the request's key.
            Error::Conflict(problem) => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                problem.code.to_string(),
                summary(problem),
            ),
            Error::Invalid(problem) if &*problem.code == "P4044" => {
                Self::ours(StatusCode::TOO_MANY_REQUESTS, "P4044", summary(problem))
            }
            Error::Invalid(problem) if &*problem.code == "P4040" => Self::ours(
                StatusCode::INTERNAL_SERVER_ERROR,
                "response_too_large",
                "nothing happened: the answer is larger than the scope's contract allows",
            ),
            Error::Gone(problem) => Self::ours(StatusCode::GONE, "P4031", summary(problem)),
            Error::Refused(failure) => Self::refused(failure),
            Error::Failed(failure) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                failure.code().to_owned(),
                failure.message().to_owned(),
            )
            .retry_soon(1),
            Error::Busy { retry_after, .. } => Self::ours(
                StatusCode::CONFLICT,
                "P4029",
                format!("another request with this key is under way; {COME_BACK} later"),
            )
            .retry_after(*retry_after),
            Error::Uncertain(_) => Self::ours(
                StatusCode::SERVICE_UNAVAILABLE,
                "08007",
                format!("it is not known yet whether it happened; {COME_BACK} to learn it"),
            )
            .retry_soon(1),
            Error::Schema(_) => Self::ours(
                StatusCode::SERVICE_UNAVAILABLE,
                "internal",
                "the service's database is not set up; this attempt did nothing",
            )
            .retry_soon(5),
            _ => match error.class() {
                Class::Retry | Class::RetryAfterDelay | Class::ClaimAgain => Self::ours(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "08006",
                    format!(
                        "the database is unavailable and this attempt did nothing; {COME_BACK}"
                    ),
                )
                .retry_soon(1),
                // What the database says about itself is for our logs, not for clients.
                _ => Self::ours(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "internal",
                    "something is wrong on the server's side; it is safe to send the same request \
                     with the same key again",
                ),
            },
        }
    }
}

/// What was wrong and what to do, without the particulars.
fn summary(problem: &pgonce::ErrorDetail) -> String {
    match &problem.hint {
        Some(hint) => format!("{}. {hint}", problem.message),
        None => problem.message.to_string(),
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.into_response_at(ERRORS_AT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_are_turned_away_together_do_not_come_back_together() {
        let lost = Error::Disconnected("the server is gone".to_owned());
        for error in [lost, Error::Uncertain("no reply".to_owned())] {
            let after: std::collections::BTreeSet<u32> = (0..200)
                .map(|_| Problem::from(&error).retry_after.map_or(0, seconds))
                .collect();
            assert_eq!(Vec::from_iter(after), [1, 2, 3], "{error}");
        }
        // Who waits for somebody else learns when that one's lease is over.
        let busy = Error::Busy {
            retry_after: Duration::from_millis(12_500),
            accepted: false,
        };
        assert_eq!(Problem::from(&busy).retry_after.map(seconds), Some(13));
    }
}
