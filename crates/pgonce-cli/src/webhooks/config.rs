//! The configuration of `pgonce webhooks`: one TOML file, checked whole before anything starts.
//! `example.toml` says what each field means.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::Message;
use pgonce::tokio_postgres::Once;
use pgonce_broker::webhooks::{Encoding as Written, Scheme, Webhooks};
use pgonce_http::gateway::{Fault, Faults};
use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;

use crate::config_file::{ConfigFile, folder};
use crate::consume::variable;
use crate::exit::{self, CliError, Result as Done};
use crate::relay::config::{Database, Log};
use crate::relay::values::{Length, Size};

/// A commented example that passes the checks.
pub(super) const EXAMPLE: &str = include_str!("example.toml");

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    #[serde(default)]
    pub(super) database: Database,
    pub(super) listen: Listen,
    #[serde(default)]
    pub(super) log: Log,
    #[serde(default)]
    pub(super) webhooks: Vec<Hook>,
    /// Relative names of files begin here.
    #[serde(skip)]
    pub(super) folder: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listen {
    pub(super) address: SocketAddr,
    #[serde(default = "max_connections")]
    pub(super) max_connections: usize,
    #[serde(default = "body_timeout")]
    pub(super) body_timeout: Length,
    #[serde(default = "drain_timeout")]
    pub(super) drain_timeout: Length,
}

impl Listen {
    pub(super) fn at(address: SocketAddr) -> Self {
        Self {
            address,
            max_connections: max_connections(),
            body_timeout: body_timeout(),
            drain_timeout: drain_timeout(),
        }
    }
}

fn max_connections() -> usize {
    1024
}

fn body_timeout() -> Length {
    Length(Duration::from_secs(30))
}

fn drain_timeout() -> Length {
    Length(Duration::from_secs(10))
}

/// One sender.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hook {
    pub(super) path: Spanned<String>,
    pub(super) consumer: Spanned<String>,
    pub(super) source: Spanned<String>,
    pub(super) scheme: Spanned<SchemeName>,
    pub(super) secret_env: String,
    // Of the scheme hmac.
    pub(super) header: Option<String>,
    pub(super) encoding: Option<Encoding>,
    pub(super) prefix: Option<String>,
    pub(super) time_field: Option<String>,
    pub(super) signature_field: Option<String>,
    pub(super) time_header: Option<String>,
    pub(super) id_header: Option<String>,
    pub(super) id_pointer: Option<String>,
    // Of every scheme.
    pub(super) tolerance: Option<Length>,
    pub(super) max_bytes: Option<Size>,
    pub(super) key_pointer: Option<String>,
    pub(super) type_pointer: Option<String>,
    pub(super) tenant_pointer: Option<String>,
}

/// How a sender signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum SchemeName {
    /// Standard Webhooks: webhook-id, webhook-timestamp, webhook-signature
    #[default]
    Standard,
    /// X-Hub-Signature-256 over the body, the id in X-GitHub-Delivery
    Github,
    /// Stripe-Signature: t=...,v1=... over time and body, the id in the payload
    Stripe,
    /// HMAC-SHA-256, as the fields of a file say; by flags: in webhook-signature, as hex
    Hmac,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Encoding {
    Hex,
    Base64,
}

impl Default for Hook {
    fn default() -> Self {
        let plain = |text: &str| Spanned::new(0..0, text.to_owned());
        Self {
            path: plain("/"),
            consumer: plain(""),
            source: plain(""),
            scheme: Spanned::new(0..0, SchemeName::Standard),
            secret_env: String::new(),
            header: None,
            encoding: None,
            prefix: None,
            time_field: None,
            signature_field: None,
            time_header: None,
            id_header: None,
            id_pointer: None,
            tolerance: None,
            max_bytes: None,
            key_pointer: None,
            type_pointer: None,
            tenant_pointer: None,
        }
    }
}

impl Config {
    /// What flags say, for one sender.
    pub(super) fn of(listen: Listen, hook: Hook) -> Self {
        Self {
            database: Database::default(),
            listen,
            log: Log::default(),
            webhooks: vec![hook],
            folder: PathBuf::new(),
        }
    }
}

impl ConfigFile for Config {
    const COMMAND: &'static str = "webhooks";
    const PARTS: &'static str = "paths";

