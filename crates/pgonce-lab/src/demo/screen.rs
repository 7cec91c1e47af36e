//! What the demo shows: a live line while it runs, a table and a verdict at the end.

use std::fmt::Display;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};

use super::client::Counts;
use super::oracle::Findings;

/// Where everything is shown.
#[derive(Debug)]
pub(super) struct Screen {
    live: Option<ProgressBar>,
}

impl Screen {
    pub(super) fn new(plain: bool) -> Self {
        use std::io::IsTerminal as _;
        Self {
            live: (!plain && std::io::stderr().is_terminal()).then(ProgressBar::new_spinner),
        }
    }

    /// A line that stays.
    pub(super) fn note(&self, line: &str) {
        let write = || {
            // The reader closed our output: there is nobody to report to.
            let _ = writeln!(std::io::stdout(), "{line}");
        };
        match &self.live {
            Some(live) => live.suspend(write),
            None => write(),
        }
    }

    pub(super) fn begin(&self) {
        if let Some(live) = &self.live {
            live.reset();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:3}{msg}") {
                live.set_style(style);
            }
            live.enable_steady_tick(Duration::from_millis(100));
        }
    }

    /// The live lines, short enough for a narrow terminal.
    pub(super) fn show(&self, counts: &Counts, intents: u64) {
        let Some(live) = &self.live else { return };
        let of = |counter: &AtomicU64| number(counter.load(Relaxed));
        live.set_message(format!(
            "intents {} of {} · attempts {} · effects {}\n     \
             duplicates suppressed {} · conflicts {} · kills {} · crashes {}",
            of(&counts.settled),
            number(intents),
            of(&counts.attempts),
            of(&counts.effects),
            of(&counts.replays),
            of(&counts.conflicts),
            of(&counts.kills),
            of(&counts.crashes),
        ));
    }

    pub(super) fn end(&self) {
        if let Some(live) = &self.live {
            live.disable_steady_tick();
            live.finish_and_clear();
        }
    }
}

/// The storms side by side, each under its name.
pub(super) fn table(columns: &[(&str, &Findings)]) -> impl Display {
    type Row = (&'static str, fn(&Findings) -> u64);
    let rows: [Row; 18] = [
        ("intents", |f| f.intents),
        ("clients, each with the intent's key", |f| f.clients),
        ("attempts", |f| f.attempts),
        ("  hung up by the client", |f| f.cuts),
        ("  broken by a disaster", |f| f.broken),
        ("  rejected, to be retried (409, 503)", |f| f.turned_away),
        ("  answered from the stored answer", |f| f.replays),
        ("  refused, another request (422)", |f| f.conflicts),
        ("service killed (SIGKILL)", |f| f.kills),
        ("PostgreSQL crashed (SIGKILL)", |f| f.crashes),
        ("database sessions ended", |f| f.sessions_ended),
        ("effects in the database", |f| f.effects),
        ("DUPLICATES", |f| f.duplicates),
        ("LOST", |f| f.lost),
        ("different answers to one intent", |f| f.unequal),
        ("changed requests not refused", |f| f.unrefused),
        ("clients without an answer", |f| f.unanswered),
        ("wrong or unasked effects", |f| f.wrong),
    ];
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(std::iter::once("").chain(columns.iter().map(|(name, _)| *name)));
    for (name, get) in rows {
        let numbers = columns
            .iter()
            .map(|(_, found)| Cell::new(number(get(found))).set_alignment(CellAlignment::Right));
        table.add_row(std::iter::once(Cell::new(name)).chain(numbers));
    }
    table
}

/// With a comma at every thousand.
pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_have_a_comma_at_every_thousand() {
        let text = [0, 999, 1000, 1_234_567].map(super::number);
        assert_eq!(text, ["0", "999", "1,000", "1,234,567"]);
    }
}
