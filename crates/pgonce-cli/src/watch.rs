//! `--watch`: a list again and again, until Ctrl-C. Only what reads: an act is done once.

use std::io::{IsTerminal as _, Write as _, stdout};
use std::process::ExitCode;
use std::time::Duration;

use clap::ArgMatches;

use crate::exit::{self, CliError, Result};

/// Commands that change nothing, by their last word.
pub(crate) const READS: [&str; 19] = [
    "accounts",
    "audit",
    "doctor",
    "find",
    "groups",
    "list",
    "most-retried",
    "providers",
    "retried",
    "rules",
    "schedules",
    "show",
    "statement",
    "status",
    "stuck",
    "suppression",
    "tasks",
    "balance",
    "verify",
];

/// The pause, and the command line without the option.
pub(crate) fn asked(args: impl Iterator<Item = String>) -> Result<(Option<Duration>, Vec<String>)> {
    let mut every = None;
    let mut rest = Vec::new();
    for arg in args {
        match arg.strip_prefix("--watch") {
            Some("") => every = Some(Duration::from_secs(2)),
            Some(time) if time.starts_with('=') => {
                let parsed = humantime::parse_duration(&time[1..]);
                let parsed = parsed.ok().filter(|time| !time.is_zero());
                every = Some(parsed.ok_or_else(|| {
                    let what = format!("--watch{time} is no length of time");
                    CliError::new(exit::USAGE, what, "Write --watch=5s.")
                })?);
            }
            _ => rest.push(arg),
        }
    }
    Ok((every, rest))
}

/// The last word of the command, where it only reads.
pub(crate) fn may_repeat(matches: &ArgMatches) -> bool {
    let command = crate::names::command(matches);
    let last = command.split(' ').next_back();
    last.is_some_and(|last| READS.contains(&last))
}

/// Runs this program again and again. It ends with the first failure, or with a signal.
pub(crate) fn run(every: Duration, args: &[String]) -> Result<ExitCode> {
    loop {
        if stdout().is_terminal() {
            // To the top of an empty screen.
            stdout().write_all(b"\x1b[H\x1b[2J")?;
            stdout().flush()?;
        }
        let program = std::env::current_exe()?;
        let ended = std::process::Command::new(program)
            .args(args.iter().skip(1))
            .status()?;
        if !ended.success() {
            let code = ended.code().and_then(|code| u8::try_from(code).ok());
            return Ok(ExitCode::from(code.unwrap_or(exit::FAILED)));
        }
        std::thread::sleep(every);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_taken_out_wherever_it_stands_and_only_reads_are_repeated() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (every, rest) = asked(words("pgonce job list --watch=5s mail").into_iter()).unwrap();
        assert_eq!(every, Some(Duration::from_secs(5)));
        assert_eq!(rest, words("pgonce job list mail"));
        assert!(asked(words("pgonce job list --watch=x").into_iter()).is_err());
        for (line, repeats) in [
            ("pgonce job list mail", true),
            ("pgonce doctor", true),
            ("pgonce job cancel 7 --reason r", false),
            ("pgonce purge", false),
            ("pgonce outbox redrive s", false),
        ] {
            let matches = crate::command().get_matches_from(words(line));
            assert_eq!(may_repeat(&matches), repeats, "{line}");
        }
    }
}
