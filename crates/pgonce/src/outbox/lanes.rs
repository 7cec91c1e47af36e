//! What a relay asks the database: its lanes, what is there for them, and what came of it.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::message::{Cursor, Message, Read};
use crate::call::{Args, BEGIN, COMMIT, Caller, Row, Rows, Sql, unreadable};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::failure::in_ascii;
use crate::once::Once;

static CLAIM_LANES: Sql = Sql::kept(
    "select lane::integer, epoch, cursor, surplus::text \
     from pgonce._claim_lanes($1, $2, $3::text::interval)",
);
static CLAIM_LANES_OF: Sql = Sql::kept(
    "select claim, lane::integer, epoch, cursor, surplus::text from pgonce._claim_lanes_of($1)",
);
static POLL: Sql = Sql::kept(
    "select news::text, cursor, pg_catalog.to_json(due)::text from pgonce._poll_outbox($1, $2::text::text[])",
);
static HAS_NEW_EVENTS: Sql = Sql::kept("select pgonce._has_new_events($1::text::text[])::text");
static READ_LANES: Sql = Sql::kept(
    "select lane, cursor, seq, act, message_id, tenant, topic, type, subject, headers, payload, created_at \
     from pgonce._read_lanes($1, $2, $3::text::integer, $4::text::integer)",
);
static DUE_PARKED: Sql = Sql::kept(
    "select lane, cursor, seq, act, message_id, tenant, topic, type, subject, headers, payload, created_at \
     from pgonce._due_parked($1, $2, $3::text::integer, $4::text::integer)",
);
static SETTLE_LANE: Sql =
    Sql::kept("select pgonce._settle_lane($1, $2::text::integer, $3::text::bigint, $4, $5)");
static ADVANCE_LANES: Sql =
    Sql::kept("select l::integer from pgonce._advance_lanes($1, $2, $3::text::boolean) l");
static RELEASE_LANES: Sql = Sql::kept("select pgonce._release_lanes($1, $2)");
static CREATE_PARTITIONS: Sql = Sql::kept("select pgonce._create_outbox_partitions()");
static DROP_PARTITIONS: Sql = Sql::kept("select pgonce._drop_outbox_partitions()");

/// The outbox of a database, for relays and operators. Made by [`Once::outbox`]; cheap to clone.
#[derive(Debug, Clone)]
pub struct Outbox<D: Driver> {
    once: Once<D>,
}

/// A lane that a relay was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Number of the lane, 0 to 15.
    pub lane: u8,
    /// The fence of this holder: an older one can keep nothing.
    pub epoch: i64,
    /// Where to read on, for a holder whose epoch is new.
    pub cursor: Cursor,
    /// More than this relay's share: finish and give it back.
    pub surplus: bool,
}

/// A relay that asks for its share of a subscription's lanes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneClaim {
    /// The subscription.
    pub subscription: String,
    /// A name that no other relay has.
    pub owner: String,
    /// How long the lanes stay with it unless it asks again.
    pub lease: Duration,
}

/// What all relays of a process wait for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Poll {
    /// Something was committed, or nothing is known.
    pub news: bool,
    /// To ask with the next time.
    pub cursor: Option<Cursor>,
    /// Subscriptions with parked events whose time has come.
    pub due: Vec<String>,
}

/// A lane and how far its holder is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LaneLease {
    /// The lane.
    pub lane: u8,
    /// The fence of the lane's holder.
    pub epoch: i64,
    /// Everything before is delivered.
    pub cursor: Cursor,
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Page {
    /// Events, each lane's in order.
    pub messages: Vec<Message>,
    /// For each lane where it goes on, once its events are delivered.
    pub cursors: Vec<(u8, Cursor)>,
}

/// What came of one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The sink has it.
    Sent,
    /// A transient failure: its subject is parked and tried again later, not before the given time.
    Retry {
        /// Why, for people.
        reason: String,
        /// At least this long from now.
        after: Duration,
    },
    /// The sink was unavailable for it and for no other event: its subject is parked and tried again later. Not
    /// counted as an attempt.
    Defer {
        /// Why, for people.
        reason: String,
    },
    /// It failed permanently: a dead letter, its subject is parked until manual action.
    Dead {
        /// Why, for people.
        reason: String,
    },
    /// Behind another of its subject.
    Hold,
    /// Not due yet.
    Wait,
}

/// What came of a lane's events, to be kept in one step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settlement {
    /// Where the lane goes on; `None` leaves its cursor.
    pub cursor: Option<Cursor>,
    /// Event by event: its number and what came of it.
    pub outcomes: Vec<(i64, Outcome)>,
}

