//! How an intent fails.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

/// What is kept for longer, 1000 years, would have an end that no timestamp holds, and could not be recorded.
pub(crate) const MAX_KEEP: Duration = Duration::from_secs(1000 * 8766 * 3600);

/// A reason in the characters that every encoding of a database has.
pub(crate) fn in_ascii(text: &str) -> String {
    text.replace(|character: char| !character.is_ascii(), "?")
}

/// A failure that is recorded: permanent, the same for every later attempt, or transient.
///
/// ```
/// use pgonce::Failure;
///
/// let declined = Failure::permanent("card_declined", "the bank said no");
/// assert!(!declined.is_retryable());
/// ```
#[derive(Clone)]
pub struct Failure {
    retryable: bool,
    code: String,
    message: String,
    pub(crate) answer: Option<Value>,
    replayed: bool,
    pub(crate) keep: Option<Duration>,
}

/// Two failures are equal whether they were made now or replayed.
impl PartialEq for Failure {
    fn eq(&self, other: &Self) -> bool {
        (self.retryable, &self.code, &self.message, &self.answer)
            == (other.retryable, &other.code, &other.message, &other.answer)
    }
}

impl Failure {
    /// A permanent failure: every later attempt gets this same one (a validation, a refusal).
    pub fn permanent(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(false, code.into(), message.into(), None)
    }

    /// A transient failure: the next attempt may try again (a provider is down).
    pub fn transient(code: impl Into<String>, message: impl Into<String>) -> Self {
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
            code: without_nul(code),
            message: without_nul(message),
            answer,
            replayed: false,
            keep: None,
        }
    }

    /// Retention of this one permanent failure, instead of its scope's; as
    /// [`Ack::keep_for`](crate::Ack::keep_for).
    #[must_use]
    pub fn keep_for(mut self, time: Duration) -> Self {
        self.keep = Some(time.min(MAX_KEEP));
        self
    }

    /// Of work that was given back: the next claim does it, whatever the failure says.
    pub(crate) fn not_final(mut self) -> Self {
        self.retryable = true;
        self
    }

    /// In the characters that every encoding of a database has, and kept for some time: this is recorded wherever a failure can be.
    pub(crate) fn write_plainly(&mut self) {
        self.code = in_ascii(&self.code);
        self.message = in_ascii(&self.message);
        self.keep = self.keep.filter(|time| time.as_micros() > 0);
    }

    /// Marks a failure that an earlier attempt stored.
    pub(crate) fn mark_replayed(mut self) -> Self {
        self.replayed = true;
        self
    }

    /// Whether the failure had been stored before this call.
    pub fn replayed(&self) -> bool {
        self.replayed
    }

    /// Whether a later attempt may try again.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// The code of the failure, yours to choose.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The message of the failure.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The answer for the caller, where one was stored.
    pub fn answer(&self) -> Option<&Value> {
        self.answer.as_ref()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

/// The answer stays out of logs.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("retryable", &self.retryable)
            .field("code", &self.code)
            .field("message", &self.message)
            .field("replayed", &self.replayed)
            .finish_non_exhaustive()
    }
}

/// PostgreSQL's texts have no U+0000; a failure must not be lost for one.
fn without_nul(text: String) -> String {
    match text.contains('\0') {
        true => text.replace('\0', "\u{fffd}"),
        false => text,
    }
}
