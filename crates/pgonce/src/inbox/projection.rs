//! Read models that converge, however often they are replayed.

use super::handle::Inbox;
use super::literal;
use super::message::Message;
use crate::call::{Args, Sql};
use crate::driver::{Connection, Driver};
use crate::error::{Error, ErrorDetail, Result};
use crate::tx::Tx;

static ADVANCE: Sql =
    Sql::kept("select pgonce.advance_projection($1, $2, $3::text::bigint, $4)::text");
static PROJECT: Sql = Sql::kept("select pgonce.project($1, $2, $3, $4, $5, $6, $7)::text");
static BEGIN_BUILD: Sql = Sql::seldom("select 'done' from pgonce._begin_build($1, $2)");
static STEP_BUILD: Sql = Sql::seldom("select n::text from pgonce._step_build($1, $2, 1000) n");
static END_REBUILD: Sql = Sql::seldom("select events, removed, added from pgonce._end_rebuild($1)");
static END_VERIFY: Sql = Sql::seldom(
    "select live_rows, rebuilt_rows, missing, surplus, live_hash, rebuilt_hash, pending \
     from pgonce._end_verify($1)",
);

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

impl<C: Connection> Tx<C> {
    /// May a projection apply this version of an entity, or this position of a stream? True where it moves
    /// forward; duplicates and late ones change nothing.
    pub async fn advance(
        &mut self,
        projection: &str,
        entity: &str,
        version: i64,
        tenant: &str,
    ) -> Result<bool> {
        let args = Args::texts([projection, entity]).int(version).text(tenant);
        self.call(&ADVANCE, args).await?.one()?.bool()
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
        let headers = literal::headers(&message.headers);
        let args = Args::texts([projection, &message.id])
            .text(message.kind.as_deref())
            .text(message.key.as_deref())
            .json(payload)
            .json(&*headers)
            .text(&*message.tenant);
        self.call(&PROJECT, args).await?.one()?.bool()
    }
}

impl<D: Driver> Inbox<D> {
    /// Makes a projection anew from its events, in a fresh table, and puts that in its place. A worker that
    /// applies events meanwhile waits only for the exchange; readers do not wait at all.
    pub async fn rebuild(&self, projection: &str) -> Result<Rebuilt> {
        self.build(projection, "rebuild").await?;
        let rows = self.call(&END_REBUILD, Args::texts([projection])).await?;
        let mut row = rows.one()?;
        Ok(Rebuilt {
            events: row.get()?,
            removed: row.get()?,
            added: row.get()?,
        })
    }

    /// Builds a projection anew beside the live one, of the events that it has applied, and compares them.
    /// Nobody waits for it.
    pub async fn verify(&self, projection: &str) -> Result<Verified> {
        self.build(projection, "verify").await?;
        let begin = "begin isolation level repeatable read";
        let args = Args::texts([projection]);
        let mut row = self.call_in(begin, &END_VERIFY, args).await?.one()?;
        Ok(Verified {
            rows: (row.get()?, row.get()?),
            missing: row.get()?,
            surplus: row.get()?,
            hashes: (row.text()?, row.text()?),
            pending: row.get()?,
        })
    }

    /// Builds in steps, each in a transaction of its own, until everything was looked at. One that breaks off
    /// leaves the live projection as it was; the next begins anew.
    async fn build(&self, projection: &str, purpose: &str) -> Result<()> {
        let args = || Args::texts([projection, purpose]);
        self.call(&BEGIN_BUILD, args()).await?;
        while self.call(&STEP_BUILD, args()).await?.one()?.get::<u64>()? > 0 {}
        Ok(())
    }
}
