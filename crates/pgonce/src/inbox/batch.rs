//! A transaction in which messages are applied.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use super::cursor::PartitionLease;
use super::message::{Message, Position};
use super::stored::{As, Claimed, Stored, claimed_json, store};
use super::{Inbox, literal, unreadable};
use crate::attempt::Home;
use crate::driver::{Connection as _, Driver, Param, Session, Settled, Statement};
use crate::lease::interval;
use crate::outbox::Event;
use crate::statements::Statements;
use crate::{Error, Result};

/// What is to be done with a message of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Apply it.
    New,
    /// It was applied before, or stands earlier in the batch.
    Duplicate,
    /// Its id came before with another payload: keep it for a person.
    Conflict,
}

/// An open transaction of a consumer: marks, effects and cursors commit together, or none does. Dropped, it
/// leaves nothing.
#[must_use = "a batch that is dropped is rolled back; end it with a commit"]
pub struct Batch<D: Driver> {
    session: Option<D::Session>,
    home: Home<D::Session>,
    statements: Arc<Statements>,
}

impl<D: Driver> Inbox<D> {
    /// Opens a transaction for a batch of messages.
    pub async fn begin(&self) -> Result<Batch<D>> {
        self.open(&self.statements.begin_batch).await
    }

    /// The same, with an end for each of its statements (`57014`): one that hangs would keep its locks long after
    /// anyone who sent it has given up. A shorter `statement_timeout` of the session stays.
    pub async fn begin_with_timeout(&self, longest: Duration) -> Result<Batch<D>> {
        // The most that the setting can hold; 0 would mean no end.
        let ms = longest.as_millis().clamp(1, i32::MAX as u128);
        let begin = &self.statements.begin_batch;
        let shorter =
            format!("current_setting('statement_timeout')::interval between '1 us' and '{ms} ms'");
        self.open(&format!(
            "{begin}; select set_config('statement_timeout', case when {shorter} then current_setting('statement_timeout') else '{ms}' end, true)"
        ))
        .await
    }

    async fn open(&self, begin: &str) -> Result<Batch<D>> {
        let mut session = self.driver.acquire().await?;
        session.open(begin).await?;
        Ok(Batch {
            session: Some(session),
            home: Home::default(),
            statements: self.statements.clone(),
        })
    }
}

/// The transaction as a handler has it: what it writes commits with the message's mark, or not at all.
///
/// It cannot commit and cannot acknowledge: both are its consumer's.
pub struct Tx<D: Driver> {
    session: Option<D::Session>,
    home: Home<D::Session>,
    statements: Arc<Statements>,
}

impl<D: Driver> Tx<D> {
    /// The driver's connection, inside the transaction. Do not send COMMIT or ROLLBACK by hand.
    pub fn conn(&mut self) -> &mut <D::Session as Session>::Raw {
        self.session().raw()
    }

    /// Publishes an event that exists if and only if the message is applied.
    pub async fn publish(&mut self, event: &Event) -> Result<Uuid> {
        let statements = self.statements.clone();
        crate::outbox::publish_in(self.session(), &statements, event, "").await
    }

    pub(super) fn session(&mut self) -> &mut D::Session {
        self.session.as_mut().expect("only drop takes it")
    }

    pub(super) fn statements(&self) -> Arc<Statements> {
        self.statements.clone()
    }
}

impl<D: Driver> Drop for Tx<D> {
    fn drop(&mut self) {
        *self.home.lock().unwrap_or_else(PoisonError::into_inner) = self.session.take();
    }
}

impl<D: Driver> fmt::Debug for Tx<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

