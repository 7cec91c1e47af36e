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

/// A commented example that passes the checks.
pub(super) const EXAMPLE: &str = include_str!("example.toml");

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    #[serde(default)]
    pub(super) database: Database,
    pub(super) listen: Option<Listen>,
    #[serde(default)]
    pub(super) log: Log,
    #[serde(default)]
    pub(super) relays: Vec<Relay>,
    /// Relative names of files begin here.
    #[serde(skip)]
    folder: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Database {
    pub(super) url_env: Option<Spanned<String>>,
    pub(super) url_file: Option<Spanned<PathBuf>>,
    pub(super) schema: String,
    pub(super) timeout: Length,
    pub(super) behind_pooler: bool,
    pub(super) wal: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listen {
    pub(super) address: SocketAddr,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Log {
    pub(super) format: LogFormat,
    pub(super) level: LogLevel,
}

/// For whom the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum LogFormat {
    /// people
    #[default]
    Text,
    /// programs: a JSON object per line
    Json,
}

/// The least that is worth a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
}

/// One subscription, and where its events go.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Relay {
    pub(super) subscription: Spanned<String>,
    pub(super) sink: Option<Spanned<String>>,
    pub(super) sink_env: Option<Spanned<String>>,
    pub(super) source: Option<String>,
    #[serde(default)]
    pub(super) options: Options,
    /// Options whose values are in variables.
    #[serde(default)]
    pub(super) options_env: BTreeMap<String, String>,
    // How much at once, how often, how long; nothing where the engine knows best.
    pub(super) in_flight: Option<Spanned<usize>>,
    pub(super) lane_events: Option<Spanned<usize>>,
    pub(super) lane_bytes: Option<Spanned<Size>>,
    pub(super) lease: Option<Spanned<Length>>,
    pub(super) max_poll: Option<Length>,
    pub(super) keep_every: Option<Length>,
    pub(super) drain_timeout: Option<Length>,
    pub(super) pause: Option<Length>,
    pub(super) max_pause: Option<Length>,
    pub(super) create: Option<Create>,
}

/// A subscription that is to be there.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Create {
    #[serde(default)]
    pub(super) from: From,
    pub(super) topics: Option<Spanned<Vec<String>>>,
    pub(super) types: Option<Spanned<Vec<String>>>,
    pub(super) tenants: Option<Spanned<Vec<String>>>,
    pub(super) max_attempts: Option<Spanned<u32>>,
    pub(super) backoff: Option<Spanned<Length>>,
    pub(super) max_backoff: Option<Spanned<Length>>,
    pub(super) dead_limit: Option<Spanned<u32>>,
    #[serde(default)]
    pub(super) when_full: Full,
}

/// Where a new subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum From {
    /// with the oldest event that is kept
    #[default]
    Start,
    /// with what commits from now on
    Now,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Full {
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

impl Config {
    /// Reads a configuration. `file` is the name to show; names of files in the text that are not
    /// absolute begin in its folder.
    pub(super) fn parse(file: &str, text: &str) -> Result<Self, Faults> {
        let mut config: Self = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let hint = "`pgonce relay --print-example` shows every field with its meaning.";
            Faults::new(file, vec![Fault::at(text, span, error.message(), hint)])
        })?;
        config.folder = Path::new(file).parent().unwrap_or(Path::new("")).to_owned();
        let faults = check::faults(&config, text);
        match faults.is_empty() {
            true => Ok(config),
            false => Err(Faults::new(file, faults)),
        }
    }

    /// What flags say, for one relay.
    pub(super) fn of(relay: Relay) -> Self {
        Self {
            database: Database::default(),
            listen: None,
            log: Log::default(),
            relays: vec![relay],
            folder: PathBuf::new(),
        }
    }

    /// The place of a file that the configuration names.
    pub(super) fn place_of(&self, named: &Path) -> PathBuf {
        self.folder.join(named)
    }
}

impl Relay {
    /// A relay that is given by flags.
    pub(super) fn new(subscription: String, sink: String) -> Self {
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

    pub(super) fn name(&self) -> &str {
        self.subscription.get_ref()
    }

    /// The subscription to be created, where it is missing.
    pub(super) fn subscription(&self) -> Option<Subscription> {
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
    pub(super) fn pauses(&self) -> (Duration, Duration) {
        let length = |given: &Option<Spanned<Length>>, usual: u64| {
            given
                .as_ref()
                .map_or(Duration::from_secs(usual), |length| length.get_ref().0)
        };
        (length(&self.backoff, 1), length(&self.max_backoff, 600))
    }
}
