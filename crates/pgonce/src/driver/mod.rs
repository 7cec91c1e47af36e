//! The seam between pgonce and a PostgreSQL driver: a handful of methods, the same names in
//! every driver. All protocol logic is in SQL functions; a driver only carries calls.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
use crate::error::ErrorDetail;
use crate::error::{Error, Result};

#[cfg(feature = "sqlx")]
pub mod sqlx;
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;

/// A parameter of a call. Numbers and times travel as text and are cast in the statement, so that
/// every driver encodes them alike.
#[derive(Clone, Copy)]
pub enum Param<'a> {
    /// A text, or SQL null.
    Text(Option<&'a str>),
    /// Bytes.
    Bytes(&'a [u8]),
    /// Texts as text[], some of them null.
    Texts(&'a [Option<&'a str>]),
    /// Byte strings as bytea[].
    BytesList(&'a [&'a [u8]]),
    /// A JSON document as jsonb, or SQL null.
    Json(Option<&'a str>),
    /// A whole number, as text.
    Int(i64),
    /// An interval, as text.
    Interval(Duration),
}

impl Param<'_> {
    /// The text of a number or an interval.
    #[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
    pub(crate) fn written(&self) -> Option<String> {
        match self {
            Self::Int(number) => Some(number.to_string()),
            Self::Interval(duration) => Some(interval_text(*duration)),
            _ => None,
        }
    }
}

/// An interval as PostgreSQL reads it. Version 14 keeps each number in 32 bits: microseconds would be out of range after half an
/// hour, and seconds after 68 years.
#[cfg(any(feature = "sqlx", feature = "tokio-postgres", feature = "import"))]
pub(crate) fn interval_text(duration: Duration) -> String {
    let (seconds, micros) = (duration.as_secs(), duration.subsec_micros());
    match i32::try_from(seconds) {
        Ok(seconds) => format!("{seconds}.{micros:06} seconds"),
        Err(_) => format!(
            "{} hours {}.{micros:06} seconds",
            seconds / 3600,
            seconds % 3600
        ),
    }
}

/// Keys and answers are parameters: they stay out of logs.
impl fmt::Debug for Param<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Param(..)")
    }
}

/// A row of a call: every column as text.
pub type Row = Vec<Option<String>>;

/// What PostgreSQL's binary format of a column says, as text. Casting in the statement instead
/// would cost every claim more than decoding it here.
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
pub(crate) fn binary_as_text(kind: &str, bytes: &[u8]) -> Result<String> {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    // The drivers spell types in small letters or in capitals.
    let decoded = match kind {
        "int8" | "INT8" => bytes
            .try_into()
            .ok()
            .map(|b| i64::from_be_bytes(b).to_string()),
        "int4" | "INT4" => bytes
            .try_into()
            .ok()
            .map(|b| i32::from_be_bytes(b).to_string()),
        "int2" | "INT2" => bytes
            .try_into()
            .ok()
            .map(|b| i16::from_be_bytes(b).to_string()),
        "uuid" | "UUID" => bytes
            .try_into()
            .ok()
            .map(|b| uuid::Uuid::from_bytes(b).to_string()),
        "timestamptz" | "TIMESTAMPTZ" => bytes
            .try_into()
            .ok()
            .map(|b| rfc3339(i64::from_be_bytes(b))),
        // One byte of version before the text.
        "jsonb" | "JSONB" => bytes.get(1..).and_then(text),
        "bool" | "BOOL" => Some((bytes == [1]).to_string()),
        "text" | "unknown" | "name" | "TEXT" | "UNKNOWN" | "NAME" => text(bytes),
        _ => None,
    };
    decoded.ok_or_else(|| {
        Error::Schema(ErrorDetail::new(
            "P4099",
            format!("the database answered a column of type {kind}, which this build cannot read"),
            "Update this program, or run `pgonce migrate status`.",
        ))
    })
}

