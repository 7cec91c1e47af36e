//! Workers from their start to their end, and the end is graceful.

use std::sync::Arc;
#[cfg(feature = "webhook")]
use std::time::Duration;

use metrics::counter;
use pgonce::Result as Worked;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;
use pgonce::queue::{Finished, Job};
use pgonce::tokio_postgres::Once;
use tokio_util::sync::CancellationToken;

use super::config::{Config, Worker};
use super::handler::SqlFunction;
use crate::database::{Address, pool};
use crate::exit::{self, CliError, Result};
use crate::parts::Parts;
use crate::prometheus;
use crate::relay::admin::Admin;
use crate::relay::{log, serve::serve_admin};
use crate::signals::Signals;

#[cfg(feature = "webhook")]
const SERVICE_TIMEOUT: Duration = Duration::from_secs(30);

/// Workers that run, each as a task.
pub(crate) struct Started {
    pub(crate) parts: Parts<()>,
}

/// Starts every worker of a file; they run until `stop`.
pub(crate) async fn start_all(
    config: &Config,
    address: Address,
    stop: &CancellationToken,
) -> Result<Started> {
    let database = &config.database;
    // A worker claims, renews and records beside its handlers.
    let size = config.workers.iter().map(|one| one.concurrency() + 4).sum();
    let driver = TokioPostgres::new(pool(address, "pgonce work", size, database.timeout.0)?);
    let mut once = Once::builder(driver.clone()).schema(&database.schema);
    if database.behind_pooler {
        once = once.behind_pooler();
    }
    let once = once.build()?;
    Migrator::new(driver.clone())
        .schema(&database.schema)
        .check()
        .await?;
    let mut handlers = Vec::new();
    for one in &config.workers {
        handlers.push(Arc::new(match &one.sql {
            Some(function) => Handler::Sql(SqlFunction::find(&driver, function.get_ref()).await?),
            None => service(one)?,
        }));
    }
    let mut parts = Parts::new("the worker of");
    for (one, handler) in config.workers.iter().zip(handlers) {
        let (once, stop, name) = (once.clone(), stop.clone(), one.name());
        let one = one.clone();
        parts.running.spawn(async move {
            tracing::info!(queues = name, "the worker starts");
            work(&one, &once, handler, stop).await;
            (name, Ok(()))
        });
    }
    Ok(Started { parts })
}

enum Handler {
    Sql(SqlFunction),
    #[cfg(feature = "webhook")]
    Service(Box<pgonce_broker::HttpHandler>),
}

impl Handler {
    async fn run(&self, job: Job<TokioPostgres>) -> Worked<Finished> {
        let done = match self {
            Self::Sql(function) => function.run(&job).await,
            #[cfg(feature = "webhook")]
            Self::Service(service) => super::handler::post(service, &job).await,
        };
        // The names of queues are from the file, so there are few.
        let outcome = if done.is_ok() { "done" } else { "failed" };
        counter!("pgonce_worker_jobs_total", "queue" => job.queue().to_owned(), "outcome" => outcome).increment(1);
        done
    }
}

#[cfg(feature = "webhook")]
fn service(one: &Worker) -> Result<Handler> {
    let usage = |refusal: pgonce_broker::sinks::Refusal| {
        let hint = "See `to` and `headers`: an address such as http://127.0.0.1:8080/jobs.";
        CliError::new(exit::USAGE, refusal.to_string(), hint)
    };
    let url = one.to.as_ref().map_or("", |to| to.get_ref());
    let time = one.handler_timeout.as_ref();
    let time = time.map_or(SERVICE_TIMEOUT, |time| time.get_ref().0);
    let mut handler = pgonce_broker::HttpHandler::new("queue", url)
        .and_then(|handler| handler.connect_timeout((time / 2).min(Duration::from_secs(5))))
        .map_err(usage)?
        .response_timeout(time);
    let mut headers = one.headers.clone();
    for (name, variable) in &one.headers_env {
        headers.insert(name.clone(), crate::consume::variable(variable)?);
    }
    for (name, value) in headers {
        handler = handler.header(&name, &value).map_err(usage)?;
    }
    Ok(Handler::Service(Box::new(handler)))
}

#[cfg(not(feature = "webhook"))]
fn service(_: &Worker) -> Result<Handler> {
    let what = "this build calls no services: it lacks the feature \"webhook\"";
    Err(CliError::new(
        exit::USAGE,
        what,
        "Use `sql`, or build it with that feature.",
    ))
}

/// One worker, until it is asked to stop.
async fn work(one: &Worker, once: &Once, handler: Arc<Handler>, stop: CancellationToken) {
    let is_sql = one.sql.is_some();
    let mut worker = once
        .worker(one.queues.get_ref(), move |job| {
            let handler = handler.clone();
            async move { handler.run(job).await }
        })
        .concurrency(one.concurrency())
        .shutdown_timeout(one.drain_timeout());
    if let Some(jobs) = &one.prefetch {
        worker = worker.prefetch(*jobs.get_ref());
    }
    if let Some(lease) = &one.lease {
        worker = worker.lease(lease.get_ref().0);
    }
    if let Some(pause) = one.poll_interval {
        worker = worker.poll_interval(pause.0);
    }
    // A service's time is for each request: jobs that wait for one that is away lose no attempt.
    if let Some(time) = one.handler_timeout.as_ref().filter(|_| is_sql) {
        worker = worker.timeout(time.get_ref().0);
    }
    worker.run(stop.cancelled_owned()).await;
}

pub(super) async fn run(config: Config, address: Address) -> Result {
    log::start(config.log);
    let recorder = prometheus::install()?;
    let mut asked = Signals::listen()?;
    let stop = CancellationToken::new();
    let database = &config.database;
    let admin = Admin::new("pgonce work", address.clone(), database, recorder, &stop)?;
    let admin = Arc::new(admin);
    if let Some(listen) = &config.listen {
        serve_admin(listen.address, &admin).await?;
    }
    let attempt = || start_all(&config, address.clone(), &stop);
    // While it starts, nothing is under way.
    let started = tokio::select! {
        started = admin.start(&stop, CliError::is_transient, attempt) => started?,
        () = asked.next() => None,
    };
    let Some(started) = started else {
        return Ok(());
    };
    asked.next().await;
    tracing::info!("asked to stop: jobs under way are finished");
    stop.cancel();
    tokio::select! {
        ended = started.parts.ended() => ended,
        () = asked.next() => Err(CliError::new(
            exit::FAILED,
            "asked to stop a second time: jobs under way are given to others when their leases are over",
            "They are done once all the same.",
        )),
    }
}
