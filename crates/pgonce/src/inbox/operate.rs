//! What operators do for consumers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::handle::Inbox;
use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::Result;

static DEFINE: Sql = Sql::seldom(
    "select 'done' from pgonce.define_inbox($1, $2::text::interval, $3::text::interval, \
     $4::text::interval, $5::text::integer, $6::text::interval, $7::text::interval)",
);
static RETRY: Sql =
    Sql::seldom("select n::text from pgonce.retry_messages($1, $2::text::bigint, $3) n");
static SKIP: Sql =
    Sql::seldom("select s::text from pgonce.skip_message($1, $2::text::bigint, $3) s");
static REPLAY: Sql = Sql::seldom(
    "select n::text from pgonce.replay_messages($1, $2, $3, \
     pg_catalog.to_timestamp($4::text::double precision)) n",
);
static CREATE_PARTITIONS: Sql = Sql::seldom("select pgonce._create_inbox_partitions()");
static DROP_PARTITIONS: Sql = Sql::seldom("select pgonce._drop_inbox_partitions()");
static PURGE: Sql = Sql::seldom("select pgonce._purge_inbox(10000)");
static BACKLOG: Sql = Sql::seldom(
    "select tenant::text, consumer::text, received, processing, retrying, poison, held, \
     pg_catalog.ceil(extract(epoch from oldest_age) operator(pg_catalog.*) 1000)::bigint from pgonce.inbox_backlog order by 2, 1",
);
static POISON: Sql = Sql::seldom(
    "select seq, tenant::text, source::text, message_id::text, key::text, attempts, failure_code, \
     failure_message, behind from pgonce.inbox_poison where consumer operator(pg_catalog.=) $1 \
     order by seq limit $2::text::integer",
);

/// How long a consumer remembers messages, and how often it tries them.
///
/// ```
/// use std::time::Duration;
/// use pgonce::inbox::Contract;
///
/// let day = Duration::from_secs(86_400);
/// let contract = Contract::default().keep(day * 90, day * 30).max_attempts(20);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a contract is nothing until Inbox::define"]
pub struct Contract {
    keep: Option<Duration>,
    redelivery: Duration,
    keep_stored: Duration,
    max_attempts: u32,
    backoff: (Duration, Duration),
}

const DAY: Duration = Duration::from_secs(86_400);

impl Default for Contract {
    /// Copies are known for 30 days, redelivery ends after 14; ten attempts, pauses of a second to ten minutes.
    fn default() -> Self {
        Self {
            keep: Some(DAY * 30),
            redelivery: DAY * 14,
            keep_stored: DAY * 30,
            max_attempts: 10,
            backoff: (Duration::from_secs(1), Duration::from_secs(600)),
        }
    }
}

impl Contract {
    /// How long copies of a message are known, and how long its source may deliver it again; the first must
    /// be longer.
    pub fn keep(mut self, keep: Duration, redelivery: Duration) -> Self {
        self.keep = Some(keep);
        self.redelivery = redelivery;
        self
    }

    /// Copies are known for ever.
    pub fn keep_for_ever(mut self) -> Self {
        self.keep = None;
        self
    }

    /// How long stored messages stay after they are done, for replays.
    pub fn keep_stored(mut self, keep: Duration) -> Self {
        self.keep_stored = keep;
        self
    }

    /// Maximum number of tries before a message is poison. Default: 10.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// The first and the maximum pause between two tries; it doubles in between, with jitter. Default:
    /// one second, ten minutes.
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.backoff = (first, max);
        self
    }
}

/// What is stored for a consumer and not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// The tenant.
    pub tenant: String,
    /// The consumer.
    pub consumer: String,
    /// Received, processing, failed (transient), poison.
    pub counts: [u64; 4],
    /// How many of these wait behind another of their key.
    pub held: u64,
    /// How old the oldest of them is.
    pub oldest_age: Option<Duration>,
}

