//! Keys, and the envelope that an answer is stored in.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{SEALED, is_sealed, one_use, unreadable};
use crate::error::{Error, ErrorDetail, Result};
use crate::intent::Intent;

/// What the keys of single answers are derived for.
const PURPOSE: &[u8] = b"pgonce answer 1";
const ALTERED: &str = "The key of this id is another one, or the stored answer was altered or moved from another intent.";

/// Keys that stored answers are encrypted with. The database never sees them.
///
/// Each answer is sealed with AES-256-GCM under a key of its own, derived (HKDF-SHA256) from the first key here and a
/// random salt, and bound to its tenant, scope, key and fingerprint: in another row it does not open. The envelope
/// names the key by its id, so that keys can be rotated: put the new one first, and keep the old one with
/// [`AnswerKeys::and_old`] for as long as answers are kept.
///
/// ```
/// use pgonce::AnswerKeys;
///
/// let keys = AnswerKeys::new("2026-11", [7; 32])?
///     .and_old("2026-05", [6; 32])?
///     .scopes(["payments.charge"]);
/// assert!(!format!("{keys:?}").contains('7'));
/// # Ok::<(), pgonce::Error>(())
/// ```
#[derive(Clone)]
pub struct AnswerKeys {
    /// The first one seals; all of them open.
    keys: Vec<(String, [u8; 32])>,
    scopes: Option<Vec<String>>,
    plain: bool,
}

impl AnswerKeys {
    /// Seals with this key from now on. `id` names it in the envelope; it is no secret.
    pub fn new(id: impl Into<String>, key: [u8; 32]) -> Result<Self> {
        let keys = Self {
            keys: Vec::new(),
            scopes: None,
            plain: false,
        };
        keys.and_old(id, key)
    }

    /// Opens answers that were sealed with this key before. An id that is known already is [`Error::Invalid`].
    pub fn and_old(mut self, id: impl Into<String>, key: [u8; 32]) -> Result<Self> {
        let id = id.into();
        if id.is_empty() || id.len() > 64 || self.find(&id).is_some() {
            return Err(Error::Invalid(ErrorDetail::new(
                "22023",
                "a key for answers needs an id of 1 to 64 bytes that no other has",
                "Name it by the day on which it was made, for example.",
            )));
        }
        self.keys.push((id, key));
        Ok(self)
    }

    /// The scopes whose answers are encrypted. Default: all.
    #[must_use]
    pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
        self.scopes = Some(scopes.into_iter().map(Into::into).collect());
        self
    }

    /// Accepts answers that are not encrypted, too: for the time until those that were stored before have expired.
    /// Default: they are refused, since somebody could have put them there.
    #[must_use]
    pub fn accept_plain(mut self) -> Self {
        self.plain = true;
        self
    }

    fn find(&self, id: &str) -> Option<&[u8; 32]> {
        let found = self.keys.iter().find(|(known, _)| known == id);
        found.map(|(_, key)| key)
    }

    fn is_for(&self, intent: &Intent) -> bool {
        let scopes = self.scopes.as_ref();
        scopes.is_none_or(|scopes| scopes.iter().any(|scope| scope == intent.scope()))
    }

    /// The envelope of an answer; `None` where the scope is not encrypted.
    pub(super) fn seal(&self, intent: &Intent, value: &Value) -> Result<Option<Value>> {
        if !self.is_for(intent) {
            return Ok(None);
        }
        let (id, key) = self.keys.first().ok_or_else(broken)?;
        let data = value.to_string().into_bytes();
        let (salt, data) =
            one_use::seal(key, PURPOSE, &bound_to(intent), data).ok_or_else(broken)?;
        Ok(Some(json!({
            SEALED: 1, "key": id, "salt": STANDARD.encode(salt), "data": STANDARD.encode(data),
        })))
    }

    /// What an envelope holds.
    pub(super) fn open(&self, intent: &Intent, value: Value) -> Result<Value> {
        if !is_sealed(&value) {
            return match self.plain || !self.is_for(intent) {
                true => Ok(value),
                false => Err(unreadable(
                    "the answer is not encrypted, and answers of its scope are",
                    "It was stored before they were, or by somebody else. AnswerKeys::accept_plain lets it pass.",
                )),
            };
        }
        let part = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
        let id = part("key");
        let key = self.find(id).ok_or_else(|| {
            unreadable(
                format!(
                    "the answer is encrypted with the key {id:?}, which this program does not have"
                ),
                "Give it that key with AnswerKeys::and_old.",
            )
        })?;
        let decoded = |name| STANDARD.decode(part(name)).ok();
        let opened = decoded("salt")
            .zip(decoded("data"))
            .and_then(|(salt, mut data)| {
                let plain = one_use::open(key, PURPOSE, &bound_to(intent), &salt, &mut data)?;
                serde_json::from_slice(plain).ok()
            });
        opened.ok_or_else(|| {
            unreadable(
                format!("the answer does not open with the key {id:?}"),
                ALTERED,
            )
        })
    }
}

