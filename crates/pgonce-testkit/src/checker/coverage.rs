use std::collections::BTreeMap;

use super::{Intent, Kind, verdict::Report};
use crate::history::{Entry, Outcome};

/// How often rare states must have been met. A run that hardly did anything proves nothing, and
/// must not pass.
///
/// States have names: those that a test writes with [`History::saw`](crate::History::saw), and
/// those that can be read off any history: `attempt`, `success`, `failed`, `unknown`,
/// `failed:<code>`, `duplicate` (attempts after the first of their intent), `overlap` (attempts
/// made while another of their intent was under way), `success after unknown`, `two payloads`
/// (intents that were asked for in two ways).
///
/// ```
/// use pgonce_testkit::{History, checker::{Coverage, check_covering}};
///
/// let history = History::new();
/// history.saw("replay");
/// let enough = Coverage::new().require("replay", 1);
/// let too_much = Coverage::new().require("replay", 2);
/// assert!(check_covering(&history, &[], &enough).passed());
/// assert!(!check_covering(&history, &[], &too_much).passed());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    required: BTreeMap<String, u64>,
}

impl Coverage {
    /// Nothing is required.
    pub fn new() -> Self {
        Self::default()
    }

    /// This state must have been met so many times.
    #[must_use]
    pub fn require(mut self, state: impl Into<String>, times: u64) -> Self {
        self.required.insert(state.into(), times);
        self
    }

    /// Like [`Self::require`], unless something else is required already.
    pub(crate) fn or_require(mut self, state: &str, times: u64) -> Self {
        self.required.entry(state.to_owned()).or_insert(times);
        self
    }

    pub(super) fn compare(&self, counts: &BTreeMap<String, u64>, report: &mut Report<'_>) {
        for (state, required) in &self.required {
            let met = counts.get(state).copied().unwrap_or(0);
            if met < *required {
                let what = format!(
                    "{state:?} was met {met} times, required are {required}; run longer, or with \
                     other faults"
                );
                report(Kind::TooLittleCovered, what);
            }
        }
    }
}

pub(super) fn counts(
    entries: &[Entry],
    intents: &BTreeMap<String, Intent>,
) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let mut add = |state: &str, times: u64| {
        if times > 0 {
            *counts.entry(state.to_owned()).or_insert(0) += times;
        }
    };
    for entry in entries {
        if let Entry::Saw { state, times } = entry {
            add(state, *times);
        }
    }
    for intent in intents.values() {
        let attempts = &intent.attempts;
        let (mut earlier_end, mut doubt) = (0, false);
        for (index, attempt) in attempts.iter().enumerate() {
            add("attempt", 1);
            add("duplicate", u64::from(index > 0));
            add(
                "overlap",
                u64::from(index > 0 && attempt.asked_at < earlier_end),
            );
            earlier_end = earlier_end.max(attempt.ended_at());
            match attempt.outcome.as_ref().map(|(outcome, _)| outcome) {
                Some(Outcome::Success(_)) => {
                    add("success", 1);
                    add("success after unknown", u64::from(doubt));
                    doubt = false;
                }
                Some(Outcome::Failed(code)) => {
                    add("failed", 1);
                    add(&format!("failed:{code}"), 1);
                }
                Some(Outcome::Unknown(_)) | None => {
                    add("unknown", 1);
                    doubt = true;
                }
            }
        }
        let other = attempts
            .iter()
            .any(|attempt| attempt.payload != attempts[0].payload);
        add("two payloads", u64::from(other));
    }
    counts
}
