//! Finds keys that name an attempt, or nothing at all.

use std::fmt;
use std::net::IpAddr;

use uuid::Uuid;

use super::moment::{is_number, is_or_holds_a_moment, segments};
use crate::error::{Error, ErrorDetail};
use crate::intent::MAX_NAME_BYTES;

/// What is wrong with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing, or only white space.
    Empty,
    /// More than 255 bytes.
    TooLong,
    /// Control characters, or white space around it.
    Unprintable,
    /// What a mistake in a program leaves behind: `null`, `undefined`, `[object Object]`, `${key}`.
    Accident,
    /// A moment: another one on every try.
    Timestamp,
    /// A count of tries: `retry-3`.
    Attempt,
    /// Just a number: a user id, a row number, an offset.
    BareNumber,
    /// Who asks, not what is asked for: an email or network address, a user id.
    Principal,
}

/// Why a key was turned down. The text never repeats the key: keys do not belong into logs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}. {advice}")]
pub struct Complaint {
    kind: Fault,
    message: String,
    advice: &'static str,
}

impl Complaint {
    /// What is wrong, to branch on.
    pub fn kind(&self) -> Fault {
        self.kind
    }

    /// What is wrong, in words.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to do about it.
    pub fn advice(&self) -> &'static str {
        self.advice
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "empty",
            Self::TooLong => "too_long",
            Self::Unprintable => "unprintable",
            Self::Accident => "accident",
            Self::Timestamp => "timestamp",
            Self::Attempt => "attempt",
            Self::BareNumber => "bare_number",
            Self::Principal => "principal",
        })
    }
}

impl From<Complaint> for Error {
    fn from(complaint: Complaint) -> Self {
        let code = if complaint.kind == Fault::Empty {
            "P4001"
        } else {
            "22023"
        };
        Self::Invalid(ErrorDetail::new(code, complaint.message, complaint.advice))
    }
}

/// Turns down keys that name an attempt, or nothing: the mistakes that make every retry a new
/// request, or two requests one.
///
/// What it cannot know: a random number made for every try looks exactly like one made once for
/// the request. Whether a key is *stable* only its maker knows; this finds only keys that cannot
/// be right.
///
/// ```
/// use pgonce::key::{self, Fault};
///
/// assert!(key::lint("order-7421").is_ok());
/// assert!(key::lint("invoice:2026-01:acme").is_ok());
/// assert_eq!(key::lint("order-7421-retry-3").unwrap_err().kind(), Fault::Attempt);
/// assert_eq!(key::lint("1763171400123").unwrap_err().kind(), Fault::Timestamp);
/// ```
pub fn lint(key: &str) -> Result<(), Complaint> {
    let Some(kind) = fault(key) else {
        return Ok(());
    };
    let message = match kind {
        Fault::Empty => "the key is empty".to_owned(),
        Fault::TooLong => format!("the key has {} bytes; at most {MAX_NAME_BYTES}", key.len()),
        Fault::Unprintable => {
            "the key has a control character, or white space around it".to_owned()
        }
        Fault::Accident => "the key is what a missing value looks like".to_owned(),
        Fault::Timestamp => "the key is made from the time of day".to_owned(),
        Fault::Attempt => "the key counts attempts".to_owned(),
        Fault::BareNumber => "the key is just a number".to_owned(),
        Fault::Principal => "the key says who asks, not what is asked for".to_owned(),
    };
    Err(Complaint {
        kind,
        message,
        advice: advice(kind),
    })
}

fn fault(key: &str) -> Option<Fault> {
    Some(match key {
        _ if key.trim().is_empty() => Fault::Empty,
        _ if key.len() > MAX_NAME_BYTES => Fault::TooLong,
        _ if key.contains(char::is_control) || key.trim() != key => Fault::Unprintable,
        _ if is_accident(key) => Fault::Accident,
        _ if is_or_holds_a_moment(key) => Fault::Timestamp,
        _ if counts_attempts(key) => Fault::Attempt,
        _ if is_number(key) && key.len() < 20 => Fault::BareNumber,
        _ if is_principal(key) => Fault::Principal,
        _ => return None,
    })
}

