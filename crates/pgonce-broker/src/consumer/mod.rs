//! Messages in, effects once: commit first, acknowledge after.

mod at_once;
mod batch_error;
mod check;
mod counts;
mod dispatch;
mod handler;
mod lane;
mod partition;
mod run;
mod set_aside;
mod source;
mod span;
mod stored;

use std::sync::Arc;
use std::time::Duration;

use pgonce::driver::Driver;
use pgonce::inbox::{Inbox, Message, Statement};
use pgonce::{FingerprintBuilder, Once, Result};
use tokio_util::sync::CancellationToken;

use check::Checks;
pub use check::cloud_event;
#[cfg(feature = "webhooks")]
pub(crate) use check::{Read, check_names, read_by};
pub use counts::Counts;
use handler::OneStatement;
pub use handler::{Batches, Handler};
pub use source::{Incoming, Order, Source, SourceError};

/// By what a message is known as a copy of one that was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dedup {
    /// By its id: one small row for each message. Only for sources without an order: the place in a source with an order is
    /// known by position.
    Ids,
    /// By its position: one cursor for each partition, no row for each message. Only for ordered sources,
    /// and only against deliveries that are repeated: where the sender may write one message twice into the
    /// log, use [`Dedup::Both`].
    Positions,
    /// By both.
    Both,
}

/// Applies the messages of a source, each once. As many as you like may run at once, here or elsewhere.
///
/// A handler gets an open transaction and a message, and nothing else. What it writes commits together with
/// the marker that the message was applied; the source gets its acknowledgement only afterwards. What fails is stored in the
/// database with its payload and the reason, and tried again from there, while the source goes on; what
/// comes for the same key waits behind it.
///
/// ```no_run
/// # async fn example(once: pgonce::sqlx::Once) -> pgonce::Result<()> {
/// # use std::sync::Arc;
/// use pgonce::{inbox::Message, sqlx::Tx};
/// use pgonce_broker::{Consumer, sources::Channel};
/// use tokio_util::sync::CancellationToken;
///
/// let shop = Channel::new("shop"); // or a real broker
/// let billing = Consumer::new(&once, "billing", shop.source(), |mut tx: Tx, message: Arc<Message>| async move {
///     let order: i64 = message.json()?["order"].as_i64().unwrap_or_default();
///     sqlx::query("insert into invoice (order_id) values ($1)").bind(order).execute(tx.conn()).await?;
///     Ok(())
/// });
/// billing.json().run(CancellationToken::new()).await
/// # }
/// ```
#[must_use = "nothing moves before `run`"]
pub struct Consumer<D: Driver, S, H> {
    pub(crate) shared: Arc<Shared<D, H>>,
    source: S,
}

/// What all lanes of a consumer use.
pub(crate) struct Shared<D: Driver, H> {
    inbox: Inbox<D>,
    name: String,
    source: String,
    order: Order,
    owner: String,
    handler: H,
    limits: Limits,
    checks: Checks,
    dedup: Dedup,
    store_first: bool,
    counts: Arc<Counts>,
}

impl<D: Driver, H> Shared<D, H> {
    fn own(shared: &mut Arc<Self>) -> &mut Self {
        Arc::get_mut(shared).expect("nothing shares it before it runs")
    }
}

/// How much at once, how often, how long.
#[derive(Debug, Clone)]
struct Limits {
    batch: usize,
    within: Duration,
    concurrency: usize,
    handler: Duration,
    lease: Duration,
    tries: u32,
    drain_timeout: Duration,
    first_pause: Duration,
    max_delay: Duration,
    poll_stored: Duration,
    maintain_every: Duration,
}

impl Limits {
    /// Maximum time of a statement in a transaction: the server ends it after the handler's time, so a connection that has
    /// said nothing for longer is dead.
    fn statement(&self) -> Duration {
        self.handler.saturating_add(Duration::from_secs(5))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch: 100,
            within: Duration::from_millis(5),
            concurrency: 4,
            handler: Duration::from_secs(30),
            lease: Duration::from_secs(30),
            tries: 8,
            drain_timeout: Duration::from_secs(10),
            first_pause: Duration::from_millis(20),
            max_delay: Duration::from_secs(10),
            poll_stored: Duration::from_millis(200),
            maintain_every: Duration::from_secs(60),
        }
    }
}

