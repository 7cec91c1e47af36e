//! A handler that is one SQL statement: the markers of a batch and its effect in one round trip.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::batch::{MAX_PLAIN, day_of};
use super::handle::Inbox;
use super::literal;
use super::message::Message;
use crate::call::{Args, Row, Schema, Sql, release_unless_lost, uncertain_if_lost, unreadable};
use crate::driver::{Connection, Driver};
use crate::error::{Error, ErrorDetail, Result};
use crate::failure::Failure;
use crate::part::{kind_of, part};
use crate::tx::Tx;

/// What a statement must begin with to be a part of another one.
const KINDS: [&str; 5] = ["insert", "update", "delete", "merge", "select"];

/// Ends a statement whose sender has given up, found by its advisory lock. Not one that waits for its synchronous standby: to cancel
/// that wait would make its commit visible, and a copy of its messages acknowledged, while no standby has it.
static CANCEL: Sql = Sql::seldom(
    "select pg_catalog.pg_cancel_backend(l.pid) from pg_catalog.pg_locks l \
     where l.locktype operator(pg_catalog.=) 'advisory' and l.granted and l.objsubid operator(pg_catalog.=) 1 \
     and l.database operator(pg_catalog.=) (select d.oid from pg_catalog.pg_database d \
         where d.datname operator(pg_catalog.=) pg_catalog.current_database()) \
     and ((l.classid::bigint operator(pg_catalog.<<) 32) operator(pg_catalog.|) l.objid::bigint) \
         operator(pg_catalog.=) $1::text::bigint \
     and not exists (select from pg_catalog.pg_stat_activity a \
         where a.pid operator(pg_catalog.=) l.pid and a.wait_event operator(pg_catalog.=) 'SyncRep')",
);

/// One SQL statement that applies messages. It reads them from the relation `messages`, which has the columns `id`,
/// `tenant`, `key`, `type`, `headers` and `payload` (both jsonb), and `body`, the payload as text.
#[derive(Debug, Clone)]
pub struct Statement {
    sql: Arc<str>,
    kind: &'static str,
}

impl Statement {
    /// Checks what can be seen without a database: [`Inbox::check`] does the rest.
    pub fn new(sql: &str) -> Result<Self> {
        let invalid = |why: String, hint| Error::Invalid(ErrorDetail::new("22023", why, hint));
        let kind = kind_of(sql, &KINDS).map_err(|first| {
            invalid(
                format!("the statement of a consumer cannot begin with {first:?}"),
                "Use one insert, update, delete, merge or select; for all else a handler in Rust.",
            )
        })?;
        let words = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        if !sql
            .split(words)
            .any(|word| word.eq_ignore_ascii_case("messages"))
        {
            return Err(invalid(
                "the statement of a consumer does not read from messages".to_owned(),
                "For example: insert into invoice (event_id) select m.id from messages m.",
            ));
        }
        let is_number = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
        if sql.split('$').skip(1).any(is_number) {
            return Err(invalid(
                "the statement of a consumer has a parameter".to_owned(),
                "Its values are the columns of messages; write constants out.",
            ));
        }
        Ok(Self {
            sql: sql.into(),
            kind,
        })
    }

    /// Whether it may be given these at once. An update would change a row once where two messages are about
    /// it, without an error; and messages of one key are applied one after the other.
    pub fn takes(&self, messages: &[&Message]) -> bool {
        let mut keys = HashSet::new();
        messages.len() == 1
            || (self.kind != "update"
                && messages
                    .iter()
                    .flat_map(|m| &m.key)
                    .all(|key| keys.insert(key)))
    }

    /// Applies messages in a transaction.
    pub async fn apply<C: Connection>(&self, tx: &mut Tx<C>, messages: &[&Message]) -> Result<()> {
        let headers = headers_of(messages);
        let columns = Columns::of(messages, &headers)?;
        let tenant = tx.shared_tenant().unwrap_or_default();
        let statement = tx.schema().statement_of(self.in_transaction());
        let args = columns.args(&tenant);
        tx.loan().query(&statement, args.as_slice()).await.map(drop)
    }

