//! Work that stopped before its end: which there is ([`Once::stuck`]), and what becomes of it ([`Once::recovery`]).
//!
//! A contract's probe, a SQL function of the application, says whether the effect of such work happened. The role that
//! recovers calls it, and its owner's rights are all that it has: see [`Contract::probe`](crate::scope::Contract::probe).

mod decide;
mod slots;

pub use decide::{Recovered, Recovery};

use std::fmt;
use std::time::Duration;

use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::Result;
use crate::once::Once;

static STUCK: Sql = Sql::seldom(
    "select pgonce._readable(tenant), pgonce._readable(scope), pgonce._readable(key), attempts::text, pgonce._readable(owner), \
     pg_catalog.floor(extract(epoch from stuck_for) operator(pg_catalog.*) 1000)::bigint::text, pgonce._readable(failure_code), \
     classification \
     from pgonce.stuck limit $1::text::integer",
);

static FIGURES: Sql = Sql::seldom("select figure, name, state, value::text from pgonce._figures()");

/// One count of what waits for somebody: what it counts, its name and state, and how many or how long.
#[doc(hidden)]
pub type Figure = (String, String, String, f64);

/// What may be done about stuck work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Classification {
    /// The next attempt may simply take it.
    SafeToRetry,
    /// [`Recovery`] asks the probe of the contract first.
    NeedsProbe,
    /// The contract wants an operator to decide.
    NeedsManualAction,
    /// The contract gives it up; the next claim is refused.
    Abandoned,
}

/// An intent whose work stopped on the way.
#[derive(Clone, PartialEq)]
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

/// The key stays out of logs.
impl fmt::Debug for StuckIntent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StuckIntent")
            .field("tenant", &self.tenant)
            .field("scope", &self.scope)
            .field("attempts", &self.attempts)
            .field("owner", &self.owner)
            .field("stuck_for", &self.stuck_for)
            .field("failure_code", &self.failure_code)
            .field("classification", &self.classification)
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Once<D> {
    /// What waits for somebody, as the metrics of `pgonce serve` show it.
    #[doc(hidden)]
    pub async fn figures(&self) -> Result<Vec<Figure>> {
        let rows = self.caller().call(&FIGURES, Args::new()).await?;
        rows.read(|mut row| Ok((row.text()?, row.text()?, row.text()?, row.get()?)))
    }

    /// Work that stopped on the way, the oldest first, at most `limit`: leases that ran out and
    /// failures that may be retried. Nothing of it is ever deleted for being old.
    pub async fn stuck(&self, limit: u32) -> Result<Vec<StuckIntent>> {
        let args = Args::new().int(i64::from(limit));
        self.caller().call(&STUCK, args).await?.read(|mut row| {
            Ok(StuckIntent {
                tenant: row.text()?,
                scope: row.text()?,
                key: row.text()?,
                attempts: row.get()?,
                owner: row.opt_text(),
                stuck_for: row.opt_millis()?.unwrap_or_default(),
                failure_code: row.opt_text(),
                classification: match row.opt_text().as_deref() {
                    Some("safe_to_retry") => Classification::SafeToRetry,
                    Some("needs_probe") => Classification::NeedsProbe,
                    Some("abandoned") => Classification::Abandoned,
                    _ => Classification::NeedsManualAction,
                },
            })
        })
    }
}
