//! How the SDK calls its SQL functions: a statement, its arguments, and the rows that come back.

mod delegable;

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde::de::DeserializeOwned;

use self::delegable::delegable;
use crate::driver::{self, Connection, Driver, Param, Session, Settled, Statement, was_stale};
use crate::error::{Error, ErrorDetail, Result};

/// The schema that pgonce lives in by default.
pub const DEFAULT_SCHEMA: &str = "pgonce";

/// How a call in a transaction of its own begins, whatever the default isolation of a role is: what
/// is read after a lock must be new.
pub(crate) const BEGIN: &str = "begin isolation level read committed read write";

/// Ends a transaction whose commit needs no last check.
pub(crate) static COMMIT: Sql = Sql::kept("select 'done'");

/// Words of SQL that cannot name a schema without quotes, on any supported version.
#[rustfmt::skip]
const RESERVED: &[&str] = &[
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "authorization", "binary", "both",
    "case", "cast", "check", "collate", "collation", "column", "concurrently", "constraint", "create", "cross",
    "current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp",
    "current_user", "default", "deferrable", "desc", "distinct", "do", "else", "end", "except", "false", "fetch", "for",
    "foreign", "freeze", "from", "full", "grant", "group", "having", "ilike", "in", "initially", "inner", "intersect",
    "into", "is", "isnull", "join", "lateral", "leading", "left", "like", "limit", "localtime", "localtimestamp",
    "natural", "not", "notnull", "null", "offset", "on", "only", "or", "order", "outer", "overlaps", "placing",
    "primary", "references", "returning", "right", "select", "session_user", "similar", "some", "symmetric",
    "system_user", "table", "tablesample", "then", "to", "trailing", "true", "union", "unique", "user", "using",
    "variadic", "verbose", "when", "where", "window", "with",
];

/// Checks the name of a schema: lower case letters, digits and underscores, so that it needs no
/// quotes anywhere and can stand in every function's body.
pub(crate) fn schema_name(name: &str) -> Result<&str> {
    let ok = !name.is_empty()
        && name.len() <= 63
        && !name.starts_with("pg_")
        && !RESERVED.contains(&name)
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if ok {
        Ok(name)
    } else {
        Err(Error::Invalid(ErrorDetail::new(
            "22023",
            format!("{name:?} cannot be the name of pgonce's schema"),
            "Use at most 63 lower case letters, digits and underscores, beginning with a letter and not with pg_, and no reserved word of SQL.",
        )))
    }
}

/// A statement as its capability writes it, for a schema called `pgonce`.
#[derive(Debug)]
pub(crate) struct Sql {
    text: &'static str,
    often: bool,
}

impl Sql {
    /// A statement that is called often: prepared once on each connection.
    pub(crate) const fn kept(text: &'static str) -> Self {
        Self { text, often: true }
    }

    /// A statement that is called seldom: not worth a prepared statement.
    pub(crate) const fn seldom(text: &'static str) -> Self {
        Self { text, often: false }
    }
}

/// The schema that pgonce is installed in, and its statements as they are sent there.
#[derive(Debug)]
pub(crate) struct Schema {
    name: String,
    /// Whether statements may be prepared by name; not behind a transaction pooler.
    keep: bool,
    /// Whether its tables are distributed by Citus.
    distributed: bool,
    /// By the address of the text: each is written once, as a static.
    made: RwLock<HashMap<(usize, usize), Statement>>,
}

impl Schema {
    pub(crate) fn new(name: &str, keep: bool) -> Result<Arc<Self>> {
        Self::of(name, keep, false)
    }

