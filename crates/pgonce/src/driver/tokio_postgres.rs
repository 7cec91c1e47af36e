//! The driver tokio-postgres, pooled by deadpool. It pipelines: BEGIN travels with the claim and
//! COMMIT with the acknowledgement, so a command needs no more round trips than the bare
//! transaction.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use deadpool::managed::Manager as _;
use deadpool_postgres::{ClientWrapper, Object, Pool};
use futures_util::future::join;
use tokio_postgres::error::Severity;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type};
use tokio_postgres::{Client, Config, GenericClient, Transaction};

use super::sealed::Sealed;
use super::{
    Connection, Driver, Effect, InTransaction, IntoEffect, Opening, Param, Row, Session, Settled,
    Statement, binary_as_text, crashed, is_crash, is_stale, missing_limits, refuse_left_open,
    stale,
};
use crate::error::{Error, ErrorDetail, Result};

/// What the driver's conversions fail with.
type Wrong = Box<dyn std::error::Error + Sync + Send>;

/// A deadpool pool as pgonce's driver.
#[derive(Clone, Debug)]
pub struct TokioPostgres {
    pool: Pool,
}

impl TokioPostgres {
    /// Uses this pool.
    pub fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Adds [`SESSION_LIMITS`](super::SESSION_LIMITS) to how sessions are opened, and the same limit
    /// on this end of the wire.
    ///
    /// Not for PgBouncer, which refuses such start-up options: give them to the role there.
    ///
    /// ```no_run
    /// # fn example(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    /// use deadpool_postgres::{Manager, Pool};
    /// use pgonce::driver::tokio_postgres::TokioPostgres;
    ///
    /// let config = TokioPostgres::with_limits(url.parse()?);
    /// let pool = Pool::builder(Manager::new(config, tokio_postgres::NoTls)).build()?;
    /// # let _ = pool;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_limits(mut config: Config) -> Config {
        let mut options = config.get_options().unwrap_or_default().to_owned();
        for (name, value) in missing_limits(config.get_options()) {
            options += &format!(" -c {name}={value}");
        }
        config.options(options);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(30));
        }
        config
    }

    /// The pool itself.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl Driver for TokioPostgres {
    type Session = TokioSession;

    async fn acquire(&self) -> Result<TokioSession> {
        let object = self.pool.get().await.map_err(|error| match error {
            deadpool_postgres::PoolError::Backend(error) => Error::from(error),
            other => Error::Disconnected(format!("the pool gave no connection: {other}")),
        })?;
        Ok(TokioSession {
            client: Some(InAttempt(object)),
        })
    }

    async fn query_beside(&self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let manager = self.pool.manager();
        let mut client = manager.create().await?;
        // The pool does not know it.
        manager.detach(&mut client);
        let client: &Client = &client;
        run_unnamed(client, &statement.sql, params).await
    }
}

/// A connection out of a deadpool pool.
#[derive(Debug)]
pub struct TokioSession {
    client: Option<InAttempt>,
}

/// The client inside an attempt: everything of deadpool's but `transaction`. The commit of such a
/// transaction would end the attempt's own, and part the effect from its acknowledgement. For a
/// part that may fail send `savepoint a` and `rollback to savepoint a`.
#[derive(Debug)]
pub struct InAttempt(Object);

impl Deref for InAttempt {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        &self.0
    }
}

impl TokioSession {
    fn object(&self) -> &Object {
        &self.client.as_ref().expect("only keep and drop take it").0
    }
}

impl Drop for TokioSession {
    fn drop(&mut self) {
        // Not kept, so not known to be clean: out of the pool and closed.
        if let Some(client) = self.client.take() {
            drop(Object::take(client.0));
        }
    }
}

impl Connection for TokioSession {
    type Raw = InAttempt;

    fn raw(&mut self) -> &mut InAttempt {
        self.client.as_mut().expect("only keep and drop take it")
    }

    async fn query(&mut self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<Row>> {
        run(self.object(), statement, params).await
    }
}

impl InTransaction for Transaction<'_> {}
impl Sealed for Transaction<'_> {}

impl<'t> Connection for Transaction<'t> {
    type Raw = Transaction<'t>;

    fn raw(&mut self) -> &mut Transaction<'t> {
        self
    }

    async fn query(&mut self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<Row>> {
        run_unnamed(self, &statement.sql, params).await
    }
}

impl InTransaction for deadpool_postgres::Transaction<'_> {}
impl Sealed for deadpool_postgres::Transaction<'_> {}

impl<'t> Connection for deadpool_postgres::Transaction<'t> {
    type Raw = deadpool_postgres::Transaction<'t>;

