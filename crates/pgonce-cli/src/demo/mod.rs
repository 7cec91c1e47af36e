//! `pgonce demo`.

use std::process::ExitCode;

/// Settings of the demo.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args) -> ExitCode {
    ExitCode::FAILURE
}
