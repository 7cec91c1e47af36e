//! What `pgonce serve` is configured by: flag, then PGONCE_* variable, then TOML file, then default. The list is data, so
//! that `pgonce config show` can say where each value is from.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pgonce_console::Access;
use serde_json::json;

use crate::exit::{self, CliError, Result};
use crate::output::{self, Format};

/// A setting: its name in the file, as a flag (`--purge-every`) and as a variable (`PGONCE_PURGE_EVERY`), and its default.
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) default: &'static str,
    secret: bool,
}

const fn setting(name: &'static str, default: &'static str) -> Setting {
    Setting {
        name,
        default,
        secret: false,
    }
}

/// Never a flag: a command line is seen by everybody on the machine.
const fn secret(name: &'static str) -> Setting {
    Setting {
        name,
        default: "",
        secret: true,
    }
}

pub(super) const SETTINGS: [Setting; 21] = [
    setting("roles", "console,metrics,retention,timers,recovery"),
    setting("listen", "127.0.0.1:7650"),
    setting("instance", ""),
    setting("relay_file", ""),
    setting("consumers_file", ""),
    setting("workers_file", ""),
    setting("gateway_file", ""),
    setting("purge_every", "1m"),
    setting("purge_batch", "10000"),
    setting("timers_every", "1s"),
    setting("recovery_every", "10s"),
    setting("probe_timeout", "5s"),
    setting("drain_timeout", "30s"),
    setting("log_format", "text"),
    setting("redact", ""),
    secret("console_tokens"),
    setting("console_groups", ""),
    setting("console_proxies", ""),
    secret("console_proxy_secret"),
    setting("console_user_header", "X-Forwarded-User"),
    setting("console_groups_header", "X-Forwarded-Groups"),
];

/// The options of `serve` and `config`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Given {
    /// The configuration, a TOML file.
    #[arg(long, value_name = "FILE", env = "PGONCE_CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// What this process does: console, metrics, retention, timers, recovery, relay, consumers, workers, gateway [default: all but the last four].
    #[arg(long, value_name = "LIST")]
    roles: Option<String>,
    /// Where the console, health and metrics are served [default: 127.0.0.1:7650].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// A name for this installation, shown in the console.
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// With the role relay: which subscriptions go where, a file as for `pgonce relay`.
    #[arg(long, value_name = "FILE")]
    relay_file: Option<String>,
    /// With the role consumers: what is consumed, a file as for `pgonce consume`.
    #[arg(long, value_name = "FILE")]
    consumers_file: Option<String>,
    /// With the role workers: which jobs are done and by what, a file as for `pgonce work`.
    #[arg(long, value_name = "FILE")]
    workers_file: Option<String>,
    /// With the role gateway: its routes, a file as for `pgonce gateway`.
    #[arg(long, value_name = "FILE")]
    gateway_file: Option<String>,
    /// Pause between two purges [default: 1m].
    #[arg(long, value_name = "TIME")]
    purge_every: Option<String>,
    /// Maximum number of records that are purged in one transaction [default: 10000].
    #[arg(long, value_name = "NUMBER")]
    purge_batch: Option<String>,
    /// Pause between two looks for due timers [default: 1s].
    #[arg(long, value_name = "TIME")]
    timers_every: Option<String>,
    /// Pause between two looks for work whose holder vanished [default: 10s].
    #[arg(long, value_name = "TIME")]
    recovery_every: Option<String>,
    /// Maximum time of a probe that looks for the effect of such work [default: 5s].
    #[arg(long, value_name = "TIME")]
    probe_timeout: Option<String>,
    /// Maximum time to finish what is under way after SIGTERM or Ctrl-C [default: 30s].
    #[arg(long, value_name = "TIME")]
    drain_timeout: Option<String>,
    /// For whom the log is written, to stderr: text or json [default: text].
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// JSON members that the console never shows, such as card,iban.
    #[arg(long, value_name = "LIST")]
    redact: Option<String>,
    /// Who may use the console by a proxy that signs people in: the roles of groups, such as sre=operator,platform=admin.
    #[arg(long, value_name = "LIST")]
    console_groups: Option<String>,
    /// The addresses or networks of that proxy; only there its headers count.
    #[arg(long, value_name = "LIST")]
    console_proxies: Option<String>,
    /// The header in which it names the user [default: X-Forwarded-User].
    #[arg(long, value_name = "NAME")]
    console_user_header: Option<String>,
    /// The header in which it names the groups of the user [default: X-Forwarded-Groups].
    #[arg(long, value_name = "NAME")]
    console_groups_header: Option<String>,
}

