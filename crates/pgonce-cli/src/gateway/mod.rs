//! `pgonce gateway`.

mod database;
mod log;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) use pgonce_http::gateway::Config;
use pgonce_http::gateway::{Bound, Difference, Drained, EXAMPLE, Faults, Gateway, Reload};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::config_file::read;
use crate::database::Address;
use crate::exit::{self, CliError, Result};
use crate::output::{self, Format};
use crate::signals::Signals;
use database::Driver;

/// Which configuration, and what to do with it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The configuration, a TOML file; --print-example shows one.
    #[arg(value_name = "FILE", required_unless_present = "print_example")]
    file: Option<PathBuf>,
    /// Only say what is wrong with the file. Asks no database and no upstream.
    #[arg(long)]
    check: bool,
    /// Only compare the file's scopes with the database's. Changes nothing.
    #[arg(long, conflicts_with = "check")]
    check_scopes: bool,
    /// Print a commented example of a configuration.
    #[arg(long, conflicts_with_all = ["file", "check", "check_scopes"])]
    print_example: bool,
}

pub(crate) async fn run(args: Args, format: Format) -> ExitCode {
    match obey(args, format).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stopped::Error(error)) => error.report(format),
        Err(Stopped::Faults(faults)) => ExitCode::from(crate::faults::report(&faults, format)),
    }
}

/// Why the gateway does not run.
enum Stopped {
    Error(CliError),
    Faults(Faults),
}

impl<T: Into<CliError>> From<T> for Stopped {
    fn from(error: T) -> Self {
        Self::Error(error.into())
    }
}

async fn obey(args: Args, format: Format) -> std::result::Result<(), Stopped> {
    let Some(file) = args.file else {
        return Ok(output::raw(EXAMPLE)?);
    };
    let config = Config::parse(&file.to_string_lossy(), &read(&file, "gateway")?)
        .map_err(Stopped::Faults)?;
    if args.check {
        let summary = config.summary();
        let words = format!(
            "{} is right: {} routes, {} of them happen once, in {} scopes",
            file.display(),
            summary.routes,
            summary.once,
            summary.scopes
        );
        let value =
            json!({"routes": summary.routes, "once": summary.once, "scopes": summary.scopes});
        return Ok(output::say(format, &words, &value)?);
    }
    log::start(config.log());
    let gateway = build(config, None)?;
    if args.check_scopes {
        agreed(&gateway.differences().await?)?;
        let words = "the database knows the file's scopes as the file does";
        return Ok(output::say(format, words, &json!({"differences": 0}))?);
    }
    agree(&gateway).await?;
    Ok(serve(gateway, &file, format).await?)
}

/// The configuration of a file, inside another program.
pub(crate) fn load_part(file: &Path) -> Result<Config> {
    let text = read(file, "gateway")?;
    Config::parse(&file.to_string_lossy(), &text).map_err(|faults| {
        let hint = "Fix the file; `pgonce gateway FILE --check` looks at it alone.";
        CliError::new(exit::USAGE, faults.to_string(), hint)
    })
}

/// Brings the file's contracts and the database's together; an error where they still differ.
pub(crate) async fn agree(gateway: &Gateway<Driver>) -> Result {
    agreed(&gateway.agree().await?)
}

/// Serves inside another program until `stop`.
pub(crate) async fn run_part(
    gateway: Gateway<Driver>,
    file: PathBuf,
    stop: CancellationToken,
) -> Result {
    let bound = bind(gateway).await?;
    let reloading = reload_on_hangup(bound.reload(), file)?;
    tracing::info!(address = %bound.address(), admin = %bound.admin_address(), "the gateway listens");
    let drained = bound.run(stop.cancelled_owned()).await;
    reloading.abort();
    finished(drained)
}

/// A gateway over this database, or the one that the configuration names. Nothing is connected yet.
pub(crate) fn build(config: Config, address: Option<Address>) -> Result<Gateway<Driver>> {
    let once = database::once(&config, address)?;
    Gateway::new(config, once).map_err(|build_error| {
        let hint = "Fix it in the file; `pgonce gateway --check` looks at the file alone.";
        CliError::new(exit::USAGE, build_error.to_string(), hint)
    })
}

async fn bind(gateway: Gateway<Driver>) -> Result<Bound<Driver>> {
    gateway.bind().await.map_err(|error| {
        let hint = "Is another program there? See `listen` in the file.";
        CliError::new(exit::FAILED, error.to_string(), hint)
    })
}

fn finished(drained: Drained) -> Result {
    match drained.unfinished {
        0 => Ok(()),
        left => Err(cut_off(&format!(
            "{left} were still under way when drain_timeout was over"
        ))),
    }
}

fn agreed(differences: &[Difference]) -> Result {
    if differences.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = differences.iter().map(Difference::to_string).collect();
    Err(CliError::new(
        exit::FAILED,
        format!("the file and the database disagree: {}", list.join("; ")),
        "Fix the file, or change the contract with `pgonce scope define`; database.contracts = \"replace\" lets the \
         file win, \"define\" writes down what is missing.",
    ))
}

async fn serve(gateway: Gateway<Driver>, file: &Path, format: Format) -> Result {
    let bound = bind(gateway).await?;
    // Before the address is printed, so that no signal can be missed.
    let mut asked = Signals::listen()?;
    let reloading = reload_on_hangup(bound.reload(), file.to_owned())?;
    let (address, admin) = (bound.address(), bound.admin_address());
    let scheme = bound.scheme();
    let words = format!("gateway on {scheme}://{address}, health on http://{admin}");
    output::say(format, &words, &json!({"address": address, "admin": admin}))?;
    io::stdout().flush()?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut running = std::pin::pin!(bound.run(async {
        let _ = stopped.await;
    }));
    let drained = tokio::select! {
        drained = &mut running => drained,
        () = asked.next() => {
            let _ = stop.send(());
            tokio::select! {
                drained = running => drained,
                () = asked.next() => return Err(cut_off("stopped by a second signal")),
            }
        }
    };
    reloading.abort();
    finished(drained)
}

/// Reads the file again at each SIGHUP. A file that is wrong changes nothing.
#[cfg(unix)]
fn reload_on_hangup(
    reload: Reload<Driver>,
    file: PathBuf,
) -> io::Result<tokio::task::JoinHandle<()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let applied = match tokio::fs::read_to_string(&file).await {
                Ok(text) => match Config::parse(&file.to_string_lossy(), &text) {
                    Ok(config) => reload
                        .apply(config)
                        .await
                        .map_err(|error| error.to_string()),
                    Err(faults) => Err(faults.to_string()),
                },
                Err(error) => Err(error.to_string()),
            };
            match applied {
                Ok(()) => tracing::info!("reloaded"),
                Err(error) => tracing::error!(error, "not reloaded; the gateway goes on as before"),
            }
        }
    }))
}

#[cfg(not(unix))]
fn reload_on_hangup(_: Reload<Driver>, _: PathBuf) -> io::Result<tokio::task::JoinHandle<()>> {
    Ok(tokio::spawn(std::future::pending()))
}

fn cut_off(why: &str) -> CliError {
    CliError::new(
        exit::FAILED,
        format!("requests were cut off: {why}"),
        "Retries with the same key learn what is known; the scope's `stale` decides about the rest.",
    )
}