    pub(crate) fn of(name: &str, keep: bool, distributed: bool) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            name: schema_name(name)?.to_owned(),
            keep,
            distributed,
            made: RwLock::default(),
        }))
    }

    pub(crate) fn is_distributed(&self) -> bool {
        self.distributed
    }

    /// Refuses what does not work where Citus distributes the tables.
    pub(crate) fn refuse_if_distributed(&self, what: &str, hint: &'static str) -> Result<()> {
        match self.distributed {
            false => Ok(()),
            true => Err(Error::Schema(ErrorDetail::new(
                "P4105",
                format!("{what} does not work on Citus"),
                hint,
            ))),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The statement for this schema.
    pub(crate) fn statement(&self, sql: &Sql) -> Statement {
        if !sql.often {
            return self.make(sql);
        }
        let address = (sql.text.as_ptr() as usize, sql.text.len());
        let made = self.made.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(statement) = made.get(&address) {
            return statement.clone();
        }
        drop(made);
        let statement = self.make(sql);
        let mut made = self.made.write().unwrap_or_else(PoisonError::into_inner);
        made.entry(address).or_insert(statement).clone()
    }

    /// A statement with one of the user's in it, which makes it another for each.
    pub(crate) fn statement_of(&self, sql: String) -> Statement {
        Statement {
            sql: sql.into(),
            keep: self.keep,
            pooled: !self.keep,
        }
    }

    /// Whether the connections go through a transaction pooler.
    pub(crate) fn is_pooled(&self) -> bool {
        !self.keep
    }

    fn make(&self, sql: &Sql) -> Statement {
        let text = match self.distributed {
            true => delegable(sql.text),
            false => sql.text.to_owned(),
        };
        Statement {
            sql: qualified(&text)
                .replace("pgonce.", &format!("{}.", self.name))
                .into(),
            keep: self.keep && sql.often,
            pooled: !self.keep,
        }
    }
}

/// Types by their schema: they are no keywords, and a `search_path` could put others in their place.
/// Functions and operators are written with theirs.
fn qualified(text: &str) -> String {
    const TYPES: [&str; 7] = [
        "text",
        "jsonb",
        "bytea",
        "uuid",
        "regclass",
        "name",
        "pg_snapshot",
    ];
    TYPES.iter().fold(text.to_owned(), |text, name| {
        text.replace(&format!("::{name}"), &format!("::pg_catalog.{name}"))
    })
}

/// The arguments of a call, in the order of its parameters.
#[derive(Debug, Default)]
pub(crate) struct Args<'a>(Vec<Param<'a>>);

impl<'a> Args<'a> {
    /// No arguments yet.
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(12))
    }

    /// Texts only.
    pub(crate) fn texts<const N: usize>(texts: [&'a str; N]) -> Self {
        Self(texts.iter().map(|text| Param::Text(Some(text))).collect())
    }

    /// A text, or SQL null.
    pub(crate) fn text(self, text: impl Into<Option<&'a str>>) -> Self {
        self.and(Param::Text(text.into()))
    }

    pub(crate) fn bytes(self, bytes: &'a [u8]) -> Self {
        self.and(Param::Bytes(bytes))
    }

    /// Texts as one array, some of them null.
    pub(crate) fn list(self, texts: &'a [Option<&'a str>]) -> Self {
        self.and(Param::Texts(texts))
    }

    /// Byte strings as one array.
    pub(crate) fn bytes_list(self, list: &'a [&'a [u8]]) -> Self {
        self.and(Param::BytesList(list))
    }

    /// A JSON document, or SQL null.
    pub(crate) fn json(self, text: impl Into<Option<&'a str>>) -> Self {
        self.and(Param::Json(text.into()))
    }

    /// A whole number, or SQL null.
    pub(crate) fn int(self, number: impl Into<Option<i64>>) -> Self {
        self.and(number.into().map_or(Param::Text(None), Param::Int))
    }

    /// A count: one that PostgreSQL's bigint cannot hold becomes its largest.
    pub(crate) fn count(self, count: impl TryInto<i64>) -> Self {
        self.int(count.try_into().unwrap_or(i64::MAX))
    }

    /// A duration, or SQL null.
    pub(crate) fn interval(self, duration: impl Into<Option<Duration>>) -> Self {
        self.and(duration.into().map_or(Param::Text(None), Param::Interval))
    }

    pub(crate) fn bool(self, value: bool) -> Self {
        self.text(if value { "true" } else { "false" })
    }

    pub(crate) fn as_slice(&self) -> &[Param<'a>] {
        &self.0
    }

    fn and(mut self, param: Param<'a>) -> Self {
        self.0.push(param);
        self
    }
}