fn advice(kind: Fault) -> &'static str {
    match kind {
        Fault::Empty => "Send the caller's name for this one request; the same on every retry.",
        Fault::TooLong => "Hash the facts that name the request: pgonce::key::derived.",
        Fault::Unprintable => "Send letters, digits and signs such as - _ : only.",
        Fault::Accident => "Find out where the key got lost before it was sent.",
        Fault::Timestamp => {
            "Make the key once when the request arises (pgonce::key::fresh) and keep it for the \
             retries, or derive it from what the request is about."
        }
        Fault::Attempt => "Leave the count out: every attempt of one request has the same key.",
        Fault::BareNumber => "Say of what, and what for: `order-7421`, not `7421`.",
        Fault::Principal => "Add what is asked for: `user-42:welcome-mail`, not `user-42`.",
    }
}

fn is_accident(key: &str) -> bool {
    const WHOLE: [&str; 12] = [
        "none",
        "nil",
        "nan",
        "true",
        "false",
        "null",
        "undefined",
        "infinity",
        "key",
        "idempotency-key",
        "idempotency_key",
        "idempotencykey",
    ];
    let lower = key.to_lowercase();
    // Exact case inside a longer key: Nan is a name, NaN is a mistake.
    let part_is_missing = segments(key).any(|s| matches!(s, "undefined" | "null" | "NaN"));
    let not_filled_in = ["${", "{{", "[object ", "<no value>", "%s", "%d", "#<"];
    let uuid = Uuid::parse_str(key).ok();
    WHOLE.contains(&lower.as_str())
        || !key.contains(char::is_alphanumeric)
        || part_is_missing
        || not_filled_in.iter().any(|sign| lower.contains(sign))
        || uuid.is_some_and(|id| id.is_nil() || id.is_max())
}

/// `retry-3`, `attempt_2`, `try1`, `retryCount=4`, or such a word at the end.
fn counts_attempts(key: &str) -> bool {
    const WORDS: [&str; 8] = [
        "retry",
        "retries",
        "retrycount",
        "attempt",
        "attempts",
        "try",
        "tries",
        "redelivery",
    ];
    let lower = key.to_lowercase();
    let parts: Vec<&str> = segments(&lower).collect();
    parts.iter().enumerate().any(|(place, part)| {
        let word = part.trim_end_matches(|c: char| c.is_ascii_digit());
        let next_is_count = parts
            .get(place + 1)
            .is_none_or(|next| next.len() <= 4 && next.bytes().all(|b| b.is_ascii_digit()));
        WORDS.contains(&word) && (word.len() < part.len() || next_is_count)
    })
}

fn is_principal(key: &str) -> bool {
    is_email(key) || key.parse::<IpAddr>().is_ok() || is_user_id(key)
}

fn is_email(key: &str) -> bool {
    key.split_once('@').is_some_and(|(name, host)| {
        !name.is_empty()
            && !name.contains([':', '/', ' '])
            && !host.contains(['@', ':', '/', ' '])
            && host.split('.').count() > 1
            && host.split('.').all(|label| !label.is_empty())
    })
}

