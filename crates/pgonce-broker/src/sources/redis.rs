//! Redis Streams.

use std::time::{Duration, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use pgonce::Error;
use pgonce::inbox::{Message, Position};
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimReply, StreamId, StreamReadReply};
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError, RedisResult, Value};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{TIMEOUT, attributes};
use crate::{Incoming, Order, Source, SourceError};

/// How long one question for messages waits at the server: a pull that is dropped leaves one there.
const BLOCK: Duration = Duration::from_millis(500);

/// How to read a stream.
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisStreamConfig {
    /// Such as `redis://user:password@host:6379/0`, or `rediss://` for TLS.
    pub url: String,
    /// The stream's key.
    pub stream: String,
    /// The consumer group, shared by all who give the same name; made where it is missing, from the
    /// stream's beginning. `None`: the stream is read in its order, by one at a time, and the place is
    /// kept in the database.
    pub group: Option<String>,
    /// When a message that was delivered to a group and not settled goes to another. Longer than a batch
    /// takes. Default: 30 seconds.
    pub claim_after: Duration,
    /// The field with the payload. Default: `data`.
    pub payload: String,
    /// What its messages are remembered under. Default: `redis:` and the stream's key.
    pub name: String,
    /// How long an answer may take.
    pub timeout: Duration,
}

impl RedisStreamConfig {
    /// A stream, through the consumer group of this name.
    pub fn group(
        url: impl Into<String>,
        stream: impl Into<String>,
        group: impl Into<String>,
    ) -> Self {
        Self {
            group: Some(group.into()),
            ..Self::ordered(url, stream)
        }
    }

    /// A stream in its order.
    pub fn ordered(url: impl Into<String>, stream: impl Into<String>) -> Self {
        let stream = stream.into();
        Self {
            url: url.into(),
            name: format!("redis:{stream}"),
            stream,
            group: None,
            claim_after: Duration::from_secs(30),
            payload: "data".to_owned(),
            timeout: TIMEOUT,
        }
    }
}

/// Without the address, which may hold a password.
impl std::fmt::Debug for RedisStreamConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStreamConfig")
            .field("stream", &self.stream)
            .field("group", &self.group)
            .field("claim_after", &self.claim_after)
            .field("payload", &self.payload)
            .field("name", &self.name)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Reads a Redis stream (Redis 6.2 or later), in one of two ways.
///
/// [`RedisStreamConfig::group`]: any number of workers share a consumer group. Each message is acknowledged
/// once it is settled; what a worker left behind is claimed by another after a while, perhaps behind others.
///
/// [`RedisStreamConfig::ordered`]: one worker at a time reads, in the order of the entries' ids; the others
/// wait for its lease. Its place is the cursor in the database, moved with the effects.
///
/// The fields are CloudEvents' attributes: `id`, `type`, `subject` (the key), `tenant`, and the payload.
/// What is trimmed away before it was read is lost: Redis reports it to nobody.
pub struct RedisStream {
    config: RedisStreamConfig,
    client: Client,
    /// One to wait for messages, one to acknowledge them.
    live: Option<(MultiplexedConnection, MultiplexedConnection)>,
    /// A question for messages that is under way: its answer must not be lost with a pull that is dropped.
    asked: Option<BoxFuture<'static, RedisResult<Option<StreamReadReply>>>>,
    waiting: Vec<Incoming<String>>,
    /// When to look again for what others left, and where.
    next_claim: Instant,
    claim_from: String,
    /// In order: everything after `from` was handed out and is not settled, up to `last`.
    from: Position,
    last: Position,
    not_before: Option<Instant>,
}

impl RedisStream {
    /// Connects, and makes the group where it is missing.
    pub async fn connect(config: RedisStreamConfig) -> Result<Self, SourceError> {
        let client = Client::open(config.url.as_str())
            .map_err(|error| Error::work(format!("{:?}: {error}", config.stream)))
            .map_err(SourceError::Broken)?;
        let mut source = Self {
            config,
            client,
            live: None,
            asked: None,
            waiting: Vec::new(),
            next_claim: Instant::now(),
            claim_from: "0-0".to_owned(),
            from: Position::default(),
            last: Position::default(),
            not_before: None,
        };
        source.live().await?;
        Ok(source)
    }

