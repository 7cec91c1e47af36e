//! Who gets the events, and what operators do for them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::lanes::{Outbox, is_refused, plain};
use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::Result;
use crate::failure::in_ascii;

static CREATE: Sql = Sql::seldom(
    "select 'done' from pgonce.create_subscription($1, $2, \
     case when $3::jsonb is not null then array(select v from pg_catalog.jsonb_array_elements_text($3) v) end, \
     case when $4::jsonb is not null then array(select v from pg_catalog.jsonb_array_elements_text($4) v) end, \
     case when $5::jsonb is not null then array(select v from pg_catalog.jsonb_array_elements_text($5) v) end, $6::text::integer, \
     $7::text::interval, $8::text::interval, $9::text::integer, $10)",
);
static DROP: Sql = Sql::seldom("select d::text from pgonce.drop_subscription($1) d");
static REDRIVE: Sql = Sql::seldom("select n::text from pgonce.redrive($1, $2) n");
static SKIP: Sql = Sql::seldom("select s::text from pgonce.skip($1, $2::text::bigint, $3) s");
static REPLAY_FROM: Sql =
    Sql::seldom("select 'done' from pgonce.replay($1, p_from_seq => $2::text::bigint)");
static REPLAY_SINCE: Sql = Sql::seldom(
    "select 'done' from pgonce.replay($1, \
     p_from_time => pg_catalog.to_timestamp($2::text::double precision))",
);
static EVICT: Sql = Sql::seldom("select 'done' from pgonce.evict_subscription($1, $2)");
static DEAD_LETTERS: Sql = Sql::seldom(
    "select seq, message_id::text, tenant::text, topic::text, type::text, subject::text, \
     attempts, reason, behind from pgonce.dead_letters where subscription operator(pg_catalog.=) $1 \
     order by seq limit $2::text::integer",
);
static BACKLOG: Sql = Sql::seldom(
    "select subscription::text, waiting, \
     pg_catalog.ceil(extract(epoch from oldest_age) operator(pg_catalog.*) 1000)::bigint, delayed, retrying, dead, behind, \
     lanes_held, stuck::text, evicted_why from pgonce.outbox_backlog order by subscription",
);

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
    /// The event's lane waits until there is room.
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
            max_attempts: 30,
            backoff: (Duration::from_secs(1), Duration::from_secs(600)),
            dead_limit: 10_000,
            when_full: WhenFull::Stop,
        }
    }

    /// Where the subscription begins.
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

    /// Maximum number of tries before an event becomes a dead letter. Default: 30, which takes more than three hours.
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

    /// Maximum number of events that are dead or behind a dead one, and what happens then. Default: 10,000,
    /// [`WhenFull::Stop`].
    pub fn dead_letters(mut self, max: u32, when_full: WhenFull) -> Self {
        self.dead_limit = max;
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
    /// Number of the event in the log: what [`Outbox::skip`] asks for.
    pub seq: i64,
    /// Message id of the event.
    pub id: String,
    /// Whose it is.
    pub tenant: String,
    /// Topic of the event.
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
        let [topics, types, tenants] = [
            &subscription.topics,
            &subscription.types,
            &subscription.tenants,
        ]
        .map(list);
        let args = Args::new()
            .text(&*subscription.name)
            .text(match subscription.begin {
                Begin::Start => "start",
                Begin::Now => "now",
            })
            .json(topics.as_deref())
            .json(types.as_deref())
            .json(tenants.as_deref())
            .int(i64::from(subscription.max_attempts))
            .interval(subscription.backoff.0)
            .interval(subscription.backoff.1)
            .int(i64::from(subscription.dead_limit))
            .text(match subscription.when_full {
                WhenFull::Stop => "stop",
                WhenFull::Discard => "discard",
            });
        self.call(&CREATE, args).await.map(drop)
    }

    /// Forgets a subscription. Returns whether it existed.
    pub async fn drop_subscription(&self, subscription: &str) -> Result<bool> {
        let args = Args::texts([subscription]);
        self.call(&DROP, args).await?.one()?.bool()
    }

    /// Tries dead letters once more, in order: of one subject, or of all. Returns how many subjects
    /// move again, 200 of them a second (`pgonce.redrive` has another rate as an argument).
    pub async fn redrive(&self, subscription: &str, subject: Option<&str>) -> Result<u64> {
        let args = Args::new().text(subscription).text(subject);
        self.call(&REDRIVE, args).await?.one()?.get()
    }

    /// Gives a parked event up; what is behind it moves again. Returns whether it was parked.
    pub async fn skip(&self, subscription: &str, seq: i64, reason: &str) -> Result<bool> {
        let args = Args::new().text(subscription).int(seq).text(reason);
        self.call(&SKIP, args).await?.one()?.bool()
    }

    /// Lets a subscription go back in the log, to a number; also one that was evicted. It only goes back: what it has
    /// not read is not passed by. What is older than the number and was read does not come again, but where the
    /// subscription is reading a long stretch in pages and has not come to the number.
    pub async fn replay_from(&self, subscription: &str, seq: i64) -> Result<()> {
        let args = Args::new().text(subscription).int(seq);
        self.call(&REPLAY_FROM, args).await.map(drop)
    }

    /// Lets a subscription read again what was published since a time; also one that was evicted. It only goes back, as
    /// [`Outbox::replay_from`] does.
    pub async fn replay_since(&self, subscription: &str, time: SystemTime) -> Result<()> {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let since = since.as_secs_f64().to_string();
        let args = Args::texts([subscription, &since]);
        self.call(&REPLAY_SINCE, args).await.map(drop)
    }

    /// A subscription no longer holds the log; its relays stop and report why. A reason with a character that the
    /// server's encoding lacks is kept in ASCII.
    pub async fn evict(&self, subscription: &str, reason: &str) -> Result<()> {
        let evict = async |reason: &str| {
            let args = Args::texts([subscription, reason]);
            self.call(&EVICT, args).await.map(drop)
        };
        let reason = plain(reason);
        match evict(&reason).await {
            Err(error) if is_refused(&error, &reason) => evict(&in_ascii(&reason)).await,
            evicted => evicted,
        }
    }

    /// The oldest dead letters of a subscription, at most `limit`.
    pub async fn dead_letters(&self, subscription: &str, limit: u32) -> Result<Vec<DeadLetter>> {
        let args = Args::new().text(subscription).int(i64::from(limit));
        self.call(&DEAD_LETTERS, args).await?.read(|mut row| {
            Ok(DeadLetter {
                seq: row.get()?,
                id: row.text()?,
                tenant: row.text()?,
                topic: row.text()?,
                kind: row.text()?,
                subject: row.text()?,
                attempts: row.get()?,
                reason: row.opt_text(),
                behind: row.get()?,
            })
        })
    }

    /// How far every subscription is behind.
    pub async fn backlog(&self) -> Result<Vec<Backlog>> {
        self.call(&BACKLOG, Args::default()).await?.read(|mut row| {
            Ok(Backlog {
                subscription: row.text()?,
                waiting: row.get()?,
                oldest_age: row.opt_millis()?,
                parked: [row.get()?, row.get()?, row.get()?, row.get()?],
                lanes_held: row.get()?,
                stuck: row.bool()?,
                evicted: row.opt_text(),
            })
        })
    }
}
