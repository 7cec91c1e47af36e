//! Calls to providers outside of the database, whose outcome can be unknown.
//!
//! [`Lease::external`](crate::Lease::external) records each call before it is sent, and how it ended. A retried command
//! goes on after the steps that are done. Where nobody knows what the provider did, the call is *unknown* and never
//! guessed: a [`Reconciler`] asks the provider until it is decided or its deadline is over, and then an operator decides.

mod call;
mod observe;
mod reconcile;
mod rules;
mod store;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::Result;
use crate::failure::Failure;

pub use call::External;
pub use observe::{Observed, Report};
pub use reconcile::{Pass, Reconciler};
pub use rules::Rules;
pub use store::Storage;

/// A service outside that commands call, such as a bank.
///
/// ```
/// use pgonce::Failure;
/// use pgonce::external::{CallError, Effect, Found, Provider, Reply};
/// use serde_json::{Value, json};
///
/// struct Bank;
///
/// impl Provider for Bank {
///     fn name(&self) -> &str {
///         "bank"
///     }
///
///     async fn call(&self, effect: &Effect, request: &Value) -> Result<Reply, CallError> {
///         // POST /charges with the header Idempotency-Key: effect.key
///         if request["amount"] == 0 {
///             return Err(CallError::Rejected(Failure::permanent("bad_amount", "nothing to charge")));
///         }
///         Ok(Reply::new(&json!({"charged": request["amount"]}))?.reference("ch_7"))
///     }
///
///     async fn look_up(&self, effect: &Effect) -> Result<Found, Box<dyn std::error::Error + Send + Sync>> {
///         // GET /charges?idempotency_key=…
///         Ok(Found::Unknown)
///     }
/// }
/// ```
pub trait Provider: Send + Sync {
    /// Name of the provider: the one of its [`Rules`].
    fn name(&self) -> &str;

    /// Sends the request. Every other error than [`CallError::Rejected`] and [`CallError::NotSent`] means that it may
    /// have happened; `?` on any error says so.
    fn call(
        &self,
        effect: &Effect,
        request: &Value,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send;

    /// Asks what became of a call, by [`Effect::key`] or [`Effect::reference`]; it must change nothing. "No such
    /// request" is [`Found::Unknown`]: one can still be on its way. Default: the provider cannot be asked.
    fn look_up(
        &self,
        _effect: &Effect,
    ) -> impl Future<Output = Result<Found, Box<dyn std::error::Error + Send + Sync>>> + Send {
        async { Ok(Found::Unknown) }
    }

    /// What is stored of requests. Default: [`Storage::Digest`].
    fn store_request(&self) -> Storage {
        Storage::Digest
    }

    /// What is stored of responses, and given to a retried command. Default: [`Storage::Full`].
    fn store_response(&self) -> Storage {
        Storage::Full
    }
}

/// What a provider is asked to do once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Effect {
    /// The same on every attempt: send it as the provider's idempotency key, or as your reference. Another one where the key of
    /// the command runs again after its retention; with [`Rules::keys_for`] as long as the last one is known here.
    pub key: String,
    /// What the provider calls it, where that is known.
    pub reference: Option<String>,
    /// The step of the command.
    pub step: String,
    /// The tenant of the command; empty where there are none.
    pub tenant: String,
    /// How often it was sent, this time included.
    pub sends: u32,
}

/// A provider's answer that it has happened.
///
/// ```
/// use pgonce::external::Reply;
///
/// let reply = Reply::new(&7)?.reference("ch_7");
/// assert_eq!(reply.json::<i32>()?, 7);
/// # Ok::<(), pgonce::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Reply {
    /// What the provider calls it.
    pub reference: Option<String>,
    /// The response; what is stored of it where an earlier attempt got it.
    pub body: Option<Value>,
    /// Whether an earlier attempt, a webhook or a look-up brought it.
    pub replayed: bool,
}

impl Reply {
    /// A response.
    pub fn new(body: &(impl Serialize + ?Sized)) -> Result<Self> {
        Ok(Self {
            body: Some(serde_json::to_value(body)?),
            ..Self::default()
        })
    }

    /// Adds what the provider calls it.
    #[must_use]
    pub fn reference(mut self, reference: impl Into<String>) -> Self {
        self.reference = Some(reference.into());
        self
    }

    /// The response as a type of yours; null where nothing of it is stored.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        let body = self.body.clone().unwrap_or_default();
        Ok(serde_json::from_value(body)?)
    }
}

/// Why a provider did not confirm.
///
/// Any error becomes [`CallError::Unknown`]: a timeout, a cut and a `5xx` do not say that nothing happened.
///
/// ```
/// use pgonce::external::CallError;
///
/// let cut = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
/// assert!(matches!(CallError::from(cut), CallError::Unknown { .. }));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum CallError {
    /// The provider said that it did not happen, and will not under this key.
    Rejected(Failure),
    /// The provider cannot have acted: no connection was made, or it said "not now". It may be sent again.
    NotSent(String),
    /// It may have happened.
    Unknown {
        /// What is known, for operators.
        why: String,
        /// What the provider calls it, where it said so: "accepted, the result comes later".
        reference: Option<String>,
    },
}

impl CallError {
    /// It may have happened.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self::Unknown {
            why: why.into(),
            reference: None,
        }
    }
}

impl<E: std::error::Error> From<E> for CallError {
    fn from(error: E) -> Self {
        Self::unknown(error.to_string())
    }
}

/// What a provider knows about a call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Found {
    /// It happened.
    Confirmed(Reply),
    /// It did not happen, and will not under this key.
    Failed(Failure),
    /// Neither is certain.
    Unknown,
}

/// One step of a command that calls out. A `&str` is one with default settings.
///
/// ```
/// use std::time::Duration;
/// use pgonce::external::Step;
///
/// let step = Step::new("charge").timeout(Duration::from_secs(10)).decides_command();
/// # let _ = step;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    name: String,
    timeout: Duration,
    wait: Duration,
    decides: bool,
}

impl Step {
    /// The step of this name, unique in its command.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            timeout: Duration::from_secs(30),
            wait: Duration::from_secs(5),
            decides: false,
        }
    }

    /// Maximum time that the provider gets to answer; then the call is unknown. Default: 30 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Maximum time to wait for the provider's rate limit or circuit breaker. Default: 5 seconds.
    #[must_use]
    pub fn wait_timeout(mut self, timeout: Duration) -> Self {
        self.wait = timeout;
        self
    }

    /// The outcome of this step is that of the command, and its response the command's answer, as
    /// [`Provider::store_response`] allows it to be stored: reconciliation and operators then end the command with the call,
    /// where nobody is at work on it. A confirmed call of whose response nothing readable may be stored leaves that to the
    /// next attempt. Default: the next attempt ends it.
    ///
    /// Use it only where the command answers the response itself, [`Reply::body`], and nothing of the command follows the
    /// step. What follows, such as postings of the ledger or the settling of a hold, never runs once a report has ended the
    /// command; and an answer of another type cannot be read then (`22030`).
    #[must_use]
    pub fn decides_command(mut self) -> Self {
        self.decides = true;
        self
    }
}

impl From<&str> for Step {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

/// Bodies can hold secrets.
impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} ({})", self.step, self.key)
    }
}
