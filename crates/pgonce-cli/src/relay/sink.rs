//! Where events go, by address.

use std::time::Duration;

use pgonce_broker::sinks::{AnySink, Options, Refusal, SCHEMES};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::config::Relay;
use crate::exit::{self, CliError, Result};

/// Maximum pause before a sink that cannot be reached at the start is tried again.
const MAX_PAUSE: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "Write an address such as stdout:, nats://host:4222?stream=ORDERS&subject=events.{topic}, \
    amqp://user:password@host/vhost?exchange=orders, redis://host:6379?stream={topic}, kafka://host:9092?topic={topic}, \
    or https://host/path with the option secret.";

/// What is wrong with an address, and what to do about it.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) what: String,
    pub(super) hint: String,
}

/// Whether an address names a sink that there is. Asks nobody.
pub(super) fn check(url: &str) -> std::result::Result<(), Wrong> {
    // An address may have a password in it: only its beginning is shown.
    let scheme = url.split(':').next().unwrap_or_default();
    if url.contains(':') && SCHEMES.contains(&scheme) {
        return Ok(());
    }
    Err(Wrong {
        what: format!("there is no sink {:?}", format!("{scheme}:")),
        hint: EXAMPLES.to_owned(),
    })
}

/// A sink's address, with what is said beside it.
#[derive(Debug, Clone)]
pub(super) struct Address {
    url: String,
    options: Options,
}

impl Address {
    /// Reads the variables that the configuration names.
    pub(super) fn of(relay: &Relay) -> Result<Self> {
        let url = match (&relay.sink, &relay.sink_env) {
            (Some(url), _) => url.get_ref().clone(),
            (None, name) => variable(name.as_ref().map_or("", |name| name.get_ref()))?,
        };
        check(&url).map_err(|wrong| CliError::new(exit::USAGE, wrong.what, wrong.hint))?;
        let mut options = relay.options.clone();
        if let Some(source) = &relay.source {
            options = options.set("source", source);
        }
        for (option, name) in &relay.options_env {
            // Several, such as an old and a new secret, with spaces in between.
            for value in variable(name)?.split_whitespace() {
                options = options.set(option, value);
            }
        }
        Ok(Self { url, options })
    }

    /// Opens it. What may pass is not an error yet.
    pub(super) async fn open(&self) -> Result<std::result::Result<AnySink, Refusal>> {
        match pgonce_broker::sinks::open(&self.url, &self.options).await {
            Err(refusal) if !refusal.may_pass() => Err(refused(&refusal)),
            opened => Ok(opened),
        }
    }

    /// Opens it, however long that takes; nothing when stopped before.
    pub(super) async fn insist(&self, stop: &CancellationToken) -> Result<Option<AnySink>> {
        let mut pause = Duration::from_millis(100);
        loop {
            // A broker may say nothing for as long as it likes.
            match stop.run_until_cancelled(self.open()).await.transpose()? {
                None => return Ok(None),
                Some(Ok(sink)) => return Ok(Some(sink)),
                Some(Err(refusal)) => {
                    tracing::warn!(%refusal, ?pause, "the sink is unavailable, trying again");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(None),
                () = sleep(pause) => pause = (pause * 2).min(MAX_PAUSE),
            }
        }
    }
}

fn variable(name: &str) -> Result<String> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.ok_or_else(|| {
        CliError::new(
            exit::USAGE,
            format!("the variable {name} is not set, and the configuration refers to it"),
            "Set it to what `sink_env` or `options_env` is to stand for.",
        )
    })
}

fn refused(refusal: &Refusal) -> CliError {
    CliError::new(exit::USAGE, refusal.to_string(), EXAMPLES).coded(refusal.code())
}
