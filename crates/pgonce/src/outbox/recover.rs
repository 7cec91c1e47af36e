//! What was missed is given again; and how far "everything" is.

use std::ops::RangeInclusive;
use std::time::{SystemTime, UNIX_EPOCH};

use super::lanes::Outbox;
use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::Result;

static RECOVER: Sql = Sql::seldom(
    "select n::text from pgonce.recover($1, pg_catalog.to_timestamp($2::text::double precision), \
     $3::text::boolean) n",
);
static REPLAY_RANGE: Sql = Sql::seldom(
    "select n::text from pgonce.replay_range($1, p_from_seq => $2::text::bigint, \
     p_to_seq => $3::text::bigint) n",
);
static GOAL: Sql = Sql::seldom("select pg_catalog.pg_current_snapshot()::text");
static CAUGHT_UP: Sql =
    Sql::seldom("select c::text from pgonce.outbox_caught_up($1, $2::text::pg_snapshot) c");

/// Everything that was committed at one moment. Made by [`Outbox::goal`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Goal(String);

impl<D: Driver> Outbox<D> {
    /// Tries once more what a subscription did not get since a time: dead letters, and with `skipped` also
    /// what was skipped or discarded, as far as the log still has it. Answers how many subjects and
    /// skipped events move again.
    pub async fn recover(
        &self,
        subscription: &str,
        since: SystemTime,
        skipped: bool,
    ) -> Result<u64> {
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let since = since.as_secs_f64().to_string();
        let args = Args::texts([subscription, &since]).bool(skipped);
        self.call(&RECOVER, args).await?.one()?.get()
    }

    /// Gives a subscription some events of the log once more, and no others. Answers how many: what it
    /// wants, has passed, and the log still has; at most 10,000 at a time (`22023` beyond that).
    pub async fn replay_range(&self, subscription: &str, seqs: RangeInclusive<i64>) -> Result<u64> {
        let args = Args::new().text(subscription);
        let args = args.int(*seqs.start()).int(*seqs.end());
        self.call(&REPLAY_RANGE, args).await?.one()?.get()
    }

    /// Everything that is committed now.
    pub async fn goal(&self) -> Result<Goal> {
        let rows = self.call(&GOAL, Args::default()).await?;
        rows.one()?.text().map(Goal)
    }

    /// Whether a subscription has got everything up to the goal. What is to be tried later, not due yet, or
    /// given up does not count.
    pub async fn caught_up(&self, subscription: &str, goal: &Goal) -> Result<bool> {
        let args = Args::texts([subscription, &goal.0]);
        self.call(&CAUGHT_UP, args).await?.one()?.bool()
    }
}
