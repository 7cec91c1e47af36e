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
    /// It took too long, or was cancelled by hand: try again with fewer rows.
    Slow(Error),
    Fatal(Error),
}

/// Classes of errors that a row causes: its values, its size, or what triggers and functions make of it.
const OF_ROW: [&str; 13] = [
    "09", "20", "21", "22", "23", "27", "2F", "38", "39", "44", "54", "P0", "P4",
];

/// Whether the same may succeed later.
pub(super) fn is_transient(error: &Error) -> bool {
    match error {
        Error::Disconnected(_) | Error::Uncertain(_) => return true,
        Error::Fenced(_) => return false,
        _ => {}
    }
    let code = error.code();
    let classes = ["40", "53", "55", "57"];
    // 55000 is what a trigger raises, or `currval`. 25xxx: a standby that is to be the primary, and sessions that were idle for too long.
    classes.iter().any(|class| code.starts_with(class)) && code != "55000"
        || matches!(code, "25006" | "25P03" | "25P04")
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        let code = error.code();
        if is_transient(&error) {
            return match code {
                "57014" => Self::Slow(error),
                _ => Self::Again(error),
            };
        }
        let of_row = code == "55000" || OF_ROW.iter().any(|class| code.starts_with(class));
        if !of_row
            || matches!(error, Error::Fenced(_))
            || matches!(code, "P4012" | "P4082" | "P4099")
        {
            return Self::Fatal(error);
        }
        let text = match &error {
            Error::Database(p) | Error::Invalid(p) | Error::Conflict(p) => p.message.to_string(),
            other => other.to_string(),
        };
        Self::Smaller(Some(Problem::new(code, text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorDetail;

    #[test]
    fn errors_are_of_the_row_or_transient_or_fatal() {
        let of = |code| Trouble::from(Error::Database(ErrorDetail::new(code, "no", "no")));
        for code in [
            "40P01", "53100", "55P03", "57P01", "25006", "25P03", "25P04",
        ] {
            assert!(matches!(of(code), Trouble::Again(_)), "{code}");
        }
        assert!(matches!(of("57014"), Trouble::Slow(_)));
        for code in [
            "20000", "21000", "22003", "23514", "38000", "54000", "54001", "55000", "P0001",
        ] {
            assert!(matches!(of(code), Trouble::Smaller(_)), "{code}");
        }
        for code in ["42501", "P4012", "P4082", "25000"] {
            assert!(matches!(of(code), Trouble::Fatal(_)), "{code}");
        }
    }
}
