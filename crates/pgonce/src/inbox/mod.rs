//! Messages that may come many times and have one effect.
//!
//! In a transaction of your own ask [`Once::accept`](crate::Once::accept), or
//! [`Once::accept_batch`](crate::Once::accept_batch), and apply what is new; both commit together or not at
//! all. A consumer does the rest, from a broker's acknowledgement to messages that fail: the crate
//! `pgonce-broker` has one, built on [`Inbox`], which only calls SQL functions.

mod accept;
mod batch;
mod cursor;
mod literal;
mod message;
mod operate;
mod projection;
mod stored;

use std::sync::Arc;

pub use batch::{Batch, Tx, Verdict};
pub use cursor::PartitionLease;
pub use message::{Message, Place, Position};
pub use operate::{Backlog, Contract, Poison};
pub use projection::{Rebuilt, Verified};
pub use stored::{As, Claimed, Status, Stored};

use crate::alone::{BEGIN, call_alone};
use crate::driver::{Driver, Param, Row, Statement};
use crate::error::ErrorDetail;
use crate::statements::Statements;
use crate::{Error, Once, Result};

/// The inbox of a database, for consumers and operators. Made by [`Once::inbox`]; cheap to clone.
#[derive(Debug, Clone)]
pub struct Inbox<D: Driver> {
    driver: D,
    statements: Arc<Statements>,
}

impl<D: Driver> Once<D> {
    /// The inbox of the same database.
    pub fn inbox(&self) -> Inbox<D> {
        Inbox {
            driver: self.driver().clone(),
            statements: self.shared_statements(),
        }
    }
}

impl<D: Driver> Inbox<D> {
    /// One call in a transaction of its own; its rows count only once it has committed.
    async fn call(&self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.call_in(BEGIN, statement, params).await
    }

    async fn call_in(
        &self,
        begin: &str,
        statement: &Statement,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        let end = &self.statements.durably;
        call_alone(&self.driver, begin, statement, params, end).await
    }

    /// A call that is made seldom: its statement is not kept.
    async fn ask(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.call(&self.seldom(sql), params).await
    }

    fn seldom(&self, sql: &str) -> Statement {
        let schema = &self.statements.schema;
        Statement {
            sql: sql.replace("pgonce.", &format!("{schema}.")).into(),
            keep: false,
        }
    }
}

/// The only cell of the only row.
fn first(rows: Vec<Row>) -> Option<String> {
    rows.into_iter().flatten().next().flatten()
}

fn number(rows: Vec<Row>) -> Result<u64> {
    first(rows)
        .and_then(|n| n.parse().ok())
        .ok_or_else(unreadable)
}

fn unreadable() -> Error {
    Error::Schema(ErrorDetail::new(
        "P4099",
        "the inbox answered a row that this build cannot read",
        "Update this program, or run `pgonce migrate status`.",
    ))
}
