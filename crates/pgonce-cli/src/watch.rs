//! `--watch`: a list again and again, until Ctrl-C. Only what reads: an act is done once.

use std::io::{IsTerminal as _, Write as _, stdout};
use std::process::{ExitCode, Stdio};
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

/// What a list says and a later one may say otherwise: nothing has the name yet, or something needs attention.
const GO_ON: [u8; 2] = [exit::NOT_FOUND, exit::FINDINGS];

/// The database is away; nothing that only reads is left half done.
const AWAY: [u8; 2] = [exit::NO_DATABASE, exit::UNCERTAIN];

/// Pauses while the database is away.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];

/// Runs this program again and again. It ends with the first failure that does not pass, or with a signal; and where the database
/// was never reached.
pub(crate) fn run(every: Duration, args: &[String]) -> Result<ExitCode> {
    let (mut reached, mut away) = (false, false);
    loop {
        // What was there last stays to be seen while the database is away.
        if stdout().is_terminal() && !away {
            // To the top of an empty screen.
            stdout().write_all(b"\x1b[H\x1b[2J")?;
            stdout().flush()?;
        }
        let program = std::env::current_exe()?;
        let mut round = std::process::Command::new(program);
        // Said once: every round would say the same.
        if away {
            round.stderr(Stdio::null());
        }
        let ended = round.args(args.iter().skip(1)).status()?;
        let code = ended.code().and_then(|code| u8::try_from(code).ok());
        let code = code.unwrap_or(exit::FAILED);
        let (was_away, goes_on) = (away, ended.success() || GO_ON.contains(&code));
        away = reached && AWAY.contains(&code);
        reached |= goes_on;
        if away {
            std::thread::sleep(every.clamp(PAUSES[0], PAUSES[1]));
        } else if goes_on {
            std::thread::sleep(every);
        } else if !was_away {
            return Ok(ExitCode::from(code));
        }
        // What is wrong now was not said: the next round says it.
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
