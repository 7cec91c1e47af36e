//! Stored answers that the database cannot read.

#[cfg(feature = "encryption")]
mod keys;
#[cfg(any(feature = "encryption", feature = "redis"))]
pub(crate) mod one_use;

#[cfg(feature = "encryption")]
pub use keys::AnswerKeys;

use serde_json::Value;

use crate::error::{Error, ErrorDetail, Result};
use crate::intent::Intent;

/// Without the feature there are no keys.
#[cfg(not(feature = "encryption"))]
#[derive(Debug)]
pub(crate) enum AnswerKeys {}

#[cfg(not(feature = "encryption"))]
impl AnswerKeys {
    fn seal(&self, _: &Intent, _: &Value) -> Result<Option<Value>> {
        match *self {}
    }

    fn open(&self, _: &Intent, _: Value) -> Result<Value> {
        match *self {}
    }
}

/// What marks a sealed answer.
const SEALED: &str = "pgonce_sealed";

pub(crate) fn is_sealed(value: &Value) -> bool {
    value.as_object().is_some_and(|o| o.contains_key(SEALED))
}

/// An answer as it is stored.
pub(crate) fn stored(
    keys: Option<&AnswerKeys>,
    intent: &Intent,
    value: Option<&Value>,
) -> Result<Option<String>> {
    let Some(value) = value else { return Ok(None) };
    let sealed = keys.map(|keys| keys.seal(intent, value)).transpose()?;
    match sealed.flatten() {
        Some(sealed) => Ok(Some(sealed.to_string())),
        None if is_sealed(value) => Err(Error::Invalid(ErrorDetail::new(
            "22023",
            "the answer has a member pgonce_sealed, which marks encrypted answers",
            "Give that member another name.",
        ))),
        None => Ok(Some(value.to_string())),
    }
}

/// An answer as it was before it was stored.
pub(crate) fn opened(
    keys: Option<&AnswerKeys>,
    intent: &Intent,
    value: Option<Value>,
) -> Result<Option<Value>> {
    match (keys, value) {
        (_, None) => Ok(None),
        (Some(keys), Some(value)) => keys.open(intent, value).map(Some),
        (None, Some(value)) if is_sealed(&value) => Err(unreadable(
            "the answer is encrypted, and this program has no keys",
            "Give it the keys of the program that stored the answer, with OnceBuilder::encrypt_answers.",
        )),
        (None, value) => Ok(value),
    }
}

fn unreadable(message: impl Into<String>, hint: &str) -> Error {
    Error::Sealed(ErrorDetail::new("P4032", message, hint))
}
