//! The configuration of `pgonce consume`: one TOML file, checked whole before anything starts.
//! `example.toml` says what each field means.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use pgonce_broker::sinks::Options;
use pgonce_broker::sources::SCHEMES;
use pgonce_http::gateway::{Fault, Faults};
use serde::Deserialize;
use toml::Spanned;

use super::sql;
use crate::config_file::{ConfigFile, folder};
use crate::relay::config::{DRAIN_TIMEOUT, Database, Listen, Log};
use crate::relay::values::{Length, Size};

/// A commented example that passes the checks.
pub(super) const EXAMPLE: &str = include_str!("example.toml");

/// Longer names are refused by the database.
const MAX_NAME_BYTES: usize = 255;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    #[serde(default)]
    pub(crate) database: Database,
    pub(crate) listen: Option<Listen>,
    #[serde(default)]
    pub(super) log: Log,
    #[serde(default)]
    pub(crate) consumers: Vec<Consumer>,
    /// Relative names of files begin here.
    #[serde(skip)]
    pub(super) folder: PathBuf,
}

/// One consumer, where its messages come from and what applies them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Consumer {
    pub(super) consumer: Spanned<String>,
    pub(super) source: Option<Spanned<String>>,
    pub(super) source_env: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) options: Options,
    #[serde(default)]
    pub(super) options_env: BTreeMap<String, String>,
    pub(super) to: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) headers_env: BTreeMap<String, String>,
    pub(super) sql: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) batches: bool,
    pub(super) batch: Option<Spanned<usize>>,
    pub(super) within: Option<Length>,
    pub(super) concurrency: Option<Spanned<usize>>,
    pub(super) handler_timeout: Option<Spanned<Length>>,
    pub(super) lease: Option<Spanned<Length>>,
    pub(super) drain_timeout: Option<Length>,
    pub(super) pause: Option<Length>,
    pub(super) max_pause: Option<Length>,
    pub(super) poll_stored: Option<Length>,
    pub(super) dedup: Option<Dedup>,
    #[serde(default)]
    pub(super) store_first: bool,
    #[serde(default)]
    pub(super) cloud_events: bool,
    pub(super) max_bytes: Option<Size>,
    pub(super) types: Option<Vec<String>>,
}

/// By what copies are known.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Dedup {
    Ids,
    Positions,
    Both,
}

impl Default for Consumer {
    fn default() -> Self {
        Self {
            consumer: Spanned::new(0..0, String::new()),
            source: None,
            source_env: None,
            options: Options::new(),
            options_env: BTreeMap::new(),
            to: None,
            headers: BTreeMap::new(),
            headers_env: BTreeMap::new(),
            sql: None,
            batches: false,
            batch: None,
            within: None,
            concurrency: None,
            handler_timeout: None,
            lease: None,
            drain_timeout: None,
            pause: None,
            max_pause: None,
            poll_stored: None,
            dedup: None,
            store_first: false,
            cloud_events: false,
            max_bytes: None,
            types: None,
        }
    }
}

impl ConfigFile for Config {
    const COMMAND: &'static str = "consume";
    const PARTS: &'static str = "consumers";

    /// Reads a configuration. `file` is the name to show; names of files in the text that are not
    /// absolute begin in its folder.
    fn parse(file: &str, text: &str) -> std::result::Result<Self, Faults> {
        let mut config: Self = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let hint = "`pgonce consume --print-example` shows every field with its meaning.";
            Faults::new(file, vec![Fault::at(text, span, error.message(), hint)])
        })?;
        config.folder = folder(file);
        let mut checked = Checked {
            text,
            faults: Vec::new(),
        };
        checked.all(&config);
        match checked.faults.is_empty() {
            true => Ok(config),
            false => Err(Faults::new(file, checked.faults)),
        }
    }

    fn names(&self) -> Vec<&str> {
        self.consumers.iter().map(Consumer::name).collect()
    }
}

impl Config {
    /// Maximum time that any of its consumers drains.
    pub(crate) fn drain_timeout(&self) -> Duration {
        let times = self.consumers.iter().map(|one| one.drain_timeout);
        let times = times.map(|time| time.map_or(DRAIN_TIMEOUT, |time| time.0));
        times.max().unwrap_or_default()
    }
}

impl Consumer {
    pub(super) fn name(&self) -> &str {
        self.consumer.get_ref()
    }

    /// How many transactions or requests at a time.
    pub(super) fn concurrency(&self) -> usize {
        let default = if self.to.is_some() { 16 } else { 4 };
        self.concurrency.as_ref().map_or(default, |n| *n.get_ref())
    }
}

struct Checked<'a> {
    text: &'a str,
    faults: Vec<Fault>,
}

