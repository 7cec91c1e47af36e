//! A relay from its start to its end, and the end is graceful.

use std::sync::Arc;
use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;
use pgonce::outbox::Outbox;
use pgonce::{Error, Once};
use pgonce_broker::sinks::AnySink;
use pgonce_broker::{WakeSignal, WalListener};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_postgres::config::SslMode;
use tokio_util::sync::CancellationToken;

use super::admin::{Admin, Watched};
use super::config::{Config, Database, Relay};
use super::{log, sink};
use crate::database::{Address, pool};
use crate::exit::{self, CliError, Result};
use crate::parts::Parts;
use crate::prometheus;
use crate::signals::Signals;
use crate::starting::until_answered;

/// How often it is looked whether any subscription is stuck.
const WATCH_EVERY: Duration = Duration::from_secs(60);

type Running = JoinSet<(String, Result<bool>)>;

/// When it is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    /// When what is there is delivered.
    pub(super) once: bool,
    /// So long after the start at the latest.
    pub(super) within: Option<Duration>,
}

impl Ends {
    /// What is waited for. With `once` nothing is: cron starts the next run.
    fn may_pass(self) -> fn(&CliError) -> bool {
        match self.once {
            true => |_: &CliError| false,
            false => CliError::is_transient,
        }
    }
}

pub(super) async fn run(config: Config, address: Address, ends: Ends) -> Result {
    log::start(config.log);
    let recorder = prometheus::install()?;
    let mut asked = Signals::listen()?;
    let deadline = ends.within.map(|time| Instant::now() + time);
    let stop = CancellationToken::new();
    let database = &config.database;
    let admin = Admin::new("pgonce relay", address.clone(), database, recorder, &stop)?;
    let admin = Arc::new(admin);
    if let Some(listen) = &config.listen {
        serve_admin(listen.address, &admin).await?;
    }
    let attempt = || start_all(&config, address.clone(), &stop, ends);
    let may_pass = ends.may_pass();
    // While it starts, nothing is delivered.
    let started = tokio::select! {
        started = admin.start(&stop, may_pass, attempt) => started?,
        () = asked.next() => None,
        () = until(deadline) => None,
    };
    let Some(started) = started else {
        return match ends.once {
            true => Err(CliError::new(
                exit::FAILED,
                "stopped before anything was delivered",
                "See `pgonce outbox status`; the next run goes on from there.",
            )),
            false => Ok(()),
        };
    };
    // Set once, here.
    let _ = admin.relays.set(started.watched);
    let watching = tokio::spawn(watch(started.once.outbox()));
    let ended = wait_for(started.parts.running, &mut asked, &stop, deadline, &admin).await;
    watching.abort();
    ended
}

/// Waits for the deadline; for ever where there is none.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Relays that run, each as a task.
pub(crate) struct Started {
    once: Once<TokioPostgres>,
    pub(crate) watched: Vec<Watched>,
    pub(crate) parts: Parts<bool>,
    /// Kept while relays run: dropped, it no longer wakes them.
    _tail: Option<WalListener>,
}

/// Starts every relay of a file; they run until `stop`.
pub(super) async fn start_all(
    config: &Config,
    address: Address,
    stop: &CancellationToken,
    ends: Ends,
) -> Result<Started> {
    let database = &config.database;
    // Before anything runs: a variable that is not set is a fault of the whole file.
    let sinks = config.relays.iter().map(sink::Address::of);
    let sinks = sinks.collect::<Result<Vec<_>>>()?;
    // Each relay asks one thing at a time beside two reads; with `once`, so does who watches it.
    let size = config.relays.len() * 4 + 1;
    let tail = tail(database, &address).await?;
    let driver = TokioPostgres::new(pool(address, "pgonce relay", size, database.timeout.0)?);
    let mut once = Once::builder(driver.clone()).schema(&database.schema);
    if database.behind_pooler {
        once = once.behind_pooler();
    }
    let migrator = Migrator::new(driver).schema(&database.schema);
    migrator.check().await?;
    // On Citus events travel as jobs.
    if migrator.is_distributed().await? {
        once = once.distributed();
    }
    let once = once.build()?;
    let outbox = once.outbox();
    let (mut watched, mut parts) = (Vec::new(), Parts::new("the relay of"));
    // From here on nothing is waited for: what runs is never dropped.
    for (relay, sink) in config.relays.iter().zip(sinks) {
        watched.push(start(
            relay,
            sink,
            &outbox,
            tail.as_ref(),
            stop,
            ends,
            &mut parts.running,
        ));
    }
    Ok(Started {
        once,
        watched,
        parts,
        _tail: tail,
    })
}

