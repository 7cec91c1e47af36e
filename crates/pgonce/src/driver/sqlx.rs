//! The driver sqlx. It cannot pipeline: a command needs two round trips more than the bare
//! transaction, for the claim and for the acknowledgement.

use std::time::Duration;

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{
    PgArgumentBuffer, PgArguments, PgConnectOptions, PgConnection, PgRow, PgSeverity,
    PgTransactionManager, PgTypeInfo, PgValueFormat,
};
use sqlx::query::Query;
use sqlx::{
    Arguments as _, AssertSqlSafe, Connection as _, Encode, Execute as _, Executor as _, PgPool,
    Postgres, Row as _, SqlSafeStr as _, SqlStr, Transaction, Type, TypeInfo as _, ValueRef as _,
};
use sqlx_core::transaction::TransactionManager as _;
use tokio::time::timeout;

use super::sealed::Sealed;
use super::{
    Connection, Driver, Effect, InTransaction, IntoEffect, Opening, Param, Row, Session, Settled,
    Statement, binary_as_text, crashed, is_crash, is_stale, missing_limits, refuse_left_open,
    stale,
};
use crate::error::{Error, ErrorDetail, Result};

/// Maximum time to give a connection back to its pool. One that takes longer is closed.
const RETURN_LIMIT: Duration = Duration::from_secs(5);

/// A `sqlx::PgPool` as pgonce's driver.
#[derive(Clone, Debug)]
pub struct Sqlx {
    pool: PgPool,
}

impl Sqlx {
    /// Uses this pool.
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// Adds [`SESSION_LIMITS`](super::SESSION_LIMITS) to how sessions are opened.
    ///
    /// Not for PgBouncer, which refuses such start-up options: give them to the role there.
    ///
    /// ```no_run
    /// # async fn example(url: &str) -> Result<(), sqlx::Error> {
    /// use pgonce::driver::sqlx::Sqlx;
    ///
    /// let options = Sqlx::with_limits(url.parse()?);
    /// let pool = sqlx::PgPool::connect_with(options).await?;
    /// # let _ = pool;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_limits(options: PgConnectOptions) -> PgConnectOptions {
        let missing = missing_limits(options.get_options());
        options.options(missing)
    }

    /// The pool itself.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }
}

impl Driver for Sqlx {
    type Session = SqlxSession;

    async fn acquire(&self) -> Result<SqlxSession> {
        Ok(SqlxSession {
            conn: Some(self.pool.acquire().await?),
        })
    }

    async fn query_beside(&self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let mut conn = PgConnection::connect_with(&self.pool.connect_options()).await?;
        let rows = run(&mut conn, statement, params).await;
        // The rows are here: how the connection ends says nothing.
        let _ = timeout(RETURN_LIMIT, conn.close()).await;
        rows
    }
}

/// A connection out of a sqlx pool.
#[derive(Debug)]
pub struct SqlxSession {
    conn: Option<PoolConnection<Postgres>>,
}

impl SqlxSession {
    fn conn(&mut self) -> &mut PgConnection {
        self.conn.as_mut().expect("only keep and drop take it")
    }
}

impl Drop for SqlxSession {
    fn drop(&mut self) {
        // Not kept, so not known to be clean: closed instead of given back.
        if let Some(mut conn) = self.conn.take() {
            conn.close_on_drop();
        }
    }
}

impl Connection for SqlxSession {
    type Raw = PgConnection;

    fn raw(&mut self) -> &mut PgConnection {
        self.conn()
    }

    async fn query(&mut self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<Row>> {
        run(self.conn(), statement, params).await
    }
}

impl InTransaction for Transaction<'_, Postgres> {}
impl Sealed for Transaction<'_, Postgres> {}

impl Connection for Transaction<'_, Postgres> {
    type Raw = PgConnection;

    fn raw(&mut self) -> &mut PgConnection {
        self
    }

