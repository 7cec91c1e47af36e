//! `pgonce serve`: one process for everything that runs on beside the applications, and `pgonce config`.

mod access;
#[cfg(feature = "embedded")]
mod embedded;
mod files;
mod health;
mod http;
mod notify;
mod settings;
mod tasks;

use std::io::Write as _;
use std::sync::Arc;

use clap::Subcommand;
use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;
use pgonce_console::Console;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::files::Files;
use self::health::Health;
use self::http::Web;
pub(crate) use self::settings::Given;
use self::settings::{Found, Settings};
use crate::database::{Address, Target, pool};
use crate::exit::{self, CliError, Result};
use crate::output::{self, Format};
use crate::signals::{Hangups, Signals};
use crate::{prometheus, relay};

/// What to serve.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    given: Given,
    /// Where the private PostgreSQL is kept that is started when no database is given.
    #[cfg(feature = "embedded")]
    #[arg(long, value_name = "FOLDER", env = "PGONCE_DATA")]
    data: Option<std::path::PathBuf>,
}

/// What to do with the configuration.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    action: ConfigAction,
}

#[derive(Debug, Subcommand)]
enum ConfigAction {
    /// Show every setting of `pgonce serve`.
    Show {
        /// Show where each value is from.
        #[arg(long)]
        origin: bool,
        #[command(flatten)]
        given: Box<Given>,
    },
    /// Only say what is wrong. Asks no database.
    Check {
        #[command(flatten)]
        given: Box<Given>,
    },
}

pub(crate) fn config(args: ConfigArgs, format: Format) -> Result {
    match args.action {
        ConfigAction::Show { origin, given } => Found::look(&given)?.show(format, origin),
        ConfigAction::Check { given } => Found::look(&given)?.check(format),
    }
}

/// Whether the settings are right.
#[cfg(test)]
pub(crate) fn checked(given: &Given) -> Result {
    Found::look(given)?.settings().map(drop)
}

/// How long the database is waited for, where a request depends on it.
const DATABASE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let format = target.format();
    let settings = Found::look(&args.given)?.settings()?;
    relay::start_log(settings.json_log);
    #[cfg(feature = "embedded")]
    if !target.is_given() {
        let folder = embedded::folder(args.data.clone())?;
        let server = embedded::start(&folder).await?;
        let served = serve(
            args.given,
            settings,
            server.address()?,
            pgonce::DEFAULT_SCHEMA.to_owned(),
            format,
        )
        .await;
        server.stop().await;
        return served;
    }
    let (address, schema) = target.address()?;
    serve(args.given, settings, address, schema, format).await
}

async fn serve(
    given: Given,
    settings: Settings,
    address: Address,
    schema: String,
    format: Format,
) -> Result {
    let recorder = prometheus::install()?;
    let driver = TokioPostgres::new(pool(address.clone(), "pgonce serve", 8, DATABASE_TIMEOUT)?);
    let once = Once::builder(driver.clone())
        .schema(&schema)
        .behind_pooler()
        .build()?;
    // What health and metrics ask is cancelled in the database when its time is over.
    let asking = Once::builder(driver.clone())
        .schema(&schema)
        .behind_pooler()
        .statement_timeout(DATABASE_TIMEOUT)
        .build()?;
    let migrator = Migrator::new(driver.clone())
        .schema(&schema)
        .statement_timeout(DATABASE_TIMEOUT);
    let files = Files::load(&settings, &schema)?;
    // Before anything is started, so that no signal can be missed.
    let (mut asked, hangups) = (Signals::listen()?, Hangups::listen()?);
    let stop = CancellationToken::new();
    let (current, changes) = watch::channel(settings.clone());
    let health = Arc::new(Health::default());
    let mut running = JoinSet::new();
    if settings.has("retention") {
        running.spawn(tasks::retention(
            once.clone(),
            changes.clone(),
            stop.clone(),
            health.clone(),
        ));
    }
    running.spawn(tasks::regions(once.clone(), changes.clone(), stop.clone()));
    if settings.has("timers") {
        running.spawn(tasks::timers(
            once.clone(),
            changes.clone(),
            stop.clone(),
            health.clone(),
        ));
    }
    if settings.has("recovery") {
        running.spawn(tasks::recovery(
            once.clone(),
            changes.clone(),
            stop.clone(),
            health.clone(),
        ));
    }
    files.spawn(&mut running, &address, &stop, &health);
    let console = {
        let (driver, schema) = (driver.clone(), schema.clone());
        // Operations and logins outlive a reload.
        let state = pgonce_console::State::default();
        move |settings: &Settings| {
            settings.has("console").then(|| {
                Console::new(driver.clone())
                    .schema(&schema)
                    .instance(&settings.instance)
                    .access(settings.access.clone())
                    .redact(settings.redact.clone())
                    .state(state.clone())
                    .router()
            })
        }
    };
    let web = Arc::new(Web::new(
        &asking,
        migrator,
        recorder,
        health.clone(),
        settings.has("metrics"),
        stop.clone(),
        DATABASE_TIMEOUT,
    ));
    let (consoles, shown) = watch::channel(console(&settings));
    let bound = http::serve(settings.listen, web, shown).await?;
    let reloading = tokio::spawn(reload(hangups, given, current, consoles, console));
    let words = match settings.has("console") {
        true => format!("console on http://{bound}/"),
        false => format!("health on http://{bound}/readyz"),
    };
    output::say(
        format,
        &words,
        &json!({"address": bound, "roles": settings.roles}),
    )?;
    std::io::stdout().flush()?;
    notify::say("READY=1");

    // What should run and has ended is shown; the rest goes on.
    let mut first_error = Ok(());
    loop {
        tokio::select! {
            () = asked.next() => break,
            Some(ended) = running.join_next() => {
                let ended = ended.unwrap_or_else(panicked);
                health.failed(match &ended {
                    Ok(()) => "a task has ended".to_owned(),
                    Err(error) => error.words().0.to_owned(),
                });
                first_error = first_error.and(ended);
            }
        }
    }
    notify::say("STOPPING=1");
    tracing::info!("asked to stop: what is under way is finished");
    stop.cancel();
    reloading.abort();
    let drain_timeout = changes.borrow().drain_timeout;
    let drained = async {
        while let Some(ended) = running.join_next().await {
            first_error = first_error.and(ended.unwrap_or_else(panicked));
        }
        first_error
    };
    let cut_off = |why| Err(cut_off(why, settings.has("gateway")));
    tokio::select! {
        drained = timeout(drain_timeout, drained) => drained.unwrap_or_else(|_| cut_off("drain_timeout was over")),
        () = asked.next() => cut_off("a second signal"),
    }
}

