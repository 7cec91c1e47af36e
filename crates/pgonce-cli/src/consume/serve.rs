//! Consumers from their start to their end, and the end is graceful.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::driver::{Connection as _, Driver as _, Param, Session as _, Statement};
use pgonce::migrate::Migrator;
use pgonce::tokio_postgres::Once;
use pgonce_broker::sources::{self, AnySource};
use pgonce_broker::{ConsumerCounts, Dedup, Handler};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::config::{self, Config, Consumer, SOURCES};
use super::sql::{self, SqlFunction};
use crate::database::{Address, pool};
use crate::exit::{self, CliError, Result};
use crate::parts::Parts;
use crate::prometheus;
use crate::relay::admin::{Admin, Consuming};
use crate::relay::{log, serve::serve_admin};
use crate::signals::Signals;

/// Maximum pause before a source that cannot be reached at the start is tried again.
const MAX_PAUSE: Duration = Duration::from_secs(30);

type Counts = Arc<OnceLock<Arc<ConsumerCounts>>>;

/// Consumers that run, each as a task.
pub(crate) struct Started {
    pub(crate) consumers: Vec<Consuming>,
    pub(crate) parts: Parts<()>,
}

/// Starts every consumer of a file; they run until `stop`.
pub(crate) async fn start_all(
    config: &Config,
    address: Address,
    stop: &CancellationToken,
) -> Result<Started> {
    let database = &config.database;
    // A consumer has so many transactions from the source and from the inbox; the log has a relay of its own.
    let size = config
        .consumers
        .iter()
        .map(|one| one.concurrency() * 2 + 8)
        .sum();
    let driver = TokioPostgres::new(pool(address, "pgonce consume", size, database.timeout.0)?);
    let mut once = Once::builder(driver.clone()).schema(&database.schema);
    if database.behind_pooler {
        once = once.behind_pooler();
    }
    let once = once.build()?;
    Migrator::new(driver.clone())
        .schema(&database.schema)
        .check()
        .await?;
    for one in &config.consumers {
        if let Some(function) = &one.sql {
            require(&driver, function.get_ref()).await?;
        }
    }
    let (mut consumers, mut parts) = (Vec::new(), Parts::new("the consumer"));
    for one in &config.consumers {
        let (one, counts) = (one.clone(), Counts::default());
        consumers.push(Consuming {
            consumer: one.name().to_owned(),
            counts: counts.clone(),
        });
        let (once, stop) = (once.clone(), stop.clone());
        tracing::info!(consumer = one.name(), "the consumer starts");
        parts.running.spawn(async move {
            let ran = consume(&one, &once, &stop, &counts).await;
            (one.name().to_owned(), ran)
        });
    }
    Ok(Started { consumers, parts })
}

pub(super) async fn run(config: Config, address: Address) -> Result {
    log::start(config.log);
    let recorder = prometheus::install()?;
    let mut asked = Signals::listen()?;
    let stop = CancellationToken::new();
    let database = &config.database;
    let admin = Admin::new("pgonce consume", address.clone(), database, recorder, &stop)?;
    let admin = Arc::new(admin);
    if let Some(listen) = &config.listen {
        serve_admin(listen.address, &admin).await?;
    }
    let attempt = || start_all(&config, address.clone(), &stop);
    // While it starts, nothing is in hand.
    let started = tokio::select! {
        started = admin.start(&stop, CliError::is_transient, attempt) => started?,
        () = asked.next() => None,
    };
    let Some(started) = started else {
        return Ok(());
    };
    // Set once, here.
    let _ = admin.consumers.set(started.consumers);
    let mut running = started.parts.running;
    let mut first_error = None;
    while !running.is_empty() {
        tokio::select! {
            Some(ended) = running.join_next() => match ended {
                Ok((consumer, Ok(()))) => tracing::info!(consumer, "the consumer has ended"),
                Ok((consumer, Err(error))) => {
                    let (what, code) = error.words();
                    tracing::error!(consumer, what, code, "the consumer cannot go on");
                    admin.failed(&consumer, what);
                    first_error = first_error.or(Some(error));
                }
                Err(panicked) => return Err(CliError::new(exit::FAILED, panicked.to_string(), "Please report it.")),
            },
            () = asked.next() => {
                if stop.is_cancelled() {
                    let what = "asked to stop a second time: what was in hand comes again";
                    return Err(CliError::new(exit::FAILED, what, "It is applied once all the same."));
                }
                tracing::info!("asked to stop: messages in hand are finished");
                stop.cancel();
            }
        }
    }
    first_error.map_or(Ok(()), Err)
}

/// One consumer, until it is asked to stop.
async fn consume(one: &Consumer, once: &Once, stop: &CancellationToken, counts: &Counts) -> Result {
    let Some(source) = open(one, once, stop).await? else {
        return Ok(());
    };
    match (&one.to, &one.sql) {
        (_, Some(function)) => {
            let handler = SqlFunction::new(function.get_ref(), one.batches);
            work(one, once, source, handler, stop, counts).await
        }
        (to, None) => {
            let url = to.as_ref().map_or("", |to| to.get_ref());
            work(one, once, source, http(one, url)?, stop, counts).await
        }
    }
}