/// A row that came back, read column by column. Whatever does not fit is one error.
#[derive(Debug)]
pub(crate) struct Row(std::vec::IntoIter<Option<String>>);

impl From<driver::Row> for Row {
    fn from(row: driver::Row) -> Self {
        Self(row.into_iter())
    }
}

impl Row {
    /// The next column, where it is not null.
    pub(crate) fn opt_text(&mut self) -> Option<String> {
        self.0.next().flatten()
    }

    /// The next column.
    pub(crate) fn text(&mut self) -> Result<String> {
        self.opt_text().ok_or_else(unreadable)
    }

    /// The next column as a number or the like.
    pub(crate) fn get<T: FromStr>(&mut self) -> Result<T> {
        self.text()?.parse().map_err(|_| unreadable())
    }

    /// The same, where it is not null.
    pub(crate) fn opt<T: FromStr>(&mut self) -> Result<Option<T>> {
        let text = self.opt_text();
        text.map(|text| text.parse().map_err(|_| unreadable()))
            .transpose()
    }

    pub(crate) fn bool(&mut self) -> Result<bool> {
        Ok(self.text()? == "true")
    }

    /// The next column, which counts milliseconds, where it is not null.
    pub(crate) fn opt_millis(&mut self) -> Result<Option<Duration>> {
        Ok(self.opt()?.map(Duration::from_millis))
    }

    /// The next column, which counts milliseconds.
    pub(crate) fn millis(&mut self) -> Result<Duration> {
        self.opt_millis()?.ok_or_else(unreadable)
    }

    pub(crate) fn json<T: DeserializeOwned>(&mut self) -> Result<T> {
        serde_json::from_str(&self.text()?).map_err(|_| unreadable())
    }
}

/// The rows of a call.
#[derive(Debug)]
pub(crate) struct Rows(Vec<driver::Row>);

impl Rows {
    /// The first row, if there is one.
    pub(crate) fn first(self) -> Option<Row> {
        self.0.into_iter().next().map(Row::from)
    }

    /// The only row.
    pub(crate) fn one(self) -> Result<Row> {
        self.first().ok_or_else(unreadable)
    }

    /// Reads every row.
    pub(crate) fn read<T>(self, read: impl FnMut(Row) -> Result<T>) -> Result<Vec<T>> {
        self.0.into_iter().map(Row::from).map(read).collect()
    }
}

/// The one error of a row that this build cannot read.
pub(crate) fn unreadable() -> Error {
    Error::Schema(ErrorDetail::new(
        "P4099",
        "the database answered a row that this build cannot read",
        "Update this program, or run `pgonce migrate status`.",
    ))
}

/// Calls a statement on a connection.
pub(crate) async fn call_on<C: Connection>(
    conn: &mut C,
    schema: &Schema,
    sql: &Sql,
    args: &Args<'_>,
) -> Result<Rows> {
    let statement = schema.statement(sql);
    conn.query(&statement, &args.0).await.map(Rows)
}

/// Calls the last statement of a transaction and commits it. Answers the statement's row.
///
/// The session goes back to its pool unless it is lost.
pub(crate) async fn commit_with<S: Session>(
    mut session: S,
    schema: &Schema,
    last: &Sql,
    args: Args<'_>,
) -> Result<Option<Row>> {
    let settled = match session.settle(&schema.statement(last), &args.0).await {
        Settled::Committed(row) => Ok(row.map(Row::from)),
        Settled::Refused(error) => Err(error),
        Settled::Unknown(why) => Err(Error::Uncertain(why)),
    };
    release_unless_lost(session, &settled);
    settled
}

/// Gives a session whose transaction is over back to its pool. One that is lost, or that was left in
/// an unknown state, is dropped, which closes it.
pub(crate) fn release_unless_lost<S: Session, T>(session: S, result: &Result<T>) {
    if !matches!(
        result,
        Err(Error::Disconnected(_) | Error::Uncertain(_) | Error::Work(_))
    ) {
        session.keep();
    }
}

/// Rolls a session back and gives it to its pool, or closes it where that fails.
pub(crate) async fn roll_back<S: Session>(mut session: S) -> Result<()> {
    session.rollback().await?;
    session.keep();
    Ok(())
}

