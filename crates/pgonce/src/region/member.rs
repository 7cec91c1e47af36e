//! A database among those that are connected, and waiting for it: always up to a deadline, always with a reason.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::call::{Args, Row, Sql};
use crate::driver::Driver;
use crate::error::{Error, ErrorDetail, Result};
use crate::once::Once;

static SELF: Sql = Sql::seldom(
    "select r.id::text, r.name, r.address, r.state from pgonce.regions r where r.is_self",
);
static OTHERS: Sql = Sql::seldom(
    "select r.id::text, r.name, r.address, r.state from pgonce.regions r where not r.is_self",
);
pub(super) static ACTIVATE: Sql =
    Sql::seldom("select 'done' from pgonce._activate_region($1::text::smallint, $2)");
pub(super) static CONNECT: Sql =
    Sql::seldom("select 'done' from pgonce._connect_region($1::text::smallint, $2, $3)");
pub(super) static BEAT: Sql = Sql::seldom("select b::text from pgonce._beat_region() b");
static HAS_BEAT: Sql = Sql::seldom(
    "select case when not exists (select from pgonce.regions r where r.id operator(pg_catalog.=) $1::text::smallint \
     and r.beat operator(pg_catalog.>=) $2::text::bigint and not r.missed) then coalesce((select pg_catalog.concat( \
     'its last heartbeat there was sent at ', coalesce(r.last_beat_at::text, 'no time'), \
     case when r.connected then '' else ', and it is not connected' end, \
     case when r.missed then ', and facts were missed: one of the two must join again' else '' end) \
     from pgonce.regions r where r.id operator(pg_catalog.=) $1::text::smallint), 'it is not known there') end",
);
static WRITERS: Sql = Sql::seldom("select pgonce._writers_of_intents()");
static STILL_WRITING: Sql = Sql::seldom("select pgonce._holders_of_intents($1)");
static MOVED_LEASES: Sql = Sql::seldom("select pgonce._end_moved_leases()");
/// The slot from which one region reads another, named on the server that has it. In use: its reader is ended, and the
/// next call drops it.
static DROP_SLOT: Sql = Sql::seldom(
    "select case when s.active then 'in use, ended: ' operator(pg_catalog.||) pg_catalog.pg_terminate_backend(s.active_pid)::text \
     else pg_catalog.pg_drop_replication_slot(s.slot_name)::text end \
     from pg_catalog.pg_replication_slots s where s.slot_name operator(pg_catalog.=) pgonce._region_slot($1::text::smallint)",
);
static PAGE: Sql = Sql::seldom(
    "select pg_catalog.jsonb_agg(f order by f.epoch, f.seq)::text, pg_catalog.max(f.epoch)::text, \
     (pg_catalog.array_agg(f.seq order by f.epoch desc, f.seq desc))[1]::text \
     from (select * from pgonce.region_fact f where f.region operator(pg_catalog.=) $1::text::smallint \
     and f.kind operator(pg_catalog.<>) 'beat' \
     and (f.epoch, f.seq) operator(pg_catalog.>) ($2::text::bigint, $3::text::bigint) order by f.epoch, f.seq limit 500) f",
);
static LAND: Sql = Sql::seldom("select n::text from pgonce._land_facts($1::jsonb) n");

/// Maximum time of a command: what is much longer cannot be added to a clock.
const MAX_TIMEOUT: Duration = Duration::from_secs(30 * 86_400);

/// When a command ends that may take so long.
pub(super) fn deadline_of(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(MAX_TIMEOUT)
}

/// A database that is a region, or becomes one: connected as the owner of the schema, who may create subscriptions.
#[derive(Debug, Clone)]
pub struct Member<D: Driver> {
    once: Once<D>,
    pub(super) reached_at: String,
}