    fn raw(&mut self) -> &mut deadpool_postgres::Transaction<'t> {
        self
    }

    async fn query(&mut self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let inner: &Transaction<'_> = self;
        if !statement.keep {
            return run_unnamed(inner, &statement.sql, params).await;
        }
        let prepared = self.prepare_cached(&statement.sql).await?;
        let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(to_sql).collect();
        let found = inner.query(&prepared, &values).await.map_err(Error::from);
        if matches!(found, Err(Error::Disconnected(_))) {
            // The session may have forgotten its statements, and the connection stays in the caller's pool: prepare them anew.
            self.statement_cache.clear();
        }
        rows(found?)
    }
}

impl Session for TokioSession {
    async fn begin(&mut self, opening: &Opening<'_>) -> Result<Option<Row>> {
        let object = self.object();
        let prepared = prepare(object, opening.claim).await?;
        // Polled in this order, so sent in this order, without waiting in between.
        let (begun, rows) = join(
            object.batch_execute(opening.begin),
            run_prepared(object, &prepared, opening.params),
        )
        .await;
        begun.map_err(Error::from).map_err(refuse_left_open)?;
        Ok(rows?.into_iter().next())
    }

    async fn open(&mut self, begin: &str) -> Result<()> {
        let begun = self.object().batch_execute(begin).await;
        begun.map_err(Error::from).map_err(refuse_left_open)
    }

    async fn settle(&mut self, last: &Statement, params: &[Param<'_>]) -> Settled {
        let object = self.object();
        if object.is_closed() {
            // The server ended an idle transaction, say: nothing was asked of it, and nothing is left.
            let why = "the connection was closed before the commit was sent";
            return Settled::Refused(Error::Disconnected(why.to_owned()));
        }
        let prepared = match prepare(object, last).await {
            Ok(prepared) => prepared,
            Err(error) => {
                let _ = self.rollback().await;
                return Settled::Refused(error);
            }
        };
        let (done, committed) = join(
            run_prepared(object, &prepared, params),
            object.batch_execute("commit"),
        )
        .await;
        match (done, committed.map_err(Error::from)) {
            (Ok(rows), Ok(())) => Settled::Committed(rows.into_iter().next()),
            (Err(Error::Disconnected(why)), _) | (_, Err(Error::Disconnected(why))) => {
                Settled::Unknown(why)
            }
            // No answer that could be understood.
            (Ok(_), Err(Error::Work(why))) => Settled::Unknown(why.to_string()),
            (Err(error), _) | (_, Err(error)) => Settled::Refused(error),
        }
    }

    async fn rollback(&mut self) -> Result<()> {
        Ok(self.object().batch_execute("rollback").await?)
    }

    async fn batch(&mut self, sql: &str) -> Result<()> {
        Ok(self.object().batch_execute(sql).await?)
    }

    fn keep(mut self) {
        drop(self.client.take());
    }
}

/// A statement as the connection knows it.
enum Prepared {
    Named(tokio_postgres::Statement),
    Unnamed(Arc<str>),
}

async fn prepare(object: &Object, statement: &Statement) -> Result<Prepared> {
    Ok(if statement.keep {
        Prepared::Named(object.prepare_cached(&statement.sql).await?)
    } else {
        Prepared::Unnamed(statement.sql.clone())
    })
}

async fn run(object: &Object, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<Row>> {
    let prepared = prepare(object, statement).await?;
    run_prepared(object, &prepared, params).await
}

async fn run_prepared(
    object: &Object,
    prepared: &Prepared,
    params: &[Param<'_>],
) -> Result<Vec<Row>> {
    let client: &Client = object;
    match prepared {
        Prepared::Named(statement) => {
            let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(to_sql).collect();
            rows(client.query(statement, &values).await?)
        }
        Prepared::Unnamed(sql) => run_unnamed(client, sql, params).await,
    }
}

/// A statement with its values, for [`Once::execute`](crate::Once::execute).
///
/// ```
/// use pgonce::tokio_postgres::Query;
/// use tokio_postgres::types::Type;
///
/// let insert = Query::new("insert into orders (item, qty) values ($1, $2) returning id")
///     .bind("book", Type::TEXT)
///     .bind(2, Type::INT4);
/// # let _ = insert;
/// ```
#[must_use = "a statement is nothing until it is executed"]
pub struct Query {
    sql: String,
    values: Vec<Box<dyn ToSql + Sync + Send>>,
    types: Vec<Type>,
}

impl Query {
    /// A statement without values yet.
    pub fn new(sql: impl Into<String>) -> Self {
        Self {
            sql: sql.into(),
            values: Vec::new(),
            types: Vec::new(),
        }
    }

    /// Adds the next value, and its type in PostgreSQL.
    pub fn bind(mut self, value: impl ToSql + Sync + Send + 'static, kind: Type) -> Self {
        self.values.push(Box::new(value));
        self.types.push(kind);
        self
    }
}

/// The values stay out of logs.
impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query")
            .field("sql", &self.sql)
            .finish_non_exhaustive()
    }
}

impl IntoEffect<TokioSession> for Query {
    type Effect = Self;

