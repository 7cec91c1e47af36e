//! Exit codes, and the error that ends a command.

use std::io::{self, Write as _};
use std::process::ExitCode;

use pgonce::retry::Class;
use pgonce::{Error, ErrorDetail, migrate};

use crate::output::{Format, has_color, printable};

/// The codes, for `--help`; docs/src/reference/cli.md says the same.
pub(crate) const HELP: &str = "\
--format (-o) also takes wide, jsonl, csv and name. --watch[=5s] repeats a list until Ctrl-C.

Exit codes:
  0  done
  1  failed for a reason that is none of these
  2  the command line cannot be understood, or a value in it breaks a rule
  3  no connection to the database
  4  pgonce is not installed in the schema, or older than this program: migrate up
  5  the schema is newer than this program, and not compatible with it
  6  what was applied to the schema is not what this program knows, or Citus has half of it
  7  nothing has the name that was given: no such intent, scope, subscription, queue, …
  8  the role may not do this
  9  probe: a case failed; the API does not keep what it claims
  10  probe: too little could be concluded
  11  an act that cannot be undone, or on another machine, was not confirmed with --yes
  12  doctor, region status: something needs attention
  13  import: every row has its result, and some failed
  14  the reply to a commit was lost: it may have been done, look before you run it again";

pub(crate) const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
pub(crate) const NO_DATABASE: u8 = 3;
pub(crate) const OUTDATED: u8 = 4;
pub(crate) const TOO_NEW: u8 = 5;
pub(crate) const CHANGED: u8 = 6;
pub(crate) const NOT_FOUND: u8 = 7;
pub(crate) const NOT_ALLOWED: u8 = 8;
pub(crate) const NOT_CONFIRMED: u8 = 11;
pub(crate) const FINDINGS: u8 = 12;
pub(crate) const ROWS_FAILED: u8 = 13;
pub(crate) const UNCERTAIN: u8 = 14;

pub(crate) type Result<T = ()> = std::result::Result<T, CliError>;

/// An error message, its detail, what to do about it, its code, and the exit code.
#[derive(Debug)]
pub(crate) struct CliError {
    what: String,
    detail: Option<String>,
    hint: Option<String>,
    code: Option<String>,
    exit: u8,
    /// Everything was said already, or the reader of our output has gone.
    silent: bool,
}

impl CliError {
    pub(crate) fn new(exit: u8, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            detail: None,
            hint: Some(hint.into()),
            code: None,
            exit,
            silent: false,
        }
    }

    /// Only an exit code: what there is to say was printed as a result.
    pub(crate) fn quiet(exit: u8) -> Self {
        Self {
            silent: true,
            ..Self::new(exit, "", "")
        }
    }

    /// What went wrong, and its code, for a log.
    pub(crate) fn words(&self) -> (&str, &str) {
        (&self.what, self.code.as_deref().unwrap_or_default())
    }

    /// Whether it is the database that is away, or not migrated yet, or refuses for the moment only: waiting helps.
    pub(crate) fn may_pass(&self) -> bool {
        [NO_DATABASE, OUTDATED, UNCERTAIN].contains(&self.exit) || self.is_transient()
    }

    /// Whether the database is away, or refuses for the moment only, as where a statement is cancelled. A wrong password, or a
    /// schema that does not fit, stays.
    pub(crate) fn is_transient(&self) -> bool {
        let (_, code) = self.words();
        let class = pgonce::retry::classify(code);
        matches!(class, Class::Retry | Class::RetryAfterDelay)
            || code == "57014"
            || code.starts_with("08")
            || code.starts_with("57P0")
    }

    /// The same, with a code.
    pub(crate) fn coded(self, code: &str) -> Self {
        Self {
            code: Some(code.to_owned()),
            ..self
        }
    }

    /// The same, with another exit code where it has this code.
    pub(crate) fn with_exit(self, code: &str, exit: u8) -> Self {
        let exit = if self.code.as_deref() == Some(code) {
            exit
        } else {
            self.exit
        };
        Self { exit, ..self }
    }

    /// The same, where an act was done before it and has committed.
    pub(crate) fn after_act(self) -> Self {
        Self {
            what: format!(
                "it was done, and how it is now cannot be read: {}",
                self.what
            ),
            hint: Some(LOOK.to_owned()),
            exit: UNCERTAIN,
            ..self
        }
    }

    /// The same, with another hint where it has this code.
    pub(crate) fn with_hint(mut self, code: &str, hint: &str) -> Self {
        if self.code.as_deref() == Some(code) {
            self.hint = Some(hint.to_owned());
        }
        self
    }

    /// Prints it to stderr.
    pub(crate) fn report(self, format: Format) -> ExitCode {
        ExitCode::from(self.print(format))
    }

    /// Prints it to stderr. Gives the exit code.
    pub(crate) fn print(self, format: Format) -> u8 {
        if self.silent {
            return self.exit;
        }
        let text = match format {
            Format::Json => serde_json::json!({"error": {
                "message": self.what, "detail": self.detail, "hint": self.hint, "code": self.code, "exit": self.exit,
            }})
            .to_string(),
            Format::Table => {
                let label = match has_color(&io::stderr()) {
                    true => "\u{1b}[1;31merror:\u{1b}[0m",
                    false => "error:",
                };
                let mut text = format!("{label} {}", printable(&self.what));
                for (name, part) in [("code", &self.code), ("why", &self.detail), ("do", &self.hint)] {
                    if let Some(part) = part {
                        text.push_str(&format!("\n  {name:>4}: {}", printable(part)));
                    }
                }
                text
            }
        };
        // Nothing is left to be done where stderr is closed too.
        let _ = writeln!(io::stderr(), "{text}");
        self.exit
    }
}

