//! `pgonce work`: does the jobs of queues, by a SQL function in the transaction that ends them, or by a service in any language.

mod config;
mod handler;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::config_file::ConfigFile as _;
use crate::exit::{self, CliError};
use crate::faults::Stopped;
use crate::output::{self, Format};
pub(crate) use config::Config;
pub(crate) use run::start_all;

/// Which jobs to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The configuration, a TOML file; --print-example shows one.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Only say what is wrong with the file. Asks no database.
    #[arg(long, requires = "file")]
    check: bool,
    /// Print a commented example of a configuration.
    #[arg(long, conflicts_with = "file")]
    print_example: bool,
}

pub(crate) async fn run(args: Args, format: Format) -> ExitCode {
    match obey(args, format).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(stopped) => ExitCode::from(stopped.report(format)),
    }
}

async fn obey(args: Args, format: Format) -> std::result::Result<(), Stopped> {
    if args.print_example {
        return Ok(output::raw(config::EXAMPLE)?);
    }
    let Some(file) = &args.file else {
        return Err(CliError::new(
            exit::USAGE,
            "no file was given",
            "Give a TOML file; `pgonce work --print-example` prints one.",
        )
        .into());
    };
    let Some(config) = Config::load(file, args.check, format)? else {
        return Ok(());
    };
    let address = config.database.address(&config.folder)?;
    Ok(run::run(config, address).await?)
}
