//! What was measured, beside what was promised.

use std::fmt;

use comfy_table::{Attribute, Cell, CellAlignment, Color, Table, presets};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Result, plot};

/// A measured number and what it was to be.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    name: String,
    measured: f64,
    unit: Unit,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<Budget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    met: Option<bool>,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Budget {
    AtLeast(f64),
    AtMost(f64),
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    /// One thing divided by another.
    Ratio,
    PerSecond,
    Microseconds,
    RoundTrips,
    Bytes,
    Mebibytes,
    /// So many of something for each.
    Each,
}

impl Line {
    /// A number for information.
    pub(super) fn new(name: impl Into<String>, measured: f64, unit: Unit) -> Self {
        Self {
            name: name.into(),
            measured,
            unit,
            budget: None,
            met: None,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn measured(&self) -> f64 {
        self.measured
    }

    pub(super) fn budget(&self) -> Option<Budget> {
        self.budget
    }

    pub(super) fn met(&self) -> Option<bool> {
        self.met
    }

    /// A number that was promised.
    pub(super) fn within(mut self, budget: Budget) -> Self {
        // What could not be measured is not met.
        self.met = Some(match budget {
            Budget::AtLeast(floor) => self.measured >= floor,
            Budget::AtMost(ceiling) => self.measured <= ceiling,
        });
        self.budget = Some(budget);
        self
    }
}

/// Everything that was measured, and on what.
#[derive(Debug)]
pub(super) struct Report {
    facts: Value,
    lines: Vec<Line>,
}

impl Report {
    pub(super) fn new(facts: Value) -> Self {
        Self {
            facts,
            lines: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, lines: Vec<Line>) {
        self.lines.extend(lines);
    }

    pub(super) fn missed(&self) -> usize {
        self.lines
            .iter()
            .filter(|line| line.met == Some(false))
            .count()
    }

    /// A picture of all ratios.
    pub(super) fn to_svg(&self) -> String {
        let ratios = |line: &&Line| matches!(line.unit, Unit::Ratio);
        let lines: Vec<&Line> = self.lines.iter().filter(ratios).collect();
        let of = |name: &str| plain(&self.facts[name]);
        let title = format!(
            "pgonce bench: ratios within one run; {} cores, {} connections, commit {}; a mark is a budget",
            of("cores"),
            of("connections"),
            of("commit")
        );
        plot::svg(&title, &lines)
    }

    pub(super) fn to_json(&self) -> Result<String> {
        let report = json!({"facts": self.facts, "lines": self.lines, "missed": self.missed()});
        Ok(serde_json::to_string_pretty(&report)?)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(["what", "measured", "budget", ""]);
        for line in &self.lines {
            let verdict = match line.met {
                Some(true) => Cell::new("met").fg(Color::Green),
                Some(false) => Cell::new("MISSED")
                    .fg(Color::Red)
                    .add_attribute(Attribute::Bold),
                None => Cell::new(""),
            };
            let budget = match line.budget {
                Some(Budget::AtLeast(floor)) => format!("≥ {}", line.unit.show(floor)),
                Some(Budget::AtMost(ceiling)) => format!("≤ {}", line.unit.show(ceiling)),
                None => String::new(),
            };
            let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
            table.add_row([
                Cell::new(&line.name),
                right(line.unit.show(line.measured)),
                right(budget),
                verdict,
            ]);
        }
        writeln!(f, "{table}")?;
        if let Value::Object(facts) = &self.facts {
            for (name, value) in facts {
                writeln!(f, "{name}: {}", plain(value))?;
            }
        }
        match self.missed() {
            0 => write!(f, "every budget that was measured is met"),
            n => write!(f, "{n} missed"),
        }
    }
}

/// A fact without the marks of JSON.
fn plain(fact: &Value) -> String {
    match fact {
        Value::String(text) => text.clone(),
        Value::Object(facts) => {
            let facts = facts
                .iter()
                .map(|(name, value)| format!("{name} {}", plain(value)));
            facts.collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

impl Unit {
    fn show(self, number: f64) -> String {
        match self {
            Self::Ratio => format!("{number:.2}"),
            Self::PerSecond => format!("{number:.0} /s"),
            Self::Microseconds => format!("{number:.0} µs"),
            Self::RoundTrips => format!("{number:.1}"),
            Self::Bytes => format!("{number:.0} B"),
            Self::Mebibytes => format!("{number:.1} MiB"),
            Self::Each => format!("{number:.3}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_could_not_be_measured_is_missed() {
        for budget in [Budget::AtLeast(0.0), Budget::AtMost(1.0)] {
            let mut report = Report::new(json!({}));
            report.add(vec![Line::new("x", f64::NAN, Unit::Ratio).within(budget)]);
            assert_eq!(report.missed(), 1);
        }
    }
}
