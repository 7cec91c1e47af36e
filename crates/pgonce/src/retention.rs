//! Removing finished records and ended jobs whose retention is over.

use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::Result;
use crate::once::Once;

static PURGE: Sql = Sql::kept("select n::text from pgonce.purge($1::text::integer) n");
static PURGE_JOBS: Sql = Sql::kept("select pgonce._purge_jobs($1::text::integer)::text");

impl<D: Driver> Once<D> {
    /// Removes at most `limit` finished records whose retention is over. Returns their number: call it
    /// again while that equals the limit. Unfinished records are never touched, and many instances may
    /// call it at once.
    pub async fn purge(&self, limit: u32) -> Result<u64> {
        let args = Args::new().int(i64::from(limit));
        self.caller().call(&PURGE, args).await?.one()?.get()
    }

    /// Removes at most `limit` ended jobs whose retention is over, as every worker does. Returns their number.
    #[doc(hidden)]
    pub async fn purge_jobs(&self, limit: u32) -> Result<u64> {
        let args = Args::new().int(i64::from(limit));
        self.caller().call(&PURGE_JOBS, args).await?.one()?.get()
    }
}
