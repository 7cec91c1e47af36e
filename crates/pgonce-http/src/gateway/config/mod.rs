//! The configuration of the gateway: one TOML file, checked whole before anything starts.

mod check;
mod fault;
mod routes;
mod tables;
#[cfg(test)]
mod tests;
pub(crate) mod values;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;

pub use fault::{Fault, Faults};
pub(crate) use routes::{
    Address, AfterExpiry, Busy, CloseDelimited, HostSent, KeyForm, Needed, Once, Outcomes,
    Oversize, Route, Scope, Stale, Upstream,
};
pub use tables::{Cache, Contracts, Database, Encryption, Log, LogFormat, UrlFrom};
pub(crate) use tables::{KeyedOnPass, Matching, Responses, Tables};

/// A configuration that passes its own checks; see [`EXAMPLE`].
#[derive(Debug)]
pub struct Config {
    pub(crate) tables: Tables,
    /// Relative names of files in the configuration begin here.
    folder: PathBuf,
}

/// How much is in a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// All routes.
    pub routes: usize,
    /// The routes that happen once.
    pub once: usize,
    /// The scopes.
    pub scopes: usize,
}

/// A commented example that passes the checks.
pub const EXAMPLE: &str = include_str!("example.toml");

impl Config {
    /// Reads a configuration. `file` is the name to show; names of files in the text that are not
    /// absolute begin in its folder.
    ///
    /// ```
    /// use pgonce_http::gateway::{Config, EXAMPLE};
    ///
    /// assert!(Config::parse("gateway.toml", EXAMPLE).is_ok());
    ///
    /// let faults = Config::parse("gateway.toml", "[listen]\nadress = \"127.0.0.1:80\"").unwrap_err();
    /// assert!(faults.to_string().starts_with("gateway.toml:2:1: unknown field `adress`"));
    /// ```
    pub fn parse(file: &str, text: &str) -> Result<Self, Faults> {
        let tables: Tables = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let hint = "`pgonce gateway --print-example` shows every field with its meaning.";
            Faults::new(file, vec![Fault::at(text, span, error.message(), hint)])
        })?;
        let folder = Path::new(file).parent().unwrap_or(Path::new("")).to_owned();
        let config = Self { tables, folder };
        let faults = check::faults(&config, text);
        if faults.is_empty() {
            Ok(config)
        } else {
            Err(Faults::new(file, faults))
        }
    }

    /// Where the database is.
    pub fn database(&self) -> &Database {
        &self.tables.database
    }

    /// The cache in front of the database, if any.
    pub fn cache(&self) -> Option<&Cache> {
        self.tables.cache.as_ref()
    }

    /// How stored responses are encrypted, if they are.
    pub fn encryption(&self) -> Option<&Encryption> {
        self.tables.encryption.as_ref()
    }

    /// What is logged, and how.
    pub fn log(&self) -> &Log {
        &self.tables.log
    }

    /// Maximum time to finish what is in progress when it is asked to stop.
    pub fn drain_timeout(&self) -> Duration {
        self.tables.listen.drain_timeout.0
    }

    /// How much is in it.
    pub fn summary(&self) -> Summary {
        let routes = &self.tables.routes;
        Summary {
            routes: routes.len(),
            once: routes.iter().filter(|route| route.once.is_some()).count(),
            scopes: self.tables.scopes.len(),
        }
    }

    /// What shows the listener's certificate; none where it has none.
    pub(crate) fn certificate(&self) -> Result<Option<Arc<ServerConfig>>, String> {
        let Some(tls) = &self.tables.listen.tls else {
            return Ok(None);
        };
        let tls = tls.get_ref();
        let (certificate, key) = (self.place_of(&tls.certificate), self.place_of(&tls.key));
        super::tls::server(&certificate, &key).map(Some)
    }

    /// The place of a file that the configuration names.
    pub fn place_of(&self, named: &Path) -> PathBuf {
        self.folder.join(named)
    }
}
