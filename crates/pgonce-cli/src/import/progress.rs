//! How far an import is, on stderr: a bar on a terminal, else a line now and then.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pgonce::import::Progress;
use serde_json::json;

use crate::output::Format;

/// Between two lines.
const EVERY: Duration = Duration::from_secs(10);

pub(super) struct Shown {
    bar: Option<ProgressBar>,
    format: Format,
    quiet: bool,
    begun: Instant,
    /// What was done when this run began, and when a line was written last.
    first: Option<Progress>,
    last: Instant,
}

impl Shown {
    pub(super) fn new(quiet: bool, format: Format) -> Self {
        let drawn = !quiet && format == Format::Table && io::stderr().is_terminal();
        Self {
            bar: drawn.then(|| ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())),
            format,
            quiet,
            begun: Instant::now(),
            first: None,
            last: Instant::now(),
        }
    }

    pub(super) fn show(&mut self, now: &Progress) {
        let first = *self.first.get_or_insert(*now);
        let seconds = self.begun.elapsed().as_secs_f64().max(0.001);
        let rate = (now.rows - first.rows) as f64 / seconds;
        if let Some(bar) = &self.bar {
            if let (None, Some(total)) = (bar.length(), now.total_bytes) {
                bar.set_length(total);
                let style = "{bar:30} {percent:>3} %  {msg}  {eta} left";
                bar.set_style(
                    ProgressStyle::with_template(style)
                        .unwrap_or_else(|_| ProgressStyle::default_bar()),
                );
            }
            bar.set_position(now.bytes);
            bar.set_message(format!(
                "{} rows, {rate:.0} a second, {} failed",
                now.rows, now.failed
            ));
            return;
        }
        if self.quiet || self.last.elapsed() < EVERY {
            return;
        }
        self.last = Instant::now();
        let bytes = (now.bytes - first.bytes) as f64 / seconds;
        let rest = now
            .total_bytes
            .map(|total| total.saturating_sub(now.bytes) as f64);
        let left = rest
            .filter(|_| bytes > 0.0)
            .map(|rest| (rest / bytes).round());
        let line = match self.format {
            Format::Json => json!({"progress": {
                "rows": now.rows, "applied": now.applied, "skipped": now.skipped, "failed": now.failed, "bytes": now.bytes,
                "total_bytes": now.total_bytes, "rows_per_second": rate.round(), "seconds_left": left,
            }})
            .to_string(),
            Format::Table => {
                let left = left.map(|left| format!(", {left} s left")).unwrap_or_default();
                format!("{} rows, {rate:.0} a second, {} failed{left}", now.rows, now.failed)
            }
        };
        // Nothing is left to be done where stderr is closed.
        let _ = writeln!(io::stderr(), "{line}");
    }

    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
