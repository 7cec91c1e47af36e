//! Finding work that stopped on the way.

use std::time::Duration;

use crate::Result;
use crate::driver::{Connection as _, Driver, Param, Statement};
use crate::lease::keep_unless_lost;
use crate::once::Once;

/// What may be done about stuck work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Classification {
    /// The next attempt may simply take it.
    SafeToRetry,
    /// The contract wants a person to decide.
    NeedsAPerson,
    /// The contract gives it up; the next claim is refused.
    Abandoned,
}

/// An intent whose work stopped on the way.
#[derive(Debug, Clone, PartialEq)]
pub struct StuckIntent {
    /// The tenant; empty where there are none.
    pub tenant: String,
    /// The scope.
    pub scope: String,
    /// The key.
    pub key: String,
    /// How many attempts were made.
    pub attempts: u32,
    /// Who held it last.
    pub owner: Option<String>,
    /// Since when its lease is over, or since it failed.
    pub stuck_for: Duration,
    /// The last failure's code.
    pub failure_code: Option<String>,
    /// What may be done.
    pub classification: Classification,
}

impl<D: Driver> Once<D> {
    /// Work that stopped on the way, the oldest first, at most `limit`: leases that ran out and
    /// failures that may be retried. Nothing of it is ever deleted for being old.
    pub async fn stuck(&self, limit: u32) -> Result<Vec<StuckIntent>> {
        let statement = Statement {
            sql: format!(
                "select tenant, scope, key, attempts::text, owner, \
                 floor(extract(epoch from stuck_for) * 1000)::bigint::text, failure_code, classification \
                 from {}.stuck limit $1::text::integer",
                self.statements().schema
            )
            .into(),
            keep: false,
        };
        let limit = limit.to_string();
        let mut session = self.driver().acquire().await?;
        let rows = session
            .query(&statement, &[Param::Text(Some(&limit))])
            .await;
        keep_unless_lost(session, &rows);
        Ok(rows?
            .into_iter()
            .map(|row| {
                let mut cells = row.into_iter();
                let mut next = || cells.next().flatten();
                StuckIntent {
                    tenant: next().unwrap_or_default(),
                    scope: next().unwrap_or_default(),
                    key: next().unwrap_or_default(),
                    attempts: next().and_then(|n| n.parse().ok()).unwrap_or_default(),
                    owner: next(),
                    stuck_for: Duration::from_millis(
                        next().and_then(|n| n.parse().ok()).unwrap_or_default(),
                    ),
                    failure_code: next(),
                    classification: match next().as_deref() {
                        Some("safe_to_retry") => Classification::SafeToRetry,
                        Some("abandoned") => Classification::Abandoned,
                        _ => Classification::NeedsAPerson,
                    },
                }
            })
            .collect())
    }
}