    async fn query(&mut self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let found = run(self, statement, params).await;
        if matches!(found, Err(Error::Disconnected(_))) {
            // The session may have forgotten its statements, and the connection stays in the caller's pool: prepare them
            // anew. Where it is lost, its pool finds out.
            let _ = self.clear_cached_statements().await;
        }
        found
    }
}

async fn run(
    conn: &mut PgConnection,
    statement: &Statement,
    params: &[Param<'_>],
) -> Result<Vec<Row>> {
    // sqlx prepares even an unnamed statement in a round trip of its own. Outside a transaction a
    // pooler may change the server connection between that and the call.
    let pin = statement.pooled && PgTransactionManager::get_transaction_depth(conn) == 0;
    if pin {
        PgTransactionManager::begin(conn, None).await?;
    }
    let rows = match fetch(conn, statement, PgArguments::default(), params).await {
        Ok(rows) => rows,
        Err(error) => {
            if pin {
                PgTransactionManager::rollback(conn).await?;
            }
            return Err(error);
        }
    };
    if pin {
        PgTransactionManager::commit(conn).await?;
    }
    Ok(rows)
}

/// Runs a statement with these arguments and then `params`.
async fn fetch(
    conn: &mut PgConnection,
    statement: &Statement,
    arguments: PgArguments,
    params: &[Param<'_>],
) -> Result<Vec<Row>> {
    let query = sqlx::query_with(AssertSqlSafe(statement.sql.clone()), arguments);
    let query = params
        .iter()
        .fold(query, |query, param| match param {
            Param::Text(text) => query.bind(*text),
            Param::Bytes(bytes) => query.bind(*bytes),
            Param::Texts(texts) => query.bind(*texts),
            Param::BytesList(list) => query.bind(*list),
            Param::Json(text) => query.bind(text.map(JsonText)),
            Param::Int(_) | Param::Interval(_) => query.bind(param.written()),
        })
        .persistent(statement.keep);
    let rows: Vec<PgRow> = query.fetch_all(conn).await?;
    rows.iter()
        .map(|row| (0..row.len()).map(|i| column(row, i)).collect())
        .collect()
}

/// A statement of the user's, with its arguments.
#[derive(Debug)]
pub struct SqlxEffect {
    sql: SqlStr,
    arguments: PgArguments,
}

impl IntoEffect<SqlxSession> for Query<'_, Postgres, PgArguments> {
    type Effect = SqlxEffect;

    fn into_effect(mut self) -> Result<SqlxEffect> {
        let arguments = self.take_arguments().map_err(Error::Work)?;
        Ok(SqlxEffect {
            arguments: arguments.unwrap_or_default(),
            sql: self.sql(),
        })
    }
}

impl Effect<SqlxSession> for SqlxEffect {
    fn sql(&self) -> &str {
        self.sql.as_str()
    }

    fn len(&self) -> usize {
        self.arguments.len()
    }

    async fn fetch(
        &self,
        session: &mut SqlxSession,
        statement: &Statement,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        fetch(session.conn(), statement, self.arguments.clone(), params).await
    }
}

/// A column as text, in whichever format it came.
fn column(row: &PgRow, index: usize) -> Result<Option<String>> {
    let value = row.try_get_raw(index)?;
    if value.is_null() {
        return Ok(None);
    }
    match value.format() {
        PgValueFormat::Text => Ok(Some(row.try_get_unchecked(index)?)),
        PgValueFormat::Binary => {
            let bytes: &[u8] = row.try_get_unchecked(index)?;
            binary_as_text(value.type_info().name(), bytes).map(Some)
        }
    }
}

/// A JSON document that is already text: sqlx's own type would parse and print it again.
#[derive(Clone, Copy)]
struct JsonText<'a>(&'a str);

impl Type<Postgres> for JsonText<'_> {
    fn type_info() -> PgTypeInfo {
        // The built-in one: a name would be looked up on the search_path.
        <sqlx::types::Json<()> as Type<Postgres>>::type_info()
    }
}

