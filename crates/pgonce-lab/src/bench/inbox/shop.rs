//! Every way to have a batch of messages applied.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::{Inbox, Message, PartitionLease, Statement, Verdict};

use super::{How, Result, connect};
use crate::bench::business::MESSAGE;
use crate::bench::with_tokio_postgres;

/// The effect is a row in a plain table; the recipe keeps what pgonce keeps.
const TABLES: &str = r#"
create table applied (
    id         bigint generated always as identity primary key,
    message_id text not null,
    payload    text not null
);
create table usual_marker (
    tenant      text collate "C" not null,
    message_id  text collate "C" not null,
    consumer    text collate "C" not null,
    source      text collate "C" not null,
    accepted_at timestamptz not null,
    hash        bytea,
    primary key (tenant, message_id, consumer, source)
);
select pgonce._create_inbox_partitions();
"#;

const APPLY: &str = "insert into applied (message_id, payload) values ($1, $2)";
const APPLY_ALL: &str =
    "insert into applied (message_id, payload) select * from unnest($1::text[], $2::text[])";
const GATE: &str = "with gate as (select pgonce.accept('bench', 'shop', $1, $3) as fresh) \
     insert into applied (message_id, payload) select $1, $2 from gate where fresh";
const STATEMENT: &str =
    "insert into applied (message_id, payload) select m.id, m.body from messages m";
const MARK: &str = "insert into usual_marker select '', g.id, 'bench', 'shop', clock_timestamp(), g.hash \
     from unnest($1::text[], $2::bytea[]) g (id, hash) on conflict do nothing returning message_id";

pub(super) const CONSUMER: &str = "bench";
pub(super) const SOURCE: &str = "shop";

/// How the effect of a batch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// As a handler for one message does it: a statement for each, each awaited.
    OneByOne,
    /// As a handler for batches does it.
    Together,
}

#[derive(Debug, Clone)]
pub(super) struct Shop {
    pool: with_tokio_postgres::Shop,
    inbox: Inbox<TokioPostgres>,
    /// One that never meets copies.
    fresh: Inbox<TokioPostgres>,
    statement: Statement,
    batch: usize,
    effect: Effect,
    payload: Arc<str>,
    /// Batches that everybody has received.
    known: Arc<Vec<Vec<Message>>>,
    turn: Arc<AtomicU64>,
    /// Partitions that nobody is at work on.
    partitions: Arc<Mutex<Vec<PartitionLease>>>,
}

impl Shop {
    pub(super) async fn open(
        url: &str,
        connections: usize,
        batch: usize,
        effect: Effect,
    ) -> Result<Self> {
        connect(url).await?.batch_execute(TABLES).await?;
        let pool = with_tokio_postgres::Shop::open(url, connections)?;
        let mut shop = Self {
            inbox: pool.once.inbox(),
            fresh: pool.once.inbox(),
            statement: Statement::new(STATEMENT)?,
            pool,
            batch,
            effect,
            payload: MESSAGE.to_string().into(),
            known: Arc::default(),
            turn: Arc::default(),
            partitions: Arc::default(),
        };
        let mut known = Vec::new();
        for _ in 0..8 {
            let messages = shop.messages();
            shop.mark(&messages, Verdict::New).await?;
            shop.by_recipe(&messages, true).await?;
            known.push(messages);
        }
        shop.known = Arc::new(known);
        Ok(shop)
    }

    /// New messages, with ids that sort by time.
    fn messages(&self) -> Vec<Message> {
        let message = |_| Message::new(pgonce::key::fresh(), &*self.payload);
        (0..self.batch).map(message).collect()
    }

    /// One batch, from BEGIN to COMMIT.
    pub(super) async fn deliver(self, how: How) -> Result<()> {
        match how {
            How::Bare => self.bare(&self.messages()).await,
            How::Recipe => self.by_recipe(&self.messages(), true).await,
            How::Unordered => self.mark(&self.messages(), Verdict::New).await,
            How::Ordered => self.in_order(&self.messages()).await,
            How::Accept => self.accept(&self.messages()).await,
            How::Gate => self.gate(&self.messages()).await,
            How::Statement => self.at_once(&self.messages()).await,
            How::Known => self.mark(self.some_known()?, Verdict::Duplicate).await,
            How::KnownToRecipe => self.by_recipe(self.some_known()?, false).await,
        }
    }

    fn some_known(&self) -> Result<&[Message]> {
        let turn = self.turn.fetch_add(1, Relaxed) as usize;
        let known = self.known.get(turn % self.known.len().max(1));
        Ok(known.ok_or("nothing is known yet")?)
    }

    async fn bare(&self, messages: &[Message]) -> Result<()> {
        let object = self.pool.connection().await?;
        object.batch_execute("begin").await?;
        self.apply(&object, messages).await?;
        Ok(object.batch_execute("commit").await?)
    }

    async fn by_recipe(&self, messages: &[Message], is_new: bool) -> Result<()> {
        let object = self.pool.connection().await?;
        object.batch_execute("begin").await?;
        let mark = object.prepare_cached(MARK).await?;
        let ids: Vec<&str> = messages.iter().map(|m| m.id.as_str()).collect();
        let hashes: Vec<[u8; 32]> = messages.iter().map(Message::hash).collect();
        let hashes: Vec<&[u8]> = hashes.iter().map(|hash| &hash[..]).collect();
        let made = object.query(&mark, &[&ids, &hashes]).await?.len();
        must_be(made, is_new, messages)?;
        if is_new {
            self.apply(&object, messages).await?;
        }
        Ok(object.batch_execute("commit").await?)
    }

