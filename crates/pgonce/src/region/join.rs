//! Connecting regions, in an order that loses nothing and lets no two regions be home at once.

use std::time::Duration;

use tokio::time::Instant;

use super::member::{ACTIVATE, BEAT, CONNECT, Known, Member, all_are_named, deadline_of, too_late};
use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::Result;

static ADD: Sql =
    Sql::seldom("select e::text from pgonce._add_region($1::text::smallint, $2, $3) e");
static JOIN: Sql = Sql::seldom(
    "select e::text from pgonce.region_join($1::text::smallint, $2, $3, $4::text::bigint) e",
);
static RECORD_OLD: Sql = Sql::seldom("select n::text from pgonce._record_old_facts() n");
static RULES: Sql = Sql::seldom("select pg_catalog.jsonb_agg(r)::text from pgonce.region_rule r");
static SET_RULES: Sql = Sql::seldom(
    "with old as (delete from pgonce.region_rule r where r.pending), \
     new as (insert into pgonce.region_rule select r.* from pg_catalog.jsonb_populate_recordset(null::pgonce.region_rule, $1::jsonb) r \
     on conflict on constraint one_rule_per_scope do update set mode = excluded.mode, home = excluded.home, max_lag = excluded.max_lag \
     returning 1) select pg_catalog.count(*)::text from new",
);
static CREATE_SLOT: Sql = Sql::seldom(
    "select s.slot_name::text from pg_catalog.pg_create_logical_replication_slot(pgonce._region_slot($1::text::smallint), 'pgoutput') s",
);
/// Whom a new slot waits for: transactions of all databases of the server that have written.
static OLDER: Sql = Sql::seldom(
    "select pg_catalog.string_agg(x.who, '; ') from ( \
     select pg_catalog.concat_ws(' ', 'pid', a.pid, a.usename, a.datname, a.state, 'since', a.xact_start) as who \
     from pg_catalog.pg_stat_activity a where a.backend_xid is not null and a.pid operator(pg_catalog.<>) pg_catalog.pg_backend_pid() \
     union all select pg_catalog.concat('prepared transaction ', p.gid, ' in ', p.database) from pg_catalog.pg_prepared_xacts p limit 9) x",
);

/// Makes a database a region, or again after it was restored, promoted or away, and connects it with the others.
///
/// `others` are all regions that are not lost. It may be repeated after any error. The order matters: slots come
/// before facts are copied, so that nothing falls between; and the others know that this region is a home before it
/// is one, after what they had under way has ended and what they committed is here. Fences of an earlier life of the
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
    let deadline = deadline_of(timeout);
    let me = Known {
        id: id.into(),
        name: name.to_owned(),
        address: address.to_owned(),
        state: String::new(),
    };
    let mut known = Vec::new();
    let mut above = 0;
    for other in others {
        known.push(other.itself(deadline).await?);
        let epoch = other.locking(&ADD, || me.args(), deadline).await?;
        above = above.max(epoch.and_then(|epoch| epoch.parse().ok()).unwrap_or(0));
    }
    let given: Vec<&Known> = known.iter().chain([&me]).collect();
    let all: Vec<&Member<D>> = others.iter().collect();
    let lost = all_are_named(&all, &given).await?;
    this.locking(&JOIN, || me.args().int(above), deadline)
        .await?;
    this.text(&RECORD_OLD, Args::new(), deadline).await?;
    for region in known.iter().chain(&lost) {
        this.locking(&ADD, || region.args(), deadline).await?;
    }
    for (region, other) in known.iter().zip(others) {
        // After it knows of this region: who sets a rule from now on must name this one. A rule that is half set is
        // copied so too, pending or in force: neither permits more than elsewhere.
        if let Some(rules) = other.text(&RULES, Args::new(), deadline).await? {
            let args = Args::new().json(&*rules);
            this.text(&SET_RULES, args, deadline).await?;
        }
        subscribe((this, me.id), (other, region.id), deadline).await?;
        subscribe((other, region.id), (this, me.id), deadline).await?;
        // Its own facts, what this region has forgotten of its own, and what lost ones left.
        for id in [region.id, me.id]
            .into_iter()
            .chain(lost.iter().map(|lost| lost.id))
        {
            other.copy(this, id, deadline).await?;
        }
        this.copy(other, me.id, deadline).await?;
    }
    for region in known.iter().chain(&lost) {
        let state = match &*region.state {
            "restored" => "joining",
            state => state,
        };
        let args = || Args::new().int(region.id).text(state);
        this.locking(&ACTIVATE, args, deadline).await?;
    }
    let active = || Args::new().int(me.id).text("active");
    for (region, other) in known.iter().zip(others) {
        other.locking(&ACTIVATE, active, deadline).await?;
        other.drain(&region.name, deadline).await?;
        other.reaches(region, &[(this, &me)], deadline).await?;
    }
    this.locking(&ACTIVATE, active, deadline).await?;
    this.text(&BEAT, Args::new(), deadline).await.map(drop)
}

/// Lets one region receive what the other commits from now on, by a new slot.
async fn subscribe<D: Driver>(
    (reader, reader_id): (&Member<D>, i64),
    (writer, writer_id): (&Member<D>, i64),
    deadline: Instant,
) -> Result<()> {
    let none = || Args::new().int(writer_id).text(None).text(None);
    reader.locking(&CONNECT, none, deadline).await?;
    writer.drop_slot(reader_id, deadline).await?;
    let args = Args::new().int(reader_id);
    let slot = match writer.text(&CREATE_SLOT, args, deadline).await {
        Err(error) if error.code() == "55P03" => {
            let later = Instant::now() + Duration::from_secs(5);
            let who = writer.text(&OLDER, Args::new(), later).await?;
            let what =
                "a replication slot waits for older transactions of its server, which did not end";
            return Err(too_late(what, &who.unwrap_or_default()));
        }
        slot => slot?,
    };
    let url = &*writer.reached_at;
    let args = || Args::new().int(writer_id).text(url).text(slot.as_deref());
    reader.locking(&CONNECT, args, deadline).await?;
    Ok(())
}
