//! What operators do for consumers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Inbox, first, number, unreadable};
use crate::Result;
use crate::driver::{Driver, Param, Row};
use crate::lease::interval;

/// How long a consumer remembers what it has heard, and how patient it is.
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

    /// How often a message that fails is tried before it waits for a person.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// The first pause between two tries, and the longest; it doubles in between, with jitter.
    pub fn backoff(mut self, first: Duration, at_most: Duration) -> Self {
        self.backoff = (first, at_most);
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
    /// To be applied, with a worker, failed for now, failed for good.
    pub counts: [u64; 4],
    /// How many of these wait behind another of their key.
    pub held: u64,
    /// How old the oldest of them is.
    pub oldest_age: Option<Duration>,
}

/// A message that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Poison {
    /// Its number: what [`Inbox::retry`] and [`Inbox::skip`] ask for.
    pub seq: i64,
    /// Whose it is.
    pub tenant: String,
    /// Where it came from.
    pub source: String,
    /// Its id.
    pub id: String,
    /// What its order matters for.
    pub key: Option<String>,
    /// How often it was tried.
    pub attempts: u32,
    /// Why it failed: the code.
    pub code: Option<String>,
    /// Why it failed, for people.
    pub reason: Option<String>,
    /// How many of its key wait behind it.
    pub behind: u64,
}

impl<D: Driver> Inbox<D> {
    /// Writes a consumer's contract down, or replaces it; `*` is the one of consumers that nobody defined.
    pub async fn define(&self, consumer: &str, contract: &Contract) -> Result<()> {
        let keep = contract.keep.map(interval);
        let rest = [
            interval(contract.redelivery),
            interval(contract.keep_stored),
            contract.max_attempts.to_string(),
            interval(contract.backoff.0),
            interval(contract.backoff.1),
        ];
        let mut params = vec![Param::Text(Some(consumer)), Param::Text(keep.as_deref())];
        params.extend(rest.iter().map(|text| Param::Text(Some(text))));
        let sql = "select 'done' from pgonce.define_inbox($1, $2::text::interval, $3::text::interval, \
             $4::text::interval, $5::text::integer, $6::text::interval, $7::text::interval)";
        self.ask(sql, &params).await.map(drop)
    }

    /// Tries failed messages once more: one, or all that failed for good. Answers how many.
    pub async fn retry(&self, consumer: &str, seq: Option<i64>, reason: &str) -> Result<u64> {
        let seq = seq.map(|seq| seq.to_string());
        let params = [
            Param::Text(Some(consumer)),
            Param::Text(seq.as_deref()),
            Param::Text(Some(reason)),
        ];
        let sql = "select n::text from pgonce.retry_messages($1, $2::text::bigint, $3) n";
        number(self.ask(sql, &params).await?)
    }

    /// Gives a stored message up; what waits behind it moves again. Answers whether it was there.
    pub async fn skip(&self, consumer: &str, seq: i64, reason: &str) -> Result<bool> {
        let seq = seq.to_string();
        let params = [consumer, &seq, reason].map(|text| Param::Text(Some(text)));
        let sql = "select s::text from pgonce.skip_message($1, $2::text::bigint, $3) s";
        Ok(first(self.ask(sql, &params).await?).as_deref() == Some("true"))
    }

    /// Applies stored messages again: for another consumer, which applies each once for itself; or, where
    /// `into` is `None`, for the same, which is a second effect by your word. Answers how many.
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
        let params = [
            Param::Text(Some(consumer)),
            Param::Text(Some(reason)),
            Param::Text(into),
            Param::Text(since.as_deref()),
        ];
        let sql = "select n::text from pgonce.replay_messages($1, $2, $3, \
             to_timestamp($4::text::double precision)) n";
        number(self.ask(sql, &params).await?)
    }

    /// Creates and drops partitions of markers, and removes what need not be kept. Every consumer does it now
    /// and then.
    pub async fn maintain(&self) -> Result<()> {
        for sql in [
            "select pgonce._create_inbox_partitions()",
            "select pgonce._drop_inbox_partitions()",
        ] {
            self.ask(sql, &[]).await?;
        }
        // Bounded, so that whoever tends comes back to its messages.
        for _ in 0..100 {
            let purged = self.ask("select pgonce._purge_inbox(10000)", &[]).await?;
            if number(purged)? < 10_000 {
                break;
            }
        }
        Ok(())
    }

    /// What is stored and not applied, by consumer.
    pub async fn backlog(&self) -> Result<Vec<Backlog>> {
        let sql = "select tenant::text, consumer::text, received, processing, retrying, poison, held, \
             ceil(extract(epoch from oldest_age) * 1000)::bigint from pgonce.inbox_backlog order by 2, 1";
        let read = |row: Row| {
            let mut cells = row.into_iter();
            let mut next = || cells.next().flatten();
            Some(Backlog {
                tenant: next()?,
                consumer: next()?,
                counts: [
                    next()?.parse().ok()?,
                    next()?.parse().ok()?,
                    next()?.parse().ok()?,
                    next()?.parse().ok()?,
                ],
                held: next()?.parse().ok()?,
                oldest_age: next()
                    .and_then(|ms| ms.parse().ok())
                    .map(Duration::from_millis),
            })
        };
        let rows = self.ask(sql, &[]).await?.into_iter();
        rows.map(|row| read(row).ok_or_else(unreadable)).collect()
    }

    /// The oldest messages of a consumer that wait for a person, at most `limit`.
    pub async fn poison(&self, consumer: &str, limit: u32) -> Result<Vec<Poison>> {
        let sql = "select seq, tenant::text, source::text, message_id::text, key::text, attempts, failure_code, \
             failure_message, behind from pgonce.inbox_poison where consumer = $1 \
             order by seq limit $2::text::integer";
        let limit = limit.to_string();
        let params = [consumer, &limit].map(|text| Param::Text(Some(text)));
        let read = |row: Row| {
            let mut cells = row.into_iter();
            let mut next = || cells.next().flatten();
            Some(Poison {
                seq: next()?.parse().ok()?,
                tenant: next()?,
                source: next()?,
                id: next()?,
                key: next(),
                attempts: next()?.parse().ok()?,
                code: next(),
                reason: next(),
                behind: next()?.parse().ok()?,
            })
        };
        let rows = self.ask(sql, &params).await?.into_iter();
        rows.map(|row| read(row).ok_or_else(unreadable)).collect()
    }
}
