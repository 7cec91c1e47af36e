//! Decides what becomes of work whose holder vanished.
//!
//! What can strike, and what then happens: the take gives a new fence and commits before the probe looks, so the effect of a
//! guarded write is either seen or refused. Killed after the take, what was taken is held until its time is over, and taken
//! again. A decision that another attempt or an operator overtook is refused by the fence. A probe that fails, or takes too
//! long, decides nothing.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{sleep, timeout};

use super::slots::{SLOW, Slots};
use crate::call::{Args, Sql, call_on};
use crate::driver::{Connection as _, Driver, Session as _};
use crate::error::{Error, Result};
use crate::once::Once;

static TAKE: Sql = Sql::seldom(
    "select tenant, scope, key, fence::text, probe from pgonce._take_stale($1::text::integer, $2, $3::text::interval, \
     array(select s.scope from pg_catalog.jsonb_array_elements_text($4) s (scope)))",
);
static IS_PROBE: Sql = Sql::seldom("select pgonce._probe_name($1)");
static DECIDE: Sql = Sql::seldom(
    "select pgonce._decide_stale($1, $2, $3::text::bigint, $4, $5::text::boolean, $6, $7, $8, $9, $10, $11)",
);

/// Maximum time of a call that takes intents or records a decision.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time of a probe that can be set: what is taken is held for twice as long.
const MAX_PROBE_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Finds leased work whose holder vanished, asks the probe of its contract, and does what the contract says: settles it,
/// releases it for another attempt, gives it up, or leaves it to an operator. Made by [`Once::recovery`]. Any number of
/// processes may run it.
///
/// ```no_run
/// # #[cfg(feature = "sqlx")]
/// # async fn example(once: pgonce::sqlx::Once) -> Result<(), pgonce::Error> {
/// let recovered = once.recovery().run_once().await?;
/// println!("{} had happened, {} are tried again", recovered.succeeded, recovered.released);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it runs"]
pub struct Recovery<D: Driver> {
    once: Once<D>,
    owner: String,
    probe_timeout: Duration,
    concurrency: usize,
}

/// How many intents [`Recovery::run_once`] decided, and how.
///
/// ```
/// assert_eq!(pgonce::recovery::Recovered::default().succeeded, 0);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovered {
    /// Intents whose effect the probe found: they are settled with it.
    pub succeeded: u64,
    /// Intents that the next attempt does; a job was enqueued where the contract has a queue.
    pub released: u64,
    /// Intents that were given up.
    pub abandoned: u64,
    /// Intents that are left to an operator.
    pub needs_manual_action: u64,
    /// Intents whose probe failed or took too long: it is asked again later.
    pub unknown: u64,
    /// Intents that another attempt or an operator settled first, or whose decision could not be recorded.
    pub overtaken: u64,
}

impl Recovered {
    fn count(&mut self, decision: &str) {
        let counter = match decision {
            "succeeded" => &mut self.succeeded,
            "released" => &mut self.released,
            "abandoned" => &mut self.abandoned,
            "needs_manual_action" => &mut self.needs_manual_action,
            "unknown" => &mut self.unknown,
            _ => &mut self.overtaken,
        };
        *counter += 1;
    }
}

struct Taken {
    tenant: String,
    scope: String,
    key: String,
    fence: i64,
    probe: Option<String>,
}

/// What a probe said: an effect, no effect, or why it is not known.
#[derive(Default)]
struct Probed {
    found: Option<bool>,
    answer: Option<String>,
    ref_type: Option<String>,
    ref_id: Option<String>,
    why: Option<String>,
}

impl Probed {
    fn unknown(why: String) -> Self {
        Self {
            why: Some(why),
            ..Self::default()
        }
    }
}

impl<D: Driver> Once<D> {
    /// Recovery of leased work whose holder vanished, as the contracts say.
    pub fn recovery(&self) -> Recovery<D> {
        let owner = match self.owner() {
            Some(owner) => format!("recovery of {owner}"),
            None => format!("recovery, process {}", std::process::id()),
        };
        Recovery {
            once: self.clone(),
            owner,
            probe_timeout: Duration::from_secs(5),
            concurrency: 4,
        }
    }
}

