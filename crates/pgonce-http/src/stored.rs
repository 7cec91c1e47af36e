//! An answer as it is stored, and back again to the same bytes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use pgonce::Failure;
use serde::{Deserialize, Serialize};

use crate::body::Whole;
use crate::headers::{EXPIRES, REPLAYED};
use crate::{KeepFor, Policy, Problem, ReplayHeaders};

/// The form of what is stored. Records outlive releases: a new form takes a new number and the old
/// ones stay readable.
const FORM: u8 = 1;

/// No answer is kept for longer: 1000 years.
const MAX_KEEP: Duration = Duration::from_secs(1000 * 8766 * 3600);

/// An answer: status, headers that describe it, and every byte of its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    http: u8,
    pub(crate) status: u16,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(String, Text)>,
    #[serde(default, skip_serializing_if = "Text::is_empty")]
    body: Text,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trailers: Option<Vec<(String, Text)>>,
    /// Until when it is kept, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    /// The body was a stream, or too large.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unkept: bool,
}

/// Bytes in JSON: readable where they are a text that PostgreSQL can hold, which knows no NUL, and that JSON writes with at
/// most two bytes for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Plain(String),
    Base64 { base64: String },
}

impl Default for Text {
    fn default() -> Self {
        Self::Plain(String::new())
    }
}

impl Text {
    fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) if !bytes.iter().any(|byte| is_long_in_json(*byte)) => {
                Self::Plain(text.to_owned())
            }
            _ => Self::Base64 {
                base64: BASE64_STANDARD.encode(bytes),
            },
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Plain(text) if text.is_empty())
    }

    fn write_in_ascii(&mut self) -> bool {
        match self {
            Self::Plain(text) if !text.is_ascii() => {
                let base64 = BASE64_STANDARD.encode(text);
                *self = Self::Base64 { base64 };
                true
            }
            _ => false,
        }
    }

    fn bytes(self) -> Option<Bytes> {
        match self {
            Self::Plain(text) => Some(text.into()),
            Self::Base64 { base64 } => Some(BASE64_STANDARD.decode(base64).ok()?.into()),
        }
    }
}

/// JSON writes such a byte with six.
fn is_long_in_json(byte: u8) -> bool {
    byte < 0x20 && !matches!(byte, 0x08 | b'\t' | b'\n' | 0x0c | b'\r')
}

impl Stored {
    /// What is kept of an answer; of its body only where there is one to keep.
    pub(crate) fn of(
        head: &Parts,
        body: Option<&Whole>,
        policy: &Policy,
        keep: Option<Duration>,
    ) -> Self {
        let keeps = |name: &HeaderName, value: &HeaderValue| {
            policy.replay_headers.keeps(name, value) && !is_named_by_connection(&head.headers, name)
        };
        Self {
            http: FORM,
            status: head.status.as_u16(),
            headers: texts(&head.headers, keeps),
            body: body.map(|body| Text::of(&body.bytes)).unwrap_or_default(),
            trailers: body
                .and_then(|body| body.trailers.as_ref())
                .map(|trailers| {
                    // The list of headers does not name what a service adds at the end of its body.
                    texts(trailers, |name, value| {
                        ReplayHeaders::All.keeps(name, value)
                    })
                }),
            expires: keep.map(|keep| {
                let now = SystemTime::now();
                let until = now.checked_add(keep.min(MAX_KEEP)).unwrap_or(now);
                until
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default()
                    .as_secs()
            }),
            unkept: body.is_none(),
        }
    }

    /// Keeps nothing but how it ended; false where that is all already.
    pub(crate) fn leave_out_body(&mut self) -> bool {
        let left = Self {
            headers: Vec::new(),
            body: Text::default(),
            trailers: None,
            unkept: true,
            ..*self
        };
        std::mem::replace(self, left) != *self
    }

    /// Whether only how it ended is kept.
    pub(crate) fn is_unkept(&self) -> bool {
        self.unkept
    }

