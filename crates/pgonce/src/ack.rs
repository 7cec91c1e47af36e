//! What an intent ends with: an acknowledgement, or a failure.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::ErrorDetail;
use crate::{Error, Result};

/// The stored answer, the same for every later attempt: a value, a reference to a row of yours,
/// or just the fact that it is done.
///
/// ```
/// use pgonce::Ack;
///
/// let ack = Ack::value(&serde_json::json!({"order": 7}))?.and_reference("order", 7);
/// assert_eq!(ack.reference(), Some(("order", "7")));
/// # Ok::<(), pgonce::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Ack {
    pub(crate) value: Option<Value>,
    pub(crate) reference: Option<(String, String)>,
    pub(crate) keep: Option<Duration>,
}

/// The same answer is the same, however long it is kept.
impl PartialEq for Ack {
    fn eq(&self, other: &Self) -> bool {
        (&self.value, &self.reference) == (&other.value, &other.reference)
    }
}

impl Ack {
    /// An answer that is replayed whole. `null`, `0`, `false`, `""`, `[]` and `{}` are answers too.
    ///
    /// Refused with [`Error::Invalid`] where a text of it holds U+0000, which jsonb cannot.
    pub fn value<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        let value = serde_json::to_value(value)?;
        if holds_nul(&value) {
            return Err(Error::Invalid(ErrorDetail::new(
                "22023",
                "the answer holds the character U+0000, which PostgreSQL cannot store",
                "Leave it out, or answer such bytes in base64.",
            )));
        }
        Ok(Self {
            value: Some(value),
            ..Self::default()
        })
    }

    /// A reference to what was made, for scopes that do not keep whole answers.
    pub fn reference_to(kind: impl Into<String>, id: impl ToString) -> Self {
        Self::status().and_reference(kind, id)
    }

    /// Nothing but the fact that it succeeded.
    pub fn status() -> Self {
        Self::default()
    }

    /// Adds a reference to what was made.
    #[must_use]
    pub fn and_reference(mut self, kind: impl Into<String>, id: impl ToString) -> Self {
        self.reference = Some((kind.into(), id.to_string()));
        self
    }

    /// Keeps this one answer for so long, instead of the retention of its scope; in any case for
    /// as long as the contract's horizons say that somebody may come back for it.
    #[must_use]
    pub fn keep_for(mut self, time: Duration) -> Self {
        self.keep = Some(time);
        self
    }

    /// The stored value as JSON; `None` when the scope keeps none.
    pub fn json(&self) -> Option<&Value> {
        self.value.as_ref()
    }

    /// The stored value as `T`; an absent value reads as JSON `null`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        Ok(T::deserialize(self.value.as_ref().unwrap_or(&Value::Null))?)
    }

    /// The stored reference, as (type, id).
    pub fn reference(&self) -> Option<(&str, &str)> {
        self.reference.as_ref().map(|(kind, id)| (&**kind, &**id))
    }
}

fn holds_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(values) => values.iter().any(holds_nul),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| name.contains('\0') || holds_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The end of an intent that worked out: its acknowledgement, and whether it was made now or
/// before. Only [`crate::Attempt::succeed`], [`crate::Lease::succeed`] and a replay make one.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "this is the answer to the caller"]
pub struct Done {
    pub(crate) ack: Ack,
    pub(crate) replayed: bool,
    pub(crate) attempts: u32,
    /// Which attempt made it. No two leases share a number.
    pub(crate) fence: i64,
}

impl Done {
    /// The acknowledgement, the same for everyone who asks.
    pub fn ack(&self) -> &Ack {
        &self.ack
    }

    /// The acknowledgement, by value.
    pub fn into_ack(self) -> Ack {
        self.ack
    }

    /// Whether it had happened before this call.
    pub fn replayed(&self) -> bool {
        self.replayed
    }

    /// How many attempts the intent took.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The answer as `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        self.ack.read()
    }
}

/// A failure that is worth remembering: refused for good, or not possible now.
///
/// ```
/// use pgonce::Failure;
///
/// let declined = Failure::refused("card_declined", "the bank said no");
/// assert!(!declined.is_retryable());
/// ```
#[derive(Debug, Clone)]
pub struct Failure {
    retryable: bool,
    code: String,
    message: String,
    answer: Option<Value>,
    replayed: bool,
    pub(crate) keep: Option<Duration>,
}

/// The same failure is the same, told now or again.
impl PartialEq for Failure {
    fn eq(&self, other: &Self) -> bool {
        (self.retryable, &self.code, &self.message, &self.answer)
            == (other.retryable, &other.code, &other.message, &other.answer)
    }
}

impl Failure {
    /// Final: every later attempt gets this same failure (a validation, a refusal).
    pub fn refused(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(false, code.into(), message.into(), None)
    }

    /// For now: the next attempt may try again (a provider is down).
    pub fn retryable(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(true, code.into(), message.into(), None)
    }

    pub(crate) fn new(
        retryable: bool,
        code: String,
        message: String,
        answer: Option<Value>,
    ) -> Self {
        Self {
            retryable,
            code,
            message,
            answer,
            replayed: false,
            keep: None,
        }
    }

    /// Adds what the caller is to be answered.
    pub fn with_answer<T: Serialize + ?Sized>(mut self, answer: &T) -> Result<Self> {
        self.answer = Some(serde_json::to_value(answer)?);
        Ok(self)
    }

    /// Keeps this one failure for so long where it is final, instead of the retention of its scope;
    /// as [`Ack::keep_for`].
    #[must_use]
    pub fn keep_for(mut self, time: Duration) -> Self {
        self.keep = Some(time);
        self
    }

    /// It was stored by an earlier attempt.
    pub(crate) fn told_again(mut self) -> Self {
        self.replayed = true;
        self
    }

    /// Whether it had been stored before this call.
    pub fn replayed(&self) -> bool {
        self.replayed
    }

    /// Whether a later attempt may try again.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// Your code for it.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The words for it.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What the caller is answered, where something was stored.
    pub fn answer(&self) -> Option<&Value> {
        self.answer.as_ref()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}
