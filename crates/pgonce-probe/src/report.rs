//! The report.

use std::path::Path;
use std::time::Duration;

use quick_junit::{NonSuccessKind, Property, Report as Junit, TestCase, TestCaseStatus, TestSuite};
use serde::Serialize;

use super::case::{CASES, Case};
use super::finding::{Finding, Outcome};
use crate::exit::{self, CliError, Result};
use crate::output::{self, Format};

/// A run: what was probed, and what came of each case.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) url: String,
    pub(super) method: String,
    pub(super) seed: u64,
    pub(super) version: &'static str,
    /// Whether effects were counted; otherwise conclusions from answers alone are weak.
    pub(super) counted: bool,
    pub(super) requests: u64,
    pub(super) seconds: f64,
    pub(super) verdict: Verdict,
    pub(super) cases: Vec<Tried>,
}

#[derive(Debug, Serialize)]
pub(super) struct Tried {
    case: String,
    outcome: Outcome,
    weak: bool,
    observed: String,
    correct: &'static str,
    source: &'static str,
    seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// No case failed.
    Kept,
    /// A case failed.
    Broken,
    /// Too little could be concluded.
    Inconclusive,
}

impl Verdict {
    pub(super) fn exit(self) -> u8 {
        match self {
            Self::Kept => 0,
            Self::Broken => exit::BROKEN_CLAIM,
            Self::Inconclusive => exit::INCONCLUSIVE,
        }
    }
}

impl Tried {
    pub(super) fn new(case: Case, finding: Finding, took: Duration) -> Self {
        let about = case.about();
        Self {
            case: case.name(),
            outcome: finding.outcome,
            weak: finding.weak,
            observed: output::printable(&finding.observed),
            correct: about.correct,
            source: about.source,
            seconds: took.as_secs_f64(),
        }
    }
}

/// A failure is a failure. Otherwise at least half of what was tried must have come to a conclusion,
/// and the plainest duplicate above all.
pub(super) fn verdict(tried: &[Tried]) -> Verdict {
    let of = |outcome| tried.iter().filter(move |tried| tried.outcome == outcome);
    if of(Outcome::Fail).next().is_some() {
        return Verdict::Broken;
    }
    let concluded = tried.iter().filter(|t| t.outcome.is_concluded()).count();
    let plainest = Case::SequentialDuplicate.name();
    let unsure = of(Outcome::Inconclusive).any(|tried| tried.case == plainest);
    if concluded == 0 || unsure || concluded < of(Outcome::Inconclusive).count() {
        Verdict::Inconclusive
    } else {
        Verdict::Kept
    }
}

impl Report {
    pub(super) fn print(&self, format: Format) -> Result {
        if format == Format::Json {
            return output::line(&serde_json::to_string_pretty(self)?);
        }
        let rows = self.cases.iter().map(|tried| {
            let weak = if tried.weak { " (weak)" } else { "" };
            let outcome = format!("{}{weak}", tried.outcome.name());
            [tried.case.clone(), outcome, tried.observed.clone()]
        });
        output::table(["case", "outcome", "what was seen"], rows)?;
        for tried in self.cases.iter().filter(|t| t.outcome == Outcome::Fail) {
            output::line(&format!(
                "FAIL {}: a correct API: {} ({})",
                tried.case, tried.correct, tried.source
            ))?;
        }
        if self.cases.iter().any(|tried| tried.weak) {
            output::line(
                "weak: concluded from answers alone; effects that no answer names would not be seen. \
                 --count-url makes it strong.",
            )?;
        }
        output::line(&self.last_words())
    }

    fn last_words(&self) -> String {
        let count = |outcome| self.cases.iter().filter(|t| t.outcome == outcome).count();
        format!(
            "{}: {} passed, {} failed, {} advice, {} inconclusive, {} skipped; {} requests in {:.1} s, seed {}",
            match self.verdict {
                Verdict::Kept => "idempotent, as far as it was tried",
                Verdict::Broken => "NOT IDEMPOTENT",
                Verdict::Inconclusive => "too little could be concluded",
            },
            count(Outcome::Pass),
            count(Outcome::Fail),
            count(Outcome::Advice),
            count(Outcome::Inconclusive),
            count(Outcome::Skipped),
            self.requests,
            self.seconds,
            self.seed
        )
    }

