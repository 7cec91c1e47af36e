//! Confirmation before acts that cannot be undone.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use serde_json::{Value, json};

use crate::exit::{self, CliError, Result};
use crate::output::{self, Format};

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
