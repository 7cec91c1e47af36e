//! Who gets the events, and what operators do for them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::lanes::{Outbox, first, unreadable};
use crate::Result;
use crate::driver::{Driver, Param, Row, Statement};
use crate::lease::interval;

/// Where a new subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Begin {
    /// With the oldest event that is kept.
    #[default]
    Start,
    /// With what commits from now on.
    Now,
}

/// What happens to an event that cannot be parked because the dead letters are full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// Its lane waits until there is room.
    #[default]
    Stop,
    /// It is never delivered, and that is recorded.
    Discard,
}

/// Somebody who gets every event of the log, with a cursor of its own in it.
///
/// ```
/// use pgonce::outbox::{Begin, Subscription};
///
/// let billing = Subscription::new("billing").begin(Begin::Now).topics(["orders", "refunds.*"]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a subscription is nothing until Outbox::create_subscription"]
pub struct Subscription {
    name: String,
    begin: Begin,
    topics: Option<Vec<String>>,
    types: Option<Vec<String>>,
    tenants: Option<Vec<String>>,
    max_attempts: u32,
    backoff: (Duration, Duration),
    dead_limit: u32,
    when_full: WhenFull,
}

fn patterns<S: Into<String>>(patterns: impl IntoIterator<Item = S>) -> Option<Vec<String>> {
    Some(patterns.into_iter().map(Into::into).collect())
}

impl Subscription {
    /// A subscription that gets everything there is and will be.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            begin: Begin::Start,
            topics: None,
            types: None,
            tenants: None,
            max_attempts: 10,
            backoff: (Duration::from_secs(1), Duration::from_secs(600)),
            dead_limit: 10_000,
            when_full: WhenFull::Stop,
        }
    }

    /// Where it begins.
    pub fn begin(mut self, begin: Begin) -> Self {
        self.begin = begin;
        self
    }

    /// Only these topics; `*` stands for any text.
    pub fn topics<S: Into<String>>(mut self, topics: impl IntoIterator<Item = S>) -> Self {
        self.topics = patterns(topics);
        self
    }

    /// Only these types; `*` stands for any text.
    pub fn types<S: Into<String>>(mut self, types: impl IntoIterator<Item = S>) -> Self {
        self.types = patterns(types);
        self
    }

    /// Only these tenants; `*` stands for any text.
    pub fn tenants<S: Into<String>>(mut self, tenants: impl IntoIterator<Item = S>) -> Self {
        self.tenants = patterns(tenants);
        self
    }

    /// How often an event that fails for now is tried before it becomes a dead letter.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// The first pause between two tries, and the longest; it doubles in between, with jitter.
    pub fn backoff(mut self, first: Duration, at_most: Duration) -> Self {
        self.backoff = (first, at_most);
        self
    }

    /// How many events may be dead or behind a dead one, and what then.
    pub fn dead_letters(mut self, at_most: u32, when_full: WhenFull) -> Self {
        self.dead_limit = at_most;
        self.when_full = when_full;
        self
    }
}

/// How far a subscription is behind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// The subscription.
    pub subscription: String,
    /// Events that it has not got, counted up to 10,000.
    pub waiting: u64,
    /// How old the oldest of them is.
    pub oldest_age: Option<Duration>,
    /// Parked: not due yet, to be tried again, given up, behind one of these.
    pub parked: [u64; 4],
    /// Lanes that a relay holds, of 16.
    pub lanes_held: u8,
    /// It is behind and has not moved for five minutes: it holds the log.
    pub stuck: bool,
    /// Why it was evicted, where it was.
    pub evicted: Option<String>,
}

/// An event that was given up for a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its number in the log: what [`Outbox::skip`] asks for.
    pub seq: i64,
    /// Its message id.
    pub id: String,
    /// Whose it is.
    pub tenant: String,
    /// Where it was to go.
    pub topic: String,
    /// What happened.
    pub kind: String,
    /// The subject that waits.
    pub subject: String,
    /// How often it was tried.
    pub attempts: u32,
    /// What the sink said last.
    pub reason: Option<String>,
    /// How many of the subject wait behind it.
    pub behind: u64,
}

impl<D: Driver> Outbox<D> {
    /// Creates a subscription; `42710` where one of this name is there.
    pub async fn create_subscription(&self, subscription: &Subscription) -> Result<()> {
        let list = |patterns: &Option<Vec<String>>| {
            patterns.as_ref().map(|p| serde_json::json!(p).to_string())
        };
        let (topics, types, tenants) = (
            list(&subscription.topics),
            list(&subscription.types),
            list(&subscription.tenants),
        );
        let (attempts, limit) = (
            subscription.max_attempts.to_string(),
            subscription.dead_limit.to_string(),
        );
        let (first, at_most) = (
            interval(subscription.backoff.0),
            interval(subscription.backoff.1),
        );
        let params = [
            Param::Text(Some(&subscription.name)),
            Param::Text(Some(match subscription.begin {
                Begin::Start => "start",
                Begin::Now => "now",
            })),
            Param::Json(topics.as_deref()),
            Param::Json(types.as_deref()),
            Param::Json(tenants.as_deref()),
            Param::Text(Some(&attempts)),
            Param::Text(Some(&first)),
            Param::Text(Some(&at_most)),
            Param::Text(Some(&limit)),
            Param::Text(Some(match subscription.when_full {
                WhenFull::Stop => "stop",
                WhenFull::Discard => "discard",
            })),
        ];
        let sql = "select 'done' from pgonce.create_subscription($1, $2, \
             (select array_agg(v) from jsonb_array_elements_text($3) v), \
             (select array_agg(v) from jsonb_array_elements_text($4) v), \
             (select array_agg(v) from jsonb_array_elements_text($5) v), $6::text::integer, \
             $7::text::interval, $8::text::interval, $9::text::integer, $10)";
        self.ask(sql, &params).await.map(drop)
    }

