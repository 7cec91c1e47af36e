//! Progress, and lines that stay.

use std::io::{IsTerminal as _, Write as _};

use indicatif::{ProgressBar, ProgressStyle};

use super::config::Config;

/// Where everything is shown: a bar on a terminal, else only what stays.
#[derive(Debug)]
pub(super) struct Screen {
    bar: Option<ProgressBar>,
}

impl Screen {
    pub(super) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| ProgressBar::new(0));
        let template = "{msg} {wide_bar} {pos}/{len}, {per_sec}";
        if let (Some(bar), Ok(style)) = (&bar, ProgressStyle::with_template(template)) {
            bar.set_style(style);
        }
        Self { bar }
    }

    pub(super) fn begin(&self, config: &Config, trials: usize) {
        if let Some(bar) = &self.bar {
            bar.reset();
            bar.set_length(trials as u64);
            bar.set_message(config.name());
        }
    }

    pub(super) fn step(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// A line that stays.
    pub(super) fn note(&self, line: &str) {
        let write = || {
            // The reader closed our output: there is nobody to report to.
            let _ = writeln!(std::io::stdout(), "{line}");
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}