    async fn live(&mut self) -> Result<(), SourceError> {
        if self.live.is_some() {
            return Ok(());
        }
        let limits = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.config.timeout))
            .set_response_timeout(Some(self.config.timeout + BLOCK));
        let connect = || {
            self.client
                .get_multiplexed_async_connection_with_config(&limits)
        };
        let made = async { Ok::<_, RedisError>((connect().await?, connect().await?)) };
        let mut live = made.await.map_err(|error| unavailable(&error))?;
        if let Some(group) = &self.config.group {
            let mut create = redis::cmd("XGROUP");
            create.arg("CREATE").arg(&self.config.stream).arg(group);
            create.arg("0").arg("MKSTREAM");
            match create.query_async::<()>(&mut live.1).await {
                Err(error) if error.code() == Some("BUSYGROUP") => {}
                made => made.map_err(|error| unavailable(&error))?,
            }
        }
        self.live = Some(live);
        Ok(())
    }

    async fn command<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, SourceError> {
        self.live().await?;
        let Some((_, telling)) = &mut self.live else {
            return Err(not_connected());
        };
        let answered = command.query_async(telling).await;
        answered.map_err(|error: RedisError| self.lost(&error))
    }

    /// Connected anew, the group is looked for again: it may be gone with a server's memory.
    fn lost(&mut self, error: &RedisError) -> SourceError {
        (self.live, self.asked) = (None, None);
        unavailable(error)
    }

    /// What the group left with somebody who does not answer.
    async fn claim(&mut self, group: &str, limit: usize) -> Result<(), SourceError> {
        let mut claim = redis::cmd("XAUTOCLAIM");
        claim.arg(&self.config.stream).arg(group).arg(READER);
        claim
            .arg(millis(self.config.claim_after))
            .arg(&self.claim_from);
        claim.arg("COUNT").arg(limit.clamp(1, 1000));
        let reply: StreamAutoClaimReply = self.command(&claim).await?;
        let all = reply.next_stream_id == "0-0";
        self.claim_from = reply.next_stream_id;
        if all {
            let pause = (self.config.claim_after / 4).min(Duration::from_secs(1));
            self.next_claim = Instant::now() + pause;
        }
        for entry in reply.claimed {
            self.keep(entry, true);
        }
        Ok(())
    }

    fn question(&self, limit: usize, block: Duration) -> Cmd {
        let mut read = match &self.config.group {
            Some(group) => {
                let mut read = redis::cmd("XREADGROUP");
                read.arg("GROUP").arg(group).arg(READER);
                read
            }
            None => redis::cmd("XREAD"),
        };
        read.arg("COUNT").arg(limit.max(1));
        if !block.is_zero() {
            read.arg("BLOCK").arg(millis(block).max(1));
        }
        read.arg("STREAMS").arg(&self.config.stream);
        read.arg(match &self.config.group {
            Some(_) => ">".to_owned(),
            None => format!("{}-{}", self.last.major, self.last.minor),
        });
        read
    }

    /// Waits a while for new messages.
    async fn read(&mut self, limit: usize, block: Duration) -> Result<(), SourceError> {
        self.live().await?;
        if let (None, Some((reading, _))) = (&self.asked, &self.live) {
            let (command, mut reading) = (self.question(limit, block), reading.clone());
            self.asked = Some(Box::pin(
                async move { command.query_async(&mut reading).await },
            ));
        }
        let Some(asked) = &mut self.asked else {
            return Err(not_connected());
        };
        let reply = asked.await;
        self.asked = None;
        let reply = reply.map_err(|error| self.lost(&error))?;
        let keys = reply.into_iter().flat_map(|reply| reply.keys);
        for entry in keys.flat_map(|key| key.ids) {
            self.keep(entry, false);
        }
        Ok(())
    }

    fn keep(&mut self, entry: StreamId, redelivered: bool) {
        let position = position(&entry.id);
        let mut message = message(&entry, &self.config.payload);
        message.redelivered = redelivered;
        if self.config.group.is_none() {
            message = message.at(self.config.stream.clone(), position);
            self.last = position;
        }
        let ticket = entry.id;
        self.waiting.push(Incoming { message, ticket });
    }

    /// Reads in order from elsewhere.
    fn go_after(&mut self, position: Position) {
        self.waiting.clear();
        self.asked = None;
        (self.from, self.last) = (position, position);
    }
}

/// The reader's name in a group. It may be everybody's: Redis hands each entry out once, to any reader, and
/// who is gone is known by how long an entry waits. So nobody leaves a name behind.
const READER: &str = "pgonce";

impl Source for RedisStream {
    type Ticket = String;

    fn name(&self) -> &str {
        &self.config.name
    }

    fn order(&self) -> Order {
        match self.config.group {
            Some(_) => Order::Unordered,
            None => Order::Ordered,
        }
    }

