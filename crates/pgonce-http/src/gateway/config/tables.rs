//! The file and the tables of the gateway itself, field by field. `example.toml` says what each
//! means.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::routes::{Route, Scope, Upstream};
use super::values::{Header, Length, Size, Text, some_bytes, some_bytes_at, some_time};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tables {
    pub(crate) listen: Listen,
    #[serde(default)]
    pub(crate) database: Database,
    pub(crate) cache: Option<Cache>,
    pub(crate) encryption: Option<Encryption>,
    #[serde(default)]
    pub(crate) log: Log,
    #[serde(default)]
    pub(crate) responses: Responses,
    #[serde(default)]
    pub(crate) upstreams: BTreeMap<String, Upstream>,
    #[serde(default)]
    pub(crate) scopes: BTreeMap<Spanned<String>, Scope>,
    #[serde(default)]
    pub(crate) routes: Vec<Route>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listen {
    pub(crate) address: Spanned<SocketAddr>,
    #[serde(default = "admin")]
    pub(crate) admin: Spanned<SocketAddr>,
    #[serde(default = "max_connections")]
    pub(crate) max_connections: Spanned<usize>,
    #[serde(default = "max_header_bytes")]
    pub(crate) max_header_bytes: Spanned<Size>,
    #[serde(default = "memory", deserialize_with = "some_bytes_at")]
    pub(crate) memory: Spanned<Size>,
    #[serde(default = "seconds::<75>", deserialize_with = "some_time")]
    pub(crate) header_timeout: Length,
    #[serde(default = "seconds::<30>", deserialize_with = "some_time")]
    pub(crate) body_timeout: Length,
    #[serde(default = "seconds::<25>")]
    pub(crate) drain_timeout: Length,
    #[serde(default)]
    pub(crate) trust_forwarded: bool,
    #[serde(default)]
    pub(crate) matching: Matching,
    #[serde(default)]
    pub(crate) keyed_on_pass: KeyedOnPass,
    pub(crate) max_connections_per_peer: Option<Spanned<usize>>,
    #[serde(default = "seconds::<30>", deserialize_with = "some_time")]
    pub(crate) write_timeout: Length,
    #[serde(default = "seconds::<300>", deserialize_with = "some_time")]
    pub(crate) tunnel_timeout: Length,
    pub(crate) tls: Option<Spanned<Tls>>,
}

/// The certificate that clients are shown.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tls {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Listen {
    /// Behind a proxy that is trusted all connections are of one peer.
    pub(crate) fn max_connections_per_peer(&self) -> usize {
        let all = *self.max_connections.get_ref();
        match &self.max_connections_per_peer {
            Some(given) => *given.get_ref(),
            None if self.trust_forwarded => all,
            None => all.div_ceil(2),
        }
    }
}

/// What is added to responses that are not the service's: the gateway's own errors, and replays.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Responses {
    pub(crate) headers: BTreeMap<Header, Text>,
    pub(crate) cors_origins: Vec<Text>,
    pub(crate) cors_credentials: bool,
}

/// How paths are compared with those of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Matching {
    #[default]
    Exact,
    /// As services that ignore case, a trailing slash and repeated slashes.
    Loose,
}

/// What happens to a request with a key on a route that does not protect it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KeyedOnPass {
    Pass,
    #[default]
    Warn,
    Refuse,
}

/// Where the database is, and how it is used. The address itself is never in the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Database {
    url_env: Option<Spanned<String>>,
    url_file: Option<Spanned<PathBuf>>,
    #[serde(default = "schema")]
    schema: String,
    #[serde(default = "connections")]
    pub(crate) connections: Spanned<usize>,
    #[serde(default = "seconds::<5>", deserialize_with = "some_time")]
    pub(crate) timeout: Length,
    #[serde(default)]
    contracts: Contracts,
}

/// What happens at start-up to the contracts of the scopes that the file describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Contracts {
    /// Scopes that the database does not know are defined; one that it knows otherwise is an error.
    #[default]
    Define,
    /// Nothing is written; one that is missing or known otherwise is an error.
    Check,
    /// The file is right: the database's contracts are replaced.
    Replace,
}

/// Where the address of the database is to be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UrlFrom {
    /// In this variable of the environment.
    Env(String),
    /// In this file, alone.
    File(PathBuf),
}

impl Default for Database {
    fn default() -> Self {
        Self {
            url_env: None,
            url_file: None,
            schema: schema(),
            connections: connections(),
            timeout: seconds::<5>(),
            contracts: Contracts::default(),
        }
    }
}

impl Database {
    /// Where the database address is read from. Default: the variable `DATABASE_URL`.
    pub fn url_from(&self) -> UrlFrom {
        match (&self.url_file, &self.url_env) {
            (Some(file), _) => UrlFrom::File(file.get_ref().clone()),
            (None, Some(name)) => UrlFrom::Env(name.get_ref().clone()),
            (None, None) => UrlFrom::Env("DATABASE_URL".to_owned()),
        }
    }

