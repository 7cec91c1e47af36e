//! Connecting regions, in an order that loses nothing and lets no two regions be home at once.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::{Error, ErrorDetail, Result};
use crate::once::Once;

static SELF: Sql = Sql::seldom(
    "select r.id::text, r.name, r.address, r.state from pgonce.regions r where r.is_self",
);
static OTHERS: Sql = Sql::seldom(
    "select r.id::text, r.name, r.address, r.state from pgonce.region r where not r.is_self",
);
static ADD: Sql =
    Sql::seldom("select e::text from pgonce._add_region($1::text::smallint, $2, $3) e");
static JOIN: Sql = Sql::seldom(
    "select e::text from pgonce.region_join($1::text::smallint, $2, $3, $4::text::bigint) e",
);
static RECORD_OLD: Sql = Sql::seldom("select n::text from pgonce._record_old_facts() n");
static ACTIVATE: Sql =
    Sql::seldom("select x from pgonce._activate_region($1::text::smallint, $2) x");
static LEAVE: Sql = Sql::seldom("select 'done' from pgonce.region_leave($1)");
static CONNECT: Sql =
    Sql::seldom("select 'done' from pgonce._connect_region($1::text::smallint, $2, $3)");
static RULES: Sql = Sql::seldom("select pg_catalog.jsonb_agg(r)::text from pgonce.region_rule r");
static SET_RULES: Sql = Sql::seldom(
    "with new as (insert into pgonce.region_rule select r.* from pg_catalog.jsonb_populate_recordset(null::pgonce.region_rule, $1::jsonb) r \
     on conflict on constraint one_rule_per_scope do update set mode = excluded.mode, home = excluded.home, max_lag = excluded.max_lag \
     returning 1) select pg_catalog.count(*)::text from new",
);
/// The slot from which one region reads another, named on the server that has it. In use: its reader is ended, and the
/// next call drops it.
static DROP_SLOT: Sql = Sql::seldom(
    "select case when s.active then pg_catalog.pg_terminate_backend(s.active_pid)::text \
     else pg_catalog.pg_drop_replication_slot(s.slot_name)::text end \
     from pg_catalog.pg_replication_slots s where s.slot_name operator(pg_catalog.=) pgonce._region_slot($1::text::smallint)",
);
static CREATE_SLOT: Sql = Sql::seldom(
    "select s.slot_name::text from pg_catalog.pg_create_logical_replication_slot(pgonce._region_slot($1::text::smallint), 'pgoutput') s",
);
static PAGE: Sql = Sql::seldom(
    "select pg_catalog.jsonb_agg(f order by f.epoch, f.seq)::text, pg_catalog.max(f.epoch)::text, \
     (pg_catalog.array_agg(f.seq order by f.epoch desc, f.seq desc))[1]::text \
     from (select * from pgonce.region_fact f where f.region operator(pg_catalog.=) $1::text::smallint \
     and (f.epoch, f.seq) operator(pg_catalog.>) ($2::text::bigint, $3::text::bigint) order by f.epoch, f.seq limit 500) f",
);
static LAND: Sql = Sql::seldom("select n::text from pgonce._land_facts($1::jsonb) n");
static IS_OVER: Sql = Sql::seldom(
    "select (pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()) operator(pg_catalog.>) $1::text::xid8)::text",
);
static BEAT: Sql = Sql::seldom("select b::text from pgonce._beat_region() b");
static HAS_BEAT: Sql = Sql::seldom(
    "select (r.last_beat_at operator(pg_catalog.>=) $2::text::timestamptz)::text from pgonce.region r where r.id operator(pg_catalog.=) $1::text::smallint",
);

/// A database that is a region, or becomes one: connected as the owner of the schema, who may create subscriptions.
#[derive(Debug, Clone)]
pub struct Member<D: Driver> {
    once: Once<D>,
    reached_at: String,
}

impl<D: Driver> Member<D> {
    /// `reached_at` is how the *other* databases connect to this one: a URL or pairs, as libpq reads them.
    pub fn new(once: Once<D>, reached_at: impl Into<String>) -> Self {
        Self {
            once,
            reached_at: reached_at.into(),
        }
    }

