//! Messages that are kept in the database, and their workers.

use std::time::Duration;

use serde_json::json;

use super::handle::Inbox;
use super::literal;
use super::message::Message;
use crate::call::{Args, Row, Sql, unreadable};
use crate::driver::Driver;
use crate::error::Result;
use crate::intent::MAX_NAME_BYTES;
use crate::json;

pub(super) static STORE: Sql = Sql::kept(
    "select pgonce.store_message($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::bigint, $13)",
);
static CLAIM: Sql = Sql::kept(
    "select tenant, seq, fence, attempts, source, message_id, key, type, headers, pg_catalog.encode(payload, 'hex') \
     from pgonce._claim_messages($1, $2, $3::text::interval, $4::text::integer, $5::text::integer)",
);
static FAIL: Sql = Sql::kept(
    "select pgonce.fail_message($1, $2::text::bigint, $3::text::bigint, $4::text::boolean, $5, $6, $7)",
);
static RELEASE: Sql = Sql::kept("select pgonce.release_messages($1, $2)");
static RENEW: Sql = Sql::kept("select pgonce._renew_messages($1, $2, $3::text::interval)");

/// What a message is stored as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreAs {
    /// To be applied as soon as it is its turn.
    Received,
    /// A transient failure: again after a pause, as its consumer's contract says.
    Retry {
        /// A code to branch on.
        code: String,
        /// Why, for operators.
        reason: String,
    },
    /// It will never be applied as it is: needs manual action.
    Poison {
        /// A code to branch on.
        code: String,
        /// Why, for operators.
        reason: String,
        /// Keep only so many bytes of it.
        keep_bytes: usize,
    },
}

/// What came of storing a message. Once it is committed the source may forget it, whichever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreResult {
    /// It is stored.
    New,
    /// It was taken on before.
    Duplicate,
    /// Its id came before with another payload (`P4050`): it is stored, and needs manual action.
    Conflict,
}

/// What became of a stored message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureStatus {
    /// It waits for its next attempt.
    FailedRetryable,
    /// It needs manual action.
    FailedFinal,
}

/// No claim is ended earlier than this, however short its lease.
const MIN_CLAIM: Duration = Duration::from_secs(2);

/// A stored message that a worker has claimed.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ClaimedMessage {
    /// Number of the message in the inbox.
    pub seq: i64,
    /// The fence of this claim: an older one can finish nothing.
    pub fence: i64,
    /// Which attempt this is.
    pub attempts: u32,
    /// Name of the source that the message came from.
    pub source: String,
    /// The message: id, key, headers and payload.
    pub message: Message,
    /// What is applied is not what is stored.
    was_read: bool,
}

impl ClaimedMessage {
    /// Says what is applied, where a reader may have made another message of it: no projection can be built anew from what is
    /// stored then.
    #[doc(hidden)]
    pub fn apply_as(&mut self, read: &Message) {
        let parts = |m: &Message| {
            (
                m.id.clone(),
                m.key.clone(),
                m.kind.clone(),
                m.payload.clone(),
            )
        };
        self.was_read = parts(read) != parts(&self.message);
    }
}

/// Those that were claimed, as the database names them.
pub(super) fn claimed_json(claimed: &[&ClaimedMessage]) -> String {
    let named = |c: &&ClaimedMessage| json!({"tenant": c.message.tenant, "seq": c.seq, "fence": c.fence, "was_read": c.was_read});
    serde_json::Value::from_iter(claimed.iter().map(named)).to_string()
}

/// The arguments of [`STORE`] that are made from a message.
pub(super) struct StoreParts<'a> {
    outcome: &'static str,
    code: Option<&'a str>,
    reason: Option<String>,
    id: String,
    kind: Option<String>,
    headers: String,
    hash: [u8; 32],
    kept: &'a [u8],
}

pub(super) fn store_parts<'a>(message: &'a Message, what: &'a StoreAs) -> StoreParts<'a> {
    let (outcome, code, reason, keep) = match what {
        StoreAs::Received => ("receive", None, None, usize::MAX),
        StoreAs::Retry { code, reason } => ("retry", Some(code), Some(reason), usize::MAX),
        StoreAs::Poison {
            code,
            reason,
            keep_bytes,
        } => ("poison", Some(code), Some(reason), *keep_bytes),
    };
    let raw = message.raw_payload();
    StoreParts {
        outcome,
        code: code.map(String::as_str),
        reason: reason.map(|reason| literal::plain(reason)),
        id: literal::plain(&message.id),
        kind: message.kind.as_deref().map(literal::plain),
        headers: literal::headers(&message.headers),
        hash: message.hash(),
        kept: &raw[..raw.len().min(keep)],
    }
}

