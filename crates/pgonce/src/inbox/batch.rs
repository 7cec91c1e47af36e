//! A transaction in which messages are applied.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::cursor::PartitionLease;
use super::handle::Inbox;
use super::literal;
use super::message::{Message, Position};
use super::stored::{ClaimedMessage, STORE, StoreAs, StoreResult, claimed_json, store_parts};
use crate::call::{Args, Row, Rows, Schema, Sql, call_on, commit_with, roll_back, unreadable};
use crate::driver::{Driver, Opening, Session as _};
use crate::error::{Error, Result};
use crate::loan::{Lender, Loan};
use crate::tx::Tx;

static COMMIT: Sql =
    Sql::kept("select 'done' where pgonce._assert_same_batch() and pgonce._force_durable_commit()");
static DEDUPE: Sql = Sql::kept(
    "select ordinal, verdict from pgonce._insert_markers($1, $2, $3::text::text[], $4::text::bytea[], $5)",
);
/// The markers of a batch by one plain insert: most batches are all new. Returns how many it made.
static MARK: Sql = Sql::kept(
    "with made as (insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id, hash) \
     select pgonce.now(), coalesce('1970-01-01'::pg_catalog.date operator(pg_catalog.+) g.day, '-infinity'), \
     $5, $1, $2, g.id, g.hash from rows from (pg_catalog.unnest($3::text[]), \
     pg_catalog.unnest($4::bytea[]), pg_catalog.unnest($6::text::integer[])) g (id, hash, day) \
     where pgonce._message_fits($1, $2, g.id, $5) on conflict do nothing returning 1) \
     select pg_catalog.count(*) from made",
);
/// The same for a batch with copies in it: looks first. Returns those that are not new, in one row.
static LOOK: Sql = Sql::kept(
    "select pg_catalog.string_agg(pg_catalog.concat(ordinal, ' ', verdict), ',') \
     from pgonce._insert_markers($1, $2, $3::text[], $4::bytea[], $5, $6::text::integer[])",
);
static BLOCKED_KEYS: Sql = Sql::kept("select pgonce._blocked_keys($1, $2::text::text[], $3)");
static FINISH: Sql =
    Sql::kept("select pgonce.finish_messages($1, $2) where pgonce._assert_same_batch()");
static MOVE_PARTITION: Sql = Sql::kept(
    "select 'done' from pgonce._advance_partition($1, $2, $3, $4::text::bigint, $5::text::bigint, \
     $6::text::bigint, $7::text::bigint, $8::text::bigint, $9::text::interval) \
     where pgonce._assert_same_batch()",
);

/// Maximum number of messages that are taken on with BEGIN; the database refuses larger batches (`P4043`).
pub(super) const MAX_PLAIN: usize = 10_000;

/// What is to be done with a message of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Apply it.
    New,
    /// It was applied before, or stands earlier in the batch.
    Duplicate,
    /// Its id came before with another payload: store it for an operator.
    Conflict,
}

impl Verdict {
    fn read(text: &str) -> Result<Self> {
        match text {
            "duplicate" => Ok(Self::Duplicate),
            "conflict" => Ok(Self::Conflict),
            _ => Err(unreadable()),
        }
    }
}

/// An open transaction of a consumer: markers, effects and cursors commit together, or none does.
/// Dropped, it leaves nothing.
#[must_use = "a batch that is dropped is rolled back; end it with a commit"]
pub struct Batch<D: Driver> {
    session: Lender<D::Session>,
    schema: Arc<Schema>,
}

impl<D: Driver> Inbox<D> {
    /// Opens a transaction for a batch of messages.
    pub async fn begin(&self) -> Result<Batch<D>> {
        self.refuse_if_distributed()?;
        self.open("").await
    }

    /// The same, with a timeout for each of its statements (`57014`): one that hangs would keep its
    /// locks long after its sender has given up. A shorter `statement_timeout` of the session stays.
    pub async fn begin_with_timeout(&self, timeout: Duration) -> Result<Batch<D>> {
        self.refuse_if_distributed()?;
        self.open(&limited(timeout)).await
    }

