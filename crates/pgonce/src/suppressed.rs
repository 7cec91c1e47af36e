//! Counts duplicates that were turned away. A replay writes nothing, so they are counted here and
//! written down in batches, off the path of any command.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::driver::{Connection as _, Driver, Param};
use crate::lease::keep_unless_lost;
use crate::once::Once;
use crate::{Intent, Result};

/// How long counts may wait before they are written down.
const EVERY: Duration = Duration::from_secs(2);

/// What a duplicate was told.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Told {
    Replay,
    Refused,
    Busy,
    Conflict,
}

/// Replays, refusals, busy answers and conflicts.
pub(crate) type Counts = [u64; 4];

#[derive(Debug, Clone)]
pub(crate) struct Suppressed {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    counts: HashMap<(String, String), Counts>,
    written: Instant,
}

impl Suppressed {
    pub(crate) fn new() -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                counts: HashMap::new(),
                written: Instant::now(),
            })),
        }
    }

    /// Counts one. Answers whether it is time to write down.
    pub(crate) fn count(&self, tenant: &str, scope: &str, told: Told) -> bool {
        let Ok(mut inner) = self.inner.lock() else {
            return false;
        };
        let counts = inner
            .counts
            .entry((tenant.to_owned(), scope.to_owned()))
            .or_default();
        counts[told as usize] += 1;
        if inner.written.elapsed() < EVERY {
            return false;
        }
        inner.written = Instant::now();
        true
    }

    /// Takes what was counted.
    pub(crate) fn take(&self) -> Vec<((String, String), Counts)> {
        self.inner
            .lock()
            .map(|mut inner| inner.counts.drain().collect())
            .unwrap_or_default()
    }

    /// Puts back what could not be written down.
    pub(crate) fn put_back(&self, names: (String, String), counts: Counts) {
        if let Ok(mut inner) = self.inner.lock() {
            let kept = inner.counts.entry(names).or_default();
            for (kept, count) in kept.iter_mut().zip(counts) {
                *kept += count;
            }
        }
    }
}

impl<D: Driver> Once<D> {
    /// Writes down what was counted of suppressed duplicates; otherwise it happens every few
    /// seconds by itself.
    pub async fn flush(&self) -> Result<()> {
        for (names, counts) in self.shared.suppressed.take() {
            let written = async {
                let mut session = self.driver().acquire().await?;
                let [replays, refusals, busy, conflicts] = counts.map(|n| n.to_string());
                let params = [
                    Param::Text(Some(&names.1)),
                    Param::Text(Some(&replays)),
                    Param::Text(Some(&refusals)),
                    Param::Text(Some(&busy)),
                    Param::Text(Some(&conflicts)),
                    Param::Text(Some(&names.0)),
                ];
                let written = session
                    .query(&self.statements()._count_suppressed, &params)
                    .await
                    .map(drop);
                keep_unless_lost(session, &written);
                written
            }
            .await;
            if let Err(error) = written {
                self.shared.suppressed.put_back(names, counts);
                return Err(error);
            }
        }
        Ok(())
    }

    pub(crate) fn count(&self, intent: &Intent, told: Told) {
        if self
            .shared
            .suppressed
            .count(intent.tenant_name(), intent.scope(), told)
        {
            let once = self.clone();
            tokio::spawn(async move {
                if let Err(error) = once.flush().await {
                    tracing::debug!(%error, "suppressed duplicates could not be written down yet");
                }
            });
        }
    }
}