impl StoreParts<'_> {
    pub(super) fn args<'b>(
        &'b self,
        consumer: &'b str,
        source: &'b str,
        message: &'b Message,
    ) -> Args<'b> {
        let fits = |text: &&str| text.len() <= MAX_NAME_BYTES && !text.contains('\0');
        let tenant = Some(message.tenant.as_str()).filter(fits);
        Args::texts([consumer, source, &self.id])
            .bytes(self.kept)
            .text(message.key.as_deref().filter(fits))
            .text(self.kind.as_deref())
            .json(&*self.headers)
            .bytes(&self.hash)
            .text(self.outcome)
            .text(self.code)
            .text(self.reason.as_deref())
            .count(message.raw_payload().len())
            .text(tenant.unwrap_or_default())
    }
}

impl StoreResult {
    pub(super) fn read(mut row: Row) -> Result<Self> {
        match row.text()?.as_str() {
            "new" => Ok(Self::New),
            "duplicate" => Ok(Self::Duplicate),
            "conflict" => Ok(Self::Conflict),
            _ => Err(unreadable()),
        }
    }
}

impl<D: Driver> Inbox<D> {
    /// Stores one message, durably: once this answers, its source may forget it.
    pub async fn store(
        &self,
        consumer: &str,
        source: &str,
        message: &Message,
        what: &StoreAs,
    ) -> Result<StoreResult> {
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
    ) -> Result<Vec<ClaimedMessage>> {
        self.claim_runs(consumer, owner, lease, limit, 1).await
    }

    /// The same, with up to `per_key` messages of a key: to be applied one after the other, and none after one that
    /// failed. [`Batch::commit_finished`](super::Batch::commit_finished) refuses one before its turn.
    pub async fn claim_runs(
        &self,
        consumer: &str,
        owner: &str,
        lease: Duration,
        limit: usize,
        per_key: usize,
    ) -> Result<Vec<ClaimedMessage>> {
        let args = Args::texts([consumer, owner])
            .interval(lease)
            .count(limit)
            .count(per_key);
        // One that takes longer is of no use, and nobody waits for it.
        let mut caller = self.caller.clone();
        let limit = lease.max(MIN_CLAIM);
        caller.statement_timeout = Some(caller.statement_timeout.map_or(limit, |t| t.min(limit)));
        caller.call(&CLAIM, args).await?.read(read)
    }

    /// A claimed message could not be applied. [`Error::Fenced`](crate::Error::Fenced): it is another worker's now.
    pub async fn fail(
        &self,
        consumer: &str,
        claimed: &ClaimedMessage,
        retryable: bool,
        code: &str,
        reason: &str,
    ) -> Result<FailureStatus> {
        let (code, reason) = (literal::plain(code), literal::plain(reason));
        let args = Args::new()
            .text(consumer)
            .int(claimed.seq)
            .int(claimed.fence)
            .bool(retryable)
            .text(&*code)
            .text(&*reason)
            .text(&*claimed.message.tenant);
        match self.call(&FAIL, args).await?.one()?.text()?.as_str() {
            "failed_retryable" => Ok(FailureStatus::FailedRetryable),
            "failed_final" => Ok(FailureStatus::FailedFinal),
            _ => Err(unreadable()),
        }
    }

    /// Renews the leases of claimed messages while they are being applied: of those that are still this worker's.
    pub async fn renew(
        &self,
        consumer: &str,
        claimed: &[&ClaimedMessage],
        lease: Duration,
    ) -> Result<()> {
        let claimed = claimed_json(claimed);
        let args = Args::new().text(consumer).json(&*claimed).interval(lease);
        self.call(&RENEW, args).await.map(drop)
    }

    /// Gives claimed messages back untried.
    pub async fn release(&self, consumer: &str, claimed: &[&ClaimedMessage]) -> Result<()> {
        let claimed = claimed_json(claimed);
        let args = Args::new().text(consumer).json(&*claimed);
        self.call(&RELEASE, args).await.map(drop)
    }
}

fn read(mut row: Row) -> Result<ClaimedMessage> {
    let tenant = row.text()?;
    let (seq, fence, attempts) = (row.get()?, row.get()?, row.get()?);
    let source = row.text()?;
    let id = row.text()?;
    let (key, kind) = (row.opt_text(), row.opt_text());
    let headers = json::headers(&row.text()?);
    let payload = literal::from_hex(&row.text()?).ok_or_else(unreadable)?;
    let mut message = Message::new(id, payload).tenant(tenant);
    message.source.clone_from(&source);
    message.key = key;
    message.kind = kind;
    message.headers = headers;
    message.redelivered = attempts > 1;
    Ok(ClaimedMessage {
        seq,
        fence,
        attempts,
        source,
        message,
        was_read: false,
    })
}