impl<D: Driver> Batch<D> {
    /// Takes messages on: says of each whether it is new. One statement for each tenant.
    pub async fn mark(
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
        for (tenant, members) in tenants {
            let ids = literal::texts(members.iter().map(|i| messages[*i].id.as_str()));
            let hashes = literal::digests(members.iter().map(|i| messages[*i].hash()));
            let params =
                [consumer, source, &ids, &hashes, tenant].map(|text| Param::Text(Some(text)));
            let statements = self.statements.clone();
            for row in self.session()?.query(&statements.mark, &params).await? {
                let mut cells = row.into_iter().flatten();
                let ordinal = cells.next().and_then(|n| n.parse::<usize>().ok());
                let index = ordinal.and_then(|n| members.get(n.checked_sub(1)?));
                let verdict = match cells.next().as_deref() {
                    Some("duplicate") => Verdict::Duplicate,
                    Some("conflict") => Verdict::Conflict,
                    _ => return Err(unreadable()),
                };
                verdicts[*index.ok_or_else(unreadable)?] = verdict;
            }
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
        let mut held = Vec::new();
        for (tenant, keys) in tenants {
            let keys = literal::texts(keys);
            let params = [consumer, &keys, tenant].map(|text| Param::Text(Some(text)));
            let statements = self.statements.clone();
            let rows = self
                .session()?
                .query(&statements._blocked_keys, &params)
                .await?;
            let keys = rows.into_iter().flatten().flatten();
            held.extend(keys.map(|key| (tenant, key)));
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
        what: &As,
    ) -> Result<Stored> {
        let statements = self.statements.clone();
        store(
            self.session()?,
            &statements,
            consumer,
            source,
            message,
            what,
        )
        .await
    }

    /// Lends the transaction to a handler. It comes back when the [`Tx`] is dropped.
    pub fn lend(&mut self) -> Result<Tx<D>> {
        self.session()?;
        Ok(Tx {
            session: self.session.take(),
            home: self.home.clone(),
            statements: self.statements.clone(),
        })
    }

    /// Commits.
    pub async fn commit(self) -> Result<()> {
        let end = self.statements.end_batch.clone();
        self.settle(&end, &[]).await
    }

    /// Commits, and with it that stored messages are applied. [`Error::Fenced`]: another worker has one of
    /// them, and nothing of this batch is left.
    pub async fn commit_finished(self, consumer: &str, claimed: &[&Claimed]) -> Result<()> {
        let finish = self.statements.finish_messages.clone();
        let claimed = claimed_json(claimed);
        let params = [Param::Text(Some(consumer)), Param::Json(Some(&claimed))];
        self.settle(&finish, &params).await
    }

    /// Commits, and with it that an ordered source's partition is applied up to `to`. [`Error::Fenced`]:
    /// another worker holds the partition, and nothing of this batch is left.
    pub async fn commit_moved(self, held: &PartitionLease, to: Position) -> Result<()> {
        let moving = self.statements.move_partition.clone();
        let text = |n: i64| n.to_string();
        let (epoch, lease) = (text(held.epoch), interval(held.lease));
        let from = held.position.map(|p| (text(p.major), text(p.minor)));
        let (major, minor) = (text(to.major), text(to.minor));
        let params = [
            Param::Text(Some(&held.consumer)),
            Param::Text(Some(&held.source)),
            Param::Text(Some(&held.partition)),
            Param::Text(Some(&epoch)),
            Param::Text(from.as_ref().map(|(major, _)| major.as_str())),
            Param::Text(from.as_ref().map(|(_, minor)| minor.as_str())),
            Param::Text(Some(&major)),
            Param::Text(Some(&minor)),
            Param::Text(Some(&lease)),
        ];
        self.settle(&moving, &params).await
    }

    /// Rolls back; nothing is left.
    pub async fn roll_back(mut self) -> Result<()> {
        self.session()?;
        if let Some(mut session) = self.session.take() {
            session.rollback().await?;
            session.keep();
        }
        Ok(())
    }

    async fn settle(mut self, last: &Statement, params: &[Param<'_>]) -> Result<()> {
        self.session()?;
        let mut session = self.session.take().ok_or_else(kept_by_the_handler)?;
        match session.settle(last, params).await {
            Settled::Committed(_) => {
                session.keep();
                Ok(())
            }
            Settled::Refused(error) => {
                if !matches!(error, Error::Disconnected(_)) {
                    session.keep();
                }
                Err(error)
            }
            Settled::Unknown(why) => Err(Error::Uncertain(why)),
        }
    }

    /// The session, back from a handler where it was lent.
    fn session(&mut self) -> Result<&mut D::Session> {
        if self.session.is_none() {
            self.session = self
                .home
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
        }
        self.session.as_mut().ok_or_else(kept_by_the_handler)
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