    /// Forgets a subscription. Answers whether it was there.
    pub async fn drop_subscription(&self, subscription: &str) -> Result<bool> {
        let sql = "select d::text from pgonce.drop_subscription($1) d";
        let rows = self.ask(sql, &[Param::Text(Some(subscription))]).await?;
        Ok(first(rows).as_deref() == Some("true"))
    }

    /// Tries dead letters once more, in order: of one subject, or of all. Answers how many subjects
    /// move again.
    pub async fn redrive(&self, subscription: &str, subject: Option<&str>) -> Result<u64> {
        let sql = "select n::text from pgonce.redrive($1, $2) n";
        let params = [Param::Text(Some(subscription)), Param::Text(subject)];
        number(self.ask(sql, &params).await?)
    }

    /// Gives a parked event up; what is behind it moves again. Answers whether it was parked.
    pub async fn skip(&self, subscription: &str, seq: i64, reason: &str) -> Result<bool> {
        let sql = "select s::text from pgonce.skip($1, $2::text::bigint, $3) s";
        let seq = seq.to_string();
        let params = [subscription, &seq, reason].map(|text| Param::Text(Some(text)));
        Ok(first(self.ask(sql, &params).await?).as_deref() == Some("true"))
    }

    /// Lets a subscription read the log again from a number on; also one that was evicted.
    pub async fn replay_from(&self, subscription: &str, seq: i64) -> Result<()> {
        let sql = "select 'done' from pgonce.replay($1, p_from_seq => $2::text::bigint)";
        let seq = seq.to_string();
        let params = [subscription, &seq].map(|text| Param::Text(Some(text)));
        self.ask(sql, &params).await.map(drop)
    }

    /// Lets a subscription read again what was published since a time; also one that was evicted.
    pub async fn replay_since(&self, subscription: &str, time: SystemTime) -> Result<()> {
        let sql = "select 'done' from pgonce.replay($1, \
             p_from_time => to_timestamp($2::text::double precision))";
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let since = since.as_secs_f64().to_string();
        let params = [subscription, &since].map(|text| Param::Text(Some(text)));
        self.ask(sql, &params).await.map(drop)
    }

    /// A subscription no longer holds the log; its relays stop and are told why.
    pub async fn evict(&self, subscription: &str, reason: &str) -> Result<()> {
        let sql = "select 'done' from pgonce.evict_subscription($1, $2)";
        let params = [subscription, reason].map(|text| Param::Text(Some(text)));
        self.ask(sql, &params).await.map(drop)
    }

    /// The oldest dead letters of a subscription, at most `limit`.
    pub async fn dead_letters(&self, subscription: &str, limit: u32) -> Result<Vec<DeadLetter>> {
        let sql = "select seq, message_id::text, tenant::text, topic::text, type::text, subject::text, \
             attempts, reason, behind from pgonce.dead_letters where subscription = $1 \
             order by seq limit $2::text::integer";
        let limit = limit.to_string();
        let params = [subscription, &limit].map(|text| Param::Text(Some(text)));
        let rows = self.ask(sql, &params).await?;
        let read = |row: Row| {
            let mut cells = row.into_iter();
            let mut next = || cells.next().flatten();
            Some(DeadLetter {
                seq: next()?.parse().ok()?,
                id: next()?,
                tenant: next()?,
                topic: next()?,
                kind: next()?,
                subject: next()?,
                attempts: next()?.parse().ok()?,
                reason: next(),
                behind: next()?.parse().ok()?,
            })
        };
        rows.into_iter()
            .map(|row| read(row).ok_or_else(unreadable))
            .collect()
    }

    /// How far every subscription is behind.
    pub async fn backlog(&self) -> Result<Vec<Backlog>> {
        let sql = "select subscription::text, waiting, \
             ceil(extract(epoch from oldest_age) * 1000)::bigint, delayed, retrying, dead, behind, \
             lanes_held, stuck::text, evicted_why from pgonce.outbox_backlog order by subscription";
        let rows = self.ask(sql, &[]).await?;
        let read = |row: Row| {
            let mut cells = row.into_iter();
            let mut next = || cells.next().flatten();
            Some(Backlog {
                subscription: next()?,
                waiting: next()?.parse().ok()?,
                oldest_age: next()
                    .and_then(|ms| ms.parse().ok())
                    .map(Duration::from_millis),
                parked: [
                    next()?.parse().ok()?,
                    next()?.parse().ok()?,
                    next()?.parse().ok()?,
                    next()?.parse().ok()?,
                ],
                lanes_held: next()?.parse().ok()?,
                stuck: next()? == "true",
                evicted: next(),
            })
        };
        rows.into_iter()
            .map(|row| read(row).ok_or_else(unreadable))
            .collect()
    }

    pub(super) async fn ask(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let schema = &self.statements().schema;
        let sql = sql.replace("pgonce.", &format!("{schema}."));
        let statement = Statement {
            sql: sql.into(),
            keep: false,
        };
        self.call(&statement, params).await
    }
}

pub(super) fn number(rows: Vec<Row>) -> Result<u64> {
    first(rows)
        .and_then(|n| n.parse().ok())
        .ok_or_else(unreadable)
}
