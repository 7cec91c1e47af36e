//! What the parts of the process wait for.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::exit::Result;
use crate::parts::Parts;
use crate::relay::Watched;
use crate::relay::admin::Consuming;

/// First and maximum pause before a part is started again whose database was away.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// How every part stands.
#[derive(Default)]
pub(super) struct Health {
    errors: Mutex<BTreeMap<&'static str, String>>,
    failed: Mutex<Vec<String>>,
    relays: Mutex<Vec<Watched>>,
    consumers: Mutex<Vec<Consuming>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Health {
    /// The last try of a part failed, or did not.
    pub(super) fn report<T, E: std::fmt::Display>(
        &self,
        part: &'static str,
        tried: &std::result::Result<T, E>,
    ) {
        match tried {
            Ok(_) => drop(locked(&self.errors).remove(part)),
            Err(error) => drop(locked(&self.errors).insert(part, error.to_string())),
        }
    }

    /// Something should run and has ended.
    pub(super) fn failed(&self, what: String) {
        tracing::error!(what, "not everything runs");
        locked(&self.failed).push(what);
    }

    pub(super) fn watch(&self, relays: &[Watched], consumers: &[Consuming]) {
        locked(&self.relays).extend_from_slice(relays);
        locked(&self.consumers).extend_from_slice(consumers);
    }

    /// What is waited for.
    pub(super) fn waiting(&self) -> Vec<Value> {
        let mut waiting: Vec<Value> = Vec::new();
        for (part, error) in locked(&self.errors).iter() {
            waiting.push(json!({"for": format!("the next try of {part}"), "detail": error}));
        }
        for what in locked(&self.failed).iter() {
            waiting.push(json!({"for": "an operator", "detail": what}));
        }
        for relay in locked(&self.relays).iter() {
            match relay.counts().map(|counts| counts.database_error()) {
                None => waiting
                    .push(json!({"for": "the sink of a relay", "subscription": relay.name()})),
                Some(Some(error)) => waiting.push(json!({
                    "for": "the database of a relay", "subscription": relay.name(), "detail": error,
                })),
                Some(None) => {}
            }
        }
        for one in locked(&self.consumers).iter() {
            if one.counts.get().is_none() {
                waiting.push(json!({"for": "the source of a consumer", "consumer": one.consumer}));
            }
        }
        waiting
    }

    /// Runs tasks until `stop`, and then until they have ended; shows those that end before.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        mut parts: Parts<T>,
        stop: &CancellationToken,
    ) -> Result {
        loop {
            tokio::select! {
                () = stop.cancelled() => return parts.ended().await,
                gone = parts.failed() => self.failed(gone),
            }
        }
    }

    /// What a try to start a part came to: nothing where the database is away, which is waited for a while, longer each time.
    pub(super) async fn started<T>(
        &self,
        part: &'static str,
        tried: Result<T>,
        pause: &mut Duration,
        stop: &CancellationToken,
    ) -> Result<Option<T>> {
        let error = match tried {
            Err(error) if error.may_pass() => error.words().0.to_owned(),
            ended => {
                self.report::<_, String>(part, &Ok(()));
                return ended.map(Some);
            }
        };
        tracing::warn!(part, error, ?pause, "it is waited for the database");
        self.report::<(), _>(part, &Err(error));
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(*pause) => *pause = (*pause * 2).min(MAX_PAUSE),
        }
        Ok(None)
    }
}
