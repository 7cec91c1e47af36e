//! What a claim answers.

use std::time::Duration;

use serde_json::Value;

use crate::ack::{Ack, Done, Failure};
use crate::driver::Row;
use crate::error::ErrorDetail;
use crate::{Error, Result};

/// The answer to a claim: exactly one of these.
///
/// `R` is what you hold when the work is yours: an [`crate::Attempt`] or a [`crate::Lease`].
#[derive(Debug)]
#[must_use = "a claim that is dropped is given up"]
pub enum Claim<R> {
    /// You hold it: do the work.
    Run(R),
    /// It happened before; here is the answer.
    Replay(Done),
    /// It failed for good; here is the failure, the same every time.
    Refused(Failure),
    /// Somebody else holds it.
    Busy {
        /// When it is worth asking again.
        retry_after: Duration,
    },
}

/// How a claim came to be yours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClaimKind {
    /// Nobody tried before.
    Fresh,
    /// Somebody held it, and the lease ran out.
    Takeover,
    /// It was tried before and failed for now.
    Retry,
}

/// A claim's row, decoded.
#[derive(Debug)]
pub(crate) enum Outcome {
    Run {
        kind: ClaimKind,
        fence: i64,
        attempts: u32,
    },
    Replay(Done),
    Refused(Failure),
    Busy(Duration),
    /// The glance could not tell.
    Ask,
}

impl Outcome {
    pub(crate) fn fresh() -> Self {
        Self::Run {
            kind: ClaimKind::Fresh,
            fence: 1,
            attempts: 1,
        }
    }

    /// What is told of an intent that is not the caller's to do.
    pub(crate) fn finished<R>(self) -> Claim<R> {
        match self {
            Self::Replay(done) => Claim::Replay(done),
            Self::Refused(failure) => Claim::Refused(failure),
            Self::Busy(retry_after) => Claim::Busy { retry_after },
            Self::Run { .. } | Self::Ask => Claim::Busy {
                retry_after: Duration::from_millis(100),
            },
        }
    }

    /// Reads outcome, fence, answer, ref_type, ref_id, attempts, and for a full claim also
    /// failure_code, failure_message, retry_after in milliseconds.
    pub(crate) fn read(row: Row) -> Result<Self> {
        let mut columns = row.into_iter();
        let mut next = || columns.next().flatten();
        let Some(outcome) = next() else {
            return Ok(Self::Ask);
        };
        // A fresh attempt that lives in one transaction has no row to take these from.
        let fence = next().and_then(|f| f.parse().ok()).unwrap_or(1);
        let value: Option<Value> = next().map(|text| serde_json::from_str(&text)).transpose()?;
        let reference = next().zip(next());
        let attempts = next().and_then(|a| a.parse().ok()).unwrap_or(1);
        let run = |kind| Self::Run {
            kind,
            fence,
            attempts,
        };
        Ok(match outcome.as_str() {
            "fresh" => run(ClaimKind::Fresh),
            "takeover" => run(ClaimKind::Takeover),
            "retry" => run(ClaimKind::Retry),
            "replay" => Self::Replay(Done {
                ack: Ack {
                    value,
                    reference,
                    keep: None,
                },
                replayed: true,
                attempts,
                fence,
            }),
            "refused" => Self::Refused(
                Failure::new(
                    false,
                    next().unwrap_or_default(),
                    next().unwrap_or_default(),
                    value,
                )
                .told_again(),
            ),
            "busy" => {
                let (_, _, after) = (next(), next(), next());
                Self::Busy(Duration::from_millis(
                    after.and_then(|ms| ms.parse().ok()).unwrap_or(100),
                ))
            }
            other => {
                return Err(Error::Schema(ErrorDetail::new(
                    "P4099",
                    format!(
                        "the database answered a claim with {other:?}, which this build does not know"
                    ),
                    "Update this program, or run `pgonce migrate status`.",
                )));
            }
        })
    }
}