impl<D: Driver> Member<D> {
    /// `reached_at` is how the *other* databases connect to this one: a URL or pairs, as libpq reads them.
    pub fn new(once: Once<D>, reached_at: impl Into<String>) -> Self {
        Self {
            once,
            reached_at: reached_at.into(),
        }
    }

    /// The first row of a statement. The server cancels it at the deadline; a server that does not reply is left.
    async fn row(&self, sql: &Sql, args: Args<'_>, deadline: Instant) -> Result<Option<Row>> {
        let mut caller = self.once.caller().clone();
        let left = deadline.saturating_duration_since(Instant::now());
        // Longer than functions wait for a lock: they say whose it is.
        caller.statement_timeout = Some(left.max(Duration::from_secs(4)));
        let grace = deadline.max(Instant::now()) + Duration::from_secs(5);
        match timeout_at(grace, caller.write(sql, args)).await {
            Ok(Err(error)) if error.code() == "57014" => {
                Err(too_late("a statement did not end", ""))
            }
            Ok(rows) => Ok(rows?.first()),
            Err(_) => Err(too_late("a database does not reply", "")),
        }
    }

    pub(super) async fn text(
        &self,
        sql: &Sql,
        args: Args<'_>,
        deadline: Instant,
    ) -> Result<Option<String>> {
        let row = self.row(sql, args, deadline).await?;
        Ok(row.and_then(|mut row| row.opt_text()))
    }

