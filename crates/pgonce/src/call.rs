//! How the SDK calls its SQL functions: a statement, its arguments, and the rows that come back.

mod delegable;
mod schema;

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

pub(crate) use self::schema::{Around, Schema, Sql, schema_name};
use crate::driver::{
    self, Connection, Driver, Param, Session, Settled, refuse_left_open, was_stale,
};
use crate::error::{Error, ErrorDetail, Result};

/// The schema that pgonce lives in by default.
pub const DEFAULT_SCHEMA: &str = "pgonce";

/// How a transaction begins at the default isolation of its role. The last words are for [`refuse_left_open`].
pub(crate) const BEGIN_AS_IS: &str = "begin not deferrable";

/// How a call in a transaction of its own begins, whatever the default isolation of a role is: what
/// is read after a lock must be new.
pub(crate) const BEGIN: &str = "begin isolation level read committed read write not deferrable";

/// Ends a transaction whose commit needs no last check.
pub(crate) static COMMIT: Sql = Sql::kept("select 'done'");

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
    let millis = statement_timeout.as_millis().clamp(1, i32::MAX as u128);
    format!("set local statement_timeout = {millis}")
}

/// A pool of connections to a database with pgonce.
#[derive(Debug, Clone)]
pub(crate) struct Caller<D> {
    pub(crate) driver: D,
    pub(crate) schema: Arc<Schema>,
    /// Maximum time of each call in the database: it is cancelled there, also when nobody waits for it any longer.
    pub(crate) statement_timeout: Option<Duration>,
    /// The time after which nothing is sent any longer, because nobody waits for it.
    pub(crate) deadline: Option<Instant>,
}

impl<D: Driver> Caller<D> {
    /// The same pool, from which nothing is sent after `deadline`.
    pub(crate) fn before(&self, deadline: Option<Instant>) -> Self {
        Self {
            deadline,
            ..self.clone()
        }
    }

    /// A session out of the pool. One that comes after the deadline goes back unused.
    async fn acquire(&self) -> Result<D::Session> {
        let Some(deadline) = self.deadline else {
            return self.driver.acquire().await;
        };
        let late = || Error::Disconnected("the pool gave no connection in time".to_owned());
        let acquired = timeout_at(deadline, self.driver.acquire()).await;
        let session = acquired.unwrap_or_else(|_| Err(late()))?;
        if Instant::now() >= deadline {
            session.keep();
            return Err(late());
        }
        Ok(session)
    }

    /// One call that is its own transaction and changes nothing that matters.
    pub(crate) async fn call(&self, sql: &Sql, args: Args<'_>) -> Result<Rows> {
        self.autocommit(sql, args, |error| error).await
    }

    /// One call that reads, on a new connection beside the pool.
    pub(crate) async fn call_beside(&self, sql: &Sql, args: Args<'_>) -> Result<Rows> {
        let statement = self.schema.statement(sql);
        let asking = self.driver.query_beside(&statement, args.as_slice());
        asking.await.map(Rows)
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
        let mut session = self.acquire().await?;
        let rows = call_on(&mut session, &self.schema, sql, &args).await;
        let rows = rows.map_err(|error| match error.code() {
            "25P02" => refuse_left_open(error),
            _ => error,
        });
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
        let session = self.acquire().await?;
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