/// A time of PostgreSQL, microseconds since 2000, as RFC 3339 has it. (The database takes ten times as
/// long for the same text.) One before 1970, after the year 9999 or infinite becomes the nearest: it must not keep anybody from
/// reading what is beside it.
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
fn rfc3339(micros: i64) -> String {
    const TO_2000: i64 = 946_684_800_000_000;
    const TO_10000: i64 = 253_402_300_800_000_000;
    let since = micros.saturating_add(TO_2000).clamp(0, TO_10000 - 1);
    let since = std::time::Duration::from_micros(since.unsigned_abs());
    humantime::format_rfc3339_micros(std::time::UNIX_EPOCH + since).to_string()
}

/// What a session gets that [`sqlx::Sqlx::with_limits`] or
/// [`tokio_postgres::TokioPostgres::with_limits`] opens. A client that is cut off silently would keep
/// its transaction, and with it the intent, for many minutes in spite of keepalives.
pub const SESSION_LIMITS: [(&str, &str); 2] = [
    ("idle_in_transaction_session_timeout", "60s"),
    ("tcp_user_timeout", "30s"),
];

/// Those that the user has not set.
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
pub(crate) fn missing_limits(options: Option<&str>) -> Vec<(&'static str, &'static str)> {
    let set = options.unwrap_or_default();
    let missing = SESSION_LIMITS
        .iter()
        .filter(|(name, _)| !set.contains(name));
    missing.copied().collect()
}

/// A connection whose prepared statements are gone (DISCARD ALL) or out of date (a changed result type),
/// or that leads to a standby, which refuses `begin read write` as a feature that it lacks. It stays so: it
/// is closed like a lost one, and the work is done on another.
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
pub(crate) fn is_stale(code: &str, routine: Option<&str>) -> bool {
    let lacking = matches!(
        routine,
        Some("RevalidateCachedQuery" | "call_bool_check_hook")
    );
    code == "26000" || (code == "0A000" && lacking)
}

/// How the error of a stale session begins.
const STALE: &str = "the session is out of date: ";

/// The error of a stale session: it is closed like a lost one.
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
pub(crate) fn stale(message: &str, code: &str) -> Error {
    Error::Disconnected(format!("{STALE}{message} [{code}]"))
}

/// The error of BEGIN on a session in which somebody left a transaction open: what is committed there would be theirs, too, and
/// what they roll back ours. It is closed like a lost one.
///
/// BEGIN itself only warns there; `not deferrable` is refused once anything was asked in the transaction, and means nothing else.
pub(crate) fn refuse_left_open(error: Error) -> Error {
    match error.code() {
        code @ ("25001" | "25P02") => Error::Disconnected(format!(
            "{STALE}somebody left a transaction open in it [{code}]"
        )),
        _ => error,
    }
}

/// Whether the server answered that it did not run the statement, since the session is stale: nothing happened.
pub(crate) fn was_stale(error: &Error) -> bool {
    matches!(error, Error::Disconnected(why) if why.starts_with(STALE))
}

/// Whether an error that ends the session says that the server, or a pooler before it, broke. Others refuse a connection, or end
/// a session that did nothing.
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
pub(crate) fn is_crash(code: &str) -> bool {
    code.starts_with("58") || code.starts_with("XX") || matches!(code, "53100" | "53200")
}

/// The error of a server that crashes, whatever it crashes of: as if it had said nothing. A commit may have been written before.
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
pub(crate) fn crashed(message: &str, code: &str) -> Error {
    Error::Disconnected(format!("the server crashed: {message} [{code}]"))
}

/// A statement of pgonce, in the schema that it is installed in.
#[derive(Debug, Clone)]
pub struct Statement {
    /// The SQL, with `$1`, `$2` …
    pub sql: Arc<str>,
    /// Whether it may be prepared by name and kept; not behind a transaction pooler.
    pub keep: bool,
    /// Whether the connection goes through a transaction pooler.
    pub pooled: bool,
}

/// Something that runs statements: a connection of pgonce's own, or the transaction that you
/// already hold.
pub trait Connection: Send {
    /// What the user's statements run on.
    type Raw: ?Sized;

    /// The driver's own connection.
    fn raw(&mut self) -> &mut Self::Raw;

    /// Runs one statement and gives its rows.
    fn query(
        &mut self,
        statement: &Statement,
        params: &[Param<'_>],
    ) -> impl Future<Output = Result<Vec<Row>>> + Send;
}

impl<C: Connection> Connection for &mut C {
    type Raw = C::Raw;

