//! What an intent ends with.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, ErrorDetail, Result};
use crate::failure::{Failure, MAX_KEEP};

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
#[derive(Clone, Default)]
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
    /// [`Error::Invalid`] where PostgreSQL could not give it back: a text with U+0000, or more than
    /// 127 levels of nesting.
    pub fn value<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        Ok(Self {
            value: Some(storable(value)?),
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

    /// Adds a reference to what was made. Its id has at most 1000 bytes, and neither part holds U+0000: an atomic attempt that succeeds
    /// with another one is refused ([`Error::Invalid`]); leased work is recorded without it, since it may have happened outside.
    #[must_use]
    pub fn and_reference(mut self, kind: impl Into<String>, id: impl ToString) -> Self {
        self.reference = Some((kind.into(), id.to_string()));
        self
    }

    /// Keeps this one answer for so long, instead of the retention of its scope; in any case for
    /// as long as the contract's horizons say that somebody may come back for it.
    #[must_use]
    pub fn keep_for(mut self, time: Duration) -> Self {
        self.keep = Some(time.min(MAX_KEEP));
        self
    }

    /// What is recorded of what the work succeeded with.
    pub(crate) fn of<A: IntoAck>(ack: A, fence: i64) -> Result<Self> {
        match ack.into_ack() {
            Ok(ack) => ack.kept(fence),
            Err(error) if fence % 2 == 1 => Err(error),
            Err(error) => {
                tracing::warn!(%error, "a success is recorded without its answer");
                Ok(Self::status())
            }
        }
    }

    /// Leaves out of leased work's success what the database refused with this code. False: there is nothing to leave out.
    pub(crate) fn leave_out(&mut self, code: &str) -> bool {
        let answer = self.value.take().is_some();
        // Of a large answer the reference is what remains.
        let reference = is_unknown_character(code) && self.reference.take().is_some();
        if answer || reference {
            tracing::warn!(
                code,
                "a success is recorded without what the database refuses"
            );
        }
        answer || reference
    }

    /// What is recorded of it under this fence.
    pub(crate) fn kept(mut self, fence: i64) -> Result<Self> {
        // No time is none. An atomic attempt is refused with it.
        self.keep = (self.keep).filter(|time| fence % 2 == 1 || time.as_micros() > 0);
        let complaint = match &self.reference {
            Some((kind, id)) if kind.contains('\0') || id.contains('\0') => {
                "the reference holds the character U+0000, which PostgreSQL cannot store"
            }
            Some((_, id)) if id.len() > MAX_REFERENCE => "the reference has more than 1000 bytes",
            _ => return Ok(self),
        };
        // An atomic attempt: nothing has happened yet.
        if fence % 2 == 1 {
            return Err(Error::Invalid(ErrorDetail::new(
                "22023",
                complaint,
                "Refer to what was made by its key, or put the text into the answer.",
            )));
        }
        tracing::warn!(complaint, "a success is recorded without its reference");
        self.reference = None;
        Ok(self)
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

/// The answer stays out of logs.
impl fmt::Debug for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ack")
            .field("value", &self.value.as_ref().map(|_| ".."))
            .field("reference", &self.reference)
            .field("keep", &self.keep)
            .finish()
    }
}

impl Failure {
    /// Adds the answer for the caller. Refused as [`Ack::value`] refuses.
    pub fn with_answer<T: Serialize + ?Sized>(mut self, answer: &T) -> Result<Self> {
        self.answer = Some(storable(answer)?);
        Ok(self)
    }
}

/// Whether a value has a character that the encoding of the database lacks.
pub(crate) fn is_unknown_character(code: &str) -> bool {
    matches!(code, "22P05" | "22021")
}

/// Maximum length of a reference's id, in bytes: an index has it.
const MAX_REFERENCE: usize = 1000;

/// Maximum nesting of an answer: deeper JSON can be written, but not read again.
const MAX_DEPTH: usize = 127;

/// A value as jsonb will give it back, so that a replay says what the first answer said.
fn storable<T: Serialize + ?Sized>(value: &T) -> Result<Value> {
    let mut value = serde_json::to_value(value)?;
    as_stored(&mut value, 0)?;
    Ok(value)
}

fn as_stored(value: &mut Value, depth: usize) -> Result<()> {
    let refused =
        |message: &str, hint: &str| Err(Error::Invalid(ErrorDetail::new("22023", message, hint)));
    if depth > MAX_DEPTH {
        return refused(
            "the answer is nested more than 127 levels deep",
            "Answer a flatter document.",
        );
    }
    match value {
        Value::String(text) if text.contains('\0') => refused(NUL, NUL_HINT),
        Value::Array(values) => values.iter_mut().try_for_each(|v| as_stored(v, depth + 1)),
        Value::Object(fields) => {
            if fields.keys().any(|name| name.contains('\0')) {
                return refused(NUL, NUL_HINT);
            }
            fields
                .values_mut()
                .try_for_each(|v| as_stored(v, depth + 1))
        }
        Value::Number(number) if number.is_f64() => {
            // jsonb has no -0.0, and writes whole numbers without an exponent.
            let float = number.as_f64().unwrap_or_default();
            if float == 0.0 {
                *value = 0.0.into();
            } else if float.abs() >= 1e16
                && let Ok(whole) = format!("{float:.0}").parse::<Value>()
                && (whole.is_i64() || whole.is_u64())
            {
                *value = whole;
            }
            Ok(())
        }
        Value::String(_) | Value::Number(_) | Value::Null | Value::Bool(_) => Ok(()),
    }
}

const NUL: &str = "the answer holds the character U+0000, which PostgreSQL cannot store";
const NUL_HINT: &str = "Leave it out, or answer such bytes in base64.";

/// What an attempt succeeds with: an [`Ack`], or a reference to any value that serde can write, which
/// is then the answer.
pub trait IntoAck: sealed::Sealed {
    /// The type that [`Done::into_answer`] reads.
    type Answer: ?Sized;

    #[doc(hidden)]
    fn into_ack(self) -> Result<Ack>;
}

impl IntoAck for Ack {
    type Answer = Value;

    fn into_ack(self) -> Result<Ack> {
        Ok(self)
    }
}

impl<T: Serialize + ?Sized> IntoAck for &T {
    type Answer = T;

    fn into_ack(self) -> Result<Ack> {
        Ack::value(self)
    }
}

mod sealed {
    /// Only this crate says what an acknowledgement is made of.
    pub trait Sealed {}
    impl Sealed for super::Ack {}
    impl<T: serde::Serialize + ?Sized> Sealed for &T {}
}

/// The end of an intent that succeeded, now or before. Only [`crate::Attempt::succeed`],
/// [`crate::Lease::succeed`] and a replay make one.
///
/// `T` is the type of the answer, which [`Done::into_answer`] reads.
#[must_use = "this is the answer to the caller"]
pub struct Done<T: ?Sized = Value> {
    pub(crate) ack: Ack,
    pub(crate) replayed: bool,
    pub(crate) attempts: u32,
    /// Which attempt made it. No two leases share a number.
    pub(crate) fence: i64,
    pub(crate) answer: PhantomData<fn() -> Box<T>>,
}

impl<T: ?Sized> Done<T> {
    pub(crate) fn new(ack: Ack, replayed: bool, attempts: u32, fence: i64) -> Self {
        Self {
            ack,
            replayed,
            attempts,
            fence,
            answer: PhantomData,
        }
    }

    /// The same end, for a caller who expects an answer of another type.
    pub(crate) fn typed<U: ?Sized>(self) -> Done<U> {
        Done::new(self.ack, self.replayed, self.attempts, self.fence)
    }

    /// The answer.
    pub fn into_answer(self) -> Result<T>
    where
        T: DeserializeOwned,
    {
        Ok(T::deserialize(self.ack.value.unwrap_or(Value::Null))?)
    }

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

    /// The answer as a type of your choice.
    pub fn read<U: DeserializeOwned>(&self) -> Result<U> {
        self.ack.read()
    }
}

impl<T: ?Sized> Clone for Done<T> {
    fn clone(&self) -> Self {
        Self::new(self.ack.clone(), self.replayed, self.attempts, self.fence)
    }
}

impl<T: ?Sized> PartialEq for Done<T> {
    fn eq(&self, other: &Self) -> bool {
        (&self.ack, self.replayed, self.attempts, self.fence)
            == (&other.ack, other.replayed, other.attempts, other.fence)
    }
}

impl<T: ?Sized> fmt::Debug for Done<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done")
            .field("ack", &self.ack)
            .field("replayed", &self.replayed)
            .field("attempts", &self.attempts)
            .field("fence", &self.fence)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_is_what_jsonb_gives_back() {
        let ack = Ack::value(&json!([1e16, -0.0, 1.5, 1e300, 1.0])).unwrap();
        assert_eq!(
            ack.json().unwrap().to_string(),
            "[10000000000000000,0.0,1.5,1e+300,1.0]"
        );
    }

    #[test]
    fn what_could_not_be_replayed_is_refused() {
        let nested = |levels: usize| {
            let mut value = json!(1);
            for _ in 0..levels {
                value = json!([value]);
            }
            value
        };
        assert!(Ack::value(&nested(127)).is_ok());
        for bad in [nested(128), json!({"a\u{0}": 1}), json!(["\u{0}"])] {
            assert_eq!(Ack::value(&bad).unwrap_err().code(), "22023");
            let failure = Failure::permanent("a\u{0}", "b\u{0}");
            assert_eq!(
                (failure.code(), failure.message()),
                ("a\u{fffd}", "b\u{fffd}")
            );
            assert_eq!(failure.with_answer(&bad).unwrap_err().code(), "22023");
        }
    }
}