/// Listens to the write-ahead log, where that is wanted; refuses what somebody has to put right.
async fn tail(database: &Database, address: &Address) -> Result<Option<WalListener>> {
    if !database.wal {
        return Ok(None);
    }
    let mut address = address.clone();
    if address.config.get_connect_timeout().is_none() {
        address.config.connect_timeout(database.timeout.0);
    }
    let tls = match address.config.get_ssl_mode() {
        SslMode::Require => address.tls()?.map(Arc::new),
        _ => None,
    };
    let tail = WalListener::start(address.config, tls, &database.schema).await;
    tail.map(Some).map_err(|error| {
        let what = format!("the write-ahead log cannot be listened to: {error}");
        let exit = match error.code() {
            "42501" => exit::NOT_ALLOWED,
            "28P01" | "28000" | "53300" => exit::NO_DATABASE,
            code if code.starts_with("08") || code.starts_with("57P0") => exit::NO_DATABASE,
            _ => exit::FAILED,
        };
        CliError::new(exit, what, error.hint()).coded(error.code())
    })
}

/// Sets a relay going. It opens its sink by itself: one that waits for it, or cannot go on, holds up no other.
fn start(
    relay: &Relay,
    address: sink::Address,
    outbox: &Outbox<TokioPostgres>,
    tail: Option<&WalListener>,
    stop: &CancellationToken,
    ends: Ends,
    running: &mut Running,
) -> Watched {
    let watched = Watched {
        subscription: relay.name().to_owned(),
        counts: Arc::default(),
    };
    let (relay, counts) = (relay.clone(), watched.counts.clone());
    let (outbox, stop) = (outbox.clone(), stop.clone());
    let signal = tail.map_or_else(WakeSignal::default, |tail| tail.signal().clone());
    tracing::info!(subscription = relay.name(), "the relay starts");
    running.spawn(async move {
        let ran = async {
            let Some(sink) = open(&relay, &address, &outbox, &stop, ends).await? else {
                return Ok(!ends.once);
            };
            let made = pgonce_broker::Relay::new(outbox, relay.name(), sink);
            let made = paced(made.named(&host()), &relay).wake_on(&signal);
            // Set once, here.
            let _ = counts.set(made.counts());
            match ends.once {
                true => made.run_once(stop).await.map_err(why),
                false => made.run(stop).await.map(|()| true).map_err(why),
            }
        };
        let ran = ran.await;
        (relay.name().to_owned(), ran)
    });
    watched
}

/// Opens the sink, and creates the subscription where that is wanted; nothing when stopped before. A permanent fault is an error
/// at once; a transient one is waited for.
async fn open(
    relay: &Relay,
    address: &sink::Address,
    outbox: &Outbox<TokioPostgres>,
    stop: &CancellationToken,
    ends: Ends,
) -> Result<Option<AnySink>> {
    let Some(opened) = stop.run_until_cancelled(address.open()).await else {
        return Ok(None);
    };
    let opened = opened?;
    // Also while the sink is away: its events are kept from now on.
    let attempt = || create(relay, outbox);
    let created = until_answered(relay.name(), stop, ends.may_pass(), attempt, |_| ()).await?;
    match (created, opened) {
        (None, _) => Ok(None),
        (Some(()), Ok(sink)) => Ok(Some(sink)),
        (Some(()), Err(_)) => address.insist(stop).await,
    }
}

