//! The storm itself: every intent with its clients, and the disasters in between.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::{join_all, try_join};
use pgonce_testkit::Postgres;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_postgres::NoTls;

use super::client::{self, Answer, Counts, Line};
use super::plan::{Disaster, Kind, Plan};
use super::screen::Screen;
use super::service::Service;
use super::{Result, WATCH};

/// After the last intent, clients still get this long for their answers.
const GRACE: Duration = Duration::from_secs(20);
/// A disaster waits for this many requests under way, so that it hits something.
const WORTH_STRIKING: u64 = 8;
const STRIKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time a service without a session gets to open one, before the end of its sessions hits nothing.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The answers to an intent, one for each of its clients; `None` where time was up.
pub(super) type Answers = Vec<Option<Answer>>;

pub(super) struct Storm<'a> {
    pub(super) plan: &'a Plan,
    pub(super) server: &'a Postgres,
    pub(super) database: &'a str,
    pub(super) counts: Arc<Counts>,
    pub(super) screen: &'a Screen,
}

impl Storm<'_> {
    /// Lets it rage; gives the answers in the order of the plan's intents.
    pub(super) async fn rage(&self, service: &mut Service) -> Result<Vec<Answers>> {
        let start = Instant::now();
        let line = Line {
            http: client::http()?,
            address: service.address(),
            counts: &self.counts,
            until: start + self.plan.length + GRACE,
        };
        let clients = async { Ok(self.clients(&line, start).await) };
        let storm = try_join(clients, self.disasters(service, start));
        tokio::select! {
            ended = storm => Ok(ended?.0),
            () = self.watch() => Err("the watch over the effects ended".into()),
        }
    }

    async fn clients(&self, line: &Line<'_>, start: Instant) -> Vec<Answers> {
        let intents = self.plan.intents.iter().map(async |intent| {
            sleep_until(start + intent.at).await;
            let answers =
                join_all(intent.clients.iter().map(|client| line.ask(intent, client))).await;
            self.counts.settled.fetch_add(1, Relaxed);
            answers
        });
        join_all(intents).await
    }

    async fn disasters(&self, service: &mut Service, start: Instant) -> Result<()> {
        for Disaster { at, kind } in &self.plan.disasters {
            sleep_until(start + *at).await;
            let worth_it = async {
                while self.counts.in_flight.load(Relaxed) < WORTH_STRIKING {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            // If nobody is there any more it strikes all the same.
            let _ = timeout(STRIKE_TIMEOUT, worth_it).await;
            let struck = self.counts.in_flight.load(Relaxed);
            self.counts.struck.fetch_add(struck, Relaxed);
            let began = Instant::now();
            let what = self.strike(*kind, service).await?;
            self.screen.note(&format!(
                "{:>5.1} s  {what}, {struck} requests under way; back after {} ms",
                start.elapsed().as_secs_f64(),
                began.elapsed().as_millis(),
            ));
        }
        Ok(())
    }

    async fn strike(&self, kind: Kind, service: &mut Service) -> Result<String> {
        Ok(match kind {
            Kind::KillService => {
                service.kill().await?;
                service.start_again().await?;
                self.counts.kills.fetch_add(1, Relaxed);
                "service killed with SIGKILL".to_owned()
            }
            Kind::EndSessions => {
                let ended = end_sessions(self.database).await?;
                self.counts.sessions_ended.fetch_add(ended, Relaxed);
                format!("{ended} database sessions ended")
            }
            Kind::CrashDatabase => {
                self.server.crash().await?;
                self.server.start_again().await?;
                self.counts.crashes.fetch_add(1, Relaxed);
                "PostgreSQL crashed with SIGKILL".to_owned()
            }
        })
    }

    /// Counts the effects for the live line, over every crash.
    async fn watch(&self) {
        let show = || {
            self.screen
                .show(&self.counts, self.plan.intents.len() as u64)
        };
        loop {
            // Refused while the server is down; the next turn tries again.
            let _: Result<()> = async {
                let (client, connection) = tokio_postgres::connect(self.database, NoTls).await?;
                let asking = async {
                    let name = "select set_config('application_name', $1, false)";
                    client.query_one(name, &[&WATCH]).await?;
                    loop {
                        let row = client
                            .query_one("select count(*) from order_event", &[])
                            .await?;
                        self.counts
                            .effects
                            .store(row.get::<_, i64>(0).unsigned_abs(), Relaxed);
                        show();
                        sleep(LOOK_EVERY).await;
                    }
                };
                tokio::select! {
                    lost = connection => Ok(lost?),
                    asked = asking => asked,
                }
            }
            .await;
            show();
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Ends every session of the service, politely but at once; gives how many there were.
///
/// Right after a crash the service has none: it is given [`RECONNECT_TIMEOUT`] to come back.
async fn end_sessions(database: &str) -> Result<u64> {
    let (client, connection) = tokio_postgres::connect(database, NoTls).await?;
    let until = Instant::now() + RECONNECT_TIMEOUT;
    let ending = async {
        loop {
            let row = client
                .query_one(
                    "select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity
                     where datname = current_database() and pid <> pg_backend_pid()
                       and backend_type = 'client backend' and application_name <> $1",
                    &[&WATCH],
                )
                .await?;
            let ended = row.get::<_, i64>(0).unsigned_abs();
            if ended > 0 || Instant::now() >= until {
                return Ok(ended);
            }
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        lost = connection => Err(lost.err().map_or("the connection was closed".into(), Into::into)),
        ended = ending => ended,
    }
}