impl<D: Driver, S: Source> Consumer<D, S, ()> {
    /// A consumer whose handler is one SQL statement: an insert, update, delete, merge (PostgreSQL 17) or select that reads from the
    /// relation `messages`, with the columns `id`, `tenant`, `key`, `type`, `headers` and `payload` (both jsonb), and `body`,
    /// the payload as text. Messages that are not JSON are poison.
    ///
    /// Where copies are known by id, the markers of a batch and its effect are one statement and one round trip, and it
    /// reads only those messages that are new. The statement must do nothing where `messages` is empty. A batch that it fails
    /// for is applied message by message, so that what is bad stands alone. An update gets one message at a time: joined with
    /// two messages it would change a row for one of them only. So do messages of one key.
    ///
    /// The database reads the statement before this returns, and an error says what cannot be a part of another statement:
    /// several statements, data definition, transaction control, a `with` that changes data.
    ///
    /// ```no_run
    /// # async fn example(once: pgonce::sqlx::Once) -> pgonce::Result<()> {
    /// use pgonce_broker::{Consumer, sources::Channel};
    /// use tokio_util::sync::CancellationToken;
    ///
    /// let shop = Channel::new("shop"); // or a real broker
    /// let invoice = "insert into invoice (event_id, amount) \
    ///     select m.id, (m.payload ->> 'amount')::bigint from messages m";
    /// let billing = Consumer::statement(&once, "billing", shop.source(), invoice).await?;
    /// billing.run(CancellationToken::new()).await
    /// # }
    /// ```
    pub async fn statement(
        once: &Once<D>,
        name: &str,
        source: S,
        sql: &str,
    ) -> Result<Consumer<D, S, impl Handler<D> + use<D, S>>> {
        let statement = Statement::new(sql)?;
        once.inbox().check(&statement).await?;
        Ok(Consumer::new(once, name, source, OneStatement(statement)).json())
    }
}

impl<D: Driver, S: Source, H: Handler<D>> Consumer<D, S, H> {
    /// The name is what applied messages are remembered under: two consumers never disturb each other, and
    /// two processes of one consumer share its memory.
    pub fn new(once: &Once<D>, name: impl Into<String>, source: S, handler: H) -> Self {
        let (order, name) = (source.order(), name.into());
        Self {
            shared: Arc::new(Shared {
                inbox: once.inbox(),
                counts: Arc::new(Counts::of(&name)),
                name,
                source: source.name().to_owned(),
                order,
                owner: format!("consumer-{}", uuid::Uuid::new_v4().simple()),
                handler,
                limits: Limits::default(),
                checks: Checks::default(),
                dedup: match order {
                    Order::Ordered => Dedup::Positions,
                    Order::Unordered => Dedup::Ids,
                },
                store_first: H::CALLS_OUT,
            }),
            source,
        }
    }

    /// Maximum messages of one transaction, and how long to wait for more once the first is there.
    /// Default: 100 messages, 5 milliseconds.
    pub fn batch(self, messages: usize, within: Duration) -> Self {
        self.with(|shared| {
            shared.limits.batch = messages.clamp(1, 10_000);
            shared.limits.within = within;
        })
    }

    /// Maximum number of concurrent transactions. Default: 4. Messages of one key, or of one partition, are never
    /// in two of them. Those that take much longer than the others do not count, up to half as many again, so that a slow key or
    /// partition does not take the place of its neighbours.
    pub fn concurrency(self, transactions: usize) -> Self {
        self.with(|shared| shared.limits.concurrency = transactions.clamp(1, 1000))
    }