impl Outcome {
    fn as_json(&self, seq: i64) -> Value {
        match self {
            Self::Sent => json!({"seq": seq, "what": "sent"}),
            Self::Hold => json!({"seq": seq, "what": "hold"}),
            Self::Wait => json!({"seq": seq, "what": "wait"}),
            Self::Defer { reason } => json!({"seq": seq, "what": "defer", "reason": plain(reason)}),
            Self::Dead { reason } => json!({"seq": seq, "what": "dead", "reason": plain(reason)}),
            Self::Retry { reason, after } => {
                let after = u64::try_from(after.as_millis()).unwrap_or(u64::MAX / 2);
                json!({"seq": seq, "what": "retry", "reason": plain(reason), "after_ms": after.min(i64::MAX as u64)})
            }
        }
    }
}

/// PostgreSQL's texts have no U+0000.
pub(super) fn plain(reason: &str) -> String {
    reason.replace('\0', "")
}

/// Whether a text has a character that the server's encoding lacks.
pub(super) fn is_refused(error: &Error, text: &str) -> bool {
    matches!(error, Error::Database(_)) && error.code().starts_with("22") && !text.is_ascii()
}

impl<D: Driver> Once<D> {
    /// The outbox of the same database.
    pub fn outbox(&self) -> Outbox<D> {
        Outbox { once: self.clone() }
    }
}

impl<D: Driver> Outbox<D> {
    pub(super) fn caller(&self) -> &Caller<D> {
        self.once.caller()
    }

    pub(super) fn once(&self) -> &Once<D> {
        &self.once
    }

    /// Asks for this relay's share of the subscription's lanes and renews what it holds; every lane that
    /// `owner` holds is in the answer. `owner` must be a name that no other relay has.
    pub async fn claim_lanes(
        &self,
        subscription: &str,
        owner: &str,
        lease: Duration,
    ) -> Result<Vec<Lane>> {
        let args = Args::texts([subscription, owner]).interval(lease);
        self.call(&CLAIM_LANES, args).await?.read(lane)
    }

    /// [`claim_lanes`](Self::claim_lanes) for many relays in one step: for each its lanes, in the order of the claims.
    /// One that cannot be claimed is an error for all: claim each alone then.
    pub async fn claim_lanes_of(&self, claims: &[LaneClaim]) -> Result<Vec<Vec<Lane>>> {
        let asked = claims.iter().map(|claim| {
            let lease = format!("{} seconds", claim.lease.as_secs_f64());
            json!({"subscription": claim.subscription, "owner": claim.owner, "lease": lease})
        });
        let asked = Value::from_iter(asked).to_string();
        let rows = self
            .call(&CLAIM_LANES_OF, Args::new().json(&*asked))
            .await?;
        let mut lanes = vec![Vec::new(); claims.len()];
        for (claim, lane) in rows.read(|mut row| Ok((row.get::<usize>()?, lane(row)?)))? {
            let claim = claim.checked_sub(1).and_then(|claim| lanes.get_mut(claim));
            claim.ok_or_else(unreadable)?.push(lane);
        }
        Ok(lanes)
    }

    /// Whether anything was committed since `cursor`, and which of these subscriptions have parked events that are due.
    /// Cheap; a hint.
    pub async fn poll(&self, cursor: Option<&Cursor>, subscriptions: &[&str]) -> Result<Poll> {
        let subscriptions = array(subscriptions.iter().copied());
        let args = Args::new().text(cursor.map(|cursor| cursor.0.as_str()));
        let rows = self
            .caller()
            .call(&POLL, args.text(&*subscriptions))
            .await?;
        let mut row = rows.one()?;
        Ok(Poll {
            news: row.bool()?,
            cursor: row.opt_text().map(Cursor),
            due: row.json()?,
        })
    }

    /// Which outbox it is: the same for all that one [`Once`] gave out, for as long as one of them exists.
    #[doc(hidden)]
    pub fn address(&self) -> usize {
        std::sync::Arc::as_ptr(&self.caller().schema) as usize
    }

    /// Whether anything was committed that one of these cursors has not seen. Cheap.
    pub async fn has_new_events(&self, cursors: &[&Cursor]) -> Result<bool> {
        let cursors = array(cursors.iter().map(|cursor| cursor.0.as_str()));
        let rows = self.caller().call(&HAS_NEW_EVENTS, Args::texts([&cursors]));
        rows.await?.one()?.bool()
    }