impl Checked<'_> {
    fn refuse(&mut self, span: Range<usize>, what: impl Into<String>, hint: &str) {
        self.faults.push(Fault::at(self.text, span, what, hint));
    }

    fn all(&mut self, config: &Config) {
        self.faults.extend(config.database.fault(self.text));
        if config.consumers.is_empty() {
            let hint = "Add a table [[consumers]] with `consumer`, `source` and `to` or `sql`.";
            self.refuse(0..0, "there is no consumer in the file", hint);
        }
        for (number, one) in config.consumers.iter().enumerate() {
            self.consumer(one);
            let same = |other: &Consumer| other.name() == one.name();
            if config.consumers[..number].iter().any(same) {
                let what = format!("consumer {:?} is here already", one.name());
                let hint =
                    "Two handlers of one message are two consumers: give the second another name.";
                self.refuse(one.consumer.span(), what, hint);
            }
        }
    }

    fn consumer(&mut self, one: &Consumer) {
        let here = one.consumer.span();
        if !(1..=MAX_NAME_BYTES).contains(&one.name().len()) {
            let what = format!("a consumer's name has 1 to {MAX_NAME_BYTES} bytes");
            self.refuse(
                here.clone(),
                what,
                "Name who applies the messages, such as \"billing\".",
            );
        }
        match (&one.source, &one.source_env) {
            (Some(url), None) => {
                // An address may have a password in it: only its beginning is shown.
                let scheme = url.get_ref().split(':').next().unwrap_or_default();
                if !SCHEMES.contains(&scheme) || !url.get_ref().contains(':') {
                    let what = format!("there is no source {:?}", format!("{scheme}:"));
                    self.refuse(url.span(), what, SOURCES);
                }
            }
            (None, Some(_)) => {}
            (Some(_), Some(second)) => {
                let hint = "Keep one of `source` and `source_env`.";
                self.refuse(second.span(), "the source is given in two places", hint);
            }
            (None, None) => {
                let what = format!("consumer {:?} has no source", one.name());
                self.refuse(here.clone(), what, SOURCES);
            }
        }
        match (&one.to, &one.sql) {
            (None, Some(function)) => {
                if !sql::is_name(function.get_ref()) {
                    let what = format!("{:?} is no name of a function", function.get_ref());
                    let hint = "Write a name or schema.name, without arguments: \"shop.apply\".";
                    self.refuse(function.span(), what, hint);
                }
                if !one.headers.is_empty() || !one.headers_env.is_empty() {
                    let hint = "Leave `headers` and `headers_env` out, or give `to`.";
                    self.refuse(function.span(), "a function gets no request headers", hint);
                }
            }
            (Some(service), None) => {
                if one.batches {
                    let hint = "Leave `batches` out, or give `sql`.";
                    self.refuse(service.span(), "a service gets no batches", hint);
                }
            }
            _ => {
                let what = format!(
                    "consumer {:?} needs one that applies its messages",
                    one.name()
                );
                let hint = "Give either to = \"http://host/path\" or sql = \"schema.function\".";
                self.refuse(here, what, hint);
            }
        }
        for (value, max) in [(&one.batch, 10_000), (&one.concurrency, 1000)] {
            if let Some(value) = value.as_ref().filter(|n| !(1..=max).contains(n.get_ref())) {
                let what = format!("{} is not possible here", value.get_ref());
                self.refuse(value.span(), what, &format!("Give 1 to {max}."));
            }
        }
        if let Some(lease) = &one.lease
            && lease.get_ref().0.as_millis() < 1000
        {
            let what = "a lease so short would run out between two renewals";
            self.refuse(lease.span(), what, "Give \"1s\" or more.");
        }
        if let Some(time) = &one.handler_timeout
            && time.get_ref().0.is_zero()
        {
            let what = "nothing could be done in no time";
            self.refuse(time.span(), what, "Give \"30s\", or leave it out.");
        }
    }
}

pub(super) const SOURCES: &str = "Write an address such as nats://host:4222?stream=ORDERS&durable=billing, \
    amqp://user:password@host/vhost?queue=orders, redis://host:6379?stream=orders&group=billing, \
    kafka+tls://host:9093?topic=orders, outbox:SUBSCRIPTION, or stored: for what is stored already.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_passes_the_checks() {
        let config = Config::parse("example.toml", EXAMPLE).unwrap();
        assert_eq!(config.consumers.len(), 2);
    }

    #[test]
    fn every_fault_of_a_file_is_reported_with_its_place() {
        let text = "[[consumers]]\nconsumer = \"\"\nsource = \"pigeon:x\"\n\
            [[consumers]]\nconsumer = \"c\"\nsql = \"drop table x\"\nto = \"http://x\"\nlease = \"1ms\"\nconcurrency = 0\n\
            [[consumers]]\nconsumer = \"c\"\nsource = \"stored:\"\nsql = \"f(jsonb)\"\n\
            [[consumers]]\nconsumer = \"d\"\nsource = \"stored:\"\nto = \"http://x\"\nbatches = true\nhandler_timeout = \"0s\"\n\
            [[consumers]]\nconsumer = \"e\"\nsource = \"stored:\"\nsql = \"f\"\nheaders = { a = \"b\" }\n\
            [database]\nurl_env = \"A\"\nurl_file = \"b\"\n";
        let faults = Config::parse("x.toml", text).unwrap_err().to_string();
        for expected in [
            "1 to 255 bytes",
            "no source \"pigeon:\"",
            "needs one that applies",
            "has no source",
            "lease so short",
            "0 is not possible",
            "is here already",
            "\"f(jsonb)\" is no name",
            "no batches",
            "in no time",
            "no request headers",
            "in two places",
        ] {
            assert!(faults.contains(expected), "{expected}: {faults}");
        }
    }
}