    /// Opens a transaction and takes messages on, in as few round trips as the driver can. The same as
    /// [`Inbox::begin_with_timeout`], or [`Inbox::begin`] where there is no timeout, and [`Batch::dedupe`].
    pub async fn begin_deduped(
        &self,
        timeout: Option<Duration>,
        consumer: &str,
        source: &str,
        messages: &[&Message],
    ) -> Result<(Batch<D>, Vec<Verdict>)> {
        self.refuse_if_distributed()?;
        let settings = timeout.map(limited).unwrap_or_default();
        let tenant = messages.first().map_or("", |first| &first.tenant);
        let is_plain = (1..=MAX_PLAIN).contains(&messages.len())
            && messages.iter().all(|message| message.tenant == tenant);
        if !is_plain {
            let mut batch = self.open(&settings).await?;
            let verdicts = batch.dedupe(consumer, source, messages).await?;
            return Ok((batch, verdicts));
        }
        let mut order: Vec<usize> = (0..messages.len()).collect();
        // As the database does it: no two batches deadlock on their markers.
        order.sort_by_key(|index| &messages[*index].id);
        let sorted = || order.iter().map(|index| messages[*index]);
        let ids: Vec<_> = sorted().map(|m| Some(m.id.as_str())).collect();
        let hashes: Vec<_> = sorted().map(Message::hash).collect();
        let hashes: Vec<&[u8]> = hashes.iter().map(|hash| &hash[..]).collect();
        let days = literal::numbers(sorted().map(|m| day_of(&m.id)));
        let args = Args::texts([consumer, source]).list(&ids);
        let args = args.bytes_list(&hashes).text(tenant).text(&*days);

        let mut verdicts = vec![Verdict::New; messages.len()];
        let mut look = self.copies.load(Relaxed);
        loop {
            let schema = &self.caller.schema;
            let begin = self.beginning(&settings);
            let mark = schema.statement(if look { &LOOK } else { &MARK });
            let opening = Opening {
                begin: &begin,
                claim: &mark,
                params: args.as_slice(),
            };
            let mut session = self.caller.driver.acquire().await?;
            let mut row = match session.begin(&opening).await {
                Ok(row) => Row::from(row.ok_or_else(unreadable)?),
                Err(error) => {
                    if !matches!(error, Error::Disconnected(_)) {
                        // The error is what counts; a session that cannot roll back is closed.
                        let _ = roll_back(session).await;
                    }
                    return Err(error);
                }
            };
            let mut made = 0;
            if !look {
                made = row.get()?;
                if made > 0 && made < messages.len() {
                    // Which of them are new, only the owner's rights can see: again, by looking.
                    roll_back(session).await?;
                    look = true;
                    continue;
                }
                if made == 0 {
                    let rows = call_on(&mut session, schema, &LOOK, &args).await;
                    row = match rows.and_then(Rows::one) {
                        Ok(row) => row,
                        Err(error) => {
                            let _ = roll_back(session).await;
                            return Err(error);
                        }
                    };
                }
            }
            if made == 0 {
                read_verdicts(&mut row, &order, &mut verdicts)?;
            }
            let copies = verdicts.iter().all(|verdict| *verdict != Verdict::New);
            self.copies.store(copies, Relaxed);
            let batch = Batch {
                session: Lender::new(session),
                schema: schema.clone(),
            };
            return Ok((batch, verdicts));
        }
    }

    /// What a consumer cannot apply it has to store, and stored messages are not distributed.
    fn refuse_if_distributed(&self) -> Result<()> {
        self.caller.schema.refuse_if_distributed(
            "a consumer's batch",
            "Accept the messages of a tenant in a transaction of your own: Once::accept, Once::accept_batch.",
        )
    }

    /// A transaction that its last statement ends, and nobody else: of a batch, or of a job.
    pub(crate) async fn open(&self, settings: &str) -> Result<Batch<D>> {
        let mut session = self.caller.driver.acquire().await?;
        session.open(&self.beginning(settings)).await?;
        Ok(Batch {
            session: Lender::new(session),
            schema: self.caller.schema.clone(),
        })
    }

