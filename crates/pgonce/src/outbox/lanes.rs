//! What a relay asks the database: its lanes, what is there for them, and what came of it.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::message::{Message, Read};
use crate::alone::{BEGIN, call_alone};
use crate::driver::{Connection as _, Driver, Param, Row, Statement};
use crate::error::ErrorDetail;
use crate::lease::{interval, keep_unless_lost};
use crate::statements::Statements;
use crate::{Error, Once, Result};

/// The outbox of a database, for relays and operators. Made by [`Once::outbox`]; cheap to clone.
#[derive(Debug, Clone)]
pub struct Outbox<D: Driver> {
    driver: D,
    statements: Arc<Statements>,
}

/// A cursor in the log; opaque.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Cursor(pub(super) String);

/// A lane that a relay was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Its number, 0 to 15.
    pub lane: u8,
    /// The fence of this holder: an older one can keep nothing.
    pub epoch: i64,
    /// Where to read on, for a holder whose epoch is new.
    pub cursor: Cursor,
    /// More than this relay's share: finish and give it back.
    pub surplus: bool,
}

/// A lane and how far its holder is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LaneLease {
    /// The lane.
    pub lane: u8,
    /// Its epoch.
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
    /// It failed with a transient error: its subject is parked and tried again later, not before the given time.
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
fn plain(reason: &str) -> String {
    reason.replace('\0', "")
}

impl<D: Driver> Once<D> {
    /// The outbox of the same database.
    pub fn outbox(&self) -> Outbox<D> {
        Outbox {
            driver: self.driver().clone(),
            statements: self.shared_statements(),
        }
    }
}

impl<D: Driver> Outbox<D> {
    /// Asks for this relay's share of the subscription's lanes and renews what it holds; every lane that
    /// `owner` holds is in the answer. `owner` must be a name that no other relay has.
    pub async fn claim_lanes(
        &self,
        subscription: &str,
        owner: &str,
        lease: Duration,
    ) -> Result<Vec<Lane>> {
        let lease = interval(lease);
        let params = [subscription, owner, &lease].map(|text| Param::Text(Some(text)));
        let rows = self.call(&self.statements.claim_lanes, &params).await?;
        rows.into_iter()
            .map(|row| {
                let mut cells = row.into_iter();
                let mut next = || cells.next().flatten();
                let mut lane = || {
                    Some(Lane {
                        lane: next()?.parse().ok()?,
                        epoch: next()?.parse().ok()?,
                        cursor: Cursor(next()?),
                        surplus: next()? == "true",
                    })
                };
                lane().ok_or_else(unreadable)
            })
            .collect()
    }

    /// Whether anything was committed that one of these cursors has not seen. Cheap.
    pub async fn has_new_events(&self, cursors: &[&Cursor]) -> Result<bool> {
        let cursors = cursors
            .iter()
            .map(|cursor| format!("\"{}\"", cursor.0.replace('"', "\\\"")))
            .collect::<Vec<_>>()
            .join(",");
        let params = [format!("{{{cursors}}}")];
        let mut session = self.driver.acquire().await?;
        let rows = session
            .query(
                &self.statements.has_new_events,
                &[Param::Text(Some(&params[0]))],
            )
            .await;
        keep_unless_lost(session, &rows);
        Ok(first(rows?).as_deref() == Some("true"))
    }

    /// What is there now for these lanes, at most about `limit` events and `bytes` bytes; durable.
    pub async fn read(
        &self,
        subscription: &str,
        held: &[LaneLease],
        limit: usize,
        bytes: usize,
    ) -> Result<Page> {
        let held = serde_json::to_string(held)?;
        let (limit, bytes) = (limit.to_string(), bytes.to_string());
        let params = [
            Param::Text(Some(subscription)),
            Param::Json(Some(&held)),
            Param::Text(Some(&limit)),
            Param::Text(Some(&bytes)),
        ];
        page(self.call(&self.statements.read_lanes, &params).await?)
    }

