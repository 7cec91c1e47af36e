//! What is stored of requests and responses.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::intent::Intent;
use crate::seal::{self, AnswerKeys};

/// What is stored of a request or a response. With [`AnswerKeys`](crate::AnswerKeys) it is encrypted, too.
///
/// ```
/// use pgonce::external::Storage;
///
/// let storage = Storage::redacted(["card_number", "cvc"]);
/// # let _ = storage;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Storage {
    /// All of it, up to 1 MiB; of more the digest.
    Full,
    /// All but the values of members with these names, wherever they are.
    Redacted(Vec<String>),
    /// Its SHA-256 digest: enough to see that it was another. Few possible requests can be guessed from it.
    Digest,
    /// Nothing: not even another request for the same step is noticed.
    None,
}

impl Storage {
    /// All but the values of members with these names, wherever they are.
    pub fn redacted<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self::Redacted(names.into_iter().map(Into::into).collect())
    }

    /// What is stored of this.
    pub(super) fn reduce(&self, value: &Value) -> Result<Option<Value>> {
        Ok(match self {
            Self::Full => Some(value.clone()),
            Self::Redacted(names) => {
                let mut value = value.clone();
                redact(&mut value, names);
                Some(value)
            }
            Self::Digest => {
                let mut hex = String::new();
                for byte in Fingerprint::of(value)?.as_bytes() {
                    let _ = write!(hex, "{byte:02x}");
                }
                Some(json!({ "sha256": hex }))
            }
            Self::None => None,
        })
    }

    /// The same, or its digest where that is too large.
    pub(super) fn bounded(&self, value: &Value) -> Result<Option<Value>> {
        let reduced = self.reduce(value)?;
        match &reduced {
            Some(large) if large.to_string().len() > MAX_STORED => Self::Digest.reduce(value),
            _ => Ok(reduced),
        }
    }

    /// What of a response may be the answer of its command, where nobody is there to make one: no more than is stored of it,
    /// and nothing where that is not the response itself.
    pub(super) fn answer(&self, value: &Value) -> Result<Option<Value>> {
        let readable = matches!(self, Self::Full | Self::Redacted(_));
        let reduced = if readable { self.reduce(value)? } else { None };
        Ok(reduced.filter(|kept| kept.to_string().len() <= MAX_STORED))
    }

    /// What a step's request is compared by.
    pub(super) fn digest(&self, value: &Value) -> Result<Vec<u8>> {
        match self {
            Self::None => Ok(Vec::new()),
            _ => Ok(Fingerprint::of(value)?.as_bytes().to_vec()),
        }
    }
}

/// Maximum number of bytes that are stored of one request or response; of a larger one the digest is.
const MAX_STORED: usize = 1 << 20;

fn redact(value: &mut Value, names: &[String]) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                match names.contains(name) {
                    true => *value = json!("[redacted]"),
                    false => redact(value, names),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact(item, names)),
        _ => {}
    }
}

/// Whether the server refused a value as such, so that the rest of the call can be recorded without it: U+0000 in a text, a
/// character that its encoding lacks, a document that is too deep or too large.
pub(super) fn refuses_value(error: &Error) -> bool {
    matches!(error, Error::Database(why) if why.code.starts_with("22") || why.code.starts_with("54"))
}

/// What is stored of a response, or nothing where that cannot be made: the outcome is recorded all the same.
pub(super) fn or_nothing<T>(stored: Result<Option<T>>) -> Option<T> {
    stored.unwrap_or_else(|error| {
        tracing::warn!(code = error.code(), "nothing of a response is stored");
        None
    })
}

/// A provider's reference, unless no call can have it.
pub(super) fn reference_to_store(reference: Option<&str>) -> Option<&str> {
    let stored = reference.filter(|text| text.len() <= 1000 && !text.contains('\0'));
    if reference.is_some() && stored.is_none() {
        tracing::warn!("a reference of more than 1000 bytes, or with U+0000, is left out");
    }
    stored
}

/// A request or response as it is stored.
pub(super) fn stored(
    storage: &Storage,
    keys: Option<&AnswerKeys>,
    intent: &Intent,
    value: Option<&Value>,
) -> Result<Option<String>> {
    let reduced = value.map(|value| storage.bounded(value)).transpose()?;
    seal::stored(keys, intent, reduced.flatten().as_ref())
}

/// A response as it was before it was stored. One that is plain where others are encrypted came by another way than a
/// response of the provider: it is left out.
pub(super) fn opened(
    keys: Option<&AnswerKeys>,
    intent: &Intent,
    stored: Option<String>,
) -> Result<Option<Value>> {
    let value = stored.map(|text| serde_json::from_str(&text)).transpose()?;
    match value {
        Some(value) if keys.is_some() && !seal::is_sealed(&value) => {
            Ok(seal::opened(keys, intent, Some(value)).unwrap_or_default())
        }
        value => seal::opened(keys, intent, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_store_keeps_what_it_says() {
        let value = json!({"card": {"number": "4242"}, "list": [{"number": 1}], "amount": 5});
        assert_eq!(Storage::Full.reduce(&value).unwrap().unwrap(), value);
        let redacted = Storage::redacted(["number"]).reduce(&value).unwrap();
        let expected = json!({"card": {"number": "[redacted]"}, "list": [{"number": "[redacted]"}], "amount": 5});
        assert_eq!(redacted.unwrap(), expected);
        let digest = Storage::Digest.reduce(&value).unwrap().unwrap();
        assert_eq!(digest["sha256"].as_str().unwrap().len(), 64);
        assert!(!digest.to_string().contains("4242"));
        assert_eq!(Storage::None.reduce(&value).unwrap(), None);
        assert_ne!(
            Storage::Digest.digest(&value).unwrap(),
            Storage::Digest.digest(&json!(1)).unwrap()
        );
        assert!(Storage::None.digest(&value).unwrap().is_empty());
    }
}
