//! Confirmation before acts that cannot be undone.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::exit::{self, CliError, Result};
use crate::output::{self, Format};

/// Why something is done. The database refuses a blank one only when it is done.
pub(crate) fn reason(text: &str) -> std::result::Result<String, String> {
    said(text, "give a reason: it is kept with your name")
}

/// The code of a failure.
pub(crate) fn code(text: &str) -> std::result::Result<String, String> {
    said(text, "give a code, such as no_such_address")
}

fn said(text: &str, what: &str) -> std::result::Result<String, String> {
    match text.trim().is_empty() {
        true => Err(what.to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// A JSON document, as it is written: a number may have more digits than a float.
pub(crate) fn document(text: &str) -> std::result::Result<String, String> {
    let read = serde_json::from_str::<&RawValue>(text);
    read.map(|_| text.to_owned())
        .map_err(|why| format!("this is no JSON: {why}"))
}

/// Whether an act that cannot be undone is confirmed, asked about, or only described.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Safety")]
pub(crate) struct Confirm {
    /// Do it without asking.
    #[arg(long)]
    yes: bool,
    /// Only say what would be done, and to how many.
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
}

impl Confirm {
    /// Whether nothing is to be done, whatever there is to do: also an act that needs no confirmation asks then.
    pub(crate) fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Whether to go on. `what` continues "would " and names the count, such as "drop subscription
    /// billing, with 3 parked events".
    pub(crate) fn ask(&self, format: Format, what: &str, count: u64) -> Result<bool> {
        self.ask_about(format, what, &json!({"count": count}))
    }

    /// As [`Confirm::ask`], where there is more to say of the count than a number.
    pub(crate) fn ask_about(&self, format: Format, what: &str, counted: &Value) -> Result<bool> {
        if self.dry_run {
            let words = format!("would {}", output::printable(what));
            let mut value = counted.clone();
            value["would"] = what.into();
            output::say(format, &words, &value)?;
            return Ok(false);
        }
        if self.yes {
            return Ok(true);
        }
        if io::stdin().is_terminal() && io::stderr().is_terminal() {
            write!(
                io::stderr(),
                "This will {}. Go on? [y/N] ",
                output::printable(what)
            )?;
            let mut answer = String::new();
            io::stdin().lock().read_line(&mut answer)?;
            if matches!(answer.trim(), "y" | "Y" | "yes") {
                return Ok(true);
            }
        }
        Err(CliError::new(
            exit::NOT_CONFIRMED,
            format!("not confirmed, nothing was done: this would {what}"),
            "It cannot be undone. Look with --dry-run; confirm with --yes.",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_keeps_its_digits_and_what_is_blank_is_no_reason() {
        let long = r#"{"sum": 12345678901234567890.10}"#;
        assert_eq!(document(long).as_deref(), Ok(long));
        for text in ["", "{", "none", "1 2"] {
            assert!(document(text).is_err(), "{text}");
        }
        assert_eq!(reason(" ticket 7").as_deref(), Ok(" ticket 7"));
        for text in ["", " ", "\t\n"] {
            assert!(reason(text).is_err() && code(text).is_err(), "{text:?}");
        }
    }
}