#[cfg(feature = "webhook")]
fn http(one: &Consumer, url: &str) -> Result<pgonce_broker::HttpHandler> {
    let usage = |refusal: pgonce_broker::sinks::Refusal| {
        let hint = "See `to` and `headers`: an address such as http://127.0.0.1:8080/events.";
        CliError::new(exit::USAGE, refusal.to_string(), hint)
    };
    let mut handler = pgonce_broker::HttpHandler::new(one.name(), url).map_err(usage)?;
    if let Some(time) = &one.handler_timeout {
        let time = (time.get_ref().0 / 2).min(Duration::from_secs(5));
        handler = handler.connect_timeout(time).map_err(usage)?;
    }
    let mut headers = one.headers.clone();
    headers.extend(from_variables(&one.headers_env)?);
    for (name, value) in headers {
        handler = handler.header(&name, &value).map_err(usage)?;
    }
    Ok(handler)
}

#[cfg(not(feature = "webhook"))]
fn http(_: &Consumer, _: &str) -> Result<SqlFunction> {
    let what = "this build calls no services: it lacks the feature \"webhook\"";
    Err(CliError::new(
        exit::USAGE,
        what,
        "Use --sql, or build it with that feature.",
    ))
}

async fn work<H: Handler<TokioPostgres>>(
    one: &Consumer,
    once: &Once,
    source: AnySource,
    handler: H,
    stop: &CancellationToken,
    counts: &Counts,
) -> Result {
    let mut made = pgonce_broker::Consumer::new(once, one.name(), source, handler);
    let length =
        |given: Option<crate::relay::values::Length>, usual: Duration| given.map_or(usual, |l| l.0);
    let batch = one.batch.as_ref().map_or(100, |n| *n.get_ref());
    made = made.batch(batch, length(one.within, Duration::from_millis(5)));
    made = made.concurrency(one.concurrency());
    made = made.backoff(
        length(one.pause, Duration::from_millis(20)),
        length(one.max_pause, Duration::from_secs(10)),
    );
    if let Some(time) = &one.handler_timeout {
        made = made.handler_timeout(time.get_ref().0);
    }
    if let Some(lease) = &one.lease {
        made = made.lease(lease.get_ref().0);
    }
    if let Some(time) = one.drain_timeout {
        made = made.drain_timeout(time.0);
    }
    if let Some(pause) = one.poll_stored {
        made = made.poll_stored(pause.0);
    }
    if let Some(bytes) = one.max_bytes {
        made = made.max_bytes(bytes.0);
    }
    if let Some(types) = &one.types {
        made = made.kinds(types.clone());
    }
    if let Some(dedup) = one.dedup {
        made = made.dedup(match dedup {
            config::Dedup::Ids => Dedup::Ids,
            config::Dedup::Positions => Dedup::Positions,
            config::Dedup::Both => Dedup::Both,
        });
    }
    if one.store_first {
        made = made.store_first();
    }
    if one.sql.is_some() {
        made = made.json();
    }
    if one.cloud_events {
        made = made.read_with(pgonce_broker::cloud_event);
    }
    // Set once, here.
    let _ = counts.set(made.counts());
    made.run(stop.clone()).await.map_err(|error| {
        let hint = "Create it with `pgonce outbox subscriptions create NAME`.";
        CliError::from(error)
            .with_hint("42704", hint)
            .with_exit("42704", exit::NOT_FOUND)
    })
}

/// Opens the source, however long that takes; nothing when stopped before.
async fn open(one: &Consumer, once: &Once, stop: &CancellationToken) -> Result<Option<AnySource>> {
    let url = match (&one.source, &one.source_env) {
        (Some(url), _) => url.get_ref().clone(),
        (None, name) => variable(name.as_ref().map_or("", |name| name.get_ref()))?,
    };
    let mut options = one.options.clone();
    for (option, value) in from_variables(&one.options_env)? {
        options = options.set(option, value);
    }
    let mut pause = Duration::from_millis(100);
    loop {
        // A broker may say nothing for as long as it likes.
        let opening = sources::open(&url, &options, once);
        match stop.run_until_cancelled(opening).await {
            None => return Ok(None),
            Some(Ok(source)) => return Ok(Some(source)),
            Some(Err(refusal)) if refusal.may_pass() => {
                tracing::warn!(%refusal, ?pause, "the source is unavailable, trying again");
            }
            Some(Err(refusal)) => {
                return Err(
                    CliError::new(exit::USAGE, refusal.to_string(), SOURCES).coded(refusal.code())
                );
            }
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = sleep(pause) => pause = (pause * 2).min(MAX_PAUSE),
        }
    }
}

fn from_variables(names: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
    let read = |(option, name): (&String, &String)| Ok((option.clone(), variable(name)?));
    names.iter().map(read).collect()
}

pub(crate) fn variable(name: &str) -> Result<String> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.ok_or_else(|| {
        CliError::new(
            exit::USAGE,
            format!("the variable {name} is not set, and the configuration refers to it"),
            "Set it to what the field that ends in `_env` is to stand for.",
        )
    })
}

/// Whether there is such a function, before anything is consumed.
async fn require(driver: &TokioPostgres, function: &str) -> Result {
    let usage = |what: String| {
        let hint = "Create it first: create function NAME(p_message jsonb) returns void.";
        CliError::new(exit::USAGE, what, hint)
    };
    if !sql::is_name(function) {
        return Err(usage(format!(
            "{function:?} is no name of a function, such as shop.apply"
        )));
    }
    // Found as the caller's path finds it; the look-up itself is PostgreSQL's.
    let statement = Statement {
        sql: "select pg_catalog.to_regprocedure($1)::pg_catalog.text".into(),
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
    match rows
        .into_iter()
        .next()
        .and_then(|row| row.into_iter().next().flatten())
    {
        Some(_) => Ok(()),
        None => Err(usage(format!("there is no function {name}"))),
    }
}