    /// Maximum time of one call of the handler, and of each of its statements in the database. Default: 30 seconds.
    /// What takes longer is rolled back and fails with the code `handler_timeout`: it is stored, retried with
    /// growing pauses, and in the end a poison message that needs manual action. The others go on.
    pub fn handler_timeout(self, time: Duration) -> Self {
        self.with(|shared| shared.limits.handler = time.max(Duration::from_millis(1)))
    }

    /// How duplicates are recognised. Default: by position where the source is ordered, else by id.
    pub fn dedup(self, dedup: Dedup) -> Self {
        self.with(|shared| shared.dedup = dedup)
    }

    /// Stores every message first and acknowledges it then; it is applied from the database. For sources that
    /// must not wait for the handler.
    pub fn store_first(self) -> Self {
        self.with(|shared| shared.store_first = true)
    }

    /// Maximum length of a message; longer ones are poison messages. Default: one mebibyte.
    pub fn max_bytes(self, bytes: usize) -> Self {
        self.with(|shared| shared.checks.max_bytes = bytes)
    }

    /// Messages that are not JSON are poison.
    pub fn json(self) -> Self {
        self.with(|shared| shared.checks.json = true)
    }

    /// Messages of other types than these, or of none, are poison.
    pub fn kinds<K: Into<String>>(self, kinds: impl IntoIterator<Item = K>) -> Self {
        let kinds = kinds.into_iter().map(Into::into).collect();
        self.with(|shared| shared.checks.kinds = Some(kinds))
    }

    /// Reads the message's id, key, type or tenant out of its payload or headers before anything else is
    /// done. What it refuses is poison, with the reason that it gives. [`cloud_event`](crate::cloud_event) is one.
    pub fn read_with(
        self,
        read: impl Fn(&mut Message) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.with(|shared| shared.checks.read = Some(Box::new(read)))
    }

    /// Which fields count when a message id comes again: a redelivery that differs only in others is a copy. Default: every
    /// byte of the message as it came. What is not JSON is compared by its bytes.
    pub fn compare_by(self, fields: FingerprintBuilder) -> Self {
        self.with(|shared| shared.checks.compare_by = Some(fields))
    }

    /// How long a stored message, or a partition, stays with a consumer that does not renew its lease.
    /// Default: 30 seconds.
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|shared| shared.limits.lease = lease.max(Duration::from_millis(100)))
    }

    /// Maximum time to finish what is in hand after `stop` was cancelled. Default: 10 seconds.
    pub fn drain_timeout(self, time: Duration) -> Self {
        self.with(|shared| shared.limits.drain_timeout = time)
    }

    /// First and maximum pause while the source or the database is unavailable. Default: 20 milliseconds, 10 seconds.
    pub fn backoff(self, first: Duration, max: Duration) -> Self {
        self.with(|shared| {
            shared.limits.first_pause = first.max(Duration::from_millis(1));
            shared.limits.max_delay = max.max(shared.limits.first_pause);
        })
    }

    /// Pause between two polls of the stored messages while there are none. Default: 200 milliseconds.
    pub fn poll_stored(self, pause: Duration) -> Self {
        self.with(|shared| shared.limits.poll_stored = pause.max(Duration::from_millis(1)))
    }

    fn with(mut self, change: impl FnOnce(&mut Shared<D, H>)) -> Self {
        change(Shared::own(&mut self.shared));
        self
    }

    /// What it has done so far; stays readable while it runs.
    pub fn counts(&self) -> Arc<Counts> {
        self.shared.counts.clone()
    }

    /// Runs until `stop` is cancelled, then finishes what it has in hand and gives the rest back.
    ///
    /// Transient errors are retried for as long as it takes. An error means that it cannot go on: the source is broken, the
    /// schema does not fit, the rights are missing.
    pub async fn run(self, stop: CancellationToken) -> Result<()> {
        run::run(self.shared, self.source, stop).await
    }
}

impl<D: Driver, S, H> std::fmt::Debug for Consumer<D, S, H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer")
            .field("name", &self.shared.name)
            .field("source", &self.shared.source)
            .finish_non_exhaustive()
    }
}