    /// Where both places are named, the second.
    pub(super) fn second_place(&self) -> Option<std::ops::Range<usize>> {
        self.url_file
            .as_ref()
            .filter(|_| self.url_env.is_some())
            .map(Spanned::span)
    }

    /// The schema that pgonce is in.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// How many connections at most.
    pub fn connections(&self) -> usize {
        *self.connections.get_ref()
    }

    /// How long anything may take there before the client is answered 503.
    pub fn timeout(&self) -> Duration {
        self.timeout.0
    }

    /// What happens to contracts at start-up.
    pub fn contracts(&self) -> Contracts {
        self.contracts
    }
}

/// Keys that stored responses are encrypted with. They are never in the file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encryption {
    keys_env: String,
    #[serde(default)]
    accept_plain: bool,
    pub(crate) scopes: Option<Vec<Spanned<String>>>,
}

impl Encryption {
    /// The variable with the keys: `id:64 hex digits`, separated by commas. The first one encrypts, the others only open.
    pub fn keys_from(&self) -> &str {
        &self.keys_env
    }

    /// The scopes whose responses are encrypted. `None`: all.
    pub fn scopes(&self) -> Option<Vec<&str>> {
        let names = self.scopes.as_ref()?.iter();
        Some(names.map(|name| name.get_ref().as_str()).collect())
    }

    /// Whether responses that were stored before, and not encrypted, are replayed.
    pub fn accept_plain(&self) -> bool {
        self.accept_plain
    }
}

/// A cache of responses in front of the database. Address and key are never in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    #[serde(default = "cached", deserialize_with = "some_bytes")]
    memory: Size,
    url_env: Option<Spanned<String>>,
    key_env: Option<String>,
    #[serde(default = "seconds::<600>", deserialize_with = "some_time")]
    ttl: Length,
    #[serde(default = "seconds::<1>", deserialize_with = "some_time")]
    max_staleness: Length,
    #[serde(default = "budget", deserialize_with = "some_time")]
    timeout: Length,
}

impl Cache {
    /// Maximum size of the responses in the memory of the process.
    pub fn memory(&self) -> usize {
        self.memory.0
    }

    /// The variables with the address of Redis or Valkey, and with the key that values there are sealed with.
    pub fn server_from(&self) -> Option<(&str, &str)> {
        let url = self.url_env.as_ref()?;
        Some((url.get_ref(), self.key_env.as_deref()?))
    }

    /// Where the address is given, and no key.
    pub(super) fn without_key(&self) -> Option<std::ops::Range<usize>> {
        let url = self.url_env.as_ref().filter(|_| self.key_env.is_none());
        url.map(Spanned::span)
    }

    /// Maximum time for which a response is used before it is read again.
    pub fn ttl(&self) -> Duration {
        self.ttl.0
    }

    /// Maximum time for which a response is replayed after it was evicted.
    pub fn max_staleness(&self) -> Duration {
        self.max_staleness.0
    }

    /// Maximum time that a request waits for the cache.
    pub fn timeout(&self) -> Duration {
        self.timeout.0
    }
}

/// What is logged, and how.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    #[serde(default)]
    format: LogFormat,
    #[serde(default)]
    level: LogLevel,
    #[serde(default = "yes")]
    pub(crate) requests: bool,
    #[serde(default)]
    pub(crate) correlation: Option<Header>,
}

/// For whom the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For programs: a JSON object per line.
    #[default]
    Json,
    /// For people.
    Text,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::default(),
            level: LogLevel::default(),
            requests: true,
            correlation: None,
        }
    }
}

impl Log {
    /// For whom it is written.
    pub fn format(&self) -> LogFormat {
        self.format
    }

    /// The least that is worth a line.
    pub fn level(&self) -> tracing::Level {
        match self.level {
            LogLevel::Error => tracing::Level::ERROR,
            LogLevel::Warn => tracing::Level::WARN,
            LogLevel::Info => tracing::Level::INFO,
            LogLevel::Debug => tracing::Level::DEBUG,
        }
    }
}

fn admin() -> Spanned<SocketAddr> {
    Spanned::new(0..0, SocketAddr::from((Ipv4Addr::LOCALHOST, 9090)))
}

fn max_connections() -> Spanned<usize> {
    Spanned::new(0..0, 1024)
}

fn max_header_bytes() -> Spanned<Size> {
    Spanned::new(0..0, Size(32 * 1024))
}

fn memory() -> Spanned<Size> {
    Spanned::new(0..0, Size(128 * 1024 * 1024))
}

fn cached() -> Size {
    Size(16 << 20)
}

fn budget() -> Length {
    Length(Duration::from_millis(5))
}

fn connections() -> Spanned<usize> {
    Spanned::new(0..0, 16)
}

pub(super) fn seconds<const N: u64>() -> Length {
    Length(Duration::from_secs(N))
}

fn schema() -> String {
    pgonce::DEFAULT_SCHEMA.to_owned()
}

pub(super) fn yes() -> bool {
    true
}
