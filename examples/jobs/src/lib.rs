//! Reports that are made by a queue, each once and in order for each customer.

use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::queue::{Finished, Job, NewJob, Queue};
use pgonce::sqlx::{Migrator, Once};
use pgonce::{Failure, Result};
use serde::{Deserialize, Serialize};

/// What a report is about.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// Whose it is; the reports of a customer are made in order.
    pub customer: String,
    /// The month, such as `2026-01`.
    pub month: String,
}

/// Connects, installs pgonce where it is missing, and says what the queue allows.
pub async fn set_up(url: &str) -> Result<Once> {
    let pool = sqlx::PgPool::connect(url).await?;
    Migrator::new(Sqlx::new(pool.clone())).up().await?;
    sqlx::raw_sql(
        "create table if not exists requests (customer text, month text, primary key (customer, month));
         create table if not exists reports (id bigint generated always as identity, customer text, month text)",
    )
    .execute(&pool)
    .await?;
    let once = Once::new(pool);
    once.define_queue(&Queue::new("reports").max_running(8).max_attempts(5))
        .await?;
    Ok(once)
}

/// Asks for a report. The request and its job commit together; asked again, it is the same job.
pub async fn request(once: &Once, request: &Request) -> Result<i64> {
    let mut tx = once.driver().pool().begin().await?;
    sqlx::query("insert into requests values ($1, $2) on conflict do nothing")
        .bind(&request.customer)
        .bind(&request.month)
        .execute(&mut *tx)
        .await?;
    let job = NewJob::new("reports")
        .payload(request)?
        .unique_key(format!("{}/{}", request.customer, request.month))
        .key(&*request.customer)
        .group(&*request.month);
    let id = once.enqueue(&mut tx, &job).await?.into_inner();
    tx.commit().await?;
    Ok(id)
}

/// Makes a report. The report and the end of the job commit together.
async fn make(job: Job<Sqlx>) -> Result<Finished> {
    let Request { customer, month } = job.payload()?;
    if customer == "nobody" {
        // It would fail the same way each time: a dead letter, for an operator to look at.
        return Err(Failure::permanent("no_customer", "there is no such customer").into());
    }
    job.progress("reading").await?;
    job.transact(async |mut tx| {
        let insert = "insert into reports (customer, month) values ($1, $2) returning id";
        let id: i64 = sqlx::query_scalar(insert)
            .bind(&customer)
            .bind(&month)
            .fetch_one(tx.conn())
            .await?;
        Ok(id)
    })
    .await
}

/// Makes reports until `shutdown` completes.
pub async fn work(once: &Once, shutdown: impl Future<Output = ()>) {
    let worker = once.worker(["reports"], make).concurrency(4);
    worker.lease(Duration::from_secs(5)).run(shutdown).await;
}