    /// The statement with nothing but its messages.
    fn in_transaction(&self) -> String {
        let effect = part("pgonce_effect", &self.sql);
        format!(
            "with {}, {effect} select {}",
            columns_of(""),
            self.applied()
        )
    }

    /// Makes sure that a select is run, which PostgreSQL leaves out where nobody reads it.
    fn applied(&self) -> &'static str {
        match self.kind {
            "select" => "(select pg_catalog.count(*) from pgonce_effect)",
            _ => "null::bigint",
        }
    }

    /// The statement with the markers around it: its messages are those whose markers are new.
    ///
    /// Whether a key is blocked is asked here too, with what the effect sees: a stored message of the key that was applied since
    /// would be done, and its effect unseen.
    fn whole(&self, schema: &Schema) -> String {
        let (name, effect) = (schema.name(), part("pgonce_effect", &self.sql));
        let new = "select pg_catalog.count(*) from pgonce_new";
        format!(
            "with pgonce_new as materialized (select n.id from {name}._insert_new_markers($7, $8, \
             case when exists (select from {name}._blocked_keys($7, $11, $1)) then array[]::pg_catalog.text[] else $2 end, \
             $9, $10::pg_catalog.text::integer[], $11, $12::pg_catalog.text::bigint, $1) n (id)), {}, {effect} \
             select ({new}), (select pg_catalog.jsonb_agg(n.id) from pgonce_new n \
             where ({new}) operator(pg_catalog.<>) $13::pg_catalog.text::bigint), {}",
            columns_of("join pgonce_new n on n.id operator(pg_catalog.=) g.id"),
            self.applied()
        )
    }
}

/// The relation that the user's statement reads. Fenced by `offset`, so that a payload is read once, and only where it
/// is used.
fn columns_of(new: &str) -> String {
    let texts = |n| format!("pg_catalog.unnest(${n}::pg_catalog.text[])");
    let lists = [2, 3, 4, 5, 6].map(texts).join(", ");
    format!(
        "messages as not materialized (select g.id, $1::pg_catalog.text as tenant, g.key, g.type, \
         g.headers::pg_catalog.jsonb as headers, g.body::pg_catalog.jsonb as payload, g.body \
         from rows from ({lists}) g (id, key, type, headers, body) {new} offset 0)"
    )
}

/// Messages, column by column.
struct Columns<'a>([Vec<Option<&'a str>>; 5]);

impl<'a> Columns<'a> {
    /// `headers`: theirs, as JSON.
    fn of(messages: &[&'a Message], headers: &'a [String]) -> Result<Self> {
        let body = |message: &&'a Message| std::str::from_utf8(&message.payload).ok();
        let bodies: Vec<_> = messages.iter().map(body).collect();
        if bodies
            .iter()
            .any(|text| text.is_none_or(|text| text.contains('\0')))
        {
            return Err(Failure::permanent("not_text", "its payload is no text").into());
        }
        Ok(Self([
            messages.iter().map(|m| Some(m.id.as_str())).collect(),
            messages.iter().map(|m| m.key.as_deref()).collect(),
            messages.iter().map(|m| m.kind.as_deref()).collect(),
            headers.iter().map(|text| Some(text.as_str())).collect(),
            bodies,
        ]))
    }

    fn args<'b>(&'b self, tenant: &'b str) -> Args<'b> {
        let lists = self.0.iter();
        lists.fold(Args::new().text(tenant), |args, list| args.list(list))
    }
}

fn headers_of(messages: &[&Message]) -> Vec<String> {
    let headers = messages.iter().map(|m| literal::headers(&m.headers));
    headers.collect()
}

impl<D: Driver> Inbox<D> {
    /// Has the database read a statement as a part of another, without running it: what cannot be one is an error here.
    pub async fn check(&self, statement: &Statement) -> Result<()> {
        let sql = format!("explain (costs off) {}", statement.in_transaction());
        let mut sql = self.caller.schema.statement_of(sql);
        sql.keep = false;
        let columns = Columns(std::array::from_fn(|_| Vec::new()));
        let mut session = self.caller.driver.acquire().await?;
        let explained = session.query(&sql, columns.args("").as_slice()).await;
        release_unless_lost(session, &explained);
        explained.map(drop)
    }

