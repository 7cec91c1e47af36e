//! What an endpoint's answer means.

use std::time::{Duration, SystemTime};

use http::StatusCode;
use http::header::{HeaderMap, RETRY_AFTER};

/// Nobody silences us for longer at a time.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// How long to leave an endpoint alone that asks for it and does not say how long.
const UNSAID: Duration = Duration::from_secs(5);

/// Maximum characters of the response text in a reason.
const MAX_REASON: usize = 200;

/// Statuses that an operator treats otherwise than by default.
#[derive(Debug, Clone, Default)]
pub(super) struct StatusPolicy {
    pub(super) retry: Vec<u16>,
    pub(super) refuse: Vec<u16>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Taken,
    /// A transient error of this event.
    Failed {
        reason: String,
    },
    /// A permanent error of this event.
    Refused {
        reason: String,
    },
    /// A transient error of the endpoint.
    Down {
        reason: String,
        after: Duration,
    },
    /// A permanent error of the endpoint.
    Gone {
        reason: String,
    },
}

impl Answer {
    pub(super) fn read(
        policy: &StatusPolicy,
        status: StatusCode,
        headers: &HeaderMap,
        text: &[u8],
    ) -> Self {
        let text = String::from_utf8_lossy(text);
        let text: String = text.trim().chars().take(MAX_REASON).collect();
        let reason = match text.is_empty() {
            true => format!("the endpoint answered {status}"),
            false => format!("the endpoint answered {status}: {text}"),
        };
        match status.as_u16() {
            200..=299 => Self::Taken,
            code if policy.retry.contains(&code) => Self::Failed { reason },
            code if policy.refuse.contains(&code) => Self::Refused { reason },
            410 => Self::Gone { reason },
            429 | 503 => Self::Down {
                reason,
                after: retry_after(headers).unwrap_or(UNSAID).min(MAX_RETRY_AFTER),
            },
            502 | 504 => Self::Down {
                reason,
                after: Duration::ZERO,
            },
            300..=399 => Self::Refused {
                reason: format!("{reason} (redirects are not followed: give the final address)"),
            },
            // A deployment, a rotation of credentials, a lock: what is wrong may be put right within hours.
            401 | 403 | 404 | 408 | 409 | 423 | 424 | 425 | 500..=599 => Self::Failed { reason },
            _ => Self::Refused { reason },
        }
    }
}

/// Seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, after: Option<&str>) -> Answer {
        let mut headers = HeaderMap::new();
        if let Some(after) = after {
            headers.insert(RETRY_AFTER, after.parse().unwrap());
        }
        let policy = StatusPolicy {
            retry: vec![418],
            refuse: vec![409],
        };
        let status = StatusCode::from_u16(status).unwrap();
        Answer::read(&policy, status, &headers, b" no ")
    }

    #[test]
    fn every_status_means_one_thing() {
        for (status, expected) in [
            (200, "Taken"),
            (204, "Taken"),
            (301, "Refused"),
            (400, "Refused"),
            (401, "Failed"),
            (403, "Failed"),
            (404, "Failed"),
            (409, "Refused"),
            (418, "Failed"),
            (422, "Refused"),
            (408, "Failed"),
            (410, "Gone"),
            (429, "Down"),
            (500, "Failed"),
            (502, "Down"),
            (503, "Down"),
            (504, "Down"),
        ] {
            let answer = format!("{:?}", read(status, None));
            assert!(answer.starts_with(expected), "{status}: {answer}");
        }
    }

    #[test]
    fn it_waits_as_long_as_it_is_asked_to_and_no_longer_than_an_hour() {
        let after = |text| match read(429, text) {
            Answer::Down { after, .. } => after,
            other => panic!("{other:?}"),
        };
        assert_eq!(after(Some("7")), Duration::from_secs(7));
        assert_eq!(after(Some("999999999999")), MAX_RETRY_AFTER);
        assert_eq!(after(Some("soon")), UNSAID);
        assert_eq!(after(None), UNSAID);
        assert_eq!(after(Some("Sun, 06 Nov 1994 08:49:37 GMT")), Duration::ZERO);
        let later = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        assert!(after(Some(&later)) > Duration::from_secs(90));
    }
}