/// Outside a transaction a statement commits itself: when its reply is lost, nobody knows. A stale session's reply is not lost.
pub(crate) fn uncertain_if_lost(error: Error) -> Error {
    let stale = was_stale(&error);
    match error {
        Error::Disconnected(why) if !stale => Error::Uncertain(why),
        other => other,
    }
}

/// The setting of a transaction whose statements have a limit.
pub(crate) fn limited(statement_timeout: Duration) -> String {
    let millis = statement_timeout.as_millis().max(1);
    format!("set local statement_timeout = {millis}")
}

/// A pool of connections to a database with pgonce.
#[derive(Debug, Clone)]
pub(crate) struct Caller<D> {
    pub(crate) driver: D,
    pub(crate) schema: Arc<Schema>,
    /// Maximum time of each call in the database: it is cancelled there, also when nobody waits for it any longer.
    pub(crate) statement_timeout: Option<Duration>,
}

impl<D: Driver> Caller<D> {
    /// One call that is its own transaction and changes nothing that matters.
    pub(crate) async fn call(&self, sql: &Sql, args: Args<'_>) -> Result<Rows> {
        self.autocommit(sql, args, |error| error).await
    }

    /// One call that is its own transaction: when its reply is lost, nobody knows whether it
    /// happened.
    pub(crate) async fn write(&self, sql: &Sql, args: Args<'_>) -> Result<Rows> {
        self.autocommit(sql, args, uncertain_if_lost).await
    }

    async fn autocommit(
        &self,
        sql: &Sql,
        args: Args<'_>,
        lost: fn(Error) -> Error,
    ) -> Result<Rows> {
        if self.statement_timeout.is_some() {
            return self.in_own_transaction(BEGIN, sql, args, &COMMIT).await;
        }
        let mut session = self.driver.acquire().await?;
        let rows = call_on(&mut session, &self.schema, sql, &args).await;
        release_unless_lost(session, &rows);
        match rows {
            // The default isolation of the role or database is stricter than our calls need, or than they can do with; or the
            // session had lost its statements, and another is taken. Nothing happened either way.
            Err(error) if ["40001", "25000"].contains(&error.code()) || was_stale(&error) => {
                self.in_own_transaction(BEGIN, sql, args, &COMMIT).await
            }
            rows => rows.map_err(lost),
        }
    }

    /// One call in a transaction that begins with `begin` and is committed with `end`. Its rows count
    /// only once that has happened.
    pub(crate) async fn in_own_transaction(
        &self,
        begin: &str,
        sql: &Sql,
        args: Args<'_>,
        end: &Sql,
    ) -> Result<Rows> {
        let session = self.driver.acquire().await?;
        let ends = (begin, end, self.statement_timeout);
        in_transaction_on(session, &self.schema, ends, sql, args).await
    }
}

/// One call in a transaction of its own on a session, which goes back to its pool: how it begins and is committed, and the limit of
/// its statements.
pub(crate) async fn in_transaction_on<S: Session>(
    mut session: S,
    schema: &Schema,
    (begin, end, limit): (&str, &Sql, Option<Duration>),
    sql: &Sql,
    args: Args<'_>,
) -> Result<Rows> {
    // Nobody works between its statements: one that is cut off in silence keeps its locks for no longer.
    let begin = format!("{begin}; set local idle_in_transaction_session_timeout = '10s'");
    let opened = match (session.open(&begin).await, limit) {
        (Ok(()), Some(limit)) => session.batch(&limited(limit)).await,
        (opened, _) => opened,
    };
    let called = match opened {
        Ok(()) => call_on(&mut session, schema, sql, &args).await,
        Err(error) => Err(error),
    };
    match called {
        Ok(rows) => {
            commit_with(session, schema, end, Args::default()).await?;
            Ok(rows)
        }
        Err(error) => {
            if !matches!(error, Error::Disconnected(_)) {
                // The error is what counts; a session that cannot roll back is closed.
                let _ = roll_back(session).await;
            }
            Err(error)
        }
    }
}
