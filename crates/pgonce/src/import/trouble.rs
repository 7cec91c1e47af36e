//! What became of a transaction of an import, or why it was not committed.

use super::chunk::Problem;
use crate::error::Error;

/// What became of the rows of one transaction, as positions in their chunk. The others were applied.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) skipped: Vec<usize>,
    pub(super) changed: Vec<usize>,
    /// Skipped because a trigger kept them out.
    pub(super) odd: Vec<usize>,
}

/// Why a transaction was not committed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// This row is to blame.
    Row(usize, Problem),
    /// One of the rows is to blame.
    Smaller(Option<Problem>),
    /// Some rows may be there already.
    Stage,
    /// Try again.
    Again(Error),
    Fatal(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        let transient = ["40", "53", "55", "57"];
        match &error {
            Error::Disconnected(_) | Error::Uncertain(_) => return Self::Again(error),
            Error::Fenced(_) => return Self::Fatal(error),
            _ => {}
        }
        let code = error.code();
        if transient.iter().any(|class| code.starts_with(class)) {
            return Self::Again(error);
        }
        let of_row = ["22", "23", "44", "P0", "P4"]
            .iter()
            .any(|class| code.starts_with(class));
        if !of_row || matches!(code, "P4012" | "P4082" | "P4099") {
            return Self::Fatal(error);
        }
        let text = match &error {
            Error::Database(p) | Error::Invalid(p) | Error::Conflict(p) => p.message.to_string(),
            other => other.to_string(),
        };
        Self::Smaller(Some(Problem::new(code, text)))
    }
}
