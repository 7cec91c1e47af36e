//! Claims whose reply does not come: whether the database still works on them.

use std::time::Duration;

use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::Result;
use crate::once::{CLAIM, Once};

/// PostgreSQL shows the beginning of a statement, and of other roles only that there is one.
static STALLED: Sql = Sql::seldom(
    "select exists (select from pg_catalog.pg_stat_activity a \
     where a.datname operator(pg_catalog.=) pg_catalog.current_database() \
     and a.pid operator(pg_catalog.<>) pg_catalog.pg_backend_pid() and a.state operator(pg_catalog.=) 'active' \
     and a.query_start operator(pg_catalog.<=) (pg_catalog.clock_timestamp() operator(pg_catalog.-) $2::text::interval) \
     and (a.query operator(pg_catalog.<>) '' and pg_catalog.starts_with($1::text, a.query) \
     or pg_catalog.lower(a.query) operator(pg_catalog.=) 'commit'))::text",
);

impl<D: Driver> Once<D> {
    /// Whether a full claim, or a commit, is under way in the database for this time or longer, of any client. One that the
    /// database works on will be answered; where there is none, a claim without a reply never gets one. Asked on a connection
    /// of its own, since those of the pool may all wait for replies. The caller limits its time.
    #[doc(hidden)]
    pub async fn has_stalled_claim(&self, since: Duration) -> Result<bool> {
        let regions = self.regions.iter().map(|(_, once)| once);
        for once in std::iter::once(self).chain(regions) {
            let caller = once.caller();
            let claim = caller.schema.statement(&CLAIM).sql;
            let args = Args::texts([&*claim]).interval(since);
            if caller.call_beside(&STALLED, args).await?.one()?.bool()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