fn panicked(error: tokio::task::JoinError) -> Result {
    Err(CliError::new(
        exit::FAILED,
        error.to_string(),
        "Please report it.",
    ))
}

/// Requests that a gateway has sent may have happened at the service; all the rest is tried again.
fn cut_off(why: &str, has_gateway: bool) -> CliError {
    let hint = match has_gateway {
        true => {
            "Requests of the gateway may have been cut off: retries with the same key learn what is known; the scope's `stale` \
             decides about the rest. Another instance, or the next start, goes on with everything else."
        }
        false => "Nothing is lost: another instance, or the next start, goes on from there.",
    };
    CliError::new(
        exit::FAILED,
        format!("stopped before everything was finished: {why}"),
        hint,
    )
}

/// At each SIGHUP: looks everywhere again. A configuration that is wrong changes nothing.
async fn reload(
    mut hangups: Hangups,
    given: Given,
    current: watch::Sender<Settings>,
    consoles: watch::Sender<Option<axum::Router>>,
    console: impl Fn(&Settings) -> Option<axum::Router>,
) {
    loop {
        hangups.next().await;
        notify::say("RELOADING=1");
        match Found::look(&given).and_then(|found| found.settings()) {
            Ok(fresh) => {
                let old = current.borrow().clone();
                if fixed(&old) != fixed(&fresh) {
                    tracing::warn!(
                        "roles, listen and the files of parts change only with a restart"
                    );
                }
                match keep_what_runs(&old, fresh) {
                    Ok(fresh) => {
                        consoles.send_replace(console(&fresh));
                        current.send_replace(fresh);
                        tracing::info!("reloaded");
                    }
                    Err(why) => tracing::error!(why, "not reloaded; it goes on as before"),
                }
            }
            Err(error) => tracing::error!(
                error = error.words().0,
                "not reloaded; it goes on as before"
            ),
        }
        notify::say("READY=1");
    }
}

/// What changes only with a restart.
fn fixed(settings: &Settings) -> impl PartialEq {
    (
        settings.roles.clone(),
        settings.listen,
        settings.relay_file.clone(),
        settings.consumers_file.clone(),
        settings.workers_file.clone(),
        settings.gateway_file.clone(),
    )
}

/// New settings with the address and the roles of the process. Who may use the new ones was checked against an address that is
/// not listened on, so it is checked again.
fn keep_what_runs(old: &Settings, fresh: Settings) -> std::result::Result<Settings, String> {
    let fresh = Settings {
        roles: old.roles.clone(),
        listen: old.listen,
        relay_file: old.relay_file.clone(),
        consumers_file: old.consumers_file.clone(),
        workers_file: old.workers_file.clone(),
        gateway_file: old.gateway_file.clone(),
        ..fresh
    };
    if fresh.has("console") {
        fresh.access.may_listen_on(fresh.listen)?;
    }
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Flags {
        #[command(flatten)]
        given: Given,
    }

    #[test]
    fn a_reload_never_opens_a_public_console() {
        let found = |listen: &str, roles: &str| {
            let flags = Flags::parse_from(["serve", "--listen", listen, "--roles", roles]);
            Found::look(&flags.given).unwrap().settings().unwrap()
        };
        let guarded = Settings {
            access: pgonce_console::Access::local().token(
                "ada",
                pgonce_console::Role::Admin,
                "a-long-random-token",
            ),
            listen: "0.0.0.0:7650".parse().unwrap(),
            ..found("127.0.0.1:7650", "console")
        };
        for fresh in [
            found("127.0.0.1:7650", "console"),
            found("0.0.0.0:7650", "metrics"),
        ] {
            assert!(keep_what_runs(&guarded, fresh).is_err());
        }
        assert!(keep_what_runs(&guarded, guarded.clone()).is_ok());
    }
}