    async fn text(&self, sql: &Sql, args: Args<'_>) -> Result<Option<String>> {
        let row = self.once.caller().write(sql, args).await?.first();
        Ok(row.and_then(|mut row| row.opt_text()))
    }

    /// This member as a region.
    async fn itself(&self) -> Result<Known> {
        let row = self.once.caller().call(&SELF, Args::new()).await?.first();
        match row {
            Some(row) => Known::read(row),
            None => Err(Error::Invalid(ErrorDetail::new(
                "22023",
                "a database that was named is not a region",
                "Let the first region join alone; name only databases that have joined.",
            ))),
        }
    }
}

/// A region by its number.
struct Known {
    id: i64,
    name: String,
    address: String,
    state: String,
}

impl Known {
    fn read(mut row: crate::call::Row) -> Result<Self> {
        Ok(Self {
            id: row.get()?,
            name: row.text()?,
            address: row.text()?,
            state: row.text()?,
        })
    }

    fn args(&self) -> Args<'_> {
        Args::new()
            .int(self.id)
            .text(&*self.name)
            .text(&*self.address)
    }
}

/// Makes a database a region, or again after it was restored, promoted or away, and connects it with the others.
///
/// `others` are all regions that are not lost. It may be repeated after any error. The order matters: slots come
/// before facts are copied, so that nothing falls between; and the others know that this region is a home before it
/// is one, after their older transactions have ended and what they committed is here. Fences of an earlier life of the
/// region are never used again: the others remember its epoch.
///
/// ```no_run
/// # async fn example(us: pgonce::tokio_postgres::Once, eu: pgonce::tokio_postgres::Once) -> Result<(), pgonce::Error> {
/// use std::time::Duration;
/// use pgonce::region::{Member, join};
///
/// let us = Member::new(us, "postgres://pgonce@us-db.internal/shop");
/// let eu = Member::new(eu, "postgres://pgonce@eu-db.internal/shop");
/// join(&us, 2, "us", "https://us.shop.example", &[eu], Duration::from_secs(60)).await?;
/// # Ok(())
/// # }
/// ```
pub async fn join<D: Driver>(
    this: &Member<D>,
    id: u8,
    name: &str,
    address: &str,
    others: &[Member<D>],
    timeout: Duration,
) -> Result<()> {
    let deadline = Instant::now() + timeout;
    let me = Known {
        id: id.into(),
        name: name.to_owned(),
        address: address.to_owned(),
        state: String::new(),
    };
    let mut known = Vec::new();
    let mut above = 0;
    for other in others {
        known.push(other.itself().await?);
        let epoch = other.text(&ADD, me.args()).await?;
        above = above.max(epoch.and_then(|epoch| epoch.parse().ok()).unwrap_or(0));
    }
    let mut lost = Vec::new();
    for other in others {
        for region in regions_of(other).await? {
            if region.id == me.id || known.iter().any(|given| given.id == region.id) {
                continue;
            } else if region.state != "lost" {
                return Err(Error::Invalid(ErrorDetail::new(
                    "22023",
                    format!("region {:?} was not named", region.name),
                    "Name every region; one that is gone is taken out with `pgonce region leave`.",
                )));
            }
            lost.push(region);
        }
    }
    this.text(&JOIN, me.args().int(above)).await?;
    this.text(&RECORD_OLD, Args::new()).await?;
    for region in known.iter().chain(&lost) {
        this.text(&ADD, region.args()).await?;
        let state = match &*region.state {
            "restored" => "joining",
            state => state,
        };
        let args = Args::new().int(region.id).text(state);
        this.text(&ACTIVATE, args).await?;
    }
    for (region, other) in known.iter().zip(others) {
        if let Some(rules) = other.text(&RULES, Args::new()).await? {
            this.text(&SET_RULES, Args::new().json(&*rules)).await?;
        }
        subscribe((this, me.id), (other, region.id), deadline).await?;
        subscribe((other, region.id), (this, me.id), deadline).await?;
        // Its own facts, what this region has forgotten of its own, and what lost ones left.
        for id in [region.id, me.id]
            .into_iter()
            .chain(lost.iter().map(|lost| lost.id))
        {
            copy(other, this, id).await?;
        }
        copy(this, other, me.id).await?;
    }
    for (region, other) in known.iter().zip(others) {
        let args = Args::new().int(me.id).text("active");
        let Some(last) = other.text(&ACTIVATE, args).await? else {
            continue;
        };
        wait(other, &IS_OVER, || Args::texts([&*last]), deadline).await?;
        if let Some(beat) = other.text(&BEAT, Args::new()).await? {
            let args = || Args::new().int(region.id).text(&*beat);
            wait(this, &HAS_BEAT, args, deadline).await?;
        }
    }
    let args = Args::new().int(me.id).text("active");
    this.text(&ACTIVATE, args).await?;
    this.text(&BEAT, Args::new()).await.map(drop)
}