    /// Writes its bytes in ASCII, which every encoding of a database has; false where they were.
    pub(crate) fn write_in_ascii(&mut self) -> bool {
        let trailers = self.trailers.iter_mut().flatten();
        let values = self.headers.iter_mut().chain(trailers);
        let texts = values.map(|(_, value)| value).chain([&mut self.body]);
        texts
            .filter_map(|text| text.write_in_ascii().then_some(()))
            .count()
            > 0
    }

    /// Reads what was stored; `None` where something else wrote it.
    pub(crate) fn read(value: &serde_json::Value) -> Option<Self> {
        Self::deserialize(value)
            .ok()
            .filter(|stored| stored.http == FORM)
    }

    /// The answer once more; `None` where the record is malformed. `refused` is the failure that it belongs to.
    pub(crate) fn replay(self, policy: &Policy, refused: Option<&Failure>) -> Option<Response> {
        let status = StatusCode::from_u16(self.status).ok()?;
        let expires = self.expires;
        let mut response = if self.unkept {
            refused
                .map_or_else(not_kept, Problem::refused)
                .with("original_status", status.as_u16())
                .into_response_at(&policy.errors_at)
        } else {
            let body = Whole {
                bytes: self.body.bytes()?,
                trailers: match self.trailers {
                    None => None,
                    Some(trailers) => Some(map(trailers)?),
                },
            };
            let mut headers = map(self.headers)?;
            body.announce_trailers(&mut headers);
            let mut response = Response::new(body.into_body());
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            response
        };
        response
            .headers_mut()
            .insert(REPLAYED, HeaderValue::from_static("true"));
        publish_expiry(response.headers_mut(), expires);
        Some(response)
    }

    /// Says in a live answer until when it is kept.
    pub(crate) fn announce(&self, headers: &mut HeaderMap) {
        publish_expiry(headers, self.expires);
    }
}

/// The time of its own that the handler gave an answer.
pub(crate) fn keep_of(head: &Parts) -> Option<Duration> {
    let keep = head.extensions.get::<KeepFor>()?;
    // No time at all would be no answer at all, and one without an end cannot be stored.
    Some(keep.0.clamp(Duration::from_secs(1), MAX_KEEP))
}

/// It happened, but its answer was not stored.
pub(crate) fn not_kept() -> Problem {
    Problem::ours(
        StatusCode::GONE,
        "P4031",
        "it happened once, and its answer was not kept: look for what it made. \
         A new request takes a new key.",
    )
    .with("reason", "answer_not_kept")
}

fn publish_expiry(headers: &mut HeaderMap, expires: Option<u64>) {
    let until = expires.and_then(|secs| UNIX_EPOCH.checked_add(Duration::from_secs(secs)));
    // A date needs four digits for its year.
    let until = until.filter(|_| expires < Some(253_402_300_800));
    if let Some(Ok(value)) =
        until.map(|until| HeaderValue::from_str(&httpdate::fmt_http_date(until)))
    {
        headers.insert(EXPIRES, value);
    }
}

/// `Connection` names headers that are for the next hop only.
fn is_named_by_connection(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|named| named.trim().eq_ignore_ascii_case(name.as_str()))
}

fn texts(
    headers: &HeaderMap,
    keeps: impl Fn(&HeaderName, &HeaderValue) -> bool,
) -> Vec<(String, Text)> {
    headers
        .iter()
        .filter(|(name, value)| keeps(name, value))
        .map(|(name, value)| (name.as_str().to_owned(), Text::of(value.as_bytes())))
        .collect()
}

fn map(texts: Vec<(String, Text)>) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(texts.len());
    for (name, value) in texts {
        let name: HeaderName = name.parse().ok()?;
        headers.append(name, HeaderValue::from_maybe_shared(value.bytes()?).ok()?);
    }
    Some(headers)
}