    fn into_effect(self) -> Result<Self> {
        Ok(self)
    }
}

impl Effect<TokioSession> for Query {
    fn sql(&self) -> &str {
        &self.sql
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    async fn fetch(
        &self,
        session: &mut TokioSession,
        statement: &Statement,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        let object = session.object();
        let client: &Client = object;
        let theirs = self.values.iter().map(|value| {
            let value: &(dyn ToSql + Sync) = value.as_ref();
            value
        });
        let theirs = theirs.zip(self.types.iter().cloned());
        let values: Vec<_> = theirs.chain(params.iter().map(typed)).collect();
        if !statement.keep {
            return rows(client.query_typed(&statement.sql, &values).await?);
        }
        let (values, types): (Vec<&(dyn ToSql + Sync)>, Vec<Type>) = values.into_iter().unzip();
        let prepared = object.prepare_typed_cached(&statement.sql, &types).await?;
        rows(client.query(&prepared, &values).await?)
    }
}

async fn run_unnamed<C: GenericClient>(
    client: &C,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Vec<Row>> {
    let values: Vec<_> = params.iter().map(typed).collect();
    rows(client.query_typed(sql, &values).await?)
}

fn typed<'a>(param: &'a Param<'a>) -> (&'a (dyn ToSql + Sync), Type) {
    let kind = match param {
        Param::Text(_) | Param::Int(_) | Param::Interval(_) => Type::TEXT,
        Param::Bytes(_) => Type::BYTEA,
        Param::Texts(_) => Type::TEXT_ARRAY,
        Param::BytesList(_) => Type::BYTEA_ARRAY,
        Param::Json(_) => Type::JSONB,
    };
    (to_sql(param), kind)
}

fn to_sql<'a>(param: &'a Param<'a>) -> &'a (dyn ToSql + Sync) {
    match param {
        Param::Text(text) => text,
        Param::Bytes(bytes) => bytes,
        Param::Texts(texts) => texts,
        Param::BytesList(list) => list,
        Param::Json(_) | Param::Int(_) | Param::Interval(_) => param,
    }
}

/// Texts, bytes and lists do not come here: they are types of the driver's.
impl ToSql for Param<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Wrong> {
        if let Some(text) = self.written() {
            out.put_slice(text.as_bytes());
            return Ok(IsNull::No);
        }
        let Param::Json(Some(text)) = self else {
            return Ok(IsNull::Yes);
        };
        out.put_u8(1);
        out.put_slice(text.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::JSONB || *kind == Type::TEXT
    }

    tokio_postgres::types::to_sql_checked!();
}

/// A column as text.
struct AsText(String);

impl<'a> FromSql<'a> for AsText {
    fn from_sql(kind: &Type, bytes: &'a [u8]) -> std::result::Result<Self, Wrong> {
        Ok(Self(binary_as_text(kind.name(), bytes)?))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

fn rows(rows: Vec<tokio_postgres::Row>) -> Result<Vec<Row>> {
    rows.iter()
        .map(|row| {
            let column = |i| Ok(row.try_get::<_, Option<AsText>>(i)?.map(|text| text.0));
            (0..row.len()).map(column).collect()
        })
        .collect()
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(db) = error.as_db_error() {
            let code = db.code().code();
            if is_stale(code, db.routine()) {
                return stale(db.message(), code);
            }
            let severity = db.parsed_severity();
            let is_fatal = severity == Some(Severity::Fatal);
            if severity == Some(Severity::Panic) || is_fatal && is_crash(code) {
                return crashed(db.message(), code);
            }
            return Error::from_problem(ErrorDetail {
                code: db.code().code().into(),
                message: db.message().into(),
                detail: db.detail().map(Into::into),
                hint: db.hint().map(Into::into),
                constraint: db.constraint().map(Into::into),
            });
        }
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        let mut io = error.is_closed();
        while let Some(inner) = cause {
            io |= inner.is::<std::io::Error>();
            text = format!("{text}: {inner}");
            cause = inner.source();
        }
        if io || text.starts_with("error connecting") || text.starts_with("error communicating") {
            Error::Disconnected(text)
        } else {
            Error::Work(Box::new(error))
        }
    }
}