    /// Reads a configuration. `file` is the name to show; names of files in the text that are not
    /// absolute begin in its folder.
    fn parse(file: &str, text: &str) -> std::result::Result<Self, Faults> {
        let mut config: Self = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let hint = "`pgonce webhooks --print-example` shows every field with its meaning.";
            Faults::new(file, vec![Fault::at(text, span, error.message(), hint)])
        })?;
        config.folder = folder(file);
        let mut faults: Vec<Fault> = config.database.fault(text).into_iter().collect();
        if config.listen.max_connections == 0 {
            let what = "max_connections is 0: nobody could connect";
            faults.push(Fault::at(text, 0..0, what, "Give 1 or more."));
        }
        if config.webhooks.is_empty() {
            let hint = "Add a table [[webhooks]] with `path`, `consumer`, `source`, `scheme` and `secret_env`.";
            faults.push(Fault::at(
                text,
                0..0,
                "there is no webhook in the file",
                hint,
            ));
        }
        for (number, hook) in config.webhooks.iter().enumerate() {
            if let Some((what, hint)) = hook.wrong() {
                faults.push(Fault::at(text, hook.path.span(), what, hint));
            }
            let before = &config.webhooks[..number];
            if before.iter().any(|other| other.path() == hook.path()) {
                let what = format!("path {:?} is here already", hook.path());
                faults.push(Fault::at(
                    text,
                    hook.path.span(),
                    what,
                    "Give each sender a path of its own.",
                ));
            }
        }
        match faults.is_empty() {
            true => Ok(config),
            false => Err(Faults::new(file, faults)),
        }
    }

    fn names(&self) -> Vec<&str> {
        self.webhooks.iter().map(Hook::path).collect()
    }
}

impl Hook {
    pub(super) fn path(&self) -> &str {
        self.path.get_ref()
    }

    /// What is wrong with it, and what to do about it.
    pub(super) fn wrong(&self) -> Option<(String, &'static str)> {
        let path = self.path();
        let names = [&self.consumer, &self.source];
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"{}?#*".contains(&byte);
        if !path.starts_with('/') || !path.bytes().all(is_plain) {
            Some((
                format!("{path:?} is no path"),
                "Write a path such as \"/hooks/provider\".",
            ))
        } else if ["/healthz", "/readyz"].contains(&path) {
            Some((
                format!("path {path:?} says whether the program is well"),
                "Choose another.",
            ))
        } else if names
            .iter()
            .any(|name| !(1..=255).contains(&name.get_ref().len()))
        {
            let what = "consumer and source have 1 to 255 bytes".to_owned();
            Some((what, "Name who applies the messages, and who sends them."))
        } else if self.time_field.is_some() != self.signature_field.is_some() {
            let what = "the names of time and signature come together".to_owned();
            Some((
                what,
                "Give both `time_field` and `signature_field`, such as \"t\" and \"v1\".",
            ))
        } else if *self.scheme.get_ref() != SchemeName::Hmac && self.header.is_some() {
            let what = "a scheme with a name has its own header".to_owned();
            Some((what, "Leave `header` out, or give scheme = \"hmac\"."))
        } else if let Some(name) = self.ignored() {
            let what = format!("the scheme says what `{name}` would say");
            Some((what, "Leave it out, or give scheme = \"hmac\"."))
        } else {
            None
        }
    }