    fn raw(&mut self) -> &mut C::Raw {
        (**self).raw()
    }

    async fn query(&mut self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<Row>> {
        (**self).query(statement, params).await
    }
}

/// An open transaction of the user's: sqlx's, tokio-postgres' or deadpool's `Transaction`. A plain
/// connection is none: what pgonce records there would commit without the effect it belongs to.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction",
    label = "not a transaction",
    note = "begin one and pass it: outside a transaction a record would commit without its effect"
)]
pub trait InTransaction: Connection + sealed::Sealed {}

impl<C: InTransaction> InTransaction for &mut C {}
impl<C: sealed::Sealed> sealed::Sealed for &mut C {}

mod sealed {
    /// Only this crate says what a transaction is.
    pub trait Sealed {}
}

/// What came of the last statement of a transaction and its COMMIT.
#[derive(Debug)]
pub enum Settled {
    /// Both were acknowledged; with the first row of the last statement, if it gave one.
    Committed(Option<Row>),
    /// The database said no: nothing is left, and the transaction is over.
    Refused(Error),
    /// A reply is missing. It may have been committed.
    Unknown(String),
}

/// A pooled connection. Dropped in any state but clean it is closed, never given back: only
/// [`Session::keep`] returns it to its pool.
pub trait Session: Connection + Sized + 'static {
    /// Opens a transaction and claims in it, in as few round trips as the driver can. No row
    /// means that the claim is fresh. After an error call [`Session::rollback`].
    fn begin(&mut self, opening: &Opening<'_>) -> impl Future<Output = Result<Option<Row>>> + Send;

    /// Opens a transaction and nothing else.
    fn open(&mut self, begin: &str) -> impl Future<Output = Result<()>> + Send;

    /// Runs the last statement and COMMIT, in as few round trips as the driver can.
    ///
    /// Drivers hide the tag of COMMIT, which says ROLLBACK, without an error, when the transaction
    /// had already failed. Here the last statement is always one of ours: in a failed transaction
    /// it fails, and that error is what is reported.
    fn settle(
        &mut self,
        last: &Statement,
        params: &[Param<'_>],
    ) -> impl Future<Output = Settled> + Send;

    /// Ends the transaction, if one is open, and undoes it.
    fn rollback(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Runs statements outside any transaction, in the simple protocol.
    fn batch(&mut self, sql: &str) -> impl Future<Output = Result<()>> + Send;

    /// Gives the clean connection back to its pool.
    fn keep(self);
}

/// How a transaction begins.
#[derive(Debug)]
pub struct Opening<'a> {
    /// `begin`, with the isolation level that was asked for.
    pub begin: &'a str,
    /// The claim, sent along with BEGIN where the driver can.
    pub claim: &'a Statement,
    /// Parameters of the claim.
    pub params: &'a [Param<'a>],
}

/// A statement of the user's, with its values bound, as [`Once::execute`](crate::Once::execute) takes it.
/// sqlx: `sqlx::query(...).bind(...)`. tokio-postgres: [`Query`](crate::tokio_postgres::Query).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a statement with its values",
    note = "sqlx: pass `sqlx::query(..).bind(..)`; tokio-postgres: `pgonce::tokio_postgres::Query`"
)]
pub trait IntoEffect<S> {
    /// The statement, ready to be sent more than once.
    type Effect: Effect<S>;

    /// Takes it apart.
    fn into_effect(self) -> Result<Self::Effect>;
}

/// A statement of the user's that can be sent as a part of one of pgonce's.
pub trait Effect<S>: Send + Sync {
    /// SQL of the statement.
    fn sql(&self) -> &str;

    /// Number of the statement's values.
    fn len(&self) -> usize;

    /// Whether the statement has no values.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs a statement that contains it. Its values come first, then `params`.
    fn fetch(
        &self,
        session: &mut S,
        statement: &Statement,
        params: &[Param<'_>],
    ) -> impl Future<Output = Result<Vec<Row>>> + Send;
}

/// A pool of connections of one driver.
pub trait Driver: Clone + Send + Sync + 'static {
    /// A connection of the pool.
    type Session: Session;

