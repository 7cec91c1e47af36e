//! What can go wrong, each with a stable code to branch on.

use std::fmt;
use std::time::Duration;

use crate::failure::Failure;
use crate::sqlstate::{self, Class};

/// Result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What PostgreSQL, or our own check before it, said was wrong. Boxed texts keep [`Error`] small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorDetail {
    /// The SQLSTATE, such as `P4002`.
    pub code: Box<str>,
    /// What was wrong.
    pub message: Box<str>,
    /// The particulars, where there are any.
    pub detail: Option<Box<str>>,
    /// What to do about it.
    pub hint: Option<Box<str>>,
    /// The constraint that was violated, where one was.
    pub constraint: Option<Box<str>>,
}

impl ErrorDetail {
    pub(crate) fn new(code: &str, message: impl Into<String>, hint: &str) -> Self {
        Self {
            code: code.into(),
            message: message.into().into(),
            detail: None,
            hint: Some(hint.into()),
            constraint: None,
        }
    }
}

impl fmt::Display for ErrorDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.message, self.code)?;
        if let Some(detail) = &self.detail {
            write!(f, ". {detail}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, " Hint: {hint}")?;
        }
        Ok(())
    }
}

/// Why a call did not do what was asked.
///
/// Branch on the variant or on [`Error::code`], never on the text.
///
/// ```
/// use pgonce::{Error, Intent};
///
/// let error = Intent::new("orders.create", "", &"a book").unwrap_err();
/// assert!(matches!(error, Error::Invalid(_)));
/// assert_eq!(error.code(), "P4001");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input cannot name an intent, or breaks a rule or a limit (`P4000`, `P4001`, `P4003`, `P4040` to `P4044`, `22023`).
    #[error("{0}")]
    Invalid(ErrorDetail),
    /// The key was used before with another request (`P4002`).
    #[error("{0}")]
    Conflict(ErrorDetail),
    /// Somebody else holds the intent (`P4029`).
    #[error("somebody else holds the intent, try again in {retry_after:?} [P4029]")]
    Busy {
        /// When it is worth asking again.
        retry_after: Duration,
        /// The scope's contract asks for an "accepted" answer that says where to poll.
        accepted: bool,
    },
    /// A permanent failure, the same for every attempt (`P4030`).
    #[error("failed permanently: {0} [P4030]")]
    Refused(Failure),
    /// A transient failure: it may be tried again.
    #[error("failed, and may be tried again: {0}")]
    Failed(Failure),
    /// The answer's retention is over and the contract keeps a tombstone (`P4031`).
    #[error("{0}")]
    Gone(ErrorDetail),
    /// The intent's home is another region (`P4110`); [`Home::from_error`](crate::region::Home::from_error) says which.
    #[error("{0}")]
    WrongRegion(ErrorDetail),
    /// A newer attempt holds the intent (`P4012`).
    #[error("{0}")]
    Fenced(ErrorDetail),
    /// Another attempt settled the intent first: claim again to get its answer (`P4010`, `P4011`).
    #[error("{0}")]
    LostRace(ErrorDetail),
    /// The reply to a commit was lost, or leased work ended while the database could not be asked to record it. It may have
    /// happened: claim again, never guess.
    #[error("the reply to the commit was lost, whether it happened is not known yet: {0} [08007]")]
    Uncertain(String),
    /// No connection, or it broke before anything could have been committed.
    #[error("no connection to the database: {0} [08006]")]
    Disconnected(String),
    /// Any other error of the database.
    #[error("{0}")]
    Database(ErrorDetail),
    /// An answer could not be turned into JSON, or back into the type that was asked for.
    #[error("the answer does not fit: {0} [22030]")]
    Answer(#[from] serde_json::Error),
    /// A stored answer is encrypted and cannot be opened, or should be encrypted and is not (`P4032`).
    #[error("{0}")]
    Sealed(ErrorDetail),
    /// The schema in the database does not fit this build of pgonce.
    #[error("{0}")]
    Schema(ErrorDetail),
    /// The work was cancelled.
    #[error("cancelled before it was done [57014]")]
    Cancelled,
    /// The user's own error from inside the work; nothing was recorded.
    #[error(transparent)]
    Work(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps an error of your own, to leave the work with. The transaction is rolled back,
    /// nothing is recorded, and the key is not burnt.
    pub fn work(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Work(error.into())
    }

    /// The stable code: the SQLSTATE, ours or PostgreSQL's. Empty for [`Error::Work`].
    pub fn code(&self) -> &str {
        match self {
            Self::Invalid(p)
            | Self::Conflict(p)
            | Self::Gone(p)
            | Self::WrongRegion(p)
            | Self::Fenced(p)
            | Self::LostRace(p)
            | Self::Database(p)
            | Self::Sealed(p)
            | Self::Schema(p) => &p.code,
            Self::Busy { .. } => "P4029",
            Self::Refused(_) => "P4030",
            Self::Failed(failure) => failure.code(),
            Self::Uncertain(_) => "08007",
            Self::Disconnected(_) => "08006",
            Self::Answer(_) => "22030",
            Self::Cancelled => "57014",
            Self::Work(_) => "",
        }
    }

    /// What to do about it, from the one table in [`crate::retry`].
    pub fn class(&self) -> Class {
        match self {
            Self::Failed(_) => Class::Retry,
            Self::Work(_) => Class::Final,
            _ => sqlstate::classify(self.code()),
        }
    }

    /// Sorts a database error into the variant that its code stands for.
    #[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
    pub(crate) fn from_problem(problem: ErrorDetail) -> Self {
        match &*problem.code {
            "P4000" | "P4001" | "P4003" | "22023" => Self::Invalid(problem),
            "P4040" | "P4041" | "P4042" | "P4043" | "P4044" => Self::Invalid(problem),
            "P4071" | "P4072" | "P4073" | "P4074" | "P4075" | "P4076" | "P4077" | "P4081" => {
                Self::Invalid(problem)
            }
            "P4083" | "P4090" | "P4091" | "P4092" | "P4093" | "P4094" | "P4095" | "P4096"
            | "P4097" => Self::Invalid(problem),
            "P4002" | "P4032" | "P4050" | "P4070" | "P4078" | "P4080" | "P4085" | "P4086"
            | "P4098" => Self::Conflict(problem),
            "P4012" => Self::Fenced(problem),
            "P4010" | "P4011" => Self::LostRace(problem),
            "P4031" => Self::Gone(problem),
            "P4104" | "P4105" => Self::Schema(problem),
            "P4110" => Self::WrongRegion(problem),
            // The insert of the finished row met another attempt's: the race is lost.
            "23505" if problem.constraint.as_deref() == Some("one_row_per_intent") => {
                Self::LostRace(ErrorDetail {
                    code: "P4010".into(),
                    message: "the success was not recorded: another attempt finished first".into(),
                    // PostgreSQL's own detail holds the key.
                    detail: None,
                    hint: Some("Claim again: it answers what the other attempt did.".into()),
                    constraint: problem.constraint,
                })
            }
            "08007" | "40003" => Self::Uncertain(problem.to_string()),
            code if code.starts_with("08") => Self::Disconnected(problem.to_string()),
            "57P01" | "57P02" | "57P03" | "57P05" => Self::Disconnected(problem.to_string()),
            _ => Self::Database(problem),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        if failure.is_retryable() {
            Self::Failed(failure)
        } else {
            Self::Refused(failure)
        }
    }
}
