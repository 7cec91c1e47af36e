//! What is shown at the end, and what is written into the ledger.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment, Table, presets};
use pgonce_testkit::Fault;
use serde::Serialize;

use super::campaign::Outcome;
use super::oracle::Broken;
use super::trial::Trialed;

/// More than these are only counted on the screen; the ledger has them all.
const SHOWN: usize = 20;

impl Trialed {
    /// What was done to it, such as `cut-before`.
    pub(super) fn actions(&self) -> String {
        let action = |fault: &Fault| fault.action.to_string();
        match &self.trial.faults[..] {
            [] => "none".to_owned(),
            [one] => action(one),
            _ => "several".to_owned(),
        }
    }
}

/// How many, and how many of them went wrong.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub(super) struct Count {
    trials: u64,
    faults: u64,
    duplicates: u64,
    lost: u64,
    stuck: u64,
    other: u64,
}

impl Count {
    fn blame(&mut self, kind: &str) {
        match kind {
            "Duplicate" => self.duplicates += 1,
            "Lost" => self.lost += 1,
            "NeverAnswered" | "Unfinished" => self.stuck += 1,
            _ => self.other += 1,
        }
    }

    fn add(&mut self, more: &Self) {
        self.trials += more.trials;
        self.faults += more.faults;
        self.duplicates += more.duplicates;
        self.lost += more.lost;
        self.stuck += more.stuck;
        self.other += more.other;
    }
}

/// By path and action.
type Counts = BTreeMap<String, BTreeMap<String, Count>>;

/// The whole storm, as it is written into the ledger.
#[derive(Debug, Serialize)]
pub(super) struct Ledger {
    pub(super) command: String,
    pub(super) seed: u64,
    pub(super) version: &'static str,
    pub(super) commit: Option<String>,
    pub(super) machine: String,
    pub(super) postgresql: Vec<String>,
    pub(super) seconds: f64,
    pub(super) trials_per_second: f64,
    pub(super) enumerated: usize,
    pub(super) random: usize,
    pub(super) exactly_once: bool,
    /// How many configurations were to be stormed; fewer are below if it did not come to its end.
    pub(super) planned: usize,
    pub(super) totals: Count,
    configurations: Vec<Configuration>,
    violations: Vec<Broken>,
}

#[derive(Debug, Serialize)]
struct Configuration {
    name: String,
    seconds: f64,
    trials: usize,
    attempts: usize,
    effects: usize,
    met: BTreeMap<String, u64>,
    paths: Counts,
}

impl Ledger {
    pub(super) fn new(command: String, seed: u64, commit: Option<String>) -> Self {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Self {
            command,
            seed,
            version: env!("CARGO_PKG_VERSION"),
            commit,
            machine: format!(
                "{cores} cores, {} {}, {} build",
                std::env::consts::OS,
                std::env::consts::ARCH,
                if cfg!(debug_assertions) {
                    "debug"
                } else {
                    "release"
                },
            ),
            postgresql: Vec::new(),
            seconds: 0.0,
            trials_per_second: 0.0,
            enumerated: 0,
            random: 0,
            exactly_once: false,
            planned: 0,
            totals: Count::default(),
            configurations: Vec::new(),
            violations: Vec::new(),
        }
    }

    /// Takes a configuration's outcome in. Gives a line about it.
    pub(super) fn add(&mut self, outcome: Outcome) -> String {
        let mut paths = Counts::new();
        for trial in &outcome.trialed {
            let count = paths
                .entry(trial.path.name())
                .or_default()
                .entry(trial.actions())
                .or_default();
            count.trials += 1;
            count.faults += u64::from(trial.fired > 0);
        }
        let findings = outcome.findings;
        for broken in &findings.broken {
            let path = broken.path.clone().unwrap_or_else(|| "all".to_owned());
            let action = broken.action.clone().unwrap_or_else(|| "none".to_owned());
            paths
                .entry(path)
                .or_default()
                .entry(action)
                .or_default()
                .blame(&broken.kind);
        }
        for count in paths.values().flat_map(BTreeMap::values) {
            self.totals.add(count);
        }
        let trials = outcome.trialed.len();
        self.random += outcome.random;
        self.enumerated += trials - outcome.random;
        let seconds = outcome.took.as_secs_f64();
        self.seconds += seconds;
        self.trials_per_second = self.totals.trials as f64 / self.seconds.max(0.001);
        let line = format!(
            "{:<48} {trials:>6} trials in {seconds:>5.1} s, {} attempts, {} effects: {}",
            outcome.config.name(),
            findings.attempts,
            findings.effects,
            if findings.broken.is_empty() {
                "exactly once"
            } else {
                "BROKEN"
            },
        );
        self.configurations.push(Configuration {
            name: outcome.config.name(),
            seconds,
            trials,
            attempts: findings.attempts,
            effects: findings.effects,
            met: findings.counts,
            paths,
        });
        self.violations.extend(findings.broken);
        self.exactly_once = self.violations.is_empty();
        line
    }

    /// Trials by path and action over all configurations, and what went wrong.
    pub(super) fn table(&self) -> String {
        let mut paths = Counts::new();
        for configuration in &self.configurations {
            for (path, actions) in &configuration.paths {
                for (action, count) in actions {
                    let sum = paths.entry(path.clone()).or_default().entry(action.clone());
                    sum.or_default().add(count);
                }
            }
        }
        let mut names: Vec<&String> = paths.values().flat_map(BTreeMap::keys).collect();
        names.sort();
        names.dedup();
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        let words = names.iter().map(|name| name.as_str());
        let ends = ["duplicates", "lost", "stuck", "other"];
        table.set_header(std::iter::once("path").chain(words).chain(ends));
        for (path, actions) in &paths {
            let mut sum = Count::default();
            actions.values().for_each(|count| sum.add(count));
            let trials = names
                .iter()
                .map(|name| actions.get(*name).map_or(0, |count| count.trials));
            let wrong = [sum.duplicates, sum.lost, sum.stuck, sum.other];
            let numbers = trials
                .chain(wrong)
                .map(|n| Cell::new(n).set_alignment(CellAlignment::Right));
            table.add_row(std::iter::once(Cell::new(path)).chain(numbers));
        }
        table.to_string()
    }

    /// The last words.
    pub(super) fn totals(&self) -> String {
        let mut text = String::new();
        for broken in self.violations.iter().take(SHOWN) {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n{}: {}\n", broken.kind, broken.detail);
            if let Some(replay) = &broken.replay {
                let _ = writeln!(text, "   replay: {replay}");
            }
        }
        if self.violations.len() > SHOWN {
            let _ = writeln!(
                text,
                "\n… and {} more violations",
                self.violations.len() - SHOWN
            );
        }
        let all = &self.totals;
        let other = match all.other {
            0 => String::new(),
            n => format!(", {n} other violations"),
        };
        let _ = write!(
            text,
            "{} trials, {} duplicates, {} lost, {} stuck{other}; {:.0} trials/s",
            all.trials, all.duplicates, all.lost, all.stuck, self.trials_per_second
        );
        text
    }
}
