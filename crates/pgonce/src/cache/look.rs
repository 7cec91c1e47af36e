use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::entry::{Entry, Name};
use super::flight::{Flight, Joined};
use super::{Cache, CacheCounts, Confirmed, Tier, add, lock};
use crate::ack::Done;
use crate::call::{Row, Sql};
use crate::claim::Claim;
use crate::driver::Driver;
use crate::error::Result;
use crate::intent::Intent;
use crate::once::{Once, fast_args};

static STATE: Sql = Sql::kept("select state, now_ms from pgonce._replay_state()");
static REPLAY_OF: Sql = Sql::kept("select * from pgonce._replay_of($1, $2, $3, $4)");

/// Larger answers are not worth their place.
const MAX_ANSWER_BYTES: usize = 256 << 10;

impl<D: Driver> Once<D> {
    /// What the cache did so far; `None` where there is none.
    pub fn cache_counts(&self) -> Option<CacheCounts> {
        self.shared.cache.as_ref().map(|cache| cache.counts())
    }

    /// The cached answer, or else what `claim` says. A first attempt is claimed at once.
    pub(crate) async fn cached_or<R>(
        &self,
        intent: &Intent,
        claim: impl Future<Output = Result<Claim<R>>>,
    ) -> Result<Claim<R>> {
        let flight = match self.look(intent).await {
            Look::Known(done) => return Ok(Claim::Replay(done)),
            Look::Ask(flight) => flight,
        };
        let claimed = claim.await;
        if let Ok(Claim::Replay(done)) = &claimed {
            self.remember(intent, flight, done);
        }
        claimed
    }

    /// The same for a look that claims nothing.
    pub(crate) async fn cached_answer(&self, intent: &Intent) -> Result<Option<Done>> {
        let flight = match self.look(intent).await {
            Look::Known(done) => return Ok(Some(done)),
            Look::Ask(flight) => flight,
        };
        let stored = self.stored_answer(intent).await?;
        if let Some(done) = &stored {
            self.remember(intent, flight, done);
        }
        Ok(stored)
    }

    async fn look(&self, intent: &Intent) -> Look {
        let Some(cache) = &self.shared.cache else {
            return Look::Ask(None);
        };
        if intent.is_known_first() {
            return Look::Ask(None);
        }
        let name = Name::of(self.caller().schema.name(), intent);
        self.confirm_if_due(cache);
        if cache.confirmed().is_some()
            && let Some(done) = self.find(cache, name, intent).await
        {
            add(&cache.counters.hits);
            return Look::Known(done);
        }
        let timeout = cache.settings.timeout;
        let flight = match cache.flights.join(name, intent, timeout).await {
            Joined::Answer(done) => {
                add(&cache.counters.shared);
                return Look::Known(done);
            }
            Joined::Leader(flight) => Some(flight),
            Joined::Alone => None,
        };
        add(&cache.counters.misses);
        Look::Ask(flight)
    }

    /// An answer from the nearest place that has one.
    async fn find(&self, cache: &Arc<Cache>, name: Name, intent: &Intent) -> Option<Done> {
        if let Some(local) = &cache.local
            && let Some(entry) = local.get(&name).await
            && let Some(done) = self.replay(cache, name, &entry, intent)
        {
            return Some(done);
        }
        #[cfg(feature = "redis")]
        if let Some(server) = &cache.server {
            let entry = server.get(&name).await?;
            let done = self.replay(cache, name, &entry, intent)?;
            if let Some(local) = &cache.local {
                local.put(&name, &entry, Duration::ZERO).await;
            }
            return Some(done);
        }
        None
    }

    /// The answer of an entry that is true still. One whose time is nearly over is read again, aside.
    fn replay(
        &self,
        cache: &Arc<Cache>,
        name: Name,
        entry: &Entry,
        intent: &Intent,
    ) -> Option<Done> {
        let confirmed = cache.confirmed()?;
        if entry.state != confirmed.state {
            add(&cache.counters.outdated);
            return None;
        }
        let now_ms = confirmed.now_ms();
        if now_ms >= entry.until_ms {
            return None;
        }
        // Another request under the same key: the database says so.
        if entry.fingerprint != intent.fingerprint().as_bytes() {
            return None;
        }
        // What does not open here is an error of the database's answer too: let it say so.
        let done = entry.done(self.keys(), intent).ok()?;
        if entry.is_due(now_ms) {
            self.fill(cache, name, intent);
        }
        Some(done)
    }

    /// Shares an answer of the database with those who wait for it, and has it read for the cache.
    fn remember(&self, intent: &Intent, flight: Option<Flight>, done: &Done) {
        if let Some(flight) = flight {
            flight.land(done);
        }
        if let Some(cache) = &self.shared.cache {
            let name = Name::of(self.caller().schema.name(), intent);
            self.fill(cache, name, intent);
        }
    }

