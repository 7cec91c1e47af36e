//! Faults of a configuration, printed as a compiler would.

use std::io::{self, Write as _};

use pgonce_http::gateway::Faults;
use serde_json::json;

use crate::exit::{self, CliError};
use crate::output::Format;

/// Prints the faults of a file to stderr, each with its place. Gives the exit code.
pub(crate) fn report(faults: &Faults, format: Format) -> u8 {
    let text = match format {
        Format::Table => format!(
            "error: {}",
            faults.to_string().replace("\n\n", "\n\nerror: ")
        ),
        Format::Json => {
            let list: Vec<_> = faults
                .iter()
                .map(|fault| json!({"line": fault.line, "column": fault.column, "message": fault.what, "hint": fault.hint}))
                .collect();
            json!({"error": {
                "message": "the configuration is wrong", "file": faults.file(), "faults": list,
                "code": "22023", "exit": exit::USAGE,
            }})
            .to_string()
        }
    };
    // Nothing is left to be done where stderr is closed too.
    let _ = writeln!(io::stderr(), "{text}");
    exit::USAGE
}

/// Why a program that runs on does not run.
pub(crate) enum Stopped {
    Error(CliError),
    Faults(Faults),
}

impl Stopped {
    /// Prints it to stderr. Gives the exit code.
    pub(crate) fn report(self, format: Format) -> u8 {
        match self {
            Self::Error(error) => error.print(format),
            Self::Faults(faults) => report(&faults, format),
        }
    }
}

impl<T: Into<CliError>> From<T> for Stopped {
    fn from(error: T) -> Self {
        Self::Error(error.into())
    }
}
