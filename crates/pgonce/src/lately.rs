//! What was learnt lately about scopes, so that it need not be asked again with every command.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long something is believed without asking again: a change of a contract may take so long to be
/// noticed elsewhere.
const BELIEVED: Duration = Duration::from_secs(2);

/// No more than this is remembered.
const REMEMBERED: usize = 1_000;

type Told<T> = HashMap<(String, String), (T, Instant)>;

/// What was told lately, by tenant and scope.
#[derive(Debug)]
pub(crate) struct Lately<T>(Mutex<Told<T>>);

impl<T> Default for Lately<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Lately<T> {
    pub(crate) fn get(&self, tenant: &str, scope: &str) -> Option<T> {
        let told = self.lock();
        let (what, since) = told.get(&(tenant.to_owned(), scope.to_owned()))?;
        (since.elapsed() < BELIEVED).then(|| what.clone())
    }

    pub(crate) fn put(&self, tenant: &str, scope: &str, what: T) {
        let mut told = self.lock();
        if told.len() >= REMEMBERED {
            told.clear();
        }
        let name = (tenant.to_owned(), scope.to_owned());
        told.insert(name, (what, Instant::now()));
    }

    pub(crate) fn forget_all(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Told<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