    /// A field that a scheme with a name would ignore: each has its encoding, and the standard everything.
    fn ignored(&self) -> Option<&'static str> {
        let scheme = *self.scheme.get_ref();
        let is_named = scheme != SchemeName::Hmac;
        let is_standard = scheme == SchemeName::Standard;
        let fields = [
            ("encoding", is_named && self.encoding.is_some()),
            ("prefix", is_standard && self.prefix.is_some()),
            ("time_field", is_standard && self.time_field.is_some()),
            ("time_header", is_standard && self.time_header.is_some()),
            ("id_header", is_standard && self.id_header.is_some()),
            ("id_pointer", is_standard && self.id_pointer.is_some()),
        ];
        let ignored = fields.into_iter().find(|(_, is_ignored)| *is_ignored);
        ignored.map(|(name, _)| name)
    }

    /// What answers the sender.
    pub(super) fn receiver(&self, once: &Once, listen: &Listen) -> Done<Webhooks<TokioPostgres>> {
        let (consumer, source) = (self.consumer.get_ref(), self.source.get_ref());
        let mut receiver = Webhooks::new(once, consumer, source, self.scheme()?)
            .body_timeout(listen.body_timeout.0);
        if let Some(bytes) = self.max_bytes {
            receiver = receiver.max_bytes(bytes.0);
        }
        let pointers = [&self.key_pointer, &self.type_pointer, &self.tenant_pointer];
        if pointers.iter().any(|pointer| pointer.is_some()) {
            let [key, kind, tenant] = pointers.map(Clone::clone);
            receiver = receiver.read_with(move |message| {
                let body = message
                    .json()
                    .map_err(|error| format!("it is not JSON: {error}"))?;
                message.key = text_at(&body, &key).or(message.key.take());
                message.kind = text_at(&body, &kind).or(message.kind.take());
                set_tenant(message, text_at(&body, &tenant));
                Ok(())
            });
        }
        Ok(receiver)
    }

    fn scheme(&self) -> Done<Scheme> {
        let secrets = variable(&self.secret_env)?;
        let secrets = || secrets.split_whitespace();
        let written = match self.encoding {
            None | Some(Encoding::Hex) => Written::Hex,
            Some(Encoding::Base64) => Written::Base64,
        };
        let mut scheme = match self.scheme.get_ref() {
            SchemeName::Standard => Scheme::standard(secrets()).map_err(|error| {
                let hint =
                    "Its secrets are written whsec_ and base64; several with spaces in between.";
                CliError::new(exit::USAGE, error.to_string(), hint)
            })?,
            SchemeName::Github => Scheme::hmac(secrets(), "x-hub-signature-256", Written::Hex)
                .prefixed("sha256=")
                .id_header("x-github-delivery"),
            SchemeName::Stripe => Scheme::hmac(secrets(), "stripe-signature", Written::Hex)
                .fields("t", "v1")
                .id_pointer("/id"),
            SchemeName::Hmac => {
                let header = self.header.as_deref().unwrap_or("webhook-signature");
                Scheme::hmac(secrets(), header, written)
            }
        };
        if let Some(prefix) = &self.prefix {
            scheme = scheme.prefixed(prefix);
        }
        if let (Some(time), Some(signature)) = (&self.time_field, &self.signature_field) {
            scheme = scheme.fields(time, signature);
        }
        if let Some(header) = &self.time_header {
            scheme = scheme.time_header(header);
        }
        if let Some(header) = &self.id_header {
            scheme = scheme.id_header(header);
        }
        if let Some(pointer) = &self.id_pointer {
            scheme = scheme.id_pointer(pointer);
        }
        Ok(match self.tolerance {
            Some(tolerance) => scheme.tolerance(tolerance.0),
            None => scheme,
        })
    }
}

fn text_at(body: &Value, pointer: &Option<String>) -> Option<String> {
    match body.pointer(pointer.as_deref()?)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn set_tenant(message: &mut Message, tenant: Option<String>) {
    if let Some(tenant) = tenant {
        message.tenant = tenant;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_passes_the_checks() {
        let config = Config::parse("example.toml", EXAMPLE).unwrap();
        assert_eq!(config.webhooks.len(), 2);
    }

    #[test]
    fn every_fault_of_a_file_is_reported() {
        let text = "listen.address = \"127.0.0.1:0\"\n\
            [[webhooks]]\npath = \"hooks\"\nconsumer = \"c\"\nsource = \"s\"\nscheme = \"standard\"\nsecret_env = \"S\"\n\
            [[webhooks]]\npath = \"/a\"\nconsumer = \"\"\nsource = \"s\"\nscheme = \"hmac\"\nsecret_env = \"S\"\n\
            [[webhooks]]\npath = \"/a\"\nconsumer = \"c\"\nsource = \"s\"\nscheme = \"stripe\"\nsecret_env = \"S\"\nheader = \"x\"\n\
            [[webhooks]]\npath = \"/b\"\nconsumer = \"c\"\nsource = \"s\"\nscheme = \"github\"\nsecret_env = \"S\"\nencoding = \"hex\"\n\
            [[webhooks]]\npath = \"/c\"\nconsumer = \"c\"\nsource = \"s\"\nscheme = \"standard\"\nsecret_env = \"S\"\nid_pointer = \"/id\"\n\
            [database]\nurl_env = \"A\"\nurl_file = \"b\"\n";
        let faults = Config::parse("x.toml", text).unwrap_err().to_string();
        for expected in [
            "\"hooks\" is no path",
            "1 to 255 bytes",
            "has its own header",
            "is here already",
            "what `encoding` would say",
            "what `id_pointer` would say",
            "in two places",
        ] {
            assert!(faults.contains(expected), "{expected}: {faults}");
        }
    }
}
