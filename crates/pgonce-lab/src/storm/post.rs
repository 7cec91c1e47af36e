//! What a sink was given, and what must hold about it: nothing lost, nothing made up, what comes again
//! has the same id, and each subject's order.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pgonce::outbox::Message;
use pgonce_broker::{Delivery, Sink};
use pgonce_testkit::checker::Effect;
use serde_json::Value;
use uuid::Uuid;

/// One event as a sink was given it.
#[derive(Debug, Clone)]
pub(super) struct Delivered {
    pub(super) intent: String,
    id: Uuid,
    subject: String,
    payload: Value,
}

/// What a sink says to one of its events, as long as it is ill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ill {
    No,
    /// The first event of the trial fails, retryable.
    FirstForNow,
    /// The second event of the trial is poison.
    SecondForGood,
}

/// A sink of one trial. It remembers what it acknowledged.
#[derive(Debug, Clone)]
pub(super) struct Mailbox {
    ill: Ill,
    healed: Arc<AtomicBool>,
    letters: Arc<Mutex<Vec<Delivered>>>,
}

impl Mailbox {
    pub(super) fn new(ill: Ill) -> Self {
        Self {
            ill,
            healed: Arc::default(),
            letters: Arc::default(),
        }
    }

    /// From now on it takes everything.
    pub(super) fn heal(&self) {
        self.healed.store(true, Relaxed);
    }

    /// How many different events it has.
    pub(super) fn different(&self) -> usize {
        let letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut intents: Vec<&str> = letters.iter().map(|letter| &*letter.intent).collect();
        intents.sort_unstable();
        intents.dedup();
        intents.len()
    }

    pub(super) fn take(&self) -> Vec<Delivered> {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut letters)
    }
}

impl Sink for Mailbox {
    async fn send(&self, message: &Message) -> Delivery {
        let payload: Value = message
            .payload
            .as_deref()
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let intent = payload["intent"].as_str().unwrap_or_default().to_owned();
        let reason = || "the storm's sink is ill".to_owned();
        match self.ill {
            Ill::FirstForNow if !self.healed.load(Relaxed) && intent.ends_with("/1") => {
                // Once is enough.
                self.heal();
                return Delivery::Retry {
                    reason: reason(),
                    after: Duration::ZERO,
                };
            }
            Ill::SecondForGood if !self.healed.load(Relaxed) && intent.ends_with("/2") => {
                return Delivery::Poison { reason: reason() };
            }
            _ => {}
        }
        let letter = Delivered {
            intent,
            id: message.id,
            subject: message.subject.clone(),
            payload,
        };
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.push(letter);
        Delivery::Acknowledged
    }
}

/// What the other side has after it has left out the ids that it knows: that is what must be right.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) effects: Vec<Effect>,
    /// How many came again, with the id that they had.
    pub(super) again: u64,
    /// Ids that stood for two events.
    pub(super) torn: Vec<(String, String)>,
}

impl Taken {
    pub(super) fn from(delivered: &[Delivered]) -> Self {
        let mut taken = Self::default();
        let mut known: HashMap<Uuid, &Delivered> = HashMap::new();
        for letter in delivered {
            let Some(first) = known.get(&letter.id) else {
                known.insert(letter.id, letter);
                let mut effect = Effect::of(&*letter.intent);
                effect.payload = Some(letter.payload.clone());
                effect.subject = Some(letter.subject.clone());
                effect.sequence = letter.payload["sequence"].as_i64();
                taken.effects.push(effect);
                continue;
            };
            taken.again += 1;
            if first.intent != letter.intent || first.payload != letter.payload {
                let detail = format!("id {} is also that of {}", letter.id, first.intent);
                taken.torn.push((letter.intent.clone(), detail));
            }
        }
        taken
    }

    /// How many different ids each intent was delivered with.
    pub(super) fn by_intent(&self) -> BTreeMap<&str, u64> {
        let mut counts = BTreeMap::new();
        for effect in &self.effects {
            *counts.entry(&*effect.intent).or_default() += 1;
        }
        counts
    }
}
