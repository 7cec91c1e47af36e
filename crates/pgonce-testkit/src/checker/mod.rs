//! Reads what clients got as answers and what took effect, and says whether both fit together.
//!
//! ```
//! use pgonce_testkit::{History, Outcome, checker::{self, Effect}};
//! use serde_json::json;
//!
//! let history = History::new();
//! let attempt = history.invoke("order-1", json!({}));
//! history.outcome(attempt, Outcome::Unknown("connection lost".into()));
//!
//! let done = Effect::of("order-1");
//! assert!(checker::check(&history, &[]).passed());
//! assert!(checker::check(&history, &[done.clone()]).passed());
//! assert!(!checker::check(&history, &[done.clone(), done]).passed());
//! ```

mod coverage;
mod effects;
mod rules;
mod verdict;

use std::collections::BTreeMap;

pub use self::{
    coverage::Coverage,
    effects::Effect,
    verdict::{Kind, Verdict, Violation},
};
pub use crate::history::Attempted;
use crate::history::History;

/// Checks everything except how much was covered. See [`Verdict`] for what that is.
pub fn check(history: &History, effects: &[Effect]) -> Verdict {
    check_covering(history, effects, &Coverage::default())
}

/// Checks everything, also that each rare state was met as often as `coverage` requires.
///
/// `effects` are in the order in which they took place, as far as order matters.
pub fn check_covering(history: &History, effects: &[Effect], coverage: &Coverage) -> Verdict {
    let mut intents: BTreeMap<String, Intent> = BTreeMap::new();
    let attempts = history.attempts();
    let made = attempts.len();
    for attempt in attempts {
        let intent = intents.entry(attempt.intent.clone()).or_default();
        intent.attempts.push(attempt);
    }
    let asked_for = intents.len();
    for effect in effects {
        let intent = intents.entry(effect.intent.clone()).or_default();
        intent.effects.push(effect.clone());
    }

    let mut violations = Vec::new();
    for (name, intent) in &intents {
        rules::of_one_intent(intent, &mut |kind, what| {
            violations.push(Violation::of(kind, name, what, intent));
        });
    }
    let mut of_all = |kind, what| {
        let nothing = Intent::default();
        violations.push(Violation::of(kind, "", what, &nothing));
    };
    rules::sum_is_preserved(&intents, effects, &mut of_all);
    rules::order_is_preserved(effects, &mut of_all);
    let counts = coverage::counts(&history.entries(), &intents);
    coverage.compare(&counts, &mut of_all);
    Verdict {
        violations,
        intents: asked_for,
        attempts: made,
        effects: effects.len(),
        counts,
    }
}

/// All that is known about one intent.
#[derive(Debug, Default)]
struct Intent {
    attempts: Vec<Attempted>,
    effects: Vec<Effect>,
}
