//! What an API answered, and what two answers have in common.

use std::fmt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http::header::{LOCATION, RETRY_AFTER};
use serde_json::Value;

use crate::output::printable;

/// Enough of a body to recognise it.
const SHOWN: usize = 60;

#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Names the effect, if it is known where its name is.
    pub(super) id: Option<Value>,
    /// When the request was sent.
    pub(super) asked: Instant,
    pub(super) took: Duration,
}

/// An answer, or why there is none.
pub(super) type Response = Result<Answer, String>;

impl Answer {
    pub(super) fn header(&self, name: impl http::header::AsHeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The same status, bytes and place: they cannot be distinguished.
    pub(super) fn is_identical_to(&self, other: &Self) -> bool {
        self.status == other.status
            && self.body == other.body
            && self.headers.get(LOCATION) == other.headers.get(LOCATION)
    }

    /// Whether both name one effect, by its id, its place or, where there is neither, by their bytes.
    pub(super) fn is_of_the_effect_of(&self, other: &Self) -> bool {
        self.names_the_effect_of(other)
            .unwrap_or_else(|| self.is_identical_to(other))
    }

    /// Whether both name one effect, if both name any in the same way.
    pub(super) fn names_the_effect_of(&self, other: &Self) -> Option<bool> {
        let (one, two) = (&self.id, &other.id);
        if let (Some(one), Some(two)) = (one, two) {
            return Some(one == two);
        }
        let place = |answer: &Self| answer.headers.get(LOCATION).cloned();
        Some(place(self)? == place(other)?)
    }

    /// Whether it names its effect.
    pub(super) fn names_its_effect(&self) -> bool {
        self.names_the_effect_of(self).is_some()
    }

    /// The header by which the API says that this answer is from before.
    pub(super) fn replay_mark(&self) -> Option<String> {
        self.headers.iter().find_map(|(name, value)| {
            let named = name.as_str().contains("replay")
                || (name.as_str().contains("idempoten") && name.as_str().contains("hit"));
            let observed = value.to_str().unwrap_or_default();
            let denied = ["false", "0", "no"]
                .iter()
                .any(|no| observed.eq_ignore_ascii_case(no));
            (named && !denied).then(|| format!("{name}: {observed}"))
        })
    }

    /// "Somebody is at it; come back."
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.status, 409 | 425 | 429 | 503)
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        let seconds = self.header(RETRY_AFTER)?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    pub(super) fn is_server_error(&self) -> bool {
        self.status >= 500
    }

    /// Refused by what the caller sent.
    pub(super) fn is_refusal(&self) -> bool {
        (400..500).contains(&self.status) && !matches!(self.status, 401 | 403 | 404 | 405 | 429)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        if let Some(location) = self.header(LOCATION) {
            write!(f, " at {}", printable(location))?;
        }
        let body = String::from_utf8_lossy(&self.body);
        let body = body.trim();
        if !body.is_empty() {
            let start: String = body.chars().take(SHOWN).collect();
            let rest = if start.len() < body.len() { "…" } else { "" };
            write!(f, " {}{rest}", printable(&start))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&'static str, &'static str)], body: &'static str) -> Answer {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, http::HeaderValue::from_static(value));
        }
        let document: Value = serde_json::from_str(body).unwrap_or_default();
        Answer {
            status,
            headers: map,
            body: Bytes::from_static(body.as_bytes()),
            id: document.get("id").cloned(),
            asked: Instant::now(),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn an_id_outweighs_what_surrounds_it() {
        let one = answer(201, &[], r#"{"id": 7, "at": "noon"}"#);
        let same = answer(200, &[], r#"{"id": 7, "at": "one"}"#);
        let other = answer(201, &[], r#"{"id": 8, "at": "noon"}"#);
        assert!(one.is_of_the_effect_of(&same) && !one.is_identical_to(&same));
        assert!(!one.is_of_the_effect_of(&other));
        assert!(!answer(201, &[], "yes").is_of_the_effect_of(&answer(200, &[], "yes")));
        let here = answer(201, &[("location", "/1")], r#"{"id": 1}"#);
        assert!(here.is_of_the_effect_of(&answer(201, &[("location", "/1")], "")));
        assert!(!here.is_of_the_effect_of(&answer(201, &[("location", "/2")], "")));
    }

    #[test]
    fn a_replay_is_known_by_several_names_and_only_when_it_is_one() {
        for (name, value, is) in [
            ("idempotent-replayed", "true", true),
            ("idempotent-replayed", "false", false),
            ("x-idempotency-hit", "1", true),
            ("x-replay", "yes", true),
            ("idempotency-key", "k", false),
        ] {
            let marked = answer(200, &[(name, value)], "").replay_mark().is_some();
            assert_eq!(marked, is, "{name}: {value}");
        }
    }

    #[test]
    fn what_is_shown_of_an_answer_is_short_and_harmless() {
        let long = answer(
            200,
            &[],
            "a\u{1b}[2Jbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
        );
        let shown = long.to_string();
        assert!(shown.ends_with('…') && !shown.contains('\u{1b}'), "{shown}");
    }
}