fn is_user_id(key: &str) -> bool {
    let lower = key.to_lowercase();
    let id = lower.trim_start_matches(char::is_alphabetic);
    let word = &lower[..lower.len() - id.len()];
    let id = id.trim_start_matches(['-', '_', ':', '/', '=', '#']);
    let id = id.strip_prefix("id").map_or(id, |id| {
        id.trim_start_matches(['-', '_', ':', '/', '=', '#'])
    });
    matches!(word, "user" | "userid" | "uid" | "usr") && is_number(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn good_keys_pass() {
        for key in [
            "order-7421",
            "invoice:2026-01:acme",
            "close:merchant-7:2026-01-31",
            "8e03978e-40d5-43e8-bc93-6894a57f9324",
            "01932c07-209e-7bd2-9d4a-176317140012",
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "entry-3",
            "country-7",
            "poetry-2",
            "retry-policy-change-of-acme",
            "order-1763171400",
            "user-42:welcome-mail",
            "Nan-2026",
            "ключ-7421",
            "a",
            "12345678901234567890123456789012",
            "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "anna@example.org:signup",
            "none-of-the-above",
        ] {
            assert_eq!(lint(key), Ok(()), "{key}");
        }
    }

    #[test]
    fn bad_keys_are_distinguished() {
        let long = "k".repeat(256);
        for (kind, keys) in [
            (Fault::Empty, &["", " ", "\t\n"][..]),
            (Fault::TooLong, &[&long]),
            (
                Fault::Unprintable,
                &["a\0b", "order\n7", " order-7", "order-7 "],
            ),
            (
                Fault::Accident,
                &[
                    "null",
                    "undefined",
                    "NaN",
                    "None",
                    "[object Object]",
                    "[object Promise]",
                    "{}",
                    "\"\"",
                    "---",
                    "order-undefined",
                    "order:null:7",
                    "${key}",
                    "{{ key }}",
                    "00000000-0000-0000-0000-000000000000",
                    "ffffffff-ffff-ffff-ffff-ffffffffffff",
                    "Idempotency-Key",
                    "order-%d",
                    "true",
                ],
            ),
            (
                Fault::Timestamp,
                &[
                    "1763171400",
                    "1763171400123",
                    "1763171400123456",
                    "1763171400123456789",
                    "1763171400.123",
                    "order-1763171400123",
                    "2026-01-31T10:15:00Z",
                    "2026-01-31 10:15:00.123+01",
                    "order-2026-01-31T10:15",
                    "20260131101500",
                    "20260131T101500Z",
                    "job_20260131101500",
                    "2026-01-31_10-15-00",
                ],
            ),
            (
                Fault::Attempt,
                &[
                    "retry-3",
                    "order-7421-retry-3",
                    "attempt_2",
                    "try1",
                    "order-7-try#2",
                    "order-7-retry",
                    "RETRY=4",
                    "retryCount=4",
                    "order-7-attempt3-x",
                    "attempt-2:order",
                ],
            ),
            (
                Fault::BareNumber,
                &["7421", "0", "-1", "12.5", "99999999999"],
            ),
            (
                Fault::Principal,
                &[
                    "anna@example.org",
                    "192.0.2.7",
                    "2001:db8::1",
                    "user-42",
                    "user_id=42",
                    "uid:7",
                    "User/7",
                ],
            ),
        ] {
            for key in keys {
                assert_eq!(lint(key).map_err(|c| c.kind()), Err(kind), "{key:?}");
            }
        }
    }

    #[test]
    fn a_complaint_says_what_to_do_and_never_repeats_the_key() {
        let complaint = lint("anna@example.org").unwrap_err();
        let text = complaint.to_string();
        assert!(
            text.contains("welcome-mail") && !text.contains("anna"),
            "{text}"
        );
        assert_eq!(Error::from(complaint).code(), "22023");
        assert_eq!(Error::from(lint("").unwrap_err()).code(), "P4001");
    }

    /// What passes is a key that an intent takes; what does not is refused for the reason given,
    /// in words that do not repeat it.
    fn is_judged_rightly(key: &str) -> Result<(), TestCaseError> {
        let empty = key.trim().is_empty();
        let long = key.len() > MAX_NAME_BYTES;
        let unprintable = key.trim() != key || key.contains(char::is_control);
        match lint(key) {
            Ok(()) => {
                prop_assert!(!empty && !long && !unprintable);
                prop_assert!(crate::Intent::new("orders", key, &0).is_ok());
            }
            Err(complaint) => {
                match complaint.kind() {
                    Fault::Empty => prop_assert!(empty),
                    Fault::TooLong => prop_assert!(long),
                    Fault::Unprintable => prop_assert!(unprintable && !empty),
                    _ => prop_assert!(!empty && !long && !unprintable),
                }
                prop_assert!(key.len() < 12 || !complaint.to_string().contains(key));
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn any_text_is_judged_rightly(key in "(?s).{0,300}") {
            is_judged_rightly(&key)?;
        }

        #[test]
        fn any_text_of_the_signs_that_matter_is_judged_rightly(key in "[0-9TZ:._@é -]{0,40}(retry|try|user|id)?[0-9-]{0,20}") {
            is_judged_rightly(&key)?;
        }

        #[test]
        fn uuids_and_named_numbers_pass(bytes: [u8; 16], number in 0_u32..) {
            prop_assert!(lint(&uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()).is_ok());
            let named = format!("order-{number}");
            prop_assert!(lint(&named).is_ok());
        }
    }
}
