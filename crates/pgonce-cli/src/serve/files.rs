//! The parts of `pgonce serve` that have a file of their own, as for the command of their name.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::health::Health;
use super::settings::Settings;
use crate::config_file::ConfigFile;
use crate::database::Address;
use crate::exit::{self, CliError, Result};
use crate::relay::config::Database;
use crate::{consume, gateway, relay, work};

pub(super) struct Files {
    relays: Option<relay::config::Config>,
    consumers: Option<consume::Config>,
    workers: Option<work::Config>,
    gateway: Option<(PathBuf, gateway::Config)>,
}

/// What a file says of what `pgonce serve` has itself.
struct Said<'c> {
    database: &'c Database,
    listens: bool,
    drain_timeout: Duration,
}

impl Files {
    /// What is wrong with a file is an error at once: waiting would not help.
    pub(super) fn load(settings: &Settings, schema: &str) -> Result<Self> {
        let (ours, relays) = (settings.drain_timeout, settings.relay_file.as_deref());
        let relays = load::<relay::config::Config>(relays, schema, ours, |config| Said {
            database: &config.database,
            listens: config.listen.is_some(),
            drain_timeout: config.drain_timeout(),
        })?;
        let consumers = settings.consumers_file.as_deref();
        let consumers = load::<consume::Config>(consumers, schema, ours, |config| Said {
            database: &config.database,
            listens: config.listen.is_some(),
            drain_timeout: config.drain_timeout(),
        })?;
        let workers = settings.workers_file.as_deref();
        let workers = load::<work::Config>(workers, schema, ours, |config| Said {
            database: &config.database,
            listens: config.listen.is_some(),
            drain_timeout: config.drain_timeout(),
        })?;
        let gateway = match settings.gateway_file.clone() {
            Some(file) => {
                let config = gateway::load_part(&file)?;
                require_schema(&file, config.database().schema(), schema)?;
                warn_of_drain(&file, config.drain_timeout(), ours);
                Some((file, config))
            }
            None => None,
        };
        Ok(Self {
            relays,
            consumers,
            workers,
            gateway,
        })
    }

    /// Each part waits for the database by itself, and `/readyz` shows it.
    pub(super) fn spawn(
        self,
        running: &mut JoinSet<Result>,
        address: &Address,
        stop: &CancellationToken,
        health: &Arc<Health>,
    ) {
        let parts = |part| {
            health.expect(part);
            (address.clone(), stop.clone(), health.clone())
        };
        let may_pass = CliError::may_pass;
        if let Some(config) = self.relays {
            let (address, stop, health) = parts("relay");
            running.spawn(async move {
                let attempt = || relay::begin(&config, address.clone(), &stop);
                let started = health.start("relay", &stop, may_pass, attempt).await?;
                let Some(started) = started else {
                    return Ok(());
                };
                health.watch(&started.watched, &[]);
                health.run(started.parts, &stop).await
            });
        }
        if let Some(config) = self.consumers {
            let (address, stop, health) = parts("consumers");
            running.spawn(async move {
                let attempt = || consume::start_all(&config, address.clone(), &stop);
                let started = health.start("consumers", &stop, may_pass, attempt).await?;
                let Some(started) = started else {
                    return Ok(());
                };
                health.watch(&[], &started.consumers);
                health.run(started.parts, &stop).await
            });
        }
        if let Some(config) = self.workers {
            let (address, stop, health) = parts("workers");
            running.spawn(async move {
                let attempt = || work::start_all(&config, address.clone(), &stop);
                let started = health.start("workers", &stop, may_pass, attempt).await?;
                let Some(started) = started else {
                    return Ok(());
                };
                health.run(started.parts, &stop).await
            });
        }
        if let Some((file, config)) = self.gateway {
            let (address, stop, health) = parts("gateway");
            running.spawn(async move {
                let gateway = gateway::build(config, Some(address));
                // It is not tried again: its end is shown instead.
                let not_tried = |_: &CliError| health.report::<_, String>("gateway", &Ok(()));
                let gateway = gateway.inspect_err(not_tried)?;
                let attempt = || gateway::agree(&gateway);
                match health.start("gateway", &stop, may_pass, attempt).await? {
                    Some(()) => gateway::run_part(gateway, file, stop).await,
                    None => Ok(()),
                }
            });
        }
    }
}

/// The configuration of a part that has a file.
fn load<C: ConfigFile>(
    file: Option<&Path>,
    schema: &str,
    ours: Duration,
    said: impl Fn(&C) -> Said<'_>,
) -> Result<Option<C>> {
    let Some(file) = file else {
        return Ok(None);
    };
    let config = C::load_part(file)?;
    let Said {
        database,
        listens,
        drain_timeout,
    } = said(&config);
    require_schema(file, &database.schema, schema)?;
    warn_of_drain(file, drain_timeout, ours);
    for (setting, is_given) in [
        ("database.url_env", database.url_env.is_some()),
        ("database.url_file", database.url_file.is_some()),
        ("listen", listens),
    ] {
        if is_given {
            let file = file.display();
            tracing::warn!(%file, setting, "ignored: `pgonce serve` has a database and a listener of its own");
        }
    }
    Ok(Some(config))
}

fn require_schema(file: &Path, given: &str, schema: &str) -> Result {
    match given == schema {
        true => Ok(()),
        false => Err(CliError::new(
            exit::USAGE,
            format!("{}: database.schema is not {schema:?}", file.display()),
            "Inside `pgonce serve` each part works on its database: give both the same schema.",
        )),
    }
}

/// A part that may take longer than all of them is cut off.
fn warn_of_drain(file: &Path, its: Duration, ours: Duration) {
    if its >= ours {
        let file = file.display();
        tracing::warn!(%file, ?its, ?ours, "its drain_timeout is not shorter than that of `pgonce serve`, which cuts it off");
    }
}
