//! `pgonce completions` and `pgonce man`.

use std::path::PathBuf;

use clap_complete::Shell;

use crate::exit::{self, CliError, Result};
use crate::output;

/// Completions for a shell.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Manual pages.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Write a page for each command into this folder, instead of the first page to stdout.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs, mut command: clap::Command) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "pgonce", &mut script);
    output::raw(&String::from_utf8_lossy(&script))
}

pub(crate) fn man(args: &ManArgs, command: clap::Command) -> Result {
    let Some(folder) = &args.dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        return output::raw(&String::from_utf8_lossy(&page));
    };
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .map_err(|error| {
            CliError::new(
                exit::FAILED,
                format!(
                    "the pages cannot be written to {}: {error}",
                    folder.display()
                ),
                "Name a folder that can be written to.",
            )
        })
}