/// Takes a region out. `survivors` are all other regions: its intents get another home among them. Where it can be
/// reached, name it too: it becomes a single database again.
pub async fn leave<D: Driver>(
    name: &str,
    survivors: &[Member<D>],
    itself: Option<&Member<D>>,
    timeout: Duration,
) -> Result<()> {
    let deadline = Instant::now() + timeout;
    for survivor in survivors {
        let others = regions_of(survivor).await?;
        let gone = others.into_iter().find(|region| region.name == name);
        survivor.text(&LEAVE, Args::texts([name])).await?;
        if let Some(gone) = &gone {
            drop_slot(survivor, gone.id, deadline).await?;
        }
    }
    let Some(itself) = itself else {
        return Ok(());
    };
    let others = regions_of(itself).await?;
    for other in others {
        drop_slot(itself, other.id, deadline).await?;
    }
    itself.text(&LEAVE, Args::texts([name])).await.map(drop)
}

async fn regions_of<D: Driver>(member: &Member<D>) -> Result<Vec<Known>> {
    let rows = member.once.caller().call(&OTHERS, Args::new()).await?;
    rows.read(Known::read)
}

/// Lets one region receive what the other commits from now on, by a new slot.
async fn subscribe<D: Driver>(
    (reader, reader_id): (&Member<D>, i64),
    (writer, writer_id): (&Member<D>, i64),
    deadline: Instant,
) -> Result<()> {
    let none = Args::new().int(writer_id).text(None).text(None);
    reader.text(&CONNECT, none).await?;
    drop_slot(writer, reader_id, deadline).await?;
    let slot = writer
        .text(&CREATE_SLOT, Args::new().int(reader_id))
        .await?;
    let args = Args::new().int(writer_id).text(&*writer.reached_at);
    reader.text(&CONNECT, args.text(slot.as_deref())).await?;
    Ok(())
}

async fn drop_slot<D: Driver>(writer: &Member<D>, reader: i64, deadline: Instant) -> Result<()> {
    while writer
        .text(&DROP_SLOT, Args::new().int(reader))
        .await?
        .is_some()
    {
        pause(deadline).await?;
    }
    Ok(())
}

/// Copies the facts of a region that one database has to another that may not have them.
async fn copy<D: Driver>(from: &Member<D>, to: &Member<D>, region: i64) -> Result<()> {
    let (mut epoch, mut seq) = (0, 0);
    loop {
        let args = Args::new().int(region).int(epoch).int(seq);
        let mut row = from.once.caller().call(&PAGE, args).await?.one()?;
        let Some(facts) = row.opt_text() else {
            return Ok(());
        };
        to.text(&LAND, Args::new().json(&*facts)).await?;
        (epoch, seq) = (row.get()?, row.get()?);
    }
}

/// Asks until the answer is yes.
async fn wait<'a, D: Driver>(
    member: &Member<D>,
    sql: &Sql,
    args: impl Fn() -> Args<'a>,
    deadline: Instant,
) -> Result<()> {
    while member.text(sql, args()).await?.as_deref() != Some("true") {
        pause(deadline).await?;
    }
    Ok(())
}

async fn pause(deadline: Instant) -> Result<()> {
    if Instant::now() > deadline {
        return Err(Error::Database(ErrorDetail::new(
            "55P03",
            "the regions did not find each other in time",
            "Look at `pgonce region status` and the servers' logs: they must reach each other, with wal_level = logical. Then join again.",
        )));
    }
    sleep(Duration::from_millis(50)).await;
    Ok(())
}
