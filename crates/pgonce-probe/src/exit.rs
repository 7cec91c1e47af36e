//! Exit codes, and the error that ends a run before there is a report.

use std::io::{self, Write as _};
use std::process::ExitCode;

use crate::output::{Format, printable};

pub(crate) const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
pub(crate) const BROKEN_CLAIM: u8 = 9;
pub(crate) const INCONCLUSIVE: u8 = 10;
pub(crate) const NOT_CONFIRMED: u8 = 11;

pub(crate) type Result<T = ()> = std::result::Result<T, CliError>;

/// An error message, what to do about it, and the exit code.
#[derive(Debug)]
pub(crate) struct CliError {
    message: String,
    hint: String,
    exit: u8,
    /// The reader of our output has gone: there is nobody to report to.
    silent: bool,
}

impl CliError {
    pub(crate) fn new(exit: u8, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: hint.into(),
            exit,
            silent: false,
        }
    }

    /// Writes it to stderr.
    pub(crate) fn report(self, format: Format) -> ExitCode {
        if self.silent {
            return ExitCode::SUCCESS;
        }
        let text = match format {
            Format::Json => serde_json::json!({"error": {
                "message": self.message, "hint": self.hint, "exit": self.exit,
            }})
            .to_string(),
            Format::Table => format!(
                "error: {}\n    do: {}",
                printable(&self.message),
                printable(&self.hint)
            ),
        };
        // Nothing is left to be done where stderr is closed too.
        let _ = writeln!(io::stderr(), "{text}");
        ExitCode::from(self.exit)
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        Self {
            silent: error.kind() == io::ErrorKind::BrokenPipe,
            ..Self::new(
                FAILED,
                format!("the output could not be written: {error}"),
                "Look at where stdout goes: is the disk full?",
            )
        }
    }
}

impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        Self::new(
            FAILED,
            format!("the report could not be written as JSON: {error}"),
            "Please report it.",
        )
    }
}
