use std::{collections::BTreeMap, fmt};

use super::{Effect, Intent};
use crate::history::{Attempted, History, Outcome};

/// More violations than these are only counted when a verdict is printed.
const SHOWN: usize = 5;
const ATTEMPTS_SHOWN: usize = 30;

/// Takes note of a violation.
pub(super) type Report<'a> = dyn FnMut(Kind, String) + 'a;

/// Which promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// More than one effect of one intent.
    Duplicate,
    /// Somebody got success, and there is no effect.
    Lost,
    /// Two who got success got different answers.
    DifferentAnswers,
    /// An effect of an intent that nobody asked for.
    Phantom,
    /// Everybody got the answer that nothing was done, and something was.
    DoneThoughFailed,
    /// An intent was asked for with two payloads, and both got success.
    ConflictAnswered,
    /// The effect was made from a payload that was turned down, or that nobody sent.
    WrongPayload,
    /// The effect's amount is not the one that was asked for.
    WrongAmount,
    /// The amounts of all effects together are not what was asked for.
    SumChanged,
    /// A subject's effects took place in another order.
    OutOfOrder,
    /// A rare state was not met often enough to prove anything.
    TooLittleCovered,
    /// An intent got no answer although nothing stood in its way any more.
    NeverAnswered,
}

/// One broken promise, with all that is known about the intent.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Violation {
    /// Which promise.
    pub kind: Kind,
    /// Whose; empty if it is about all of them.
    pub intent: String,
    /// What is wrong.
    pub what: String,
    /// The intent's part of the history.
    pub attempts: Vec<Attempted>,
    /// The intent's effects.
    pub effects: Vec<Effect>,
}

impl Violation {
    pub(super) fn of(kind: Kind, intent: &str, what: String, known: &Intent) -> Self {
        Self {
            kind,
            intent: intent.to_owned(),
            what,
            attempts: known.attempts.clone(),
            effects: known.effects.clone(),
        }
    }
}

/// Whether what clients got as answers and what took effect fit together:
///
/// * at most one effect per intent, and exactly one where anybody got success;
/// * the same answer to everybody who got success;
/// * no effect where all got the answer that nothing was done (*unknown* allows none or one);
/// * no effect of an intent that nobody asked for;
/// * no effect, and no success, for a payload that conflicts with the acknowledged one;
/// * amounts, their sum, and the order within each subject, where effects have them;
/// * the coverage that was required.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Verdict {
    /// The broken promises.
    pub violations: Vec<Violation>,
    /// How many intents were asked for.
    pub intents: usize,
    /// How many attempts were made.
    pub attempts: usize,
    /// How many effects there are.
    pub effects: usize,
    /// How often each state was met.
    pub counts: BTreeMap<String, u64>,
}

impl Verdict {
    /// No promise was broken.
    pub fn passed(&self) -> bool {
        self.violations.is_empty()
    }

    /// Whether this promise was broken.
    pub fn has(&self, kind: Kind) -> bool {
        self.violations
            .iter()
            .any(|violation| violation.kind == kind)
    }
}

impl Verdict {
    /// Takes note of a violation that was seen elsewhere.
    pub(crate) fn add(&mut self, kind: Kind, intent: &str, what: String, history: &History) {
        let mut attempts = history.attempts();
        attempts.retain(|attempt| attempt.intent == intent);
        let effects = Vec::new();
        let known = Intent { attempts, effects };
        self.violations
            .push(Violation::of(kind, intent, what, &known));
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = format!(
            "{} intents, {} attempts, {} effects",
            self.intents, self.attempts, self.effects
        );
        let broken = self.violations.len();
        match broken {
            0 => write!(out, "exactly once: {about}")?,
            1 => write!(out, "BROKEN, 1 violation: {about}")?,
            _ => write!(out, "BROKEN, {broken} violations: {about}")?,
        }
        let counts: Vec<_> = self
            .counts
            .iter()
            .map(|(state, n)| format!("{state} {n}"))
            .collect();
        if !counts.is_empty() {
            write!(out, "\nmet: {}", counts.join(", "))?;
        }
        for (index, violation) in self.violations.iter().take(SHOWN).enumerate() {
            write!(out, "\n\n{}. {violation}", index + 1)?;
        }
        if broken > SHOWN {
            write!(out, "\n\n… and {} more", broken - SHOWN)?;
        }
        Ok(())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.intent.is_empty() {
            write!(out, "{}: ", self.intent)?;
        }
        write!(out, "{} ({:?})", self.what, self.kind)?;
        for attempt in self.attempts.iter().take(ATTEMPTS_SHOWN) {
            write!(out, "\n   {}", Line(attempt))?;
        }
        if self.attempts.len() > ATTEMPTS_SHOWN {
            write!(
                out,
                "\n   … and {} more",
                self.attempts.len() - ATTEMPTS_SHOWN
            )?;
        }
        for effect in &self.effects {
            let row = serde_json::to_string(effect).unwrap_or_default();
            write!(out, "\n   effect {row}")?;
        }
        Ok(())
    }
}

struct Line<'a>(&'a Attempted);

impl fmt::Display for Line<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(attempt) = self;
        let asked = Seconds(attempt.asked_at);
        write!(
            out,
            "{asked} attempt {} asked for {}",
            attempt.attempt, attempt.payload
        )?;
        match &attempt.outcome {
            None => write!(out, " and never got an answer"),
            Some((outcome, at)) => {
                let at = Seconds(*at);
                match outcome {
                    Outcome::Success(answer) => write!(out, ", {at} got {answer}"),
                    Outcome::Failed(code) => write!(out, ", {at} failed: {code}"),
                    Outcome::Unknown(why) => write!(out, ", {at} unknown: {why}"),
                }
            }
        }
    }
}

struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