    /// How a batch begins. Its end insists on the setting, which is gone with the transaction.
    fn beginning(&self, settings: &str) -> String {
        format!(
            "begin isolation level read committed read write not deferrable; set local \"{}\".batch = 'open'{settings}",
            self.caller.schema.name()
        )
    }
}

/// A timeout for each statement of a transaction.
pub(crate) fn limited(timeout: Duration) -> String {
    // The most that the setting can hold; 0 would mean no end.
    let ms = timeout.as_millis().clamp(1, i32::MAX as u128);
    let shorter = format!(
        "pg_catalog.interval_cmp(pg_catalog.current_setting('statement_timeout')::interval, '1 us') operator(pg_catalog.>=) 0 \
             and pg_catalog.interval_cmp(pg_catalog.current_setting('statement_timeout')::interval, '{ms} ms') operator(pg_catalog.<=) 0"
    );
    format!(
        "; select pg_catalog.set_config('statement_timeout', case when {shorter} then pg_catalog.current_setting('statement_timeout') else '{ms}' end, true)"
    )
}

/// What [`LOOK`] said about messages that were sent in this order.
fn read_verdicts(row: &mut Row, order: &[usize], verdicts: &mut [Verdict]) -> Result<()> {
    let Some(given) = row.opt_text() else {
        return Ok(());
    };
    for one in given.split(',') {
        let (ordinal, verdict) = one.split_once(' ').ok_or_else(unreadable)?;
        let ordinal: usize = ordinal.parse().map_err(|_| unreadable())?;
        let index = ordinal.checked_sub(1).and_then(|n| order.get(n));
        verdicts[*index.ok_or_else(unreadable)?] = Verdict::read(verdict)?;
    }
    Ok(())
}

/// The day that an id carries, counted from 1970: the same as the database's `_day_of`, which is slow in SQL.
pub(super) fn day_of(id: &str) -> Option<i64> {
    let bytes = id.as_bytes();
    let is_sound = bytes.len() == 36
        && bytes.iter().enumerate().all(|(n, byte)| match n {
            8 | 13 | 18 | 23 => *byte == b'-',
            14 => *byte == b'7',
            19 => matches!(byte, b'8' | b'9' | b'a' | b'b' | b'A' | b'B'),
            _ => byte.is_ascii_hexdigit(),
        });
    let millis = |digits: &str| i64::from_str_radix(digits, 16).ok();
    is_sound
        .then(|| {
            millis(&id[..8])?
                .checked_mul(1 << 16)?
                .checked_add(millis(&id[9..13])?)
                .map(|ms| ms / 86_400_000)
        })
        .flatten()
}

