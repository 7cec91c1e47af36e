//! What it remembers, for as long as it runs.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{HeaderName, StatusCode};

/// What a request is known by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) endpoint: String,
    pub(crate) user: Vec<u8>,
    pub(crate) key: String,
}

/// An answer that can be given again.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) status: StatusCode,
    pub(crate) headers: Vec<(HeaderName, String)>,
    pub(crate) body: String,
}

/// Who does the work.
pub(crate) enum Claim {
    Mine,
    Busy { same: bool },
    Done { stored: Stored, same: bool },
}

#[derive(Default)]
struct Inside {
    effects: u64,
    /// The payload, the answer once there is one, and since when it is known.
    intents: HashMap<Name, (Bytes, Option<Stored>, Instant)>,
}

#[derive(Default)]
pub(crate) struct Memory(Mutex<Inside>);

impl Memory {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn effects(&self) -> u64 {
        self.inside().effects
    }

    /// Gives its number.
    pub(crate) fn make_effect(&self) -> u64 {
        let mut inside = self.inside();
        inside.effects += 1;
        inside.effects
    }

    /// The work is given to exactly one.
    pub(crate) fn claim(&self, name: &Name, payload: &Bytes) -> Claim {
        let mut inside = self.inside();
        match inside.intents.get(name) {
            None => {
                let begun = (payload.clone(), None, Instant::now());
                inside.intents.insert(name.clone(), begun);
                Claim::Mine
            }
            Some((known, None, _)) => Claim::Busy {
                same: known == payload,
            },
            Some((known, Some(stored), _)) => Claim::Done {
                stored: stored.clone(),
                same: known == payload,
            },
        }
    }

    pub(crate) fn remember(&self, name: &Name, answer: Stored) {
        if let Some((_, stored, _)) = self.inside().intents.get_mut(name) {
            *stored = Some(answer);
        }
    }

    pub(crate) fn recall(&self, name: &Name) -> Option<(Bytes, Stored)> {
        let inside = self.inside();
        let (payload, stored, _) = inside.intents.get(name)?;
        Some((payload.clone(), stored.clone()?))
    }

    pub(crate) fn forget(&self, name: &Name) {
        self.inside().intents.remove(name);
    }

    pub(crate) fn forget_older_than(&self, age: Duration) {
        let mut inside = self.inside();
        inside
            .intents
            .retain(|_, (_, _, since)| since.elapsed() < age);
    }

    /// Gives the key back when the work ends too early.
    pub(crate) fn hold<'a>(&'a self, name: &'a Name) -> Held<'a> {
        Held {
            memory: self,
            name: Some(name),
        }
    }
}

/// A key that is given back when this is dropped.
pub(crate) struct Held<'a> {
    memory: &'a Memory,
    name: Option<&'a Name>,
}

impl Held<'_> {
    pub(crate) fn keep(&mut self) {
        self.name = None;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name {
            self.memory.inside().intents.remove(name);
        }
    }
}