impl Given {
    fn flag(&self, name: &str) -> Option<&String> {
        match name {
            "roles" => self.roles.as_ref(),
            "listen" => self.listen.as_ref(),
            "instance" => self.instance.as_ref(),
            "relay_file" => self.relay_file.as_ref(),
            "consumers_file" => self.consumers_file.as_ref(),
            "workers_file" => self.workers_file.as_ref(),
            "gateway_file" => self.gateway_file.as_ref(),
            "purge_every" => self.purge_every.as_ref(),
            "purge_batch" => self.purge_batch.as_ref(),
            "timers_every" => self.timers_every.as_ref(),
            "recovery_every" => self.recovery_every.as_ref(),
            "probe_timeout" => self.probe_timeout.as_ref(),
            "drain_timeout" => self.drain_timeout.as_ref(),
            "log_format" => self.log_format.as_ref(),
            "redact" => self.redact.as_ref(),
            "console_groups" => self.console_groups.as_ref(),
            "console_proxies" => self.console_proxies.as_ref(),
            "console_user_header" => self.console_user_header.as_ref(),
            "console_groups_header" => self.console_groups_header.as_ref(),
            // A secret.
            _ => None,
        }
    }
}

/// Every setting with its value, and where that is from.
pub(crate) struct Found(BTreeMap<&'static str, (String, String)>);

/// What the values mean.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) roles: Vec<String>,
    pub(super) listen: SocketAddr,
    pub(super) instance: String,
    pub(super) relay_file: Option<PathBuf>,
    pub(super) consumers_file: Option<PathBuf>,
    pub(super) workers_file: Option<PathBuf>,
    pub(super) gateway_file: Option<PathBuf>,
    pub(super) purge_every: Duration,
    pub(super) purge_batch: u32,
    pub(super) timers_every: Duration,
    pub(super) recovery_every: Duration,
    pub(super) probe_timeout: Duration,
    pub(super) drain_timeout: Duration,
    pub(super) json_log: bool,
    pub(super) redact: Vec<String>,
    pub(super) access: Access,
}

pub(super) const ROLES: [&str; 9] = [
    "console",
    "metrics",
    "retention",
    "timers",
    "recovery",
    "relay",
    "consumers",
    "workers",
    "gateway",
];

impl Settings {
    pub(super) fn has(&self, role: &str) -> bool {
        self.roles.iter().any(|own| own == role)
    }
}

impl Found {
    /// Looks everywhere. A setting of the file that nobody knows is an error: it may be a misspelt one.
    pub(crate) fn look(given: &Given) -> Result<Self> {
        let file = match &given.config {
            Some(path) => read(path)?,
            None => BTreeMap::new(),
        };
        let place = given
            .config
            .as_deref()
            .unwrap_or(Path::new(""))
            .display()
            .to_string();
        if let Some(unknown) = file
            .keys()
            .find(|key| !SETTINGS.iter().any(|setting| setting.name == key.as_str()))
        {
            let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
            return Err(wrong(
                format!("{place}: there is no setting {unknown:?}"),
                format!("There are {}.", names.join(", ")),
            ));
        }
        let found = SETTINGS.iter().map(|setting| {
            let variable = format!("PGONCE_{}", setting.name.to_uppercase());
            let value = if let Some(value) = given.flag(setting.name) {
                (
                    value.clone(),
                    format!("flag --{}", setting.name.replace('_', "-")),
                )
            } else if let Some(value) = std::env::var(&variable)
                .ok()
                .filter(|value| !value.is_empty())
            {
                (value, format!("variable {variable}"))
            } else if let Some(value) = file.get(setting.name) {
                (value.clone(), format!("file {place}"))
            } else {
                (setting.default.to_owned(), "default".to_owned())
            };
            (setting.name, value)
        });
        Ok(Self(found.collect()))
    }

