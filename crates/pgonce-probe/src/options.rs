//! The command line, and what it means.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::case::Case;
use super::statuses::{Allow, Statuses};
use crate::exit::{self, CliError, Result};

/// What to probe. It makes real effects there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A body may contain {{number}}, a fresh number, and {{uuid}}, a fresh id, for each intent.
Exit codes: 0 no case failed, 9 a case failed, 10 too little could be concluded,
11 the host is not this machine and --yes was not given, 2 wrong use.")]
pub struct Args {
    /// The endpoint that claims to be idempotent
    #[arg(required_unless_present = "list")]
    pub(super) url: Option<String>,
    /// The method
    #[arg(short = 'X', long, default_value = "POST")]
    pub(super) method: Method,
    /// The body of a valid request, or @FILE
    #[arg(short = 'd', long, default_value = "")]
    pub(super) body: String,
    /// Another valid body, or @FILE, for a key that is used again; not needed where {{number}} or {{uuid}} makes bodies differ
    #[arg(long, value_name = "BODY")]
    pub(super) other_body: Option<String>,
    /// A body that must be refused, or @FILE; the first half of a JSON body unless given
    #[arg(long, value_name = "BODY")]
    pub(super) invalid_body: Option<String>,
    /// A body that the API answers with 5xx, or @FILE; members of other types are tried unless given
    #[arg(long, value_name = "BODY")]
    pub(super) error_body: Option<String>,
    /// A header, as 'Name: value', or @FILE with one on each line
    #[arg(short = 'H', long, value_name = "HEADER")]
    pub(super) header: Vec<String>,
    /// A header that makes the request another principal's, in place of that of the same name
    #[arg(long, value_name = "HEADER")]
    pub(super) other_header: Vec<String>,
    /// A second endpoint that takes the same body
    #[arg(long, value_name = "URL")]
    pub(super) other_url: Option<String>,
    /// The header that carries the key
    #[arg(long, value_name = "NAME", default_value = "Idempotency-Key")]
    pub(super) key_header: HeaderName,
    /// Send keys as quoted strings, as the draft writes them, not as raw tokens
    #[arg(long)]
    pub(super) quoted: bool,
    /// Statuses that mean that an intent was accepted
    #[arg(long, value_name = "STATUS", default_value = "2xx")]
    pub(super) expect: Statuses,
    /// URL whose GET response says how many effects there are
    #[arg(long, value_name = "URL")]
    pub(super) count_url: Option<String>,
    /// Where in that document: a JSON pointer to a number, or to an array to be counted
    #[arg(
        long,
        value_name = "POINTER",
        default_value = "",
        requires = "count_url"
    )]
    pub(super) count_pointer: String,
    /// Where an answer names its effect
    #[arg(long, value_name = "POINTER", default_value = "/id")]
    pub(super) id_pointer: String,
    /// Accept these statuses too in a case, such as missing-key=2xx
    #[arg(long, value_name = "CASE=STATUS,…")]
    pub(super) allow: Vec<Allow>,
    /// Try only these cases
    #[arg(
        long,
        value_name = "CASE",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub(super) only: Vec<Case>,
    /// Leave these cases out
    #[arg(
        long,
        value_name = "CASE",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub(super) skip: Vec<Case>,
    /// Duplicates at the same time
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(2..=100))]
    pub(super) concurrency: u16,
    /// How long to wait for one answer
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(super) timeout: Duration,
    /// How long to come back to a key that is busy
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = humantime::parse_duration)]
    pub(super) busy_timeout: Duration,
    /// How long the count of effects must stand still before it is believed
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = humantime::parse_duration)]
    pub(super) settle: Duration,
    /// How old the first request is when it is sent once more; up to the retention that the API promises
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(super) late: Duration,
    /// How long all of it may take
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    pub(super) deadline: Duration,
    /// Draws keys and {{number}}; the same seed draws the same, so an API that has seen them replays
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// More authorities to trust, a PEM file
    #[arg(long, value_name = "FILE")]
    pub(super) cacert: Option<PathBuf>,
    /// Write the report to this file as JUnit's XML
    #[arg(long, value_name = "FILE")]
    pub(super) junit: Option<PathBuf>,
    /// List the cases and do nothing
    #[arg(long)]
    pub(super) list: bool,
    /// Yes, make real effects on a host that is not this machine
    #[arg(long)]
    pub(super) yes: bool,
}