    /// What is there now for these lanes, at most about `limit` events and `bytes` bytes; durable.
    pub async fn read(
        &self,
        subscription: &str,
        leases: &[LaneLease],
        limit: usize,
        bytes: usize,
    ) -> Result<Page> {
        let leases = serde_json::to_string(leases)?;
        let args = Args::new().text(subscription).json(&*leases);
        let args = args.count(limit).count(bytes);
        page(self.call(&READ_LANES, args).await?)
    }

    /// Parked events of these lanes whose time has come, of each subject the first and a run of those behind it.
    pub async fn due(
        &self,
        subscription: &str,
        leases: &[LaneLease],
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<Message>> {
        let leases = serde_json::to_string(leases)?;
        let args = Args::new().text(subscription).json(&*leases);
        let args = args.count(limit).count(bytes);
        Ok(page(self.call(&DUE_PARKED, args).await?)?.messages)
    }

    /// Keeps what came of a lane's events, and its cursor, in one step. [`Error::Fenced`]: somebody
    /// else holds the lane. Code `P4060`: the subscription's dead letters are full. A reason with a character that the
    /// server's encoding lacks is kept in ASCII.
    pub async fn settle(
        &self,
        subscription: &str,
        lane: u8,
        epoch: i64,
        settlement: &Settlement,
    ) -> Result<()> {
        let outcomes = settlement.outcomes.iter();
        let outcomes: Vec<_> = outcomes.map(|(seq, what)| what.as_json(*seq)).collect();
        let outcomes = Value::from(outcomes).to_string();
        let settle = async |outcomes: &str| {
            let cursor = settlement.cursor.as_ref().map(|cursor| cursor.0.as_str());
            let args = Args::new().text(subscription).int(i64::from(lane));
            let args = args.int(epoch).text(cursor).json(outcomes);
            self.call(&SETTLE_LANE, args).await.map(drop)
        };
        match settle(&outcomes).await {
            // Only reasons have such characters.
            Err(error) if is_refused(&error, &outcomes) => settle(&in_ascii(&outcomes)).await,
            settled => settled,
        }
    }

    /// Keeps how far lanes are, and gives them back where asked to. Answers the lanes that were
    /// kept: a missing one is held by somebody else.
    pub async fn advance(
        &self,
        subscription: &str,
        leases: &[LaneLease],
        release: bool,
    ) -> Result<Vec<u8>> {
        let leases = serde_json::to_string(leases)?;
        let args = Args::new().text(subscription).json(&*leases).bool(release);
        let rows = self.call(&ADVANCE_LANES, args).await?;
        rows.read(|mut row| row.get())
    }

    /// This relay goes: its lanes are free at once.
    pub async fn leave(&self, subscription: &str, owner: &str) -> Result<()> {
        let args = Args::texts([subscription, owner]);
        self.call(&RELEASE_LANES, args).await.map(drop)
    }

    /// Creates the log's next partitions and drops those that nobody needs. Every relay does it now
    /// and then.
    pub async fn maintain(&self) -> Result<()> {
        // Where it is late, one takes four transactions: each is short for writers.
        for _ in 0..4 {
            self.call(&CREATE_PARTITIONS, Args::default()).await?;
        }
        // A few in each transaction, so that no writer waits for long; bounded, so that a relay comes back to its lanes.
        for _ in 0..100 {
            let dropped = self.call(&DROP_PARTITIONS, Args::default()).await?;
            if dropped.one()?.get::<u64>()? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// One call in a transaction of its own; its rows count only once it has committed.
    pub(super) async fn call(&self, sql: &Sql, args: Args<'_>) -> Result<Rows> {
        self.caller()
            .in_own_transaction(BEGIN, sql, args, &COMMIT)
            .await
    }
}

/// An array of PostgreSQL, as text.
fn array<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let quoted =
        texts.map(|text| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")));
    format!("{{{}}}", quoted.collect::<Vec<_>>().join(","))
}

fn lane(mut row: Row) -> Result<Lane> {
    Ok(Lane {
        lane: row.get()?,
        epoch: row.get()?,
        cursor: Cursor(row.text()?),
        surplus: row.bool()?,
    })
}

fn page(rows: Rows) -> Result<Page> {
    let mut page = Page::default();
    for read in rows.read(Message::read)? {
        match read {
            Read::Message(message) => page.messages.push(message),
            Read::Cursor(lane, cursor) => page.cursors.push((lane, cursor)),
        }
    }
    Ok(page)
}
