//! `--watch`: a list again and again, until Ctrl-C. Only what reads: an act is done once.

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _, stdout};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use clap::ArgMatches;

use crate::exit::{self, CliError, Result};
use crate::scope::pause;

/// Commands that change nothing, by how they end.
const READS: [&str; 20] = [
    "accounts",
    "audit",
    "doctor",
    "find",
    "forecast",
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
    "ledger verify",
];

/// The pause, and the command line without the option.
pub(crate) fn asked(
    args: impl Iterator<Item = OsString>,
) -> (Option<Result<Duration>>, Vec<OsString>) {
    let mut every = None;
    let mut rest = Vec::new();
    for arg in args {
        match arg.to_str().and_then(|arg| arg.strip_prefix("--watch")) {
            Some("") => every = Some(Ok(Duration::from_secs(2))),
            Some(time) if time.starts_with('=') => {
                every = Some(pause(&time[1..]).map_err(|why| {
                    let what = format!("--watch{time} is no pause: {why}");
                    CliError::new(exit::USAGE, what, "Write --watch=5s.")
                }));
            }
            _ => rest.push(arg),
        }
    }
    (every, rest)
}

/// Whether a command changes nothing.
pub(crate) fn only_reads(command: &str) -> bool {
    let ends_with = |read: &&str| {
        let before = command.strip_suffix(*read);
        before.is_some_and(|before| before.is_empty() || before.ends_with(' '))
    };
    READS.iter().any(ends_with)
}

/// Whether the command of this line only reads.
fn may_repeat(matches: &ArgMatches) -> bool {
    only_reads(&crate::names::command(matches))
}

/// What a list says and a later one may say otherwise: nothing has the name yet, or something needs attention.
const GO_ON: [u8; 2] = [exit::NOT_FOUND, exit::FINDINGS];

/// The database is away; nothing that only reads is left half done.
const AWAY: [u8; 2] = [exit::NO_DATABASE, exit::UNCERTAIN];

/// Pauses while the database is away.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];

/// Runs this program again and again. It ends with the first failure that does not pass, or with a signal; and where the database
/// was never reached.
pub(crate) fn run(every: Duration, matches: &ArgMatches, args: &[OsString]) -> Result<ExitCode> {
    if !may_repeat(matches) {
        return Err(CliError::new(
            exit::USAGE,
            "--watch repeats a list; this command does something",
            "Run it once, without --watch.",
        ));
    }
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
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let (every, rest) = asked(words("pgonce job list --watch=5s mail").into_iter());
        assert_eq!(every.unwrap().unwrap(), Duration::from_secs(5));
        assert_eq!(rest, words("pgonce job list mail"));
        for wrong in ["x", "0s", "1M"] {
            let line = format!("pgonce job list --watch={wrong}");
            let (every, _) = asked(words(&line).into_iter());
            assert!(every.unwrap().is_err(), "{wrong}");
        }
        for (line, repeats) in [
            ("pgonce job list mail", true),
            ("pgonce doctor", true),
            ("pgonce forecast", true),
            ("pgonce ledger verify", true),
            ("pgonce projection verify p", false),
            ("pgonce job cancel 7 --reason r", false),
            ("pgonce purge", false),
            ("pgonce outbox redrive s", false),
        ] {
            let matches = crate::command().get_matches_from(words(line));
            assert_eq!(may_repeat(&matches), repeats, "{line}");
        }
    }
}
