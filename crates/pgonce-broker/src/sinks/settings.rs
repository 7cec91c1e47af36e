//! What is said about a sink, in its URL and beside it.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use url::Url;

use super::{Refusal, SOURCE, TIMEOUT, Template};

/// Options of a sink that are not in its URL: a table of a TOML file, say. They win over the URL's.
///
/// ```
/// use pgonce_broker::sinks::Options;
///
/// let from_file: Options = toml::from_str(r#"
///     source = "/shop"
///     timeout = "5s"
///     secret = ["whsec_bmV3", "whsec_b2xk"]
/// "#)?;
/// let by_hand = Options::new().set("source", "/shop").set("timeout", "5s");
/// # let _ = (from_file, by_hand);
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Options(BTreeMap<String, Vec<String>>);

impl Options {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more; said again, an option has several values.
    #[must_use]
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.entry(name.into()).or_default().push(value.into());
        self
    }
}

impl std::fmt::Debug for Options {
    /// Names only: there are secrets among the values.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl<'de> Deserialize<'de> for Options {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "a text, a number, true or false, or a list of texts"
        )]
        enum Said {
            Text(String),
            Number(i64),
            Flag(bool),
            Several(Vec<String>),
        }
        let table = BTreeMap::<String, Said>::deserialize(input)?;
        let plain = |said| match said {
            Said::Text(text) => vec![text],
            Said::Number(number) => vec![number.to_string()],
            Said::Flag(flag) => vec![flag.to_string()],
            Said::Several(texts) => texts,
        };
        let options = table.into_iter().map(|(name, said)| (name, plain(said)));
        Ok(Self(options.collect()))
    }
}

/// One sink's URL and options, with everything accounted for.
pub(crate) struct Settings {
    pub(crate) sink: &'static str,
    pub(crate) url: Url,
    options: BTreeMap<String, Vec<String>>,
}

impl Settings {
    /// Takes the options out of the URL's query, where they are kept there, and refuses those that
    /// are not among the known.
    pub(crate) fn read(
        sink: &'static str,
        mut url: Url,
        in_query: bool,
        beside: &Options,
        known: &[&str],
    ) -> Result<Self, Refusal> {
        let mut options = BTreeMap::<String, Vec<String>>::new();
        if in_query {
            for (name, value) in url.query_pairs().into_owned() {
                options.entry(name).or_default().push(value);
            }
            url.set_query(None);
        }
        options.extend(beside.0.clone());
        match options.keys().find(|name| !known.contains(&name.as_str())) {
            Some(option) => Err(Refusal::UnknownOption {
                sink,
                option: option.clone(),
                known: known.join(", "),
            }),
            None => Ok(Self { sink, url, options }),
        }
    }

    pub(crate) fn several(&self, option: &str) -> &[String] {
        self.options.get(option).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn text(&self, option: &str) -> Result<Option<&str>, Refusal> {
        match self.several(option) {
            [] => Ok(None),
            [one] => Ok(Some(one)),
            several => Err(Refusal::BadOption {
                option: option.to_owned(),
                value: several.join(", "),
                expected: "said once".to_owned(),
            }),
        }
    }

    pub(crate) fn needed(&self, option: &'static str, what: &'static str) -> Result<&str, Refusal> {
        self.text(option)?.ok_or(Refusal::MissingOption {
            sink: self.sink,
            option,
            what,
        })
    }

    pub(crate) fn parsed<T: FromStr>(
        &self,
        option: &str,
        expected: &str,
    ) -> Result<Option<T>, Refusal> {
        let Some(text) = self.text(option)? else {
            return Ok(None);
        };
        let wrong = |_| Refusal::BadOption {
            option: option.to_owned(),
            value: text.to_owned(),
            expected: expected.to_owned(),
        };
        text.parse().map(Some).map_err(wrong)
    }

    #[cfg(feature = "webhook")]
    pub(crate) fn statuses(&self, option: &str) -> Result<Vec<u16>, Refusal> {
        let wrong = |value: &String| Refusal::BadOption {
            option: option.to_owned(),
            value: value.clone(),
            expected: "statuses such as [\"404\", \"409\"], from 300 to 599".to_owned(),
        };
        let said = self.several(option).iter();
        said.map(|text| match text.parse() {
            Ok(status @ 300..=599) => Ok(status),
            _ => Err(wrong(text)),
        })
        .collect()
    }

    pub(crate) fn template(&self, option: &str) -> Result<Template, Refusal> {
        let text = self.text(option)?.unwrap_or("{topic}");
        text.parse().map_err(|refusal| match refusal {
            Refusal::BadOption {
                value, expected, ..
            } => Refusal::BadOption {
                option: option.to_owned(),
                value,
                expected,
            },
            other => other,
        })
    }

    pub(crate) fn source(&self) -> Result<String, Refusal> {
        Ok(self.text("source")?.unwrap_or(SOURCE).to_owned())
    }

    pub(crate) fn timeout(&self) -> Result<Duration, Refusal> {
        let expected = "a time such as 500ms, 10s or 1m";
        let said = self.parsed::<humantime::Duration>("timeout", expected)?;
        let timeout = said.map_or(TIMEOUT, Into::into);
        if timeout.is_zero() {
            return Err(Refusal::BadOption {
                option: "timeout".to_owned(),
                value: "0".to_owned(),
                expected: expected.to_owned(),
            });
        }
        Ok(timeout)
    }
}
