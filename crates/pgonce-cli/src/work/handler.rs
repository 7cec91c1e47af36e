//! What does a job: a function of the database, or a service.

#[cfg(feature = "webhook")]
use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::driver::{Connection as _, Driver as _, Param, Session as _, Statement};
use pgonce::queue::{Finished, Job};
use pgonce::{Error, Failure, Result};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_postgres::types::{ToSql, Type};

use crate::exit::{self, CliError};

/// Calls a function with a job, in the transaction that ends the job.
#[derive(Debug)]
pub(super) struct SqlFunction {
    statement: String,
}

/// What the function gets. The payload stays as it is written: numbers keep all their digits.
#[derive(serde::Serialize)]
struct Argument<'j> {
    id: i64,
    queue: &'j str,
    tenant: &'j str,
    key: Option<&'j str>,
    attempts: u32,
    payload: &'j RawValue,
}

impl SqlFunction {
    /// The function of this name, which must be there before anything is claimed.
    pub(super) async fn find(driver: &TokioPostgres, function: &str) -> Result<Self, CliError> {
        let hint =
            "Create it first: create function NAME(p_job jsonb) returns jsonb, or returns void.";
        // Found as the caller's path finds it; the look-up itself is PostgreSQL's.
        let statement = Statement {
            sql: "select p.proretset::pg_catalog.text, \
                  (p.prorettype operator(pg_catalog.=) 'pg_catalog.void'::pg_catalog.regtype)::pg_catalog.text \
                  from pg_catalog.pg_proc p where p.oid operator(pg_catalog.=) pg_catalog.to_regprocedure($1)"
                .into(),
            keep: false,
            pooled: false,
        };
        let name = format!("{function}(jsonb)");
        let found_by = format!("{function}(pg_catalog.jsonb)");
        let mut session = driver.acquire().await?;
        let rows = session
            .query(&statement, &[Param::Text(Some(&found_by))])
            .await?;
        session.keep();
        let row = rows.into_iter().next().map(|row| {
            let flags = row.into_iter().map(|flag| flag.as_deref() == Some("true"));
            flags.collect::<Vec<_>>()
        });
        let call = format!("{function}($1::pg_catalog.text::pg_catalog.jsonb)");
        match row.as_deref() {
            Some([false, true]) => Ok(Self {
                statement: format!("select {call}::pg_catalog.text"),
            }),
            Some([false, false]) => Ok(Self {
                statement: format!("select pg_catalog.to_jsonb({call})::pg_catalog.text"),
            }),
            Some(_) => Err(CliError::new(
                exit::USAGE,
                format!("the function {name} returns a set, and a job has one result"),
                hint,
            )),
            None => Err(CliError::new(
                exit::USAGE,
                format!("there is no function {name}"),
                hint,
            )),
        }
    }

    /// Its effects, the end of the job and its result commit together, or not at all.
    pub(super) async fn run(&self, job: &Job<TokioPostgres>) -> Result<Finished> {
        let payload: Box<RawValue> = job.payload()?;
        let argument = serde_json::to_string(&Argument {
            id: job.id(),
            queue: job.queue(),
            tenant: job.tenant(),
            key: job.key(),
            attempts: job.attempts(),
            payload: &payload,
        })?;
        let argument = argument.as_str();
        job.transact(async |mut tx| {
            let params: [(&(dyn ToSql + Sync), Type); 1] = [(&argument, Type::TEXT)];
            let called = tx.conn().query_typed(&self.statement, &params).await;
            let rows = called.map_err(|error| match error.as_db_error() {
                // What the function raises to say that it never will be.
                Some(raised) if raised.code().code() == "P4030" => {
                    Error::from(Failure::permanent("P4030", raised.message()))
                }
                _ => error.into(),
            })?;
            let result = rows.first().and_then(|row| row.get::<_, Option<String>>(0));
            // A function without a result returns an empty text.
            match result.filter(|text| !text.is_empty()) {
                Some(text) => Ok(serde_json::from_str(&text)?),
                None => Ok(Value::Null),
            }
        })
        .await
    }
}

/// First and maximum pause before a service that is away is tried again.
#[cfg(feature = "webhook")]
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Posts a job. A service that is away is no job's fault: the job waits, under its lease, and loses no attempt.
#[cfg(feature = "webhook")]
pub(super) async fn post(
    service: &pgonce_broker::HttpHandler,
    job: &Job<TokioPostgres>,
) -> Result<Finished> {
    let mut pause = PAUSES.0;
    loop {
        match service.run_job(job).await {
            Ok(result) => return job.done(&result),
            Err(Error::Disconnected(error)) => {
                tracing::warn!(
                    error,
                    queue = job.queue(),
                    ?pause,
                    "the service is away; jobs wait for it"
                );
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
            Err(error) => return Err(error),
        }
    }
}
