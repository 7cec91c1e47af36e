//! A cache in front of the database that can say one thing: here is the stored answer.
//!
//! It is filled from rows that the database showed, never by those who write them, so nothing uncertain or uncommitted can be
//! in it. What it holds is believed only under the state of the database in which it was read (`pgonce._replay_state`), and
//! that state is asked for again and again: see [`Confirmed`].

mod entry;
mod flight;
mod local;
mod look;
#[cfg(feature = "redis")]
mod server;
mod settings;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use entry::{Entry, Name};
use flight::Flights;
use local::Local;

pub use settings::ReplayCache;

/// Maximum number of answers that are read for the cache at the same time. More are left for the next duplicate, so that
/// filling never empties the pool.
const FILLS: usize = 4;

/// A place that answers are kept in. What it returns is checked by the caller: it may be old, and of another request.
pub(crate) trait Tier {
    fn get(&self, name: &Name) -> impl Future<Output = Option<Arc<Entry>>> + Send;

    /// Keeps it for that long at most.
    fn put(&self, name: &Name, entry: &Entry, time: Duration) -> impl Future<Output = ()> + Send;
}

/// What the cache did, since its [`Once`](crate::Once) was built. Made by [`Once::cache_counts`](crate::Once::cache_counts).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CacheCounts {
    /// Duplicates that were answered from the cache.
    pub hits: u64,
    /// Duplicates that were answered together with another one that asked the database at the same time.
    pub shared: u64,
    /// Requests for which the database was asked.
    pub misses: u64,
    /// Values that were ignored because they were not written by a holder of the key, for this intent and in this format.
    pub refused: u64,
    /// Values that were ignored because the database has changed since: an answer was evicted, or it was restarted, restored or
    /// failed over.
    pub outdated: u64,
    /// Answers that were written to the cache.
    pub filled: u64,
    /// Calls of the server of the cache that failed or took too long.
    pub errors: u64,
    /// Whether the server of the cache is left alone for a while, after several errors in a row.
    pub breaker_open: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    hits: AtomicU64,
    shared: AtomicU64,
    misses: AtomicU64,
    refused: AtomicU64,
    outdated: AtomicU64,
    filled: AtomicU64,
    errors: AtomicU64,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The cache of one [`Once`](crate::Once).
#[derive(Debug)]
pub(crate) struct Cache {
    settings: ReplayCache,
    local: Option<Local>,
    #[cfg(feature = "redis")]
    server: Option<server::Server>,
    confirmed: Mutex<Option<Confirmed>>,
    confirming: AtomicBool,
    flights: Flights,
    filling: Mutex<HashSet<Name>>,
    fills: Semaphore,
    counters: Arc<Counters>,
}

/// What the database said about itself, and when it was asked.
///
/// An eviction is seen by every question that is sent after its commit. Entries are used while the last question is younger
/// than [`ReplayCache::max_staleness`], so for no longer than that after an eviction.
#[derive(Debug, Clone)]
struct Confirmed {
    state: String,
    /// The database's clock when it answered, in milliseconds since 1970.
    now_ms: i64,
    /// Before the question was sent.
    asked: Instant,
}

impl Confirmed {
    /// The database's clock now, or a little later than that: the answer has aged by the time of its way here.
    fn now_ms(&self) -> i64 {
        let since = i64::try_from(self.asked.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.now_ms.saturating_add(since).saturating_add(1)
    }
}

impl Cache {
    pub(crate) fn new(settings: ReplayCache) -> Self {
        let counters = Arc::<Counters>::default();
        Self {
            #[cfg(feature = "redis")]
            server: server::Server::new(&settings, counters.clone()),
            local: settings.in_process.then(|| Local::new(&settings)),
            settings,
            confirmed: Mutex::default(),
            confirming: AtomicBool::new(false),
            flights: Flights::default(),
            filling: Mutex::default(),
            fills: Semaphore::new(FILLS),
            counters,
        }
    }

    /// What the database confirmed a short time ago.
    fn confirmed(&self) -> Option<Confirmed> {
        let confirmed = lock(&self.confirmed);
        let recent = |c: &&Confirmed| c.asked.elapsed() < self.settings.max_staleness;
        confirmed.as_ref().filter(recent).cloned()
    }

    fn counts(&self) -> CacheCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        CacheCounts {
            hits: read(&counters.hits),
            shared: read(&counters.shared),
            misses: read(&counters.misses),
            refused: read(&counters.refused),
            outdated: read(&counters.outdated),
            filled: read(&counters.filled),
            errors: read(&counters.errors),
            #[cfg(feature = "redis")]
            breaker_open: self
                .server
                .as_ref()
                .is_some_and(server::Server::is_left_alone),
            #[cfg(not(feature = "redis"))]
            breaker_open: false,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
