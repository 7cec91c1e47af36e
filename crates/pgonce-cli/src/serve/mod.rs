//! `pgonce serve`: one process for everything that runs on beside the applications, and `pgonce config`.

#[cfg(feature = "embedded")]
mod embedded;
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

use self::http::Web;
use self::settings::{Found, Given, Settings};
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
    let migrator = Migrator::new(driver.clone()).schema(&schema);
    // Before anything is started, so that no signal can be missed.
    let (mut asked, hangups) = (Signals::listen()?, Hangups::listen()?);
    let stop = CancellationToken::new();
    let (current, changes) = watch::channel(settings.clone());
    let mut running = JoinSet::new();
    if settings.has("retention") {
        running.spawn(tasks::retention(
            once.clone(),
            changes.clone(),
            stop.clone(),
        ));
    }
    if settings.has("timers") {
        running.spawn(tasks::timers(once.clone(), changes.clone(), stop.clone()));
    }
    if settings.has("recovery") {
        running.spawn(tasks::recovery(once.clone(), changes.clone(), stop.clone()));
    }
    let mut relays = match &settings.relay_file {
        Some(file) => Some(relay::begin(file, address, &schema, &stop).await?),
        None => None,
    };
    let console = {
        let (driver, schema) = (driver.clone(), schema.clone());
        move |settings: &Settings| {
            settings.has("console").then(|| {
                Console::new(driver.clone())
                    .schema(&schema)
                    .instance(&settings.instance)
                    .access(settings.access.clone())
                    .redact(settings.redact.clone())
                    .router()
            })
        }
    };
    let watched = relays
        .as_ref()
        .map(relay::Started::watched)
        .unwrap_or_default();
    let web = Arc::new(Web::new(
        &once,
        migrator,
        recorder,
        watched,
        settings.has("metrics"),
        stop.clone(),
        DATABASE_TIMEOUT,
    ));
    let (consoles, shown) = watch::channel(console(&settings));
    let bound = http::serve(settings.listen, web.clone(), shown).await?;
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
    loop {
        let gone = tokio::select! {
            () = asked.next() => break,
            Some(ended) = running.join_next() => format!("a task has ended: {ended:?}"),
            gone = failed(&mut relays) => gone,
        };
        tracing::error!(gone, "not everything runs");
        web.failed(gone);
    }
    notify::say("STOPPING=1");
    tracing::info!("asked to stop: what is under way is finished");
    stop.cancel();
    reloading.abort();
    let drain_timeout = changes.borrow().drain_timeout;
    let drained = async {
        while running.join_next().await.is_some() {}
        match relays {
            Some(relays) => relays.ended().await,
            None => Ok(()),
        }
    };
    tokio::select! {
        drained = timeout(drain_timeout, drained) => drained.unwrap_or_else(|_| Err(cut_off("drain_timeout was over"))),
        () = asked.next() => Err(cut_off("a second signal")),
    }
}

async fn failed(relays: &mut Option<relay::Started>) -> String {
    match relays {
        Some(relays) => relays.failed().await,
        None => std::future::pending().await,
    }
}

fn cut_off(why: &str) -> CliError {
    CliError::new(
        exit::FAILED,
        format!("stopped before everything was finished: {why}"),
        "Nothing is lost: another instance, or the next start, goes on from there.",
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
                if (&old.roles, old.listen, &old.relay_file)
                    != (&fresh.roles, fresh.listen, &fresh.relay_file)
                {
                    tracing::warn!("roles, listen and relay_file change only with a restart");
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

/// New settings with the address and the roles of the process. The tokens of the new ones were checked against an address that is
/// not listened on, so they are checked again.
fn keep_what_runs(old: &Settings, fresh: Settings) -> std::result::Result<Settings, String> {
    let fresh = Settings {
        roles: old.roles.clone(),
        listen: old.listen,
        relay_file: old.relay_file.clone(),
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
