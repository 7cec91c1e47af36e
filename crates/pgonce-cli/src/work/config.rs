//! The configuration of `pgonce work`: one TOML file, checked whole before anything starts.
//! `example.toml` says what each field means.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use pgonce_http::gateway::{Fault, Faults};
use serde::Deserialize;
use toml::Spanned;

use crate::config_file::{ConfigFile, folder};
use crate::consume::is_name;
use crate::relay::config::{Database, Listen, Log};
use crate::relay::values::Length;

/// A commented example that passes the checks.
pub(super) const EXAMPLE: &str = include_str!("example.toml");

/// Less than what `pgonce serve` waits for, so that jobs are given back before it ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Longer names are refused by the database.
const MAX_NAME_BYTES: usize = 255;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    #[serde(default)]
    pub(crate) database: Database,
    pub(crate) listen: Option<Listen>,
    #[serde(default)]
    pub(super) log: Log,
    #[serde(default)]
    pub(super) workers: Vec<Worker>,
    /// Relative names of files begin here.
    #[serde(skip)]
    pub(super) folder: PathBuf,
}

/// Some queues, and what does their jobs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Worker {
    pub(super) queues: Spanned<Vec<String>>,
    pub(super) to: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) headers_env: BTreeMap<String, String>,
    pub(super) sql: Option<Spanned<String>>,
    pub(super) concurrency: Option<Spanned<usize>>,
    pub(super) prefetch: Option<Spanned<usize>>,
    pub(super) handler_timeout: Option<Spanned<Length>>,
    pub(super) lease: Option<Spanned<Length>>,
    pub(super) poll_interval: Option<Length>,
    pub(super) drain_timeout: Option<Length>,
}

impl ConfigFile for Config {
    const COMMAND: &'static str = "work";
    const PARTS: &'static str = "queues";

    fn parse(file: &str, text: &str) -> std::result::Result<Self, Faults> {
        let mut config: Self = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let hint = "`pgonce work --print-example` shows every field with its meaning.";
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
        let queues = self.workers.iter().flat_map(|one| one.queues.get_ref());
        queues.map(String::as_str).collect()
    }
}

impl Config {
    /// Maximum time that any of its workers drains.
    pub(crate) fn drain_timeout(&self) -> Duration {
        let times = self.workers.iter().map(Worker::drain_timeout);
        times.max().unwrap_or_default()
    }
}

impl Worker {
    pub(super) fn drain_timeout(&self) -> Duration {
        self.drain_timeout.map_or(DRAIN_TIMEOUT, |time| time.0)
    }

    /// Its queues, for people.
    pub(super) fn name(&self) -> String {
        self.queues.get_ref().join(", ")
    }

    /// How many jobs at a time.
    pub(super) fn concurrency(&self) -> usize {
        self.concurrency.as_ref().map_or(10, |n| *n.get_ref())
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
        if config.workers.is_empty() {
            let hint = "Add a table [[workers]] with `queues` and `to` or `sql`.";
            self.refuse(0..0, "there is no worker in the file", hint);
        }
        for (number, one) in config.workers.iter().enumerate() {
            self.worker(one);
            let before = &config.workers[..number];
            for queue in one.queues.get_ref() {
                if before
                    .iter()
                    .any(|other| other.queues.get_ref().contains(queue))
                {
                    let what = format!("queue {queue:?} is here already");
                    let hint =
                        "A queue has one handler: which of two would do a job is left to chance.";
                    self.refuse(one.queues.span(), what, hint);
                }
            }
        }
    }

    fn worker(&mut self, one: &Worker) {
        let here = one.queues.span();
        let fits = |name: &String| (1..=MAX_NAME_BYTES).contains(&name.len());
        if one.queues.get_ref().is_empty() || !one.queues.get_ref().iter().all(fits) {
            let what = format!("a worker has queues, with names of 1 to {MAX_NAME_BYTES} bytes");
            self.refuse(here.clone(), what, "Write queues = [\"mail\"].");
        }
        match (&one.to, &one.sql) {
            (None, Some(function)) => {
                if !is_name(function.get_ref()) {
                    let what = format!("{:?} is no name of a function", function.get_ref());
                    let hint = "Write a name or schema.name, without arguments: \"shop.pack\".";
                    self.refuse(function.span(), what, hint);
                }
                if !one.headers.is_empty() || !one.headers_env.is_empty() {
                    let hint = "Leave `headers` and `headers_env` out, or give `to`.";
                    self.refuse(function.span(), "a function gets no request headers", hint);
                }
            }
            (Some(_), None) => {}
            _ => {
                let what = format!("the worker of {} needs one that does its jobs", one.name());
                let hint = "Give either to = \"http://host/path\" or sql = \"schema.function\".";
                self.refuse(here, what, hint);
            }
        }
        for (value, min, max) in [(&one.concurrency, 1, 1000), (&one.prefetch, 0, 5000)] {
            if let Some(value) = value
                .as_ref()
                .filter(|n| !(min..=max).contains(n.get_ref()))
            {
                let what = format!("{} is not possible here", value.get_ref());
                self.refuse(value.span(), what, &format!("Give {min} to {max}."));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_passes_the_checks() {
        let config = Config::parse("example.toml", EXAMPLE).unwrap();
        assert_eq!(config.names(), ["parcels", "mail", "reports"]);
    }

    #[test]
    fn every_fault_of_a_file_is_reported_with_its_place() {
        let text = "[[workers]]\nqueues = []\n\
            [[workers]]\nqueues = [\"q\", \"\"]\nsql = \"drop table x\"\nlease = \"1ms\"\nconcurrency = 0\nprefetch = 9999\n\
            [[workers]]\nqueues = [\"q\"]\nto = \"http://x\"\nhandler_timeout = \"0s\"\n\
            [[workers]]\nqueues = [\"r\"]\nsql = \"f\"\nheaders_env = { a = \"B\" }\n\
            [database]\nurl_env = \"A\"\nurl_file = \"b\"\n";
        let faults = Config::parse("x.toml", text).unwrap_err().to_string();
        for expected in [
            "1 to 255 bytes",
            "needs one that does its jobs",
            "no name of a function",
            "queue \"q\" is here already",
            "run out between two renewals",
            "0 is not possible here",
            "9999 is not possible here",
            "in no time",
            "no request headers",
            "in two places",
            "x.toml:2",
        ] {
            assert!(faults.contains(expected), "{expected}: {faults}");
        }
        let unknown = Config::parse("x.toml", "[[workers]]\nqueue = \"q\"\n").unwrap_err();
        assert!(unknown.to_string().contains("queue"), "{unknown}");
        assert!(Config::parse("x.toml", "").is_err());
    }
}