/// A message that needs manual action.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Poison {
    /// Number of the message in the inbox: what [`Inbox::retry`] and [`Inbox::skip`] ask for.
    pub seq: i64,
    /// Whose it is.
    pub tenant: String,
    /// Name of the source that the message came from.
    pub source: String,
    /// Id of the message.
    pub id: String,
    /// What its order matters for.
    pub key: Option<String>,
    /// How often it was tried.
    pub attempts: u32,
    /// Why it failed: the code.
    pub code: Option<String>,
    /// Why it failed, for operators.
    pub reason: Option<String>,
    /// How many of its key wait behind it.
    pub behind: u64,
}

impl<D: Driver> Inbox<D> {
    /// Writes a consumer's contract down, or replaces it; `*` is the one of consumers that nobody defined.
    pub async fn define(&self, consumer: &str, contract: &Contract) -> Result<()> {
        let args = Args::new()
            .text(consumer)
            .interval(contract.keep)
            .interval(contract.redelivery)
            .interval(contract.keep_stored)
            .int(i64::from(contract.max_attempts))
            .interval(contract.backoff.0)
            .interval(contract.backoff.1);
        self.call(&DEFINE, args).await.map(drop)
    }

    /// Tries failed messages once more: one, or all that failed permanently. Returns how many.
    pub async fn retry(&self, consumer: &str, seq: Option<i64>, reason: &str) -> Result<u64> {
        let args = Args::new().text(consumer).int(seq).text(reason);
        self.call(&RETRY, args).await?.one()?.get()
    }

    /// Gives a stored message up; what waits behind it moves again. Returns whether it existed.
    pub async fn skip(&self, consumer: &str, seq: i64, reason: &str) -> Result<bool> {
        let args = Args::new().text(consumer).int(seq).text(reason);
        self.call(&SKIP, args).await?.one()?.bool()
    }

    /// Applies stored messages again: for another consumer, which applies each once for itself; or, where
    /// `into` is `None`, for the same, which is a second effect by your word. Returns how many.
    pub async fn replay(
        &self,
        consumer: &str,
        into: Option<&str>,
        since: Option<SystemTime>,
        reason: &str,
    ) -> Result<u64> {
        let since = since.map(|time| {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            since.as_secs_f64().to_string()
        });
        let args = Args::texts([consumer, reason])
            .text(into)
            .text(since.as_deref());
        self.call(&REPLAY, args).await?.one()?.get()
    }

    /// Creates and drops partitions of markers, and removes what need not be kept. Every consumer does it now
    /// and then.
    pub async fn maintain(&self) -> Result<()> {
        self.call(&CREATE_PARTITIONS, Args::default()).await?;
        // A few in each transaction, so that no writer waits for long.
        for _ in 0..100 {
            let dropped = self.call(&DROP_PARTITIONS, Args::default()).await?;
            if dropped.one()?.get::<u64>()? == 0 {
                break;
            }
        }
        // Bounded, so that a consumer comes back to its messages.
        for _ in 0..100 {
            let purged = self.call(&PURGE, Args::default()).await?;
            if purged.one()?.get::<u64>()? < 10_000 {
                break;
            }
        }
        Ok(())
    }

    /// What is stored and not applied, by consumer.
    pub async fn backlog(&self) -> Result<Vec<Backlog>> {
        self.call(&BACKLOG, Args::default()).await?.read(|mut row| {
            Ok(Backlog {
                tenant: row.text()?,
                consumer: row.text()?,
                counts: [row.get()?, row.get()?, row.get()?, row.get()?],
                held: row.get()?,
                oldest_age: row.opt_millis()?,
            })
        })
    }

    /// The oldest poison messages of a consumer, at most `limit`.
    pub async fn poison(&self, consumer: &str, limit: u32) -> Result<Vec<Poison>> {
        let args = Args::new().text(consumer).int(i64::from(limit));
        self.call(&POISON, args).await?.read(|mut row| {
            Ok(Poison {
                seq: row.get()?,
                tenant: row.text()?,
                source: row.text()?,
                id: row.text()?,
                key: row.opt_text(),
                attempts: row.get()?,
                code: row.opt_text(),
                reason: row.opt_text(),
                behind: row.get()?,
            })
        })
    }
}
