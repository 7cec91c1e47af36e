//! Read models that converge, however often they are replayed.

use super::batch::Tx;
use super::message::Message;
use super::{Inbox, first, number, unreadable};
use crate::driver::{Connection as _, Driver, Param, Row};
use crate::error::ErrorDetail;
use crate::{Error, Result};

/// What a rebuild did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebuilt {
    /// Events that were applied.
    pub events: u64,
    /// Rows that were there and should not have been, or were otherwise.
    pub removed: u64,
    /// Rows that were missing, or were otherwise.
    pub added: u64,
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Rows of the live table, and of the one that was built anew.
    pub rows: (u64, u64),
    /// Rows that the live one should have.
    pub missing: u64,
    /// Rows that the live one should not have.
    pub surplus: u64,
    /// A hash of each.
    pub hashes: (String, String),
    /// Events that the live one has not applied yet.
    pub pending: u64,
}

impl Verified {
    /// Whether the two are the same.
    pub fn is_equal(&self) -> bool {
        self.missing == 0 && self.surplus == 0 && self.hashes.0 == self.hashes.1
    }
}

impl<D: Driver> Tx<D> {
    /// May a projection apply this version of an entity, or this position of a stream? True where it moves
    /// forward; duplicates and late ones change nothing.
    pub async fn advance(
        &mut self,
        projection: &str,
        entity: &str,
        version: i64,
        tenant: &str,
    ) -> Result<bool> {
        let version = version.to_string();
        let params = [projection, entity, &version, tenant].map(|text| Param::Text(Some(text)));
        let statements = self.statements();
        let advance = &statements.advance_projection;
        let rows = self.session().query(advance, &params).await?;
        Ok(first(rows).as_deref() == Some("true"))
    }

    /// Applies a message, whose payload is JSON, to a projection that was defined in the database. False where
    /// it is there already. The entity is the message's key.
    pub async fn project(&mut self, projection: &str, message: &Message) -> Result<bool> {
        let payload = std::str::from_utf8(&message.payload).map_err(|_| {
            Error::Invalid(ErrorDetail::new(
                "22023",
                format!("the payload of message {:?} is no text", message.id),
                "Projections are made of JSON.",
            ))
        })?;
        let headers = super::literal::headers(&message.headers);
        let params = [
            Param::Text(Some(projection)),
            Param::Text(Some(&message.id)),
            Param::Text(message.kind.as_deref()),
            Param::Text(message.key.as_deref()),
            Param::Json(Some(payload)),
            Param::Json(Some(&headers)),
            Param::Text(Some(&message.tenant)),
        ];
        let statements = self.statements();
        let rows = self.session().query(&statements.project, &params).await?;
        Ok(first(rows).as_deref() == Some("true"))
    }
}

impl<D: Driver> Inbox<D> {
    /// Makes a projection anew from its events, in a fresh table, and puts that in its place. Whoever applies
    /// events meanwhile waits only for the exchange; readers do not wait at all.
    pub async fn rebuild(&self, projection: &str) -> Result<Rebuilt> {
        self.build(projection, "rebuild").await?;
        let sql = "select events, removed, added from pgonce._end_rebuild($1)";
        let rows = self.ask(sql, &[Param::Text(Some(projection))]).await?;
        let row = rows.into_iter().next().ok_or_else(unreadable)?;
        let mut cells = row.into_iter().flatten().map(|n| n.parse().ok());
        let mut next = || cells.next().flatten().ok_or_else(unreadable);
        Ok(Rebuilt {
            events: next()?,
            removed: next()?,
            added: next()?,
        })
    }

    /// Builds a projection anew beside the live one, of the events that it has applied, and compares them.
    /// Nobody waits for it.
    pub async fn verify(&self, projection: &str) -> Result<Verified> {
        self.build(projection, "verify").await?;
        let sql = "select live_rows, rebuilt_rows, missing, surplus, live_hash, rebuilt_hash, pending \
             from pgonce._end_verify($1)";
        let begin = "begin isolation level repeatable read";
        let statement = self.seldom(sql);
        let params = [Param::Text(Some(projection))];
        let rows = self.call_in(begin, &statement, &params).await?;
        let read = |row: Row| {
            let mut cells = row.into_iter();
            let mut next = || cells.next().flatten();
            Some(Verified {
                rows: (next()?.parse().ok()?, next()?.parse().ok()?),
                missing: next()?.parse().ok()?,
                surplus: next()?.parse().ok()?,
                hashes: (next()?, next()?),
                pending: next()?.parse().ok()?,
            })
        };
        let row = rows.into_iter().next();
        row.and_then(read).ok_or_else(unreadable)
    }

    /// Builds in steps, each in a transaction of its own, until everything was looked at. One that breaks off
    /// leaves the live projection as it was; the next begins anew.
    async fn build(&self, projection: &str, purpose: &str) -> Result<()> {
        let params = [projection, purpose].map(|text| Param::Text(Some(text)));
        let begin = "select 'done' from pgonce._begin_build($1, $2)";
        self.ask(begin, &params).await?;
        let step = "select n::text from pgonce._step_build($1, $2, 1000) n";
        while number(self.ask(step, &params).await?)? > 0 {}
        Ok(())
    }
}