impl Encode<'_, Postgres> for JsonText<'_> {
    fn encode_by_ref(
        &self,
        buffer: &mut PgArgumentBuffer,
    ) -> std::result::Result<IsNull, BoxDynError> {
        buffer.push(1);
        buffer.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }
}

impl Session for SqlxSession {
    async fn begin(&mut self, opening: &Opening<'_>) -> Result<Option<Row>> {
        // Two round trips: sqlx can send only a text along with BEGIN, and keys do not belong into the
        // text of a statement, where logs and other sessions see them.
        self.open(opening.begin).await?;
        let rows = self.query(opening.claim, opening.params).await?;
        Ok(rows.into_iter().next())
    }

    async fn open(&mut self, begin: &str) -> Result<()> {
        let begin = AssertSqlSafe(begin.to_owned()).into_sql_str();
        let begun = PgTransactionManager::begin(self.conn(), Some(begin)).await;
        begun.map_err(Error::from).map_err(refuse_left_open)
    }

    async fn settle(&mut self, last: &Statement, params: &[Param<'_>]) -> Settled {
        if PgTransactionManager::get_transaction_depth(self.conn()) != 1 {
            // sqlx would release a savepoint and call that a commit.
            let _ = self.rollback().await;
            return Settled::Refused(Error::Database(ErrorDetail::new(
                "2D000",
                "a transaction nested in the attempt was never ended",
                "Commit or roll back what conn().begin() began before you call succeed.",
            )));
        }
        let rows = match self.query(last, params).await {
            Ok(rows) => rows.into_iter().next(),
            // Nothing asked for a commit yet: whatever went wrong, nothing is left.
            Err(error) => {
                let _ = self.rollback().await;
                return Settled::Refused(error);
            }
        };
        match PgTransactionManager::commit(self.conn())
            .await
            .map_err(Error::from)
        {
            Ok(()) => Settled::Committed(rows),
            Err(Error::Disconnected(why)) => Settled::Unknown(why),
            // No answer that could be understood.
            Err(Error::Work(why)) => Settled::Unknown(why.to_string()),
            Err(error) => {
                // The server has ended the transaction; sqlx still counts it as open.
                let _ = self.rollback().await;
                Settled::Refused(error)
            }
        }
    }

    async fn rollback(&mut self) -> Result<()> {
        let conn = self.conn();
        while PgTransactionManager::get_transaction_depth(conn) > 0 {
            PgTransactionManager::rollback(conn).await?;
        }
        Ok(())
    }

    async fn batch(&mut self, sql: &str) -> Result<()> {
        self.conn()
            .execute(AssertSqlSafe(sql.to_owned()))
            .await
            .map(drop)
            .map_err(Error::from)
    }

    fn keep(mut self) {
        if let Some(mut conn) = self.conn.take() {
            // sqlx asks the server once more before the connection is free for others, which its own `drop` waits for
            // without limit: each one that fell silent then would be missing from the pool for ever.
            tokio::spawn(timeout(RETURN_LIMIT, conn.return_to_pool()));
        }
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(db) => {
                let postgres = db.try_downcast_ref::<sqlx::postgres::PgDatabaseError>();
                let code = db.code().unwrap_or_default();
                if is_stale(&code, postgres.and_then(|p| p.routine())) {
                    return stale(db.message(), &code);
                }
                let severity = postgres.map(|p| p.severity());
                let is_fatal = severity == Some(PgSeverity::Fatal);
                if severity == Some(PgSeverity::Panic) || is_fatal && is_crash(&code) {
                    return crashed(db.message(), &code);
                }
                Error::from_problem(ErrorDetail {
                    code: db.code().unwrap_or_default().into(),
                    message: db.message().into(),
                    detail: postgres.and_then(|p| p.detail()).map(Into::into),
                    hint: postgres.and_then(|p| p.hint()).map(Into::into),
                    constraint: db.constraint().map(Into::into),
                })
            }
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Error::Disconnected(error.to_string()),
            other => Error::Work(Box::new(other)),
        }
    }
}
