//! The configuration file of a command that runs on.

use std::path::{Path, PathBuf};

use pgonce_http::gateway::Faults;
use serde_json::json;

use crate::exit::{self, CliError, Result};
use crate::faults::Stopped;
use crate::output::{self, Format};

/// What a command of its name reads from a TOML file.
pub(crate) trait ConfigFile: Sized {
    /// The command, such as `relay`.
    const COMMAND: &'static str;
    /// What is in the file, such as `subscriptions`.
    const PARTS: &'static str;

    /// Reads a configuration. `file` is the name to show.
    fn parse(file: &str, text: &str) -> std::result::Result<Self, Faults>;

    /// The names of what is in the file.
    fn names(&self) -> Vec<&str>;

    /// The configuration of a file; `None` where it was only to be checked, which is reported.
    fn load(
        file: &Path,
        check: bool,
        format: Format,
    ) -> std::result::Result<Option<Self>, Stopped> {
        let text = read(file, Self::COMMAND)?;
        let config = Self::parse(&file.to_string_lossy(), &text).map_err(Stopped::Faults)?;
        if !check {
            return Ok(Some(config));
        }
        let names = config.names();
        let list = output::printable(&names.join(", "));
        let words = format!("{} is right: {list}", file.display());
        output::say(format, &words, &json!({ Self::PARTS: names }))?;
        Ok(None)
    }

    /// The configuration of a file, inside another program.
    fn load_part(file: &Path) -> Result<Self> {
        Self::parse(&file.to_string_lossy(), &read(file, Self::COMMAND)?).map_err(|faults| {
            let hint = format!(
                "Fix the file; `pgonce {} FILE --check` looks at it alone.",
                Self::COMMAND
            );
            CliError::new(exit::USAGE, faults.to_string(), hint)
        })
    }
}

/// Relative names of files in a configuration begin in its folder.
pub(crate) fn folder(file: &str) -> PathBuf {
    Path::new(file).parent().unwrap_or(Path::new("")).to_owned()
}

/// The text of a configuration of the command of this name.
pub(crate) fn read(file: &Path, command: &str) -> Result<String> {
    std::fs::read_to_string(file).map_err(|error| {
        CliError::new(
            exit::USAGE,
            format!("{} cannot be read: {error}", file.display()),
            format!(
                "Name a TOML file; `pgonce {command} --print-example` prints one to begin with."
            ),
        )
    })
}