    /// As a consumer does it.
    async fn mark(&self, messages: &[Message], expected: Verdict) -> Result<()> {
        let all: Vec<&Message> = messages.iter().collect();
        let begun = self.inbox.begin_deduped(None, CONSUMER, SOURCE, &all);
        let (mut batch, verdicts) = begun.await?;
        if verdicts.iter().any(|verdict| *verdict != expected) {
            return Err(format!("messages were not all {expected:?}").into());
        }
        if expected == Verdict::New {
            let mut tx = batch.lend("")?;
            self.apply(tx.conn(), messages).await?;
        }
        Ok(batch.commit().await?)
    }

    /// As a consumer does it whose handler is one statement.
    async fn at_once(&self, messages: &[Message]) -> Result<()> {
        let all: Vec<&Message> = messages.iter().collect();
        let limit = Duration::from_secs(30);
        let applied = self
            .fresh
            .apply_at_once(&self.statement, CONSUMER, SOURCE, &all, limit);
        let made = applied.await?.into_iter().filter(|new| *new).count();
        must_be(made, true, messages)
    }

    /// As a consumer of an ordered source does it, each worker in a partition of its own.
    async fn in_order(&self, messages: &[Message]) -> Result<()> {
        let free = self.partitions().pop();
        let mut held = match free {
            Some(held) => held,
            None => self.take_partition().await?,
        };
        let mut batch = self.inbox.begin().await?;
        let mut tx = batch.lend("")?;
        self.apply(tx.conn(), messages).await?;
        drop(tx);
        let before = held.position.map_or(0, |position| position.major);
        let to = (before + messages.len() as i64).into();
        batch.commit_moved(&held, to).await?;
        held.position = Some(to);
        self.partitions().push(held);
        Ok(())
    }

    fn partitions(&self) -> std::sync::MutexGuard<'_, Vec<PartitionLease>> {
        let partitions = self.partitions.lock();
        partitions.unwrap_or_else(PoisonError::into_inner)
    }

    async fn take_partition(&self) -> Result<PartitionLease> {
        let name = self.turn.fetch_add(1, Relaxed).to_string();
        let lease = Duration::from_secs(3_600);
        let taken = self
            .inbox
            .take_partition(CONSUMER, SOURCE, &name, "bench", lease);
        Ok(taken.await?.ok_or("somebody else has the partition")?)
    }

    /// In a transaction of the caller's own.
    async fn accept(&self, messages: &[Message]) -> Result<()> {
        let mut object = self.pool.connection().await?;
        let mut tx = object.transaction().await?;
        let once = &self.pool.once;
        let made = match messages {
            [message] => {
                let accepted = once.accept(&mut tx, CONSUMER, SOURCE, message).await?;
                usize::from(accepted)
            }
            many => {
                let accepted = once.accept_batch(&mut tx, CONSUMER, SOURCE, many, "");
                accepted.await?.len()
            }
        };
        must_be(made, true, messages)?;
        match self.effect {
            Effect::OneByOne => {
                let apply = tx.prepare_cached(APPLY).await?;
                for message in messages {
                    tx.execute(&apply, &[&message.id, &&*self.payload]).await?;
                }
            }
            Effect::Together => {
                let apply = tx.prepare_cached(APPLY_ALL).await?;
                let (ids, payloads) = self.columns(messages);
                tx.execute(&apply, &[&ids, &payloads]).await?;
            }
        }
        Ok(tx.commit().await?)
    }

    async fn gate(&self, messages: &[Message]) -> Result<()> {
        let object = self.pool.connection().await?;
        object.batch_execute("begin").await?;
        let gate = object.prepare_cached(GATE).await?;
        let mut made = 0;
        for message in messages {
            let hash = message.hash();
            made += object
                .execute(&gate, &[&message.id, &&*self.payload, &&hash[..]])
                .await?;
        }
        must_be(usize::try_from(made)?, true, messages)?;
        Ok(object.batch_execute("commit").await?)
    }

    async fn apply(&self, client: &ClientWrapper, messages: &[Message]) -> Result<()> {
        match self.effect {
            Effect::OneByOne => {
                let apply = client.prepare_cached(APPLY).await?;
                for message in messages {
                    client
                        .execute(&apply, &[&message.id, &&*self.payload])
                        .await?;
                }
            }
            Effect::Together => {
                let apply = client.prepare_cached(APPLY_ALL).await?;
                let (ids, payloads) = self.columns(messages);
                client.execute(&apply, &[&ids, &payloads]).await?;
            }
        }
        Ok(())
    }

    fn columns<'a>(&'a self, messages: &'a [Message]) -> (Vec<&'a str>, Vec<&'a str>) {
        let ids = messages.iter().map(|m| m.id.as_str()).collect();
        (ids, vec![&*self.payload; messages.len()])
    }
}

/// A side that applied nothing would look fast.
fn must_be(made: usize, is_new: bool, messages: &[Message]) -> Result<()> {
    let expected = if is_new { messages.len() } else { 0 };
    if made == expected {
        return Ok(());
    }
    Err(format!(
        "{made} of {} messages were new, not {expected}",
        messages.len()
    )
    .into())
}
