//! The tables of services, scopes and routes, field by field.

use std::path::PathBuf;

use http::Uri;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use toml::Spanned;

use super::tables::{seconds, yes};
use super::values::{Header, Length, Principal, Print, Size, Status, Verb, some_time};
use crate::Disposition;
use crate::gateway::pattern::Pattern;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Upstream {
    pub(crate) url: Spanned<Address>,
    pub(crate) ca_file: Option<Spanned<PathBuf>>,
    #[serde(default = "connect_timeout")]
    pub(crate) connect_timeout: Spanned<Length>,
    #[serde(default = "seconds::<30>", deserialize_with = "some_time")]
    pub(crate) response_timeout: Length,
    #[serde(default = "seconds::<30>", deserialize_with = "some_time")]
    pub(crate) idle_timeout: Length,
    #[serde(default = "seconds::<1>")]
    pub(crate) keep_alive: Length,
    #[serde(default)]
    pub(crate) host: HostSent,
    #[serde(default)]
    pub(crate) key_form: KeyForm,
    #[serde(default)]
    pub(crate) close_delimited: CloseDelimited,
}

/// An address of an upstream: http or https, host, port, and perhaps a path to begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) Uri);

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let refuse = |why: &str| {
            D::Error::custom(format!(
                "the address of an upstream {why}, expected such as \"http://127.0.0.1:9000\" or \"https://orders.internal\""
            ))
        };
        let uri: Uri = text.parse().map_err(|_| refuse("cannot be read"))?;
        let Some(authority) = uri.authority() else {
            return Err(refuse("has no host"));
        };
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(refuse("is neither http nor https"));
        }
        if authority.as_str().contains('@') {
            return Err(refuse(
                "has a user in it, which would be a secret in this file",
            ));
        }
        if uri.query().is_some() || text.contains('#') {
            return Err(refuse("has a query or a fragment"));
        }
        Ok(Self(uri))
    }
}

/// The `Host` header that the upstream receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HostSent {
    #[default]
    Upstream,
    Client,
}

/// What a response is whose end nothing marks but the end of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CloseDelimited {
    /// It may have broken off.
    #[default]
    Unknown,
    Whole,
}

/// The form of the key that the upstream receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KeyForm {
    #[default]
    Bare,
    Quoted,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scope {
    pub(crate) retention: Spanned<Length>,
    #[serde(default = "lease")]
    pub(crate) lease: Spanned<Length>,
    #[serde(default)]
    pub(crate) busy: Busy,
    pub(crate) wait_timeout: Option<Spanned<Length>>,
    #[serde(default)]
    pub(crate) storage: Storage,
    #[serde(default)]
    pub(crate) after_expiry: AfterExpiry,
    pub(crate) tombstone_for: Option<Spanned<Length>>,
    #[serde(default)]
    pub(crate) stale: Stale,
    pub(crate) client_retry: Option<Spanned<Length>>,
    pub(crate) max_answer: Option<Spanned<Size>>,
    pub(crate) max_keys: Option<Spanned<u32>>,
    pub(crate) note: Option<String>,
}

/// Words of the contract, with the database's own names.
macro_rules! words {
    ($name:ident { $first:ident $first_word:literal $(, $other:ident $word:literal)* }) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub(crate) enum $name {
            #[default]
            $first,
            $($other),*
        }

        impl $name {
            pub(crate) fn word(self) -> &'static str {
                match self {
                    Self::$first => $first_word,
                    $(Self::$other => $word),*
                }
            }
        }
    };
}

words!(Busy { Reject "reject", Wait "wait" });
words!(Storage { Answer "answer", Status "status" });
words!(AfterExpiry { Rerun "rerun", Gone "gone" });
// Not the database's default: an upstream that knows nothing of keys must not be called twice by default.
words!(Stale { Refuse "refuse", Hold "hold", Takeover "takeover" });

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Route {
    pub(crate) path: Spanned<Pattern>,
    #[serde(default)]
    pub(crate) methods: Vec<Spanned<Verb>>,
    pub(crate) upstream: Spanned<String>,
    pub(crate) once: Option<Once>,
}

/// The protection of a route: the fields of [`crate::Policy`] as the file writes them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Once {
    pub(crate) scope: Spanned<String>,
    pub(crate) principal: Spanned<Principal>,
    #[serde(default = "no_tenant")]
    pub(crate) tenant: Spanned<Principal>,
    #[serde(default)]
    pub(crate) key: Needed,
    pub(crate) key_header: Option<Header>,
    #[serde(default)]
    pub(crate) lint_keys: bool,
    #[serde(default)]
    pub(crate) outcomes: Outcomes,
    #[serde(default)]
    pub(crate) statuses: Statuses,
    #[serde(default)]
    pub(crate) fingerprint: Print,
    pub(crate) version_header: Option<Header>,
    #[serde(default = "yes")]
    pub(crate) with_query: bool,
    #[serde(default = "max_body")]
    pub(crate) max_body: Spanned<Size>,
    #[serde(default = "max_response")]
    pub(crate) max_response: Spanned<Size>,
    #[serde(default)]
    pub(crate) oversize: Oversize,
    #[serde(default)]
    pub(crate) replay_headers: Vec<Header>,
    #[serde(default)]
    pub(crate) fail_open: bool,
    pub(crate) reauthorise: Option<Spanned<Address>>,
}

/// Statuses whose responses do not follow `outcomes`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Statuses {
    keep: Vec<Spanned<Status>>,
    refuse: Vec<Spanned<Status>>,
    retry: Vec<Spanned<Status>>,
    forget: Vec<Spanned<Status>>,
}

impl Statuses {
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Spanned<Status>, Disposition)> {
        let lists = [
            (&self.keep, Disposition::Keep),
            (&self.refuse, Disposition::Refuse),
            (&self.retry, Disposition::Retry),
            (&self.forget, Disposition::Forget),
        ];
        lists
            .into_iter()
            .flat_map(|(list, disposition)| list.iter().map(move |status| (status, disposition)))
    }
}

/// Whether a request without a key is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Needed {
    #[default]
    Required,
    Optional,
}

/// Which responses are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcomes {
    // An upstream's failure does not say that nothing happened.
    #[default]
    Freeze,
    Final,
    Finish,
}

/// What happens to an answer that is too large to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Oversize {
    #[default]
    Refuse,
    Pass,
}

fn no_tenant() -> Spanned<Principal> {
    Spanned::new(0..0, Principal::None)
}

fn lease() -> Spanned<Length> {
    Spanned::new(0..0, seconds::<30>())
}

fn connect_timeout() -> Spanned<Length> {
    Spanned::new(0..0, seconds::<2>())
}

fn max_body() -> Spanned<Size> {
    Spanned::new(0..0, Size(2 * 1024 * 1024))
}

fn max_response() -> Spanned<Size> {
    Spanned::new(0..0, Size(1024 * 1024))
}