    /// Takes messages on and applies the new ones by one statement that commits itself, and says which it applied; the
    /// others are copies, or are not for one statement. After an error, nothing or all of it happened.
    ///
    /// A statement that takes longer than `timeout` is ended in the database too.
    pub async fn apply_at_once(
        &self,
        statement: &Statement,
        consumer: &str,
        source: &str,
        messages: &[&Message],
        timeout: Duration,
    ) -> Result<Vec<bool>> {
        let schema = &self.caller.schema;
        let none = vec![false; messages.len()];
        let tenant = messages.first().map_or("", |first| &first.tenant);
        let mut order: Vec<usize> = (0..messages.len()).collect();
        // As the database does it elsewhere: no two batches deadlock on their markers.
        order.sort_by_key(|index| &messages[*index].id);
        let sorted: Vec<&Message> = order.iter().map(|index| messages[*index]).collect();
        let keyed = messages.iter().any(|message| message.key.is_some());
        let is_plain = (1..=MAX_PLAIN).contains(&messages.len())
            && statement.takes(messages)
            && sorted.windows(2).all(|two| two[0].id != two[1].id)
            && messages.iter().all(|message| message.tenant == tenant)
            && !(schema.is_pooled() || schema.is_distributed())
            // The last one held nothing but copies: what comes next is looked up.
            && (keyed || !self.copies.load(Relaxed));
        let headers = headers_of(&sorted);
        let Some(columns) = Columns::of(&sorted, &headers).ok().filter(|_| is_plain) else {
            return Ok(none);
        };
        let hashes: Vec<_> = sorted.iter().map(|m| m.hash()).collect();
        let hashes: Vec<&[u8]> = hashes.iter().map(|hash| &hash[..]).collect();
        let days = literal::numbers(sorted.iter().map(|m| day_of(&m.id)));
        let keys = sorted.iter().filter(|m| m.key.is_some());
        let keys: Vec<_> = keys.map(|m| m.key.as_deref()).collect();
        let lock: i64 = rand::random();
        let args = columns.args(tenant).text(consumer).text(source);
        let args = args.bytes_list(&hashes).text(&*days).list(&keys);
        let args = args.int(lock).count(messages.len());

        let mut session = self.caller.driver.acquire().await?;
        let whole = schema.statement_of(statement.whole(schema));
        let sent = tokio::time::timeout(timeout, session.query(&whole, args.as_slice()));
        let Ok(rows) = sent.await else {
            drop(session);
            let _ = self.caller.call(&CANCEL, Args::new().int(lock)).await;
            return Err(Error::Uncertain(format!(
                "a statement took longer than {timeout:?}"
            )));
        };
        let rows = rows.map_err(uncertain_if_lost);
        release_unless_lost(session, &rows);
        let mut row = rows?
            .into_iter()
            .next()
            .map(Row::from)
            .ok_or_else(unreadable)?;
        let made: usize = row.get()?;
        // Where a key is blocked nothing is new either.
        self.copies.store(made == 0 && !keyed, Relaxed);
        if made == messages.len() {
            return Ok(vec![true; made]);
        }
        let new: HashSet<String> = match made {
            0 => HashSet::new(),
            _ => row.json()?,
        };
        Ok(messages
            .iter()
            .map(|message| new.contains(&message.id))
            .collect())
    }
}