impl<D: Driver> Recovery<D> {
    /// Name of this process in the history and in the audit. Default: that of the [`Once`].
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }

    /// Maximum time of one probe, up to a day. Default: 5 seconds.
    pub fn probe_timeout(mut self, timeout: Duration) -> Self {
        self.probe_timeout = timeout.clamp(Duration::from_millis(1), MAX_PROBE_TIMEOUT);
        self
    }

    /// Maximum number of probes at a time, each on a connection of its own; up to as many again beside slow ones, so that the
    /// slow probe of one scope does not keep the others waiting. Default: 4.
    pub fn concurrency(mut self, probes: usize) -> Self {
        self.concurrency = probes.max(1);
        self
    }

    /// Decides everything that is due, and returns when nothing is left. A scope whose probes all take too long is left to the
    /// next run after the first few.
    pub async fn run_once(&self) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        let mut running = FuturesUnordered::new();
        let mut slots = Slots::new(self.concurrency);
        let mut failed = None;
        loop {
            let limit = if failed.is_none() { slots.free() } else { 0 };
            let idle = running.is_empty();
            if limit > 0 {
                let skip = slots.full_scopes();
                let mut take = pin!(timeout(CALL_TIMEOUT, self.take(limit, &skip)));
                // Probes go on meanwhile.
                let taken = loop {
                    tokio::select! {
                        taken = &mut take => break taken,
                        Some(ended) = running.next() => count(ended, &mut slots, &mut recovered),
                    }
                };
                match taken.unwrap_or_else(|_| Err(no_answer())) {
                    Ok(taken) => running.extend(taken.into_iter().map(|taken| {
                        let slot = slots.begin(&taken.scope);
                        async move { (slot, self.one(taken).await) }
                    })),
                    // What was taken is decided first.
                    Err(error) => failed = Some(error),
                }
            }
            if running.is_empty() {
                match failed {
                    Some(error) => return Err(error),
                    // Nothing is left, also of the scopes that were full.
                    None if idle => return Ok(recovered),
                    None => continue,
                }
            }
            tokio::select! {
                Some(ended) = running.next() => count(ended, &mut slots, &mut recovered),
                // Others may be due by then, and those that run be slow.
                () = sleep(SLOW) => {}
            }
        }
    }

    async fn take(&self, limit: usize, skip: &[String]) -> Result<Vec<Taken>> {
        fault_point!("recovery.before_take");
        let hold = self.probe_timeout * 2 + Duration::from_secs(30);
        let skip = serde_json::to_string(skip)?;
        let args = Args::new()
            .count(limit)
            .text(&*self.owner)
            .interval(hold)
            .json(skip.as_str());
        let taken = self.once.caller().write(&TAKE, args).await?;
        fault_point!("recovery.taken");
        taken.read(|mut row| {
            Ok(Taken {
                tenant: row.text()?,
                scope: row.text()?,
                key: row.text()?,
                fence: row.get()?,
                probe: row.opt_text(),
            })
        })
    }

    /// One intent, from the probe to the decision. Whatever fails here concerns this one only.
    async fn one(&self, taken: Taken) -> String {
        let probed = match &taken.probe {
            None => Probed {
                found: Some(false),
                ..Probed::default()
            },
            Some(probe) => {
                // The server ends a probe that takes too long; this is for a server that does not answer.
                let limit = self.probe_timeout * 2;
                match timeout(limit, self.ask(probe, &taken)).await {
                    Ok(Ok(probed)) => probed,
                    Ok(Err(error)) => Probed::unknown(error.to_string()),
                    Err(_) => Probed::unknown("the probe did not answer in time".to_owned()),
                }
            }
        };
        let decided = match self.decide(&taken, &probed).await {
            // The answer of the probe cannot be stored.
            Err(Error::Database(detail) | Error::Invalid(detail)) if &*detail.code != "P4012" => {
                self.decide(&taken, &Probed::unknown(detail.to_string()))
                    .await
            }
            decided => decided,
        };
        match decided {
            Ok(decision) => {
                tracing::info!(scope = taken.scope, decision, why = probed.why, "recovery");
                decision
            }
            Err(error) => {
                // Another attempt or an operator was faster; or it is taken again when its time is over.
                tracing::warn!(
                    scope = taken.scope,
                    code = error.code(),
                    "recovery: not decided"
                );
                "overtaken".to_owned()
            }
        }
    }

    /// Asks on a connection that is closed afterwards, in a transaction that changes nothing and is rolled back: nothing that
    /// the function leaves behind, such as a deferred trigger, outlives it. Nor does a lock of the session: behind a pooler the
    /// server's session goes on, so that it is given back in the same transaction, whether the function has failed or not.
    async fn ask(&self, probe: &str, taken: &Taken) -> Result<Probed> {
        let caller = self.once.caller();
        let mut session = caller.driver.acquire().await?;
        session
            .open("begin isolation level read committed read only")
            .await?;
        let limit = self.probe_timeout.as_millis().min(i32::MAX as u128);
        session
            .batch(&format!(
                "set local search_path = pg_catalog, pg_temp; set local statement_timeout = {limit}; savepoint probe"
            ))
            .await?;
        let args = Args::texts([probe]);
        let name = call_on(&mut session, &caller.schema, &IS_PROBE, &args).await?;
        let name = name.one()?.text()?;
        // It may have changed since the contract was defined: what is called is what passes here.
        let statement = caller.schema.statement_of(format!(
            "select p.answer::pg_catalog.text, p.ref_type, p.ref_id \
             from (select {}._probe_name($4) as name offset 0) c \
             cross join lateral {name}($1, $2, case when c.name is not null then $3 end) p limit 2",
            caller.schema.name()
        ));
        let args = Args::texts([&*taken.scope, &*taken.key, &*taken.tenant, probe]);
        let asked = session.query(&statement, args.as_slice()).await;
        session
            .batch("rollback to savepoint probe; select pg_catalog.pg_advisory_unlock_all()")
            .await?;
        let _ = session.rollback().await;
        drop(session);
        let rows = asked?;
        fault_point!("recovery.probed");
        if rows.len() > 1 {
            return Ok(Probed::unknown(format!(
                "{name} found more than one effect"
            )));
        }
        let mut probed = Probed {
            found: Some(!rows.is_empty()),
            ..Probed::default()
        };
        if let Some(row) = rows.into_iter().next() {
            let mut cells = row.into_iter();
            probed.answer = cells.next().flatten();
            probed.ref_type = cells.next().flatten();
            probed.ref_id = cells.next().flatten();
        }
        Ok(probed)
    }

    async fn decide(&self, taken: &Taken, probed: &Probed) -> Result<String> {
        fault_point!("recovery.before_decide");
        let found = probed.found.map(|found| found.to_string());
        let args = Args::new()
            .text(&*taken.scope)
            .text(&*taken.key)
            .int(taken.fence)
            .text(taken.probe.as_deref())
            .text(found.as_deref())
            .json(probed.answer.as_deref())
            .text(probed.ref_type.as_deref())
            .text(probed.ref_id.as_deref())
            .text(probed.why.as_deref())
            .text(&*taken.tenant)
            .text(&*self.owner);
        let decided = timeout(CALL_TIMEOUT, self.once.caller().write(&DECIDE, args)).await;
        let decision = decided.unwrap_or_else(|_| Err(no_answer()))?.one()?.text();
        fault_point!("recovery.decided");
        decision
    }
}

/// The probe of a slot ended with this decision.
fn count((slot, decision): (u64, String), slots: &mut Slots, recovered: &mut Recovered) {
    slots.end(slot, decision != "unknown");
    recovered.count(&decision);
}

fn no_answer() -> Error {
    Error::Uncertain("the database did not answer in time".to_owned())
}