    /// Reads an answer for the cache, aside: the row, and in the same moment the state that it is true in.
    fn fill(&self, cache: &Arc<Cache>, name: Name, intent: &Intent) {
        if !lock(&cache.filling).insert(name) {
            return;
        }
        let filling = Filling(cache.clone(), name);
        let (once, intent) = (self.clone(), intent.clone());
        tokio::spawn(async move {
            let Filling(cache, name) = &filling;
            let Ok(_permit) = cache.fills.try_acquire() else {
                return;
            };
            match once.read(cache, &intent).await {
                Ok(Some((entry, time))) => cache.keep(name, &entry, time).await,
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "an answer could not be read for the cache"),
            }
        });
    }

    async fn read(&self, cache: &Cache, intent: &Intent) -> Result<Option<(Entry, Duration)>> {
        let asked = Instant::now();
        let rows = self.caller().call(&REPLAY_OF, fast_args(intent)).await?;
        let Some(mut row) = rows.first() else {
            return Ok(None);
        };
        let answer = row.opt_text();
        let reference = row.opt_text().zip(row.opt_text());
        let (attempts, fence): (u32, i64) = (row.get()?, row.get()?);
        let left_ms: i64 = row.get()?;
        let confirmed = Confirmed::read(&mut row, asked)?;
        let (state, from_ms) = (confirmed.state.clone(), confirmed.now_ms);
        cache.confirm(confirmed);
        // Not all at the same time, and never beyond the promise.
        let ttl = cache.settings.ttl.mul_f64(rand::random_range(0.8..1.0));
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let time_ms = left_ms.min(ttl_ms);
        if time_ms <= 0 || answer.as_ref().is_some_and(|a| a.len() > MAX_ANSWER_BYTES) {
            return Ok(None);
        }
        let entry = Entry {
            state,
            fingerprint: intent.fingerprint().as_bytes().to_vec(),
            from_ms,
            until_ms: from_ms.saturating_add(time_ms),
            renewable: time_ms < left_ms,
            fence,
            attempts,
            answer,
            reference,
        };
        Ok(Some((entry, Duration::from_millis(time_ms as u64))))
    }

    /// Asks the database for its state, aside, where the last answer is half as old as it may be.
    fn confirm_if_due(&self, cache: &Arc<Cache>) {
        let half = cache.settings.max_staleness / 2;
        let due = lock(&cache.confirmed)
            .as_ref()
            .is_none_or(|c| c.asked.elapsed() >= half);
        if !due || cache.confirming.swap(true, Ordering::Relaxed) {
            return;
        }
        let confirming = Confirming(cache.clone());
        let once = self.clone();
        tokio::spawn(async move {
            let asked = Instant::now();
            let rows = once.caller().call(&STATE, Default::default()).await;
            let confirmed = rows.and_then(|rows| Confirmed::read(&mut rows.one()?, asked));
            match confirmed {
                Ok(confirmed) => confirming.0.confirm(confirmed),
                Err(error) => tracing::debug!(%error, "the cache could not be confirmed"),
            }
        });
    }
}

/// What a look into the cache says.
enum Look {
    /// Here is the answer.
    Known(Done),
    /// Ask the database.
    Ask(Option<Flight>),
}

impl Confirmed {
    fn read(row: &mut Row, asked: Instant) -> Result<Self> {
        Ok(Self {
            state: row.text()?,
            now_ms: row.get()?,
            asked,
        })
    }
}

impl Cache {
    /// Replies may overtake each other: the youngest question counts.
    fn confirm(&self, new: Confirmed) {
        let mut confirmed = lock(&self.confirmed);
        if confirmed.as_ref().is_none_or(|old| old.asked < new.asked) {
            *confirmed = Some(new);
        }
    }

    async fn keep(&self, name: &Name, entry: &Entry, time: Duration) {
        if let Some(local) = &self.local {
            local.put(name, entry, time).await;
        }
        #[cfg(feature = "redis")]
        if let Some(server) = &self.server {
            server.put(name, entry, time).await;
        }
        add(&self.counters.filled);
    }
}

/// An answer that is being read for the cache.
struct Filling(Arc<Cache>, Name);

impl Drop for Filling {
    fn drop(&mut self) {
        lock(&self.0.filling).remove(&self.1);
    }
}

/// The question for the state that is under way.
struct Confirming(Arc<Cache>);

impl Drop for Confirming {
    fn drop(&mut self) {
        self.0.confirming.store(false, Ordering::Relaxed);
    }
}
