//! What a claim answers.

use std::time::Duration;

use serde_json::Value;

use crate::ack::{Ack, Done};
use crate::call::{Row, unreadable};
use crate::error::Result;
use crate::failure::Failure;
use crate::intent::Intent;
use crate::seal::{self, AnswerKeys};

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
    /// It failed permanently; here is the failure, the same every time.
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
    /// Somebody held it, and the lease ran out: its work may have been done. So is every further attempt called,
    /// until one succeeds or is refused.
    Takeover,
    /// An earlier attempt ended with a transient failure.
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
    /// The fast claim could not decide: make the full one.
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

    /// The answer about an intent that is not the caller's to do.
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
    pub(crate) fn read(mut row: Row) -> Result<Self> {
        let Some(outcome) = row.opt_text() else {
            return Ok(Self::Ask);
        };
        // A fresh attempt that lives in one transaction has no row to take these from.
        let fence = row.opt()?.unwrap_or(1);
        let value: Option<Value> = row
            .opt_text()
            .map(|text| serde_json::from_str(&text))
            .transpose()?;
        let reference = row.opt_text().zip(row.opt_text());
        let attempts = row.opt()?.unwrap_or(1);
        let run = |kind| Self::Run {
            kind,
            fence,
            attempts,
        };
        Ok(match outcome.as_str() {
            "fresh" => run(ClaimKind::Fresh),
            "takeover" => run(ClaimKind::Takeover),
            "retry" => run(ClaimKind::Retry),
            "replay" => {
                let ack = Ack {
                    value,
                    reference,
                    keep: None,
                };
                Self::Replay(Done::new(ack, true, attempts, fence))
            }
            "refused" => {
                let (code, message) = (row.opt_text(), row.opt_text());
                let (code, message) = (code.unwrap_or_default(), message.unwrap_or_default());
                Self::Refused(Failure::new(false, code, message, value).mark_replayed())
            }
            "busy" => {
                let (_, _) = (row.opt_text(), row.opt_text());
                Self::Busy(row.opt_millis()?.unwrap_or(Duration::from_millis(100)))
            }
            _ => return Err(unreadable()),
        })
    }

    /// With the stored answer as it was before it was encrypted.
    pub(crate) fn opened(mut self, keys: Option<&AnswerKeys>, intent: &Intent) -> Result<Self> {
        let answer = match &mut self {
            Self::Replay(done) => &mut done.ack.value,
            Self::Refused(failure) => &mut failure.answer,
            Self::Run { .. } | Self::Busy(_) | Self::Ask => return Ok(self),
        };
        *answer = seal::opened(keys, intent, answer.take())?;
        Ok(self)
    }

    /// Reads the answer of a full claim.
    pub(crate) fn read_full(row: Option<Row>) -> Result<Self> {
        row.map_or(Ok(Self::Ask), Self::read)
    }
}
