//! Several regions: databases that share intents by logical replication.
//!
//! Each region works on the intents whose home it is, or on all of them, as the rule of the scope says
//! ([`Rule`]), and receives what the others finished. What two regions committed is listed, never hidden. See the page
//! "Regions" of the book.

mod join;
mod leave;
mod member;
mod rule;

use std::fmt;
use std::time::{Duration, Instant};

pub use join::join;
pub use leave::{check_leave, leave};
pub use member::Member;
pub use rule::define_rule;
use serde::Deserialize;

use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::intent::Intent;
use crate::once::Once;

static REGIONS: Sql = Sql::seldom(
    "select r.id::text, r.name, r.address, r.is_self::text, r.state, r.epoch::text, \
     pg_catalog.floor(extract(epoch from r.lag) operator(pg_catalog.*) 1000)::bigint::text, r.connected::text, \
     r.pending::text, r.double_commits::text, r.missed::text, r.pending_rules from pgonce.regions r order by r.id",
);
static BEAT: Sql = Sql::kept(
    "select (b is not null)::text, pg_catalog.clock_timestamp()::text from pgonce._beat_region() b",
);
static MERGE: Sql = Sql::kept("select m::text from pgonce._merge_pending($1::text::timestamptz) m");
static PURGE: Sql = Sql::seldom("select n::text from pgonce._purge_facts() n");
static HOME: Sql = Sql::kept(
    "select r.name, r.address, r.is_self::text, (r.mode operator(pg_catalog.<>) 'read_only')::text from pgonce.region_of($1, $2, $3) r",
);

/// A region as this one knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Region {
    /// Number, from 1 to 63, part of the fences of its leases.
    pub id: u8,
    /// Name, such as `eu`.
    pub name: String,
    /// Where its services are reached, such as `https://eu.shop.example`.
    pub address: String,
    /// Whether this is the region that was asked.
    pub is_self: bool,
    /// `joining`, `active`, `leaving`, `lost`, or `restored`: it must join again.
    pub state: String,
    /// Epoch with which its fences start.
    pub epoch: u64,
    /// How far behind it this region is; `None` of itself, and where facts of it were missed.
    pub lag: Option<Duration>,
    /// Whether its facts arrive at present; `None` of itself.
    pub connected: Option<bool>,
    /// Number of intents here whose facts arrived and are not merged yet.
    pub pending: u64,
    /// Number of effects too many that nobody has resolved.
    pub double_commits: u64,
    /// Whether a heartbeat of it was missed here, and facts with it: a slot, subscription or publication was changed by
    /// hand. One of the two must join again.
    pub missed: bool,
    /// Scopes whose rule is pending here: [`define_rule`] was interrupted. `None` where there are none.
    pub pending_rules: Option<String>,
}

/// The home of an intent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Home {
    /// Name of the region.
    #[serde(rename = "home")]
    pub name: String,
    /// Where its services are reached; empty where nobody said so.
    pub address: String,
    /// Whether a request may be sent on to it.
    pub forward: bool,
}

impl Home {
    /// The home that an error names: `P4110`, the intent belongs to another region.
    ///
    /// ```
    /// use pgonce::{Error, region::Home};
    ///
    /// assert!(Home::from_error(&Error::Cancelled).is_none());
    /// ```
    pub fn from_error(error: &Error) -> Option<Self> {
        match error {
            Error::WrongRegion(detail) => serde_json::from_str(detail.detail.as_deref()?).ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Where the intents of a scope are worked on. It must be the same in every region.
///
/// ```
/// use std::time::Duration;
/// use pgonce::region::{Mode, Rule};
///
/// let carts = Rule::new("carts.add", Mode::Local).max_lag(Duration::from_secs(10));
/// let payments = Rule::new("payments.create", Mode::Home).home("eu");
/// # let _ = (carts, payments);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a rule is nothing until region::define_rule"]
pub struct Rule {
    scope: String,
    mode: Mode,
    home: String,
    max_lag: Option<Duration>,
    tenant: String,
}

/// What regions other than the home may do with an intent that has no answer yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: they answer `P4110` with the home's address.
    Home,
    /// Work on it. What two regions committed becomes a task.
    Local,
    /// As [`Mode::Home`], and requests are not sent on.
    ReadOnly,
}

impl Rule {
    /// A rule for a scope; `*` for all that have none. The home follows from the key.
    pub fn new(scope: impl Into<String>, mode: Mode) -> Self {
        Self {
            scope: scope.into(),
            mode,
            home: "key".to_owned(),
            max_lag: None,
            tenant: String::new(),
        }
    }

    /// What the home follows from: `key`, `tenant`, or the name of the region that it is. Default: `key`.
    pub fn home(mut self, home: impl Into<String>) -> Self {
        self.home = home.into();
        self
    }

    /// Maximum lag behind the home with which another region works on intents, in [`Mode::Local`]. Default: none.
    pub fn max_lag(mut self, max_lag: Duration) -> Self {
        self.max_lag = Some(max_lag);
        self
    }

    /// Only for this tenant. Default: all.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }
}

impl<D: Driver> Once<D> {
    /// The regions that this database knows, itself included; none where regions are not used.
    pub async fn regions(&self) -> Result<Vec<Region>> {
        let rows = self.caller().call(&REGIONS, Args::new()).await?;
        rows.read(|mut row| {
            Ok(Region {
                id: row.get()?,
                name: row.text()?,
                address: row.text()?,
                is_self: row.bool()?,
                state: row.text()?,
                epoch: row.get()?,
                lag: row.opt_millis()?,
                connected: row.opt()?,
                pending: row.get()?,
                double_commits: row.get()?,
                missed: row.bool()?,
                pending_rules: row.opt_text(),
            })
        })
    }

    /// The home of an intent, and whether it is this region; `None` where regions are not used.
    pub async fn home_of(&self, intent: &Intent) -> Result<Option<(Home, bool)>> {
        let args = Args::texts([intent.scope(), intent.key(), intent.tenant_name()]);
        let mut row = self.caller().call(&HOME, args).await?.one()?;
        let (Some(name), Some(address)) = (row.opt_text(), row.opt_text()) else {
            return Ok(None);
        };
        let is_self = row.bool()?;
        let forward = row.bool()?;
        Ok(Some((
            Home {
                name,
                address,
                forward,
            },
            is_self,
        )))
    }

    /// Sends a heartbeat to the other regions, by which they know how far behind they are, and merges what
    /// could not be merged at once, for a second. `pgonce serve` does this every second. Answers whether this is a region.
    pub async fn beat_region(&self) -> Result<bool> {
        let begun = Instant::now();
        let mut row = self.caller().write(&BEAT, Args::new()).await?.one()?;
        let (is_region, before) = (row.bool()?, row.text()?);
        // What still fails is put behind the others, and tried with the next heartbeat.
        while begun.elapsed() < Duration::from_secs(1) {
            let merged = self.caller().write(&MERGE, Args::texts([&*before])).await?;
            if !merged.one()?.bool()? {
                break;
            }
        }
        Ok(is_region)
    }

    /// Removes what regions know of intents that expired everywhere. `pgonce serve` does this.
    pub async fn purge_region_facts(&self) -> Result<u64> {
        let row = self.caller().write(&PURGE, Args::new()).await?;
        row.one()?.get()
    }
}