    pub(super) fn write_junit(&self, file: &Path) -> Result {
        let mut suite = TestSuite::new(format!("{} {}", self.method, self.url));
        suite.set_time(Duration::from_secs_f64(self.seconds));
        suite.add_property(Property::new("seed", self.seed.to_string()));
        for tried in &self.cases {
            let status = match tried.outcome {
                Outcome::Pass | Outcome::Advice => TestCaseStatus::success(),
                Outcome::Fail => {
                    let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                    status
                        .set_message(tried.observed.as_str())
                        .set_description(format!(
                            "a correct API: {} ({})",
                            tried.correct, tried.source
                        ));
                    status
                }
                Outcome::Inconclusive | Outcome::Skipped => {
                    let mut status = TestCaseStatus::skipped();
                    status.set_message(format!("{}: {}", tried.outcome.name(), tried.observed));
                    status
                }
            };
            let mut case = TestCase::new(tried.case.as_str(), status);
            case.set_classname("pgonce.probe")
                .set_time(Duration::from_secs_f64(tried.seconds))
                .set_system_out(format!("{}: {}", tried.outcome.name(), tried.observed));
            suite.add_test_case(case);
        }
        let mut report = Junit::new("pgonce probe");
        report.set_time(Duration::from_secs_f64(self.seconds));
        report.add_test_suite(suite);
        let trouble = |why: String| {
            CliError::new(
                exit::FAILED,
                format!(
                    "the report could not be written to {}: {why}",
                    file.display()
                ),
                "Give --junit a file that can be written.",
            )
        };
        let text = report
            .to_string()
            .map_err(|error| trouble(error.to_string()))?;
        std::fs::write(file, text).map_err(|error| trouble(error.to_string()))
    }
}

/// What `--list` shows.
pub(super) fn list(format: Format) -> Result {
    #[derive(Serialize)]
    struct Row {
        case: String,
        level: &'static str,
        what_is_tried: &'static str,
        what_a_correct_api_answers: &'static str,
        source: &'static str,
    }
    let rows = CASES.iter().map(|about| Row {
        case: about.case.name(),
        level: about.level.name(),
        what_is_tried: about.tries,
        what_a_correct_api_answers: about.correct,
        source: about.source,
    });
    let rows: Vec<Row> = rows.collect();
    if format == Format::Json {
        return output::line(&serde_json::to_string_pretty(&rows)?);
    }
    let header = [
        "case",
        "level",
        "what is tried",
        "what a correct API answers",
        "source",
    ];
    let cells = rows.into_iter().map(|row| {
        let Row {
            case,
            level,
            what_is_tried,
            what_a_correct_api_answers,
            source,
        } = row;
        let texts = [level, what_is_tried, what_a_correct_api_answers, source];
        let [level, tried, answers, source] = texts.map(str::to_owned);
        [case, level, tried, answers, source]
    });
    output::table(header, cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(outcomes: &[(Case, Outcome)]) -> Vec<Tried> {
        let one = |(case, outcome): &(Case, Outcome)| {
            let finding = Finding {
                outcome: *outcome,
                observed: String::new(),
                weak: false,
            };
            Tried::new(*case, finding, Duration::ZERO)
        };
        outcomes.iter().map(one).collect()
    }

    #[test]
    fn a_run_that_concluded_little_is_no_success() {
        use Outcome::{Advice, Fail, Inconclusive, Pass, Skipped};
        let (a, b, c) = (Case::KeyForms, Case::LongKey, Case::SequentialDuplicate);
        for (outcomes, expected) in [
            (vec![], Verdict::Inconclusive),
            (vec![(a, Skipped)], Verdict::Inconclusive),
            (vec![(a, Pass), (b, Skipped)], Verdict::Kept),
            (vec![(a, Advice), (c, Pass)], Verdict::Kept),
            (vec![(a, Pass), (b, Inconclusive)], Verdict::Kept),
            (
                vec![(a, Pass), (b, Pass), (c, Inconclusive)],
                Verdict::Inconclusive,
            ),
            (
                vec![(a, Inconclusive), (b, Inconclusive), (c, Pass)],
                Verdict::Inconclusive,
            ),
            (
                vec![(a, Fail), (b, Inconclusive), (c, Inconclusive)],
                Verdict::Broken,
            ),
        ] {
            assert_eq!(verdict(&tried(&outcomes)), expected, "{outcomes:?}");
        }
    }
}
