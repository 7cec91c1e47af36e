//! What came of a case.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Pass,
    Fail,
    /// Callers can live with it.
    Advice,
    /// It was tried, and what came of it says neither.
    Inconclusive,
    /// It was not tried.
    Skipped,
}

impl Outcome {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Advice => "advice",
            Self::Inconclusive => "inconclusive",
            Self::Skipped => "skipped",
        }
    }

    pub(super) fn is_concluded(self) -> bool {
        matches!(self, Self::Pass | Self::Fail | Self::Advice)
    }
}

/// The outcome of a case, and why.
#[derive(Debug, Clone)]
pub(super) struct Finding {
    pub(super) outcome: Outcome,
    pub(super) observed: String,
    /// Concluded from answers alone, without counting effects.
    pub(super) weak: bool,
}

/// Both sides are findings: `?` leaves a case as soon as something is found.
pub(super) type Found<T = Finding> = Result<T, Finding>;

impl Finding {
    fn new(outcome: Outcome, observed: impl Into<String>) -> Self {
        Self {
            outcome,
            observed: observed.into(),
            weak: false,
        }
    }

    pub(super) fn pass(observed: impl Into<String>) -> Self {
        Self::new(Outcome::Pass, observed)
    }

    pub(super) fn fail(observed: impl Into<String>) -> Self {
        Self::new(Outcome::Fail, observed)
    }

    pub(super) fn advice(observed: impl Into<String>) -> Self {
        Self::new(Outcome::Advice, observed)
    }

    pub(super) fn inconclusive(observed: impl Into<String>) -> Self {
        Self::new(Outcome::Inconclusive, observed)
    }

    pub(super) fn skipped(observed: impl Into<String>) -> Self {
        Self::new(Outcome::Skipped, observed)
    }

    pub(super) fn weak(self) -> Self {
        Self { weak: true, ..self }
    }

    /// As something that callers can live with.
    pub(super) fn mild(self) -> Self {
        match self.outcome {
            Outcome::Fail => Self {
                outcome: Outcome::Advice,
                ..self
            },
            _ => self,
        }
    }
}