/// What an answer belongs to, each part with its length.
fn bound_to(intent: &Intent) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in [
        intent.tenant_name().as_bytes(),
        intent.scope().as_bytes(),
        intent.key().as_bytes(),
        intent.fingerprint().as_bytes(),
    ] {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

fn broken() -> Error {
    unreadable(
        "the answer could not be encrypted",
        "The system gave no random numbers, or the answer is too large.",
    )
}

/// Keys stay out of logs.
impl fmt::Debug for AnswerKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<_> = self.keys.iter().map(|(id, _)| id).collect();
        f.debug_struct("AnswerKeys")
            .field("keys", &ids.len())
            .field("scopes", &self.scopes)
            .field("plain", &self.plain)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent(key: &str) -> Intent {
        Intent::new("payments.charge", key, "request").unwrap()
    }

    fn keys(id: &str, byte: u8) -> AnswerKeys {
        AnswerKeys::new(id, [byte; 32]).unwrap()
    }

    #[test]
    fn only_the_right_key_opens_the_same_answer_of_the_same_intent() {
        let (mine, answer) = (intent("a"), json!({"card": "4242"}));
        let sealed = keys("old", 1).seal(&mine, &answer).unwrap().unwrap();
        assert!(!sealed.to_string().contains("\"card\""));
        let rotated = keys("new", 2).and_old("old", [1; 32]).unwrap();
        assert_eq!(rotated.open(&mine, sealed.clone()).unwrap(), answer);
        let again = keys("old", 1).seal(&mine, &answer).unwrap().unwrap();
        assert_ne!(sealed, again, "each has a salt of its own");

        let missing = keys("new", 2).open(&mine, sealed.clone()).unwrap_err();
        assert!(missing.to_string().contains("\"old\""), "{missing}");
        let mut altered = sealed.clone();
        altered["data"] = json!(STANDARD.encode([0; 40]));
        let elsewhere = intent("b");
        for (keys, at, value) in [
            (keys("old", 3), &mine, sealed.clone()),
            (keys("old", 1), &elsewhere, sealed),
            (keys("old", 1), &mine, altered),
            (keys("old", 1), &mine, json!({ SEALED: 1, "key": "old" })),
            (keys("old", 1), &mine, answer),
        ] {
            let error = keys.open(at, value).unwrap_err();
            assert_eq!(error.code(), "P4032", "{error}");
        }
    }

    #[test]
    fn plain_answers_pass_where_they_may() {
        let plain = json!({"card": "4242"});
        let open = |keys: AnswerKeys| keys.open(&intent("a"), plain.clone());
        assert!(open(keys("k", 1)).is_err());
        assert!(open(keys("k", 1).accept_plain()).is_ok());
        assert!(open(keys("k", 1).scopes(["others"])).is_ok());
        assert!(keys("k", 1).and_old("k", [2; 32]).is_err());
    }
}
