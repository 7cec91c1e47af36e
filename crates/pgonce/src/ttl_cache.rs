//! What the database said about scopes, remembered for a short time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an entry is used: a changed contract takes effect elsewhere after this time.
const TTL: Duration = Duration::from_secs(2);

/// Maximum number of entries.
const CAPACITY: usize = 1_000;

type Entries<T> = HashMap<(String, String), (T, Instant)>;

/// Values by tenant and scope that expire.
#[derive(Debug)]
pub(crate) struct TtlCache<T>(Mutex<Entries<T>>);

impl<T> Default for TtlCache<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> TtlCache<T> {
    pub(crate) fn get(&self, tenant: &str, scope: &str) -> Option<T> {
        let entries = self.lock();
        let (value, since) = entries.get(&(tenant.to_owned(), scope.to_owned()))?;
        (since.elapsed() < TTL).then(|| value.clone())
    }

    pub(crate) fn put(&self, tenant: &str, scope: &str, value: T) {
        let mut entries = self.lock();
        if entries.len() >= CAPACITY {
            entries.clear();
        }
        let name = (tenant.to_owned(), scope.to_owned());
        entries.insert(name, (value, Instant::now()));
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Entries<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
