//! The configuration of the relay: one TOML file, checked whole before anything starts.
//! `example.toml` says what each field means.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pgonce::outbox::{Begin, Subscription, WhenFull};
use pgonce_broker::sinks::Options;
use pgonce_http::gateway::{Fault, Faults};
use serde::Deserialize;
use toml::Spanned;

use super::check;
use super::values::{Length, Size};
use crate::config_file::{ConfigFile, folder};
use crate::database::Address;

/// A commented example that passes the checks.
pub(crate) const EXAMPLE: &str = include_str!("example.toml");

/// What relays and consumers take by default.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    #[serde(default)]
    pub(crate) database: Database,
    pub(crate) listen: Option<Listen>,
    #[serde(default)]
    pub(crate) log: Log,
    #[serde(default)]
    pub(crate) relays: Vec<Relay>,
    /// Relative names of files begin here.
    #[serde(skip)]
    pub(crate) folder: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Database {
    pub(crate) url_env: Option<Spanned<String>>,
    pub(crate) url_file: Option<Spanned<PathBuf>>,
    pub(crate) schema: String,
    pub(crate) timeout: Length,
    pub(crate) behind_pooler: bool,
    pub(crate) wal: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listen {
    pub(crate) address: SocketAddr,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
    pub(crate) level: LogLevel,
}

/// For whom the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// people
    #[default]
    Text,
    /// programs: a JSON object per line
    Json,
}

/// The least that is worth a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
}

/// One subscription, and where its events go.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Relay {
    pub(crate) subscription: Spanned<String>,
    pub(crate) sink: Option<Spanned<String>>,
    pub(crate) sink_env: Option<Spanned<String>>,
    pub(crate) source: Option<String>,
    #[serde(default)]
    pub(crate) options: Options,
    /// Options whose values are in variables.
    #[serde(default)]
    pub(crate) options_env: BTreeMap<String, String>,
    // How much at once, how often, how long; nothing where the engine knows best.
    pub(crate) in_flight: Option<Spanned<usize>>,
    pub(crate) lane_events: Option<Spanned<usize>>,
    pub(crate) lane_bytes: Option<Spanned<Size>>,
    pub(crate) lease: Option<Spanned<Length>>,
    pub(crate) max_poll: Option<Length>,
    pub(crate) keep_every: Option<Length>,
    pub(crate) drain_timeout: Option<Length>,
    pub(crate) pause: Option<Length>,
    pub(crate) max_pause: Option<Length>,
    pub(crate) create: Option<Create>,
}

/// A subscription that is to be there.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Create {
    #[serde(default)]
    pub(crate) from: From,
    pub(crate) topics: Option<Spanned<Vec<String>>>,
    pub(crate) types: Option<Spanned<Vec<String>>>,
    pub(crate) tenants: Option<Spanned<Vec<String>>>,
    pub(crate) max_attempts: Option<Spanned<u32>>,
    pub(crate) backoff: Option<Spanned<Length>>,
    pub(crate) max_backoff: Option<Spanned<Length>>,
    pub(crate) dead_limit: Option<Spanned<u32>>,
    #[serde(default)]
    pub(crate) when_full: Full,
}

/// Where a new subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum From {
    /// with the oldest event that is kept
    #[default]
    Start,
    /// with what commits from now on
    Now,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Full {
    #[default]
    Stop,
    Discard,
}

impl Default for Database {
    fn default() -> Self {
        Self {
            url_env: None,
            url_file: None,
            schema: pgonce::DEFAULT_SCHEMA.to_owned(),
            timeout: Length(Duration::from_secs(5)),
            behind_pooler: false,
            wal: false,
        }
    }
}

impl Database {
    /// Where it is; the name of a file that is not absolute begins in this folder.
    pub(crate) fn address(&self, folder: &Path) -> crate::exit::Result<Address> {
        match (&self.url_file, &self.url_env) {
            (Some(file), _) => crate::database::address_in_file(&folder.join(file.get_ref())),
            (None, Some(name)) => crate::database::address_in_variable(name.get_ref()),
            (None, None) => crate::database::address_in_variable("DATABASE_URL"),
        }
    }

