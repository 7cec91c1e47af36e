//! Why the write-ahead log is not followed.

use std::io;

use postgres_protocol::message::backend::ErrorResponseBody;

use fallible_iterator::FallibleIterator as _;

/// Why the write-ahead log is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} ({code})")]
pub struct WalListenerError {
    code: String,
    what: String,
}

/// What retrying does not fix, by code, each with what to do.
const LASTING: [(&str, &str); 6] = [
    (
        "55000",
        "Set wal_level = logical and restart the server; or do without: relays then look every few milliseconds.",
    ),
    (
        "42704",
        "As the owner of the schema, run `pgonce outbox tail on`, or select pgonce._set_wal_publication(true).",
    ),
    (
        "42501",
        "Let the role replicate: alter role … replication; on Amazon RDS, grant rds_replication to …",
    ),
    (
        "55P02",
        "Name the standbys in synchronous_standby_names, as in 'ANY 1 (one, two)'; or do without.",
    ),
    ("28P01", "Is the password right?"),
    (
        "28000",
        "Does pg_hba.conf let the role in? There can be no transaction pooler in between.",
    ),
];

impl WalListenerError {
    pub(super) fn new(code: &str, what: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            what: what.into(),
        }
    }

    /// What the server says.
    pub(super) fn from_server(body: &ErrorResponseBody) -> Self {
        let (mut code, mut what) = (String::new(), String::new());
        let mut fields = body.fields();
        while let Ok(Some(field)) = fields.next() {
            let value = String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                b'C' => code = value,
                b'M' => what = value,
                _ => {}
            }
        }
        Self { code, what }
    }

    /// SQLSTATE of the error.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        let found = LASTING.iter().find(|(code, _)| *code == self.code);
        found.map_or("It is tried again.", |(_, hint)| hint)
    }

    /// Whether somebody has to put it right.
    pub fn lasts(&self) -> bool {
        LASTING.iter().any(|(code, _)| *code == self.code)
    }
}

impl From<io::Error> for WalListenerError {
    fn from(error: io::Error) -> Self {
        Self::new("08006", error.to_string())
    }
}

impl From<tokio::time::error::Elapsed> for WalListenerError {
    fn from(_: tokio::time::error::Elapsed) -> Self {
        Self::new("08006", "the server does not answer")
    }
}
