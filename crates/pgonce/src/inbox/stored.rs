//! Messages that are kept in the database, and their workers.

use std::time::Duration;

use serde_json::json;

use super::message::Message;
use super::{Inbox, first, literal, unreadable};
use crate::driver::{Connection, Driver, Param, Row};
use crate::lease::interval;
use crate::statements::Statements;
use crate::{MAX_NAME_BYTES, Result};

/// What a message is stored as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum As {
    /// To be applied as soon as it is its turn.
    Received,
    /// It failed with a transient error: again after a pause, as its consumer's contract says.
    Retry {
        /// A code to branch on.
        code: String,
        /// Why, for people.
        reason: String,
    },
    /// It will never be applied as it is: for a person.
    Poison {
        /// A code to branch on.
        code: String,
        /// Why, for people.
        reason: String,
        /// Keep only so many bytes of it.
        keep_bytes: usize,
    },
}

/// What came of storing a message. Once it is committed the source may forget it, whichever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// It is stored.
    New,
    /// It was taken on before.
    Duplicate,
    /// Its id came before with another payload (`P4050`): it is stored for a person.
    Conflict,
}

/// What became of a stored message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It waits for its next attempt.
    FailedRetryable,
    /// It needs manual action.
    FailedFinal,
}

/// A stored message that a worker has claimed.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Claimed {
    /// Its number in the inbox.
    pub seq: i64,
    /// The fence of this claim: an older one can finish nothing.
    pub fence: i64,
    /// Which attempt this is.
    pub attempts: u32,
    /// Where it came from.
    pub source: String,
    /// What it is.
    pub message: Message,
}

/// Those that were claimed, as the database wants to be told.
pub(super) fn claimed_json(claimed: &[&Claimed]) -> String {
    let named = |c: &&Claimed| json!({"tenant": c.message.tenant, "seq": c.seq, "fence": c.fence});
    serde_json::Value::from_iter(claimed.iter().map(named)).to_string()
}

pub(super) async fn store<C: Connection>(
    conn: &mut C,
    statements: &Statements,
    consumer: &str,
    source: &str,
    message: &Message,
    what: &As,
) -> Result<Stored> {
    let (outcome, code, reason, keep) = match what {
        As::Received => ("receive", None, None, usize::MAX),
        As::Retry { code, reason } => ("retry", Some(code), Some(reason), usize::MAX),
        As::Poison {
            code,
            reason,
            keep_bytes,
        } => ("poison", Some(code), Some(reason), *keep_bytes),
    };
    let came = message.raw_payload();
    let kept = &came[..came.len().min(keep)];
    let fits = |text: &&str| text.len() <= MAX_NAME_BYTES && !text.contains('\0');
    let id = literal::plain(&message.id);
    let key = message.key.as_deref().filter(fits);
    let kind = message.kind.as_deref().map(literal::plain);
    let reason = reason.map(|reason| literal::plain(reason));
    let tenant = Some(message.tenant.as_str())
        .filter(fits)
        .unwrap_or_default();
    let headers = literal::headers(&message.headers);
    let size = came.len().to_string();
    let params = [
        Param::Text(Some(consumer)),
        Param::Text(Some(source)),
        Param::Text(Some(&id)),
        Param::Bytes(kept),
        Param::Text(key),
        Param::Text(kind.as_deref()),
        Param::Json(Some(&headers)),
        Param::Bytes(&message.hash()),
        Param::Text(Some(outcome)),
        Param::Text(code.map(String::as_str)),
        Param::Text(reason.as_deref()),
        Param::Text(Some(&size)),
        Param::Text(Some(tenant)),
    ];
    let rows = conn.query(&statements.store_message, &params).await?;
    match first(rows).as_deref() {
        Some("new") => Ok(Stored::New),
        Some("duplicate") => Ok(Stored::Duplicate),
        Some("conflict") => Ok(Stored::Conflict),
        _ => Err(unreadable()),
    }
}

impl<D: Driver> Inbox<D> {
    /// Stores one message, durably: once this answers, its source may forget it.
    pub async fn store(
        &self,
        consumer: &str,
        source: &str,
        message: &Message,
        what: &As,
    ) -> Result<Stored> {
        let mut batch = self.begin().await?;
        match batch.store(consumer, source, message, what).await {
            Ok(stored) => batch.commit().await.map(|()| stored),
            Err(error) => {
                // The error is what counts; a session that cannot roll back is closed.
                let _ = batch.roll_back().await;
                Err(error)
            }
        }
    }

    /// Claims stored messages whose time has come, of each key only the first, at most `limit`.
    pub async fn claim(
        &self,
        consumer: &str,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claimed>> {
        let (lease, limit) = (interval(lease), limit.to_string());
        let params = [consumer, owner, &lease, &limit].map(|text| Param::Text(Some(text)));
        let rows = self.call(&self.statements.claim_messages, &params).await?;
        let rows = rows.into_iter();
        rows.map(|row| read(row).ok_or_else(unreadable)).collect()
    }

    /// A claimed message could not be applied. [`Error::Fenced`](crate::Error::Fenced): it is another worker's now.
    pub async fn fail(
        &self,
        consumer: &str,
        claimed: &Claimed,
        retryable: bool,
        code: &str,
        reason: &str,
    ) -> Result<Status> {
        let (seq, fence) = (claimed.seq.to_string(), claimed.fence.to_string());
        let retryable = if retryable { "true" } else { "false" };
        let (code, reason) = (literal::plain(code), literal::plain(reason));
        let tenant = &claimed.message.tenant;
        let params = [consumer, &seq, &fence, retryable, &code, &reason, tenant]
            .map(|text| Param::Text(Some(text)));
        let rows = self.call(&self.statements.fail_message, &params).await?;
        match first(rows).as_deref() {
            Some("failed_retryable") => Ok(Status::FailedRetryable),
            Some("failed_final") => Ok(Status::FailedFinal),
            _ => Err(unreadable()),
        }
    }

    /// Gives claimed messages back untried.
    pub async fn release(&self, consumer: &str, claimed: &[&Claimed]) -> Result<()> {
        let claimed = claimed_json(claimed);
        let params = [Param::Text(Some(consumer)), Param::Json(Some(&claimed))];
        let release = &self.statements.release_messages;
        self.call(release, &params).await.map(drop)
    }
}

fn read(row: Row) -> Option<Claimed> {
    let mut cells = row.into_iter();
    let mut next = || cells.next().flatten();
    let tenant = next()?;
    let (seq, fence) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let attempts = next()?.parse().ok()?;
    let source = next()?;
    let id = next()?;
    let (key, kind) = (next(), next());
    let headers = serde_json::from_str(&next()?).ok()?;
    let payload = literal::from_hex(&next()?)?;
    let mut message = Message::new(id, payload).tenant(tenant);
    message.key = key;
    message.kind = kind;
    message.headers = headers;
    message.redelivered = attempts > 1;
    Some(Claimed {
        seq,
        fence,
        attempts,
        source,
        message,
    })
}