    /// What is wrong in a file where it is in two places.
    pub(crate) fn fault(&self, text: &str) -> Option<Fault> {
        let second = self.url_file.as_ref().filter(|_| self.url_env.is_some())?;
        let what = "the address of the database is given in two places";
        let hint = "Keep one of `url_env` and `url_file`.";
        Some(Fault::at(text, second.span(), what, hint))
    }
}

impl Config {
    /// What flags say, for one relay.
    pub(crate) fn of(relay: Relay) -> Self {
        Self {
            database: Database::default(),
            listen: None,
            log: Log::default(),
            relays: vec![relay],
            folder: PathBuf::new(),
        }
    }

    /// Maximum time that any of its relays drains.
    pub(crate) fn drain_timeout(&self) -> Duration {
        let times = self.relays.iter().map(|relay| relay.drain_timeout);
        let times = times.map(|time| time.map_or(DRAIN_TIMEOUT, |time| time.0));
        times.max().unwrap_or_default()
    }
}

impl ConfigFile for Config {
    const COMMAND: &'static str = "relay";
    const PARTS: &'static str = "subscriptions";

    /// Reads a configuration. `file` is the name to show; names of files in the text that are not
    /// absolute begin in its folder.
    fn parse(file: &str, text: &str) -> std::result::Result<Self, Faults> {
        let mut config: Self = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let hint = "`pgonce relay --print-example` shows every field with its meaning.";
            Faults::new(file, vec![Fault::at(text, span, error.message(), hint)])
        })?;
        config.folder = folder(file);
        let faults = check::faults(&config, text);
        match faults.is_empty() {
            true => Ok(config),
            false => Err(Faults::new(file, faults)),
        }
    }

    fn names(&self) -> Vec<&str> {
        self.relays.iter().map(Relay::name).collect()
    }
}

impl Relay {
    /// A relay that is given by flags.
    pub(crate) fn new(subscription: String, sink: String) -> Self {
        Self {
            subscription: Spanned::new(0..0, subscription),
            sink: Some(Spanned::new(0..0, sink)),
            sink_env: None,
            source: None,
            options: Options::new(),
            options_env: BTreeMap::new(),
            in_flight: None,
            lane_events: None,
            lane_bytes: None,
            lease: None,
            max_poll: None,
            keep_every: None,
            drain_timeout: None,
            pause: None,
            max_pause: None,
            create: None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.subscription.get_ref()
    }

    /// The subscription to be created, where it is missing.
    pub(crate) fn subscription(&self) -> Option<Subscription> {
        let create = self.create.as_ref()?;
        let mut subscription = Subscription::new(self.name()).begin(match create.from {
            From::Start => Begin::Start,
            From::Now => Begin::Now,
        });
        if let Some(topics) = &create.topics {
            subscription = subscription.topics(topics.get_ref());
        }
        if let Some(types) = &create.types {
            subscription = subscription.types(types.get_ref());
        }
        if let Some(tenants) = &create.tenants {
            subscription = subscription.tenants(tenants.get_ref());
        }
        if let Some(attempts) = &create.max_attempts {
            subscription = subscription.max_attempts(*attempts.get_ref());
        }
        let (first, at_most) = create.pauses();
        let limit = create.dead_limit.as_ref();
        let when_full = match create.when_full {
            Full::Stop => WhenFull::Stop,
            Full::Discard => WhenFull::Discard,
        };
        let limit = limit.map_or(10_000, |limit| *limit.get_ref());
        Some(
            subscription
                .backoff(first, at_most)
                .dead_letters(limit, when_full),
        )
    }
}

impl Create {
    /// The first pause between two tries of an event, and the longest.
    pub(crate) fn pauses(&self) -> (Duration, Duration) {
        let length = |given: &Option<Spanned<Length>>, usual: u64| {
            given
                .as_ref()
                .map_or(Duration::from_secs(usual), |length| length.get_ref().0)
        };
        (length(&self.backoff, 1), length(&self.max_backoff, 600))
    }
}