/// What is printed before a verdict: a reader that has gone ends the printing, and the verdict stays the exit code.
pub(crate) fn before_verdict(printed: Result) -> Result {
    match printed {
        Err(error) if error.silent && error.exit == 0 => Ok(()),
        printed => printed,
    }
}

impl From<Error> for CliError {
    fn from(error: Error) -> Self {
        let code = Some(error.code().to_owned()).filter(|code| !code.is_empty());
        let exit = exit_of(&error);
        match error {
            Error::Invalid(problem)
            | Error::Conflict(problem)
            | Error::Gone(problem)
            | Error::Fenced(problem)
            | Error::LostRace(problem)
            | Error::Database(problem)
            | Error::Schema(problem) => Self {
                hint: problem
                    .hint
                    .as_deref()
                    .map(str::to_owned)
                    .or_else(|| usual_hint(&problem)),
                what: problem.message.into(),
                detail: problem.detail.map(Into::into),
                code,
                exit,
                silent: false,
            },
            Error::Disconnected(why) => Self {
                detail: Some(why),
                code,
                ..Self::new(exit, "no connection to the database", REACH)
            },
            Error::Uncertain(why) => Self {
                detail: Some(why),
                code,
                ..Self::new(
                    exit,
                    "the reply to the commit was lost: it may have been done",
                    LOOK,
                )
            },
            other => Self {
                what: other.to_string(),
                detail: None,
                hint: None,
                code,
                exit,
                silent: false,
            },
        }
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::quiet(0);
        }
        Self::new(
            FAILED,
            format!("the output could not be written: {error}"),
            "Look at where stdout goes: is the disk full?",
        )
    }
}

impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        Self::new(
            FAILED,
            format!("the database answered with what is not JSON: {error}"),
            "Please report it, with the command and the version of PostgreSQL.",
        )
    }
}

const REACH: &str = "Is the server running, and are --database-url (or DATABASE_URL), its user and its password right?";

const LOOK: &str = "Look before you run it again: `pgonce audit --since 10m` lists what was done, and `list` or `show` of the same part how it is now.";

fn exit_of(error: &Error) -> u8 {
    match error.code() {
        "08007" => UNCERTAIN,
        migrate::MISSING | migrate::OUTDATED | "3F000" | "42P01" | "42883" => OUTDATED,
        migrate::TOO_NEW => TOO_NEW,
        migrate::CHANGED | migrate::HALF_DISTRIBUTED | migrate::NOT_DISTRIBUTED => CHANGED,
        "42501" => NOT_ALLOWED,
        "42704" => NOT_FOUND,
        "3D000" | "53300" => NO_DATABASE,
        code if code.starts_with("08") || code.starts_with("28") || code.starts_with("57P0") => {
            NO_DATABASE
        }
        _ if matches!(error, Error::Invalid(_)) => USAGE,
        code if code.starts_with("22") => USAGE,
        _ => FAILED,
    }
}

/// For errors of PostgreSQL that say what is wrong but not what to do.
fn usual_hint(problem: &ErrorDetail) -> Option<String> {
    let hint = match &*problem.code {
        "22007" | "22008" | "22015" => {
            "Write a length of time such as 30s, 15m, 7d, or as PostgreSQL's interval: '1 day 12 hours'; where a point in time is \
             wanted, one such as '2026-05-01 12:00+00'."
        }
        "3F000" | "42P01" | "42883" => {
            "Run `pgonce migrate up`, or give the schema that pgonce is in."
        }
        "42501" => {
            "Do it as the schema's owner, or let the owner grant this role access: `pgonce migrate up --grant app=ROLE`."
        }
        code if code.starts_with("28") || code == "3D000" => REACH,
        _ => return pgonce::retry::lookup(&problem.code).map(|entry| entry.advice.to_owned()),
    };
    Some(hint.to_owned())
}