    /// A statement that needs locks for a moment, until it gets them. It waits for them briefly, since others wait behind it.
    pub(super) async fn locking<'a>(
        &self,
        sql: &Sql,
        args: impl Fn() -> Args<'a>,
        deadline: Instant,
    ) -> Result<Option<String>> {
        loop {
            match self.text(sql, args(), deadline).await {
                Err(error) if error.code() == "55P03" && Instant::now() < deadline => {
                    sleep(Duration::from_millis(500)).await;
                }
                done => return done,
            }
        }
    }

    /// This member as a region, where it is one.
    pub(super) async fn if_region(&self, deadline: Instant) -> Result<Option<Known>> {
        let row = self.row(&SELF, Args::new(), deadline).await?;
        row.map(Known::read).transpose()
    }

    /// This member as a region.
    pub(super) async fn itself(&self, deadline: Instant) -> Result<Known> {
        self.if_region(deadline).await?.ok_or_else(|| {
            Error::Invalid(ErrorDetail::new(
                "22023",
                "a database that was named is not a region",
                "Let the first region join alone; name only databases that have joined.",
            ))
        })
    }

    /// The other regions that this one knows.
    pub(super) async fn others(&self) -> Result<Vec<Known>> {
        let rows = self.once.caller().call(&OTHERS, Args::new()).await?;
        rows.read(Known::read)
    }

    /// Asks until the answer is null; until then it says what is waited for.
    pub(super) async fn wait<'a>(
        &self,
        what: &str,
        sql: &Sql,
        args: impl Fn() -> Args<'a>,
        deadline: Instant,
    ) -> Result<()> {
        while let Some(reason) = self.text(sql, args(), deadline).await? {
            if Instant::now() > deadline {
                return Err(too_late(what, &reason));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Waits until nothing is under way here whose home is not here any more, by what this database knows.
    ///
    /// From then on nothing of that kind is committed here: new claims are refused, and so are attempts that
    /// were claimed before and had not written. Those that had are waited for, and so are leases, and commands that have called a
    /// provider, which go on here.
    pub(super) async fn drain(&self, name: &str, deadline: Instant) -> Result<()> {
        if let Some(writers) = self.text(&WRITERS, Args::new(), deadline).await? {
            let what = format!("transactions in region {name:?} have not ended");
            let args = || Args::texts([&*writers]);
            self.wait(&what, &STILL_WRITING, args, deadline).await?;
        }
        let what = format!("work in region {name:?} has not ended");
        self.wait(&what, &MOVED_LEASES, Args::new, deadline).await
    }

    /// Waits until another region has everything that this one has committed so far. False where this one cannot send.
    pub(super) async fn reaches(
        &self,
        from: &Known,
        others: &[(&Self, &Known)],
        deadline: Instant,
    ) -> Result<bool> {
        let Some(beat) = self.text(&BEAT, Args::new(), deadline).await? else {
            return Ok(false);
        };
        for (other, to) in others {
            let what = format!(
                "region {:?} has not received what region {:?} committed",
                to.name, from.name
            );
            let args = || Args::new().int(from.id).text(&*beat);
            other.wait(&what, &HAS_BEAT, args, deadline).await?;
        }
        Ok(true)
    }

    /// Drops the slot from which another region reads this one.
    pub(super) async fn drop_slot(&self, reader: i64, deadline: Instant) -> Result<()> {
        let args = || Args::new().int(reader);
        let what = "a replication slot is in use and cannot be dropped";
        loop {
            let state = match self.text(&DROP_SLOT, args(), deadline).await {
                Ok(None) => return Ok(()),
                Ok(Some(state)) => state,
                // Since it was looked at, its reader came back, or it is gone.
                Err(error) if ["55006", "42704"].contains(&error.code()) => error.to_string(),
                Err(error) => return Err(error),
            };
            if Instant::now() > deadline {
                return Err(too_late(what, &state));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Copies the facts of a region that this database has to another that may not have them.
    pub(super) async fn copy(&self, to: &Self, region: i64, deadline: Instant) -> Result<()> {
        let (mut epoch, mut seq) = (0, 0);
        loop {
            let args = Args::new().int(region).int(epoch).int(seq);
            let Some(mut row) = self.row(&PAGE, args, deadline).await? else {
                return Ok(());
            };
            let Some(facts) = row.opt_text() else {
                return Ok(());
            };
            to.text(&LAND, Args::new().json(&*facts), deadline).await?;
            (epoch, seq) = (row.get()?, row.get()?);
        }
    }
}

/// A region by its number.
pub(super) struct Known {
    pub(super) id: i64,
    pub(super) name: String,
    pub(super) address: String,
    pub(super) state: String,
}

impl Known {
    fn read(mut row: Row) -> Result<Self> {
        Ok(Self {
            id: row.get()?,
            name: row.text()?,
            address: row.text()?,
            state: row.text()?,
        })
    }

    pub(super) fn args(&self) -> Args<'_> {
        Args::new()
            .int(self.id)
            .text(&*self.name)
            .text(&*self.address)
    }
}

/// Every region that any of these knows, and that is not lost, must be among `known`: what is not asked could be a home
/// by other rules. Answers those that are lost.
pub(super) async fn all_are_named<D: Driver>(
    members: &[&Member<D>],
    known: &[&Known],
) -> Result<Vec<Known>> {
    let mut lost = Vec::<Known>::new();
    for member in members {
        for region in member.others().await? {
            if known.iter().any(|given| given.id == region.id) {
                continue;
            } else if region.state != "lost" {
                return Err(Error::Invalid(ErrorDetail::new(
                    "22023",
                    format!("region {:?} was not named", region.name),
                    "Name the database of every region with --with; one that is gone is taken out with `pgonce region leave`.",
                )));
            } else if lost.iter().all(|seen| seen.id != region.id) {
                lost.push(region);
            }
        }
    }
    Ok(lost)
}

pub(super) fn too_late(what: &str, reason: &str) -> Error {
    let mut detail = ErrorDetail::new(
        "55P03",
        format!("{what} in time"),
        "What was begun stays and is safe: nothing is worked on twice. Let what is named end, or end it, look at `pgonce region status` \
         and the servers' logs (they must reach each other, with wal_level = logical), and run the command again.",
    );
    detail.detail = (!reason.is_empty()).then(|| reason.into());
    Error::Database(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_timeout_has_a_deadline_too() {
        assert!(deadline_of(Duration::MAX) > Instant::now());
    }
}