/// Creates the subscription where that is wanted and it is missing.
async fn create(relay: &Relay, outbox: &Outbox<TokioPostgres>) -> Result {
    let Some(subscription) = relay.subscription() else {
        return Ok(());
    };
    match outbox.create_subscription(&subscription).await {
        Ok(()) => tracing::info!(subscription = relay.name(), "created the subscription"),
        Err(error) if error.code() == "42710" => {}
        // A relay's own rights are enough where it exists; where it does not, the relay ends and says so.
        Err(error) if error.code() == "42501" => {
            let name = relay.name();
            tracing::info!(subscription = name, "may not create it: it must exist");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn paced<S: pgonce_broker::Sink>(
    mut made: pgonce_broker::Relay<TokioPostgres, S>,
    relay: &Relay,
) -> pgonce_broker::Relay<TokioPostgres, S> {
    if let Some(events) = &relay.in_flight {
        made = made.in_flight(*events.get_ref());
    }
    if relay.lane_events.is_some() || relay.lane_bytes.is_some() {
        let events = relay.lane_events.as_ref().map_or(1024, |n| *n.get_ref());
        let bytes = relay.lane_bytes.as_ref();
        made = made.batch(events, bytes.map_or(256 * 1024, |n| n.get_ref().0));
    }
    if let Some(lease) = &relay.lease {
        made = made.lease(lease.get_ref().0);
    }
    if let Some(pause) = relay.max_poll {
        made = made.max_poll(pause.0);
    }
    if let Some(pause) = relay.keep_every {
        made = made.keep_every(pause.0);
    }
    if let Some(time) = relay.drain_timeout {
        made = made.drain_timeout(time.0);
    }
    let pause = relay.pause.map_or(Duration::from_millis(50), |p| p.0);
    let at_most = relay.max_pause.map_or(Duration::from_secs(30), |p| p.0);
    made.backoff(pause, at_most)
}

/// For people who look at who holds lanes.
fn host() -> String {
    let name = std::env::var("HOSTNAME").unwrap_or_else(|_| "relay".to_owned());
    format!("{name}-{}", std::process::id())
}

pub(crate) async fn serve_admin(address: std::net::SocketAddr, admin: &Arc<Admin>) -> Result {
    let cannot = |error: std::io::Error| {
        CliError::new(
            exit::FAILED,
            format!("nothing can be served on {address}: {error}"),
            "Is another program there? See --listen, or `listen` in the file.",
        )
    };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    tracing::info!(%address, "health and metrics");
    let router = admin.clone().router();
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "health and metrics are served no longer");
        }
    });
    Ok(())
}

/// Until all relays have ended. One that cannot go on does not stop the others.
async fn wait_for(
    mut running: Running,
    asked: &mut Signals,
    stop: &CancellationToken,
    deadline: Option<Instant>,
    admin: &Admin,
) -> Result {
    let mut first_error = None;
    let mut left = Vec::new();
    while !running.is_empty() {
        tokio::select! {
            Some(ended) = running.join_next() => match ended {
                Ok((subscription, Ok(true))) => tracing::info!(subscription, "the relay has ended"),
                Ok((subscription, Ok(false))) => left.push(subscription),
                Ok((subscription, Err(error))) => {
                    let (what, code) = error.words();
                    tracing::error!(subscription, what, code, "the relay cannot go on");
                    admin.failed(&subscription, what);
                    first_error = first_error.or(Some(error));
                }
                Err(panicked) => return Err(CliError::new(exit::FAILED, panicked.to_string(), "Please report it.")),
            },
            () = asked.next() => {
                if stop.is_cancelled() {
                    return Err(cut_off());
                }
                tracing::info!("asked to stop: deliveries in progress are finished");
                stop.cancel();
            }
            () = until(deadline), if !stop.is_cancelled() => stop.cancel(),
        }
    }
    match first_error {
        Some(error) => Err(error),
        None if left.is_empty() => Ok(()),
        None => Err(CliError::new(
            exit::FAILED,
            format!(
                "not everything was delivered in time to {}",
                left.join(", ")
            ),
            "See `pgonce outbox status`; the next run goes on from there.",
        )),
    }
}

fn why(error: Error) -> CliError {
    CliError::from(error)
        .with_hint(
            "42704",
            "Create it with --create, `create` in the file, or `pgonce outbox subscriptions create NAME`.",
        )
        .with_exit("42704", exit::NOT_FOUND)
}

fn cut_off() -> CliError {
    CliError::new(
        exit::FAILED,
        "asked to stop a second time: events in progress may be delivered again",
        "They come with the same ids.",
    )
}

/// Says who holds the log: somebody must move it or let go of it.
async fn watch(outbox: Outbox<TokioPostgres>) {
    loop {
        match outbox.backlog().await {
            Ok(subscriptions) => {
                for behind in subscriptions
                    .into_iter()
                    .filter(|subscription| subscription.stuck)
                {
                    let oldest = behind.oldest_age.unwrap_or_default();
                    tracing::warn!(
                        subscription = behind.subscription,
                        waiting = behind.waiting,
                        ?oldest,
                        "a subscription is stuck and holds the log: run its relay, or evict it"
                    );
                }
            }
            Err(error) => tracing::debug!(%error, "the backlog could not be read"),
        }
        sleep(WATCH_EVERY).await;
    }
}
