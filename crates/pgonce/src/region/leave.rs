//! Taking a region out.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::member::{ACTIVATE, CONNECT, Known, Member, all_are_named, deadline_of};
use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::{Error, ErrorDetail, Result};

static LEAVE: Sql = Sql::seldom("select 'done' from pgonce.region_leave($1)");
static LAST_BEAT: Sql = Sql::seldom(
    "select pg_catalog.floor(extract(epoch from r.last_beat_at) operator(pg_catalog.*) 1000)::bigint::text \
     from pgonce.regions r where r.id operator(pg_catalog.=) $1::text::smallint",
);

/// Takes a region out. `survivors` are all other regions: its intents get another home among them.
///
/// Where it can be reached, name it too (`itself`): it takes no new work, what it has under way ends, the others receive the last
/// of what it committed, and it becomes a single database again. Nothing is lost, and the answer is `None`.
///
/// Without it the survivors share what each has received of it, and answer up to which time of its clock they know what
/// it committed (`UNIX_EPOCH`: nothing is known). What it committed after that is unknown until it joins again, and may be done
/// a second time meanwhile; then it is listed as a double commit. It must not take requests any more.
///
/// It may be repeated after any error.
///
/// ```no_run
/// # async fn example(us: pgonce::tokio_postgres::Once, eu: pgonce::tokio_postgres::Once) -> Result<(), pgonce::Error> {
/// use std::time::Duration;
/// use pgonce::region::{Member, leave};
///
/// let (us, eu) = (Member::new(us, ""), Member::new(eu, ""));
/// let unknown_after = leave("us", &[eu], Some(&us), Duration::from_secs(60)).await?;
/// assert!(unknown_after.is_none());
/// # Ok(())
/// # }
/// ```
pub async fn leave<D: Driver>(
    name: &str,
    survivors: &[Member<D>],
    itself: Option<&Member<D>>,
    timeout: Duration,
) -> Result<Option<SystemTime>> {
    let deadline = deadline_of(timeout);
    let (gone, known) = all_known(name, survivors, itself, deadline).await?;
    let unknown_after = match itself {
        Some(itself) => {
            say_goodbye(itself, &gone, survivors, &known, deadline).await?;
            None
        }
        None => Some(share_what_is_left(&gone, survivors, deadline).await?),
    };
    for survivor in survivors {
        let args = || Args::texts([name]);
        survivor.locking(&LEAVE, args, deadline).await?;
        survivor.drop_slot(gone.id, deadline).await?;
    }
    if let Some(itself) = itself {
        for other in itself.others().await? {
            itself.drop_slot(other.id, deadline).await?;
        }
        let args = || Args::texts([name]);
        itself.locking(&LEAVE, args, deadline).await?;
    }
    Ok(unknown_after)
}

/// Whether [`leave`] knows the region and is given all others. It changes nothing.
#[doc(hidden)]
pub async fn check_leave<D: Driver>(
    name: &str,
    survivors: &[Member<D>],
    itself: Option<&Member<D>>,
    timeout: Duration,
) -> Result<()> {
    let deadline = deadline_of(timeout);
    all_known(name, survivors, itself, deadline).await.map(drop)
}

/// The region that goes, and those that stay.
async fn all_known<D: Driver>(
    name: &str,
    survivors: &[Member<D>],
    itself: Option<&Member<D>>,
    deadline: Instant,
) -> Result<(Known, Vec<Known>)> {
    let gone = find(name, survivors, itself, deadline).await?;
    let mut known = Vec::new();
    for survivor in survivors {
        known.push(survivor.itself(deadline).await?);
    }
    let given: Vec<&Known> = known.iter().chain([&gone]).collect();
    let all: Vec<&Member<D>> = survivors.iter().chain(itself).collect();
    all_are_named(&all, &given).await?;
    Ok((gone, known))
}

/// The region of this name, as it knows itself or another knows it.
async fn find<D: Driver>(
    name: &str,
    survivors: &[Member<D>],
    itself: Option<&Member<D>>,
    deadline: Instant,
) -> Result<Known> {
    let mut regions = match itself {
        Some(itself) => vec![itself.itself(deadline).await?],
        None => Vec::new(),
    };
    for survivor in survivors {
        regions.extend(survivor.others().await?);
    }
    let found = regions.into_iter().find(|region| region.name == name);
    found.ok_or_else(|| {
        Error::Invalid(ErrorDetail::new(
            "42704",
            format!("there is no region {name:?}"),
            "`pgonce region list` shows them.",
        ))
    })
}

/// Ends the work of a region, and waits until all others have what it committed.
async fn say_goodbye<D: Driver>(
    itself: &Member<D>,
    gone: &Known,
    survivors: &[Member<D>],
    known: &[Known],
    deadline: Instant,
) -> Result<()> {
    let leaving = || Args::new().int(gone.id).text("leaving");
    itself.locking(&ACTIVATE, leaving, deadline).await?;
    itself.drain(&gone.name, deadline).await?;
    let (mut connected, mut apart) = (Vec::new(), Vec::new());
    for (survivor, region) in survivors.iter().zip(known) {
        let others = survivor.others().await?;
        match others.iter().find(|other| other.id == gone.id) {
            // An earlier call has taken it out there.
            Some(other) if other.state == "lost" => apart.push(survivor),
            Some(_) => connected.push((survivor, region)),
            None => {}
        }
    }
    if !itself.reaches(gone, &connected, deadline).await? {
        // It was restored: it sends nothing, and is asked.
        apart.extend(connected.iter().map(|(survivor, _)| *survivor));
    }
    for survivor in apart {
        itself.copy(survivor, gone.id, deadline).await?;
    }
    Ok(())
}

/// Gives to each survivor what any of them has received of a region, and ends what it still receives: from then on none gets
/// more than the others.
async fn share_what_is_left<D: Driver>(
    gone: &Known,
    survivors: &[Member<D>],
    deadline: Instant,
) -> Result<SystemTime> {
    let mut unknown_after = SystemTime::UNIX_EPOCH;
    for survivor in survivors {
        let args = Args::new().int(gone.id);
        let millis = survivor.text(&LAST_BEAT, args, deadline).await?;
        if let Some(millis) = millis.and_then(|millis| millis.parse().ok()) {
            unknown_after =
                unknown_after.max(SystemTime::UNIX_EPOCH + Duration::from_millis(millis));
        }
        let none = || Args::new().int(gone.id).text(None).text(None);
        survivor.locking(&CONNECT, none, deadline).await?;
    }
    for from in survivors {
        for to in survivors {
            if !std::ptr::eq(from, to) {
                from.copy(to, gone.id, deadline).await?;
            }
        }
    }
    Ok(unknown_after)
}
