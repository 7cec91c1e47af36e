//! What the parts of the process wait for.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::exit::{CliError, Result};
use crate::parts::Parts;
use crate::relay::Watched;
use crate::relay::admin::Consuming;
use crate::starting::until_answered;

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
    /// It is waited for the start of this part.
    pub(super) fn expect(&self, part: &'static str) {
        self.report::<(), _>(part, &Err("it has not started yet"));
    }

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

    /// Starts a part as soon as its database answers; nothing when stopped before.
    pub(super) async fn start<T, F: Future<Output = Result<T>>>(
        &self,
        part: &'static str,
        stop: &CancellationToken,
        may_pass: fn(&CliError) -> bool,
        attempt: impl Fn() -> F,
    ) -> Result<Option<T>> {
        until_answered(part, stop, may_pass, attempt, |waiting| match waiting {
            Some(error) => self.report::<(), _>(part, &Err(error)),
            None => self.report::<_, String>(part, &Ok(())),
        })
        .await
    }
}