impl<D: Driver> Batch<D> {
    /// Takes messages on: says of each whether it is new. One statement for each tenant.
    pub async fn dedupe(
        &mut self,
        consumer: &str,
        source: &str,
        messages: &[&Message],
    ) -> Result<Vec<Verdict>> {
        // The database names those that are not.
        let mut verdicts = vec![Verdict::New; messages.len()];
        // In the order of the tenants, and the database in that of the ids: no two batches deadlock here.
        let mut tenants: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, message) in messages.iter().enumerate() {
            tenants.entry(&message.tenant).or_default().push(index);
        }
        let mut session = self.session()?;
        for (tenant, members) in tenants {
            let ids = literal::texts(members.iter().map(|i| messages[*i].id.as_str()));
            let hashes = literal::digests(members.iter().map(|i| messages[*i].hash()));
            let args = Args::texts([consumer, source, &ids, &hashes, tenant]);
            let rows = call_on(&mut *session, &self.schema, &DEDUPE, &args).await?;
            rows.read(|mut row| {
                let ordinal: usize = row.get()?;
                let index = ordinal.checked_sub(1).and_then(|n| members.get(n));
                verdicts[*index.ok_or_else(unreadable)?] = Verdict::read(&row.text()?)?;
                Ok(())
            })?;
        }
        Ok(verdicts)
    }

    /// Says of each message whether its key has a stored message that is neither applied nor skipped: such a
    /// message is to be stored behind it.
    pub async fn held(&mut self, consumer: &str, messages: &[&Message]) -> Result<Vec<bool>> {
        let mut tenants: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for message in messages {
            if let Some(key) = &message.key {
                tenants.entry(&message.tenant).or_default().push(key);
            }
        }
        let mut session = self.session()?;
        let mut held = Vec::new();
        for (tenant, keys) in tenants {
            let keys = literal::texts(keys);
            let args = Args::texts([consumer, &keys, tenant]);
            let rows = call_on(&mut *session, &self.schema, &BLOCKED_KEYS, &args).await?;
            let keys = rows.read(|mut row| row.text())?;
            held.extend(keys.into_iter().map(|key| (tenant, key)));
        }
        let is_held = |m: &&Message| {
            held.iter()
                .any(|(t, k)| *t == m.tenant && Some(k) == m.key.as_ref())
        };
        Ok(messages.iter().map(is_held).collect())
    }

    /// Stores a message in this transaction.
    pub async fn store(
        &mut self,
        consumer: &str,
        source: &str,
        message: &Message,
        what: &StoreAs,
    ) -> Result<StoreResult> {
        let parts = store_parts(message, what);
        let args = parts.args(consumer, source, message);
        let mut session = self.session()?;
        let rows = call_on(&mut *session, &self.schema, &STORE, &args).await?;
        StoreResult::read(rows.one()?)
    }

    /// Lends the transaction to a handler, for messages of one tenant. It comes back when the [`Tx`] is
    /// dropped.
    pub fn lend(&mut self, tenant: &str) -> Result<Tx<D::Session>> {
        let tenant = (!tenant.is_empty()).then(|| tenant.into());
        Ok(Tx::new(self.session()?, self.schema.clone(), tenant))
    }

    /// Commits.
    pub async fn commit(self) -> Result<()> {
        self.settle(&COMMIT, Args::default()).await
    }

    /// Commits, and with it that stored messages are applied. [`Error::Fenced`]: another worker has one of
    /// them, and nothing of this batch is left.
    pub async fn commit_finished(self, consumer: &str, claimed: &[&ClaimedMessage]) -> Result<()> {
        let claimed = claimed_json(claimed);
        let args = Args::new().text(consumer).json(&*claimed);
        self.settle(&FINISH, args).await
    }

    /// Commits, and with it that an ordered source's partition is applied up to `to`. [`Error::Fenced`]:
    /// another worker holds the partition, and nothing of this batch is left.
    pub async fn commit_moved(self, lease: &PartitionLease, to: Position) -> Result<()> {
        let args = Args::texts([&lease.consumer, &lease.source, &lease.partition])
            .int(lease.epoch)
            .int(lease.position.map(|from| from.major))
            .int(lease.position.map(|from| from.minor))
            .int(to.major)
            .int(to.minor)
            .interval(lease.length);
        self.settle(&MOVE_PARTITION, args).await
    }

    /// Rolls back; nothing is left.
    pub async fn roll_back(self) -> Result<()> {
        roll_back(self.session.take().ok_or_else(kept_by_the_handler)?).await
    }

    /// Ends the batch with a last statement, and commits.
    pub(crate) async fn settle(self, last: &Sql, args: Args<'_>) -> Result<()> {
        let session = self.session.take().ok_or_else(kept_by_the_handler)?;
        commit_with(session, &self.schema, last, args)
            .await
            .map(drop)
    }

    /// The session, back from a handler where it was lent.
    fn session(&self) -> Result<Loan<D::Session>> {
        self.session.lend().ok_or_else(kept_by_the_handler)
    }
}

fn kept_by_the_handler() -> Error {
    Error::work("the handler kept its transaction: drop the Tx before it returns")
}

impl<D: Driver> fmt::Debug for Batch<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}
