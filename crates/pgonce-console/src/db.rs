//! What the console asks of the database: bounded in time, in transactions of its own, for any schema.

use pgonce::Error;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::driver::{
    Connection as _, Driver as _, Param, Session as _, Settled, Statement, read_only,
};
use pgonce::unstable::json::read_row;
use serde_json::{Map, Value};

/// A row, by the names of its columns.
pub(crate) type Row = Map<String, Value>;

/// Maximum time of one query of a page.
const TIMEOUT: &str = "3s";

#[derive(Debug, Clone)]
pub(crate) struct Db {
    pub(crate) driver: TokioPostgres,
    pub(crate) schema: String,
}

impl Db {
    fn statement(&self, query: &str) -> Statement {
        let query = query.replace("pgonce.", &format!("{}.", self.schema));
        Statement {
            sql: format!(
                "select {}._readable(row_to_json(q)::text) from ({query}) q",
                self.schema
            )
            .into(),
            keep: false,
            pooled: true,
        }
    }

    /// The rows of a query that is written for the schema `pgonce`. Lists go by the order of an index and end early: a bitmap would
    /// read all rows of a large scope first.
    pub(crate) async fn rows(
        &self,
        query: &str,
        params: &[Option<&str>],
    ) -> Result<Vec<Row>, Error> {
        let statement = self.statement(query);
        let params: Vec<Param<'_>> = params.iter().copied().map(Param::Text).collect();
        let settings = format!(
            "set local statement_timeout = '{TIMEOUT}'; set local timezone = 'UTC'; set local jit = off; set local enable_bitmapscan = off"
        );
        let rows = read_only(&self.driver, &settings, &statement, &params).await?;
        Ok(rows.iter().filter_map(|row| read_row(row)).collect())
    }

    pub(crate) async fn row(
        &self,
        query: &str,
        params: &[Option<&str>],
    ) -> Result<Option<Row>, Error> {
        Ok(self.rows(query, params).await?.into_iter().next())
    }

    /// Runs an act of this person and commits it. [`Error::Uncertain`] where it may have been done; after any other error it was not.
    pub(crate) async fn act(
        &self,
        person: &str,
        query: &str,
        params: &[Option<&str>],
    ) -> Result<Option<Row>, Error> {
        let statement = self.statement(query);
        let params: Vec<Param<'_>> = params.iter().copied().map(Param::Text).collect();
        let mut session = self.driver.acquire().await?;
        session
            .open("begin isolation level read committed read write")
            .await?;
        session
            .batch("set local search_path = pg_catalog, pg_temp; set local statement_timeout = '30s'; set local timezone = 'UTC'")
            .await?;
        let named = Statement {
            sql: "select set_config('pgonce.person', $1, true)".into(),
            keep: false,
            pooled: true,
        };
        session.query(&named, &[Param::Text(Some(person))]).await?;
        match session.settle(&statement, &params).await {
            Settled::Committed(row) => {
                session.keep();
                let row = row.and_then(|row| row.into_iter().next().flatten());
                Ok(row.and_then(|row| read_row(&row)))
            }
            Settled::Refused(error) => {
                session.keep();
                Err(error)
            }
            Settled::Unknown(why) => Err(Error::Uncertain(why)),
        }
    }
}

/// A column as text; nothing for null.
pub(crate) fn text(row: &Row, name: &str) -> String {
    match row.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// Whether a column is true.
pub(crate) fn flag(row: &Row, name: &str) -> bool {
    row.get(name) == Some(&Value::Bool(true))
}

pub(crate) fn number(row: &Row, name: &str) -> i64 {
    row.get(name).and_then(Value::as_i64).unwrap_or_default()
}