    async fn pull(
        &mut self,
        limit: usize,
        within: Duration,
    ) -> Result<Vec<Incoming<String>>, SourceError> {
        if let Some(due) = self.not_before {
            sleep_until(due).await;
            self.not_before = None;
        }
        let group = self.config.group.clone();
        while self.waiting.is_empty() {
            if let Some(group) = &group
                && Instant::now() >= self.next_claim
            {
                self.claim(group, limit).await?;
                if !self.waiting.is_empty() {
                    break;
                }
            }
            let block = match &group {
                Some(_) => self.next_claim.saturating_duration_since(Instant::now()),
                None => BLOCK,
            };
            let block = block.clamp(Duration::from_millis(1), BLOCK);
            self.read(limit, block).await?;
        }
        // A short wait makes batches; then whatever is there.
        if self.waiting.len() < limit && !within.is_zero() {
            sleep_until(Instant::now() + within).await;
            let rest = limit - self.waiting.len();
            self.read(rest, Duration::ZERO).await?;
        }
        Ok(std::mem::take(&mut self.waiting))
    }

    async fn ack(&mut self, tickets: Vec<String>) -> Result<(), SourceError> {
        let Some(group) = &self.config.group else {
            let settled = tickets.iter().map(|id| position(id)).max();
            let settled = settled.filter(|settled| *settled <= self.last);
            self.from = self.from.max(settled.unwrap_or_default());
            return Ok(());
        };
        let mut ack = redis::cmd("XACK");
        ack.arg(&self.config.stream).arg(group).arg(&tickets);
        self.command::<i64>(&ack).await.map(drop)
    }

    /// A group's entries are made to look as if they had waited nearly long enough to be claimed.
    async fn nack(&mut self, tickets: Vec<String>, after: Duration) -> Result<(), SourceError> {
        let Some(group) = &self.config.group else {
            let first = tickets.iter().map(|id| position(id)).min();
            if let Some(first) = first {
                self.go_after(before(first));
                self.not_before = Some(Instant::now() + after);
            }
            return Ok(());
        };
        let mut claim = redis::cmd("XCLAIM");
        claim.arg(&self.config.stream).arg(group).arg(READER).arg(0);
        claim.arg(&tickets).arg("IDLE");
        claim.arg(millis(self.config.claim_after.saturating_sub(after)));
        claim.arg("JUSTID");
        self.command::<Vec<String>>(&claim).await?;
        self.next_claim = self.next_claim.min(Instant::now() + after);
        self.claim_from = "0-0".to_owned();
        Ok(())
    }

    async fn seek(&mut self, _: &str, after: Option<Position>) -> Result<bool, SourceError> {
        let after = after.unwrap_or_default();
        if self.from <= after && after <= self.last {
            return Ok(false);
        }
        self.go_after(after);
        Ok(true)
    }

    async fn close(&mut self) {
        if self.config.group.is_none() {
            return;
        }
        let until = Instant::now() + BLOCK * 2;
        if self.asked.is_some() {
            // It ends soon; what it gets goes back with the rest.
            let _ = timeout_at(until, self.read(1, Duration::ZERO)).await;
        }
        let ids: Vec<String> = self.waiting.drain(..).map(|kept| kept.ticket).collect();
        if !ids.is_empty() {
            let _ = self.nack(ids, Duration::ZERO).await;
        }
    }
}

fn message(entry: &StreamId, payload: &str) -> Message {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => attributes::text(bytes),
        other => String::from_redis_value(other.clone()).unwrap_or_default(),
    };
    let bytes = match entry.map.get(payload) {
        Some(Value::BulkString(bytes)) => bytes.clone(),
        Some(other) => text(other).into_bytes(),
        None => Vec::new(),
    };
    let mut message = Message::new("", bytes);
    for (name, value) in entry.map.iter().filter(|(name, _)| *name != payload) {
        let value = text(value);
        attributes::put(&mut message, name, &value);
        message.headers.insert(name.clone(), value.into());
    }
    let at = position(&entry.id);
    let sent = u64::try_from(at.major).map(Duration::from_millis).ok();
    message.sent_at = sent.and_then(|sent| UNIX_EPOCH.checked_add(sent));
    message
        .headers
        .insert("redis-id".to_owned(), entry.id.as_str().into());
    message
}

fn position(id: &str) -> Position {
    let (major, minor) = id.split_once('-').unwrap_or((id, "0"));
    let number = |text: &str| text.parse().unwrap_or(i64::MAX);
    Position::from((number(major), number(minor)))
}

/// The place just before an entry.
fn before(position: Position) -> Position {
    match position.minor {
        0 => Position::from((position.major - 1, i64::MAX)),
        minor => Position::from((position.major, minor - 1)),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn not_connected() -> SourceError {
    SourceError::Unavailable("not connected to Redis".to_owned())
}

fn unavailable(error: &RedisError) -> SourceError {
    SourceError::Unavailable(format!("Redis: {error}"))
}

impl std::fmt::Debug for RedisStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("RedisStream");
        // Not the URL, which may hold a password.
        debug.field("stream", &self.config.stream);
        debug.finish_non_exhaustive()
    }
}