/// A body with places to fill in.
#[derive(Debug, Clone)]
pub(super) struct Template(Bytes);

impl Template {
    pub(super) fn read(text: &str, option: &str) -> Result<Self> {
        let Some(file) = text.strip_prefix('@') else {
            return Ok(Self(Bytes::copy_from_slice(text.as_bytes())));
        };
        let bytes = std::fs::read(file).map_err(|error| unreadable(option, file, &error))?;
        Ok(Self(bytes.into()))
    }

    /// Whether two fillings differ.
    pub(super) fn varies(&self) -> bool {
        std::str::from_utf8(&self.0)
            .is_ok_and(|t| t.contains("{{number}}") || t.contains("{{uuid}}"))
    }

    pub(super) fn fill(&self, n: u64, uuid: &str) -> Bytes {
        match std::str::from_utf8(&self.0) {
            Ok(text) if self.varies() => text
                .replace("{{number}}", &n.to_string())
                .replace("{{uuid}}", uuid)
                .into(),
            _ => self.0.clone(),
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn unreadable(option: &str, file: &str, error: &std::io::Error) -> CliError {
    CliError::new(
        exit::USAGE,
        format!("the file {file} of {option} cannot be read: {error}"),
        "Give the path of a file after @, or the text itself.",
    )
}

/// The headers of `--header` and those that every request has.
pub(super) fn headers(given: &[String], body: &Template) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    let agent = concat!("pgonce-probe/", env!("CARGO_PKG_VERSION"));
    headers.insert(USER_AGENT, HeaderValue::from_static(agent));
    if !body.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    overlay(&mut headers, given, "--header")?;
    Ok(headers)
}

/// Puts headers in the place of those with the same name.
pub(super) fn overlay(headers: &mut HeaderMap, given: &[String], option: &str) -> Result {
    let mut added = HeaderMap::new();
    for text in given {
        let lines = match text.strip_prefix('@') {
            Some(file) => {
                std::fs::read_to_string(file).map_err(|error| unreadable(option, file, &error))?
            }
            None => text.clone(),
        };
        for line in lines.lines().filter(|line| !line.trim().is_empty()) {
            // The value may be a secret: it is not shown.
            let wrong = || {
                CliError::new(
                    exit::USAGE,
                    format!("a header of {option} cannot be understood"),
                    "Write it as 'Name: value'.",
                )
            };
            let (name, value) = line.split_once(':').ok_or_else(wrong)?;
            let name: HeaderName = name.trim().parse().map_err(|_| wrong())?;
            let value: HeaderValue = value.trim().parse().map_err(|_| wrong())?;
            added.append(name, value);
        }
    }
    for name in added.keys() {
        headers.remove(name);
    }
    for (name, value) in &added {
        headers.append(name.clone(), value.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled_anew_and_other_braces_are_left_alone() {
        let body = Template::read(
            r#"{"a": {{number}}, "b": "{{uuid}}", "c": {"d": {}}}"#,
            "--body",
        )
        .unwrap();
        assert!(body.varies());
        assert_eq!(body.fill(7, "u"), r#"{"a": 7, "b": "u", "c": {"d": {}}}"#);
        let fixed = Template::read("{}", "--body").unwrap();
        assert!(!fixed.varies());
        assert_eq!(fixed.fill(7, "u"), "{}");
    }

    #[test]
    fn another_principals_headers_take_the_place_of_the_first_ones() {
        let body = Template::read("{}", "--body").unwrap();
        let mut own = headers(&["Authorization: one".into(), "X-A: 1".into()], &body).unwrap();
        assert_eq!(own["content-type"], "application/json");
        overlay(&mut own, &["authorization: two".into()], "--other-header").unwrap();
        assert_eq!(own.get_all("authorization").iter().count(), 1);
        assert_eq!(
            (&own["authorization"], &own["x-a"]),
            (&"two".parse().unwrap(), &"1".parse().unwrap())
        );
        assert!(headers(&["no colon".into()], &body).is_err());
    }
}