    /// Parked events of these lanes whose time has come, of each subject the first and a run of those behind it.
    pub async fn due(
        &self,
        subscription: &str,
        held: &[LaneLease],
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<Message>> {
        let (limit, bytes) = (limit.to_string(), bytes.to_string());
        let held = serde_json::to_string(held)?;
        let params = [
            Param::Text(Some(subscription)),
            Param::Json(Some(&held)),
            Param::Text(Some(&limit)),
            Param::Text(Some(&bytes)),
        ];
        Ok(page(self.call(&self.statements.due_parked, &params).await?)?.messages)
    }

    /// Keeps what came of a lane's events, and its cursor, in one step. [`Error::Fenced`]: somebody
    /// else holds the lane. Code `P4060`: the subscription's dead letters are full.
    pub async fn settle(
        &self,
        subscription: &str,
        lane: u8,
        epoch: i64,
        settlement: &Settlement,
    ) -> Result<()> {
        let (lane, epoch) = (lane.to_string(), epoch.to_string());
        let outcomes = settlement.outcomes.iter();
        let outcomes: Vec<_> = outcomes.map(|(seq, what)| what.as_json(*seq)).collect();
        let outcomes = Value::from(outcomes).to_string();
        let params = [
            Param::Text(Some(subscription)),
            Param::Text(Some(&lane)),
            Param::Text(Some(&epoch)),
            Param::Text(settlement.cursor.as_ref().map(|cursor| cursor.0.as_str())),
            Param::Json(Some(&outcomes)),
        ];
        self.call(&self.statements.settle_lane, &params)
            .await
            .map(drop)
    }

    /// Keeps how far lanes are, and gives them back where asked to. Answers the lanes that were
    /// kept: a missing one is held by somebody else.
    pub async fn advance(
        &self,
        subscription: &str,
        held: &[LaneLease],
        release: bool,
    ) -> Result<Vec<u8>> {
        let held = serde_json::to_string(held)?;
        let params = [
            Param::Text(Some(subscription)),
            Param::Json(Some(&held)),
            Param::Text(Some(if release { "true" } else { "false" })),
        ];
        let rows = self.call(&self.statements.advance_lanes, &params).await?;
        let lanes = rows.into_iter().flatten().flatten();
        lanes
            .map(|lane| lane.parse().map_err(|_| unreadable()))
            .collect()
    }

    /// This relay goes: its lanes are free at once.
    pub async fn leave(&self, subscription: &str, owner: &str) -> Result<()> {
        let params = [subscription, owner].map(|text| Param::Text(Some(text)));
        self.call(&self.statements.leave_lanes, &params)
            .await
            .map(drop)
    }

    /// Creates the log's next partitions and drops those that nobody needs. Every relay does it now
    /// and then.
    pub async fn maintain(&self) -> Result<()> {
        self.call(&self.statements._create_outbox_partitions, &[])
            .await?;
        self.call(&self.statements._drop_outbox_partitions, &[])
            .await
            .map(drop)
    }

    /// One call in a transaction of its own; its rows count only once it has committed.
    pub(super) async fn call(
        &self,
        statement: &Statement,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        let end = &self.statements.nothing;
        call_alone(&self.driver, BEGIN, statement, params, end).await
    }

    pub(super) fn statements(&self) -> &Statements {
        &self.statements
    }
}

fn page(rows: Vec<Row>) -> Result<Page> {
    let mut page = Page::default();
    for row in rows {
        match Message::read(row)? {
            Read::Message(message) => page.messages.push(message),
            Read::Cursor(lane, cursor) => page.cursors.push((lane, cursor)),
        }
    }
    Ok(page)
}

/// The only cell of the only row.
pub(super) fn first(rows: Vec<Row>) -> Option<String> {
    rows.into_iter().flatten().next().flatten()
}

pub(super) fn unreadable() -> Error {
    Error::Schema(ErrorDetail::new(
        "P4099",
        "the outbox answered a row that this build cannot read",
        "Update this program, or run `pgonce migrate status`.",
    ))
}
