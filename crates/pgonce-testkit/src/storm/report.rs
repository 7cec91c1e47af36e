use std::{fmt, sync::Arc, time::Duration};

use crate::{checker::Verdict, cut::Fired, history::History};

/// What came of a storm.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Whether everything happened exactly once.
    pub verdict: Verdict,
    /// Calls of the handler.
    pub trials: usize,
    /// The faults that happened.
    pub faults: Vec<Fired>,
    /// Sessions that were killed.
    pub kills: u64,
    /// The seed of the faults, for [`Storm::seed`](crate::Storm::seed).
    pub seed: u64,
    /// How long it took.
    pub took: Duration,
    /// Who asked for what, and got which answer.
    pub history: Arc<History>,
}

impl Report {
    /// Everything happened exactly once, and the storm was strong enough to show it.
    pub fn passed(&self) -> bool {
        self.verdict.passed()
    }

    /// Fails the test, with the whole report, unless [`passed`](Self::passed).
    #[track_caller]
    pub fn assert_exactly_once(&self) {
        assert!(self.passed(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "storm with seed {}: {} calls, {} faults, {} sessions killed, {:.1} s",
            self.seed,
            self.trials,
            self.faults.len(),
            self.kills,
            self.took.as_secs_f64()
        )?;
        fmt::Display::fmt(&self.verdict, out)
    }
}