    /// Takes a connection out of the pool.
    fn acquire(&self) -> impl Future<Output = Result<Self::Session>> + Send;

    /// Runs one statement on a new connection beside the pool, whose own may all wait for a reply. The caller limits its time.
    #[doc(hidden)]
    fn query_beside(
        &self,
        statement: &Statement,
        params: &[Param<'_>],
    ) -> impl Future<Output = Result<Vec<Row>>> + Send;
}

/// The first value of every row of a statement, read in a read-only transaction of its own, where no name or operator is
/// looked for among strangers' objects. `settings`, such as `set local statement_timeout = '3s'`, hold for that
/// transaction only: none leaks through a pooler.
#[doc(hidden)]
pub async fn read_only<D: Driver>(
    driver: &D,
    settings: &str,
    statement: &Statement,
    params: &[Param<'_>],
) -> Result<Vec<String>> {
    let mut session = driver.acquire().await?;
    session
        .open(
            "begin isolation level repeatable read read only; set local search_path = pg_catalog, pg_temp; \
             set local standard_conforming_strings = on",
        )
        .await?;
    let done = match session.batch(settings).await {
        Ok(()) => session.query(statement, params).await,
        Err(error) => Err(error),
    };
    if session.rollback().await.is_ok() {
        session.keep();
    }
    let rows = done?.into_iter();
    Ok(rows
        .filter_map(|row| row.into_iter().next().flatten())
        .collect())
}

/// Quotes a text so that it is one literal whatever `standard_conforming_strings` says.
pub(crate) fn quote_literal(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 4);
    quoted.push_str(" E'");
    for c in text.chars() {
        match c {
            '\'' => quoted.push_str("''"),
            '\\' => quoted.push_str("\\\\"),
            c => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}

#[cfg(all(test, feature = "sqlx"))]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_an_interval_exceeds_what_postgresql_14_reads() {
        let long = Duration::from_secs(60 * 365 * 86_400) + Duration::from_micros(7);
        let text = Param::Interval(long).written().unwrap();
        assert_eq!(text, "1892160000.000007 seconds");
        let text = Param::Interval(long * 2).written().unwrap();
        assert_eq!(text, "1051200 hours 0.000014 seconds");
        let text = Param::Interval(Duration::MAX).written().unwrap();
        assert_eq!(text, "5124095576030431 hours 15.999999 seconds");
    }

    #[test]
    fn a_quoted_text_is_one_literal_whatever_is_in_it() {
        assert_eq!(quote_literal(r"o'b\x"), r" E'o''b\\x'");
    }

    #[test]
    fn a_session_is_stale_whose_statements_are_gone_or_out_of_date() {
        assert!(was_stale(&stale(
            "prepared statement \"s1\" does not exist",
            "26000"
        )));
        assert!(!was_stale(&Error::Disconnected(
            "the wire was cut".to_owned()
        )));
        assert!(is_stale("26000", None));
        assert!(is_stale("0A000", Some("RevalidateCachedQuery")));
        // Any other feature that the server lacks stays what it is.
        assert!(!is_stale("0A000", None));
        assert!(!is_stale("0A000", Some("transformFromClauseItem")));
        assert!(!is_stale("42601", Some("RevalidateCachedQuery")));
    }

    #[test]
    fn a_time_is_written_as_rfc_3339_and_one_that_it_cannot_say_as_the_nearest() {
        let text = |micros: i64| binary_as_text("timestamptz", &micros.to_be_bytes()).ok();
        assert_eq!(text(0).as_deref(), Some("2000-01-01T00:00:00.000000Z"));
        assert_eq!(
            text(820_454_400_000_007).as_deref(),
            Some("2025-12-31T00:00:00.000007Z")
        );
        for early in [i64::MIN, -946_684_800_000_001] {
            assert_eq!(text(early).as_deref(), Some("1970-01-01T00:00:00.000000Z"));
        }
        for late in [252_455_616_000_000_000, i64::MAX] {
            assert_eq!(text(late).as_deref(), Some("9999-12-31T23:59:59.999999Z"));
        }
    }
}