    pub(super) fn value(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |(value, _)| value)
    }

    pub(super) fn list(&self, name: &str) -> Vec<String> {
        let words = self.value(name).split(',').map(str::trim);
        words
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect()
    }

    pub(super) fn bad(&self, name: &str, why: impl std::fmt::Display) -> CliError {
        let origin = self.0.get(name).map_or("", |(_, origin)| origin);
        wrong(
            format!("{name}, from {origin}: {why}"),
            "Fix it there; `pgonce config show --origin` shows where each value is from."
                .to_owned(),
        )
    }

    /// Checks every value.
    pub(super) fn settings(&self) -> Result<Settings> {
        let list = |name: &str| self.list(name);
        let time = |name: &'static str| -> Result<Duration> {
            let parsed = humantime::parse_duration(self.value(name))
                .map_err(|error| self.bad(name, error))?;
            match parsed.is_zero() {
                true => Err(self.bad(name, "give more than nothing")),
                false => Ok(parsed),
            }
        };
        let roles = list("roles");
        if let Some(unknown) = roles.iter().find(|role| !ROLES.contains(&role.as_str())) {
            return Err(self.bad(
                "roles",
                format!("there is no role {unknown:?}: {}", ROLES.join(", ")),
            ));
        }
        let file = |role: &str, name: &'static str| -> Result<Option<PathBuf>> {
            let file = Some(self.value(name)).filter(|path| !path.is_empty());
            match roles.iter().any(|own| own == role) == file.is_some() {
                true => Ok(file.map(PathBuf::from)),
                false => Err(self.bad(
                    name,
                    format!("the role {role} and a {name} belong together"),
                )),
            }
        };
        let relay_file = file("relay", "relay_file")?;
        let consumers_file = file("consumers", "consumers_file")?;
        let workers_file = file("workers", "workers_file")?;
        let gateway_file = file("gateway", "gateway_file")?;
        let listen: SocketAddr = self.value("listen").parse().map_err(|_| {
            self.bad(
                "listen",
                "write an address and a port, such as 127.0.0.1:7650",
            )
        })?;
        let batch = self
            .value("purge_batch")
            .parse()
            .ok()
            .filter(|batch| (1..=1_000_000).contains(batch));
        let json_log = match self.value("log_format") {
            "text" => false,
            "json" => true,
            _ => return Err(self.bad("log_format", "text or json")),
        };
        let access = self.access()?;
        if roles.iter().any(|role| role == "console") {
            access
                .may_listen_on(listen)
                .map_err(|why| self.bad("listen", why))?;
        }
        Ok(Settings {
            listen,
            relay_file,
            consumers_file,
            workers_file,
            gateway_file,
            json_log,
            access,
            instance: self.value("instance").to_owned(),
            purge_every: time("purge_every")?,
            purge_batch: batch
                .ok_or_else(|| self.bad("purge_batch", "a number from 1 to 1000000"))?,
            timers_every: time("timers_every")?,
            recovery_every: time("recovery_every")?,
            probe_timeout: time("probe_timeout")?,
            drain_timeout: time("drain_timeout")?,
            redact: list("redact"),
            roles,
        })
    }

    /// `pgonce config show`.
    pub(crate) fn show(&self, format: Format, origin: bool) -> Result {
        let rows = SETTINGS.iter().map(|setting| {
            let (value, from) = &self.0[setting.name];
            let value = if setting.secret && !value.is_empty() {
                "(secret)"
            } else {
                value
            };
            // Written by hand, for the order of the columns.
            let shown = if origin {
                format!(",\"origin\":{}", json!(from))
            } else {
                String::new()
            };
            format!(
                "{{\"setting\":{},\"value\":{}{shown}}}",
                json!(setting.name),
                json!(value)
            )
        });
        output::rows(format, &rows.collect::<Vec<_>>(), "no settings")
    }

    /// `pgonce config check`.
    pub(crate) fn check(&self, format: Format) -> Result {
        self.settings()?;
        output::say(
            format,
            "the configuration is right",
            &json!({"right": true}),
        )
    }
}

fn wrong(what: String, hint: String) -> CliError {
    CliError::new(exit::USAGE, what, hint)
}

/// The settings of a file. Lists and numbers are written in TOML's own way too.
fn read(path: &Path) -> Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        wrong(
            format!("{} cannot be read: {error}", path.display()),
            "See --config.".to_owned(),
        )
    })?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| {
        // Without the line itself, which may have a token in it.
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.unwrap_or_default().matches('\n').count() + 1;
        wrong(
            format!("{}:{line}: {}", path.display(), error.message()),
            "It is a TOML file.".to_owned(),
        )
    })?;
    let plain = |value: &toml::Value| match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Boolean(flag) => flag.to_string(),
        // No setting is of another kind; its check says so.
        other => format!("{other:?}"),
    };
    let values = table.iter().map(|(name, value)| {
        let value = match value {
            toml::Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(","),
            other => plain(other),
        };
        (name.clone(), value)
    });
    Ok(values.collect())
}
