//! Paths of a relay: one walks step by step over the wire that breaks, another takes over in between,
//! and a calm one finishes.

use std::time::Duration;

use pgonce::Error;
use pgonce::driver::Param;
use pgonce::outbox::{
    Act, Cursor, Lane, LaneLease, Message, Outbox, Outcome, Settlement, Subscription,
};
use pgonce::retry::Policy;
use pgonce_broker::{Delivery, Relay, Sink as _};
use pgonce_testkit::{Action, CuttingProxy, Trial};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::Result;
use super::attempt::ask;
use super::driver_ext::DriverExt;
use super::fixture::{Fixture, connect};
use super::path::Path;
use super::post::{Ill, Mailbox};
use super::trial::{STUCK, WINDOW, see_it_end};

/// How long a relay that was cut off keeps its lanes: long enough for a walk on a loaded machine.
const LEASE: Duration = Duration::from_millis(500);
/// Nobody is in the way while a trial is prepared.
const CALM_LEASE: Duration = Duration::from_secs(60);
/// The lease of the relay that delivers the rest. It asks for the lanes of one that was cut off every third of it.
const LAST_LEASE: Duration = Duration::from_secs(6);
/// How long a relay that loses events on purpose is waited for.
const SABOTAGE_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest pause before an event that failed is tried again.
const BACKOFF: Duration = Duration::from_millis(10);

/// The events of one trial, who gets them, and where they go.
pub(super) struct Post<'a, D: DriverExt> {
    pub(super) fixture: &'a Fixture<D>,
    pub(super) key: &'a str,
    pub(super) mailbox: Mailbox,
}

/// Walks a path of relays with these faults.
pub(super) async fn walk<D: DriverExt>(
    fixture: &Fixture<D>,
    proxy: &CuttingProxy,
    path: Path,
    trial: &Trial,
    key: &str,
) -> Result<()> {
    let ill = match path {
        Path::RelaySettle => Ill::FirstForNow,
        Path::RelayPark | Path::RelayRedrive => Ill::SecondForGood,
        _ => Ill::No,
    };
    let post = Post {
        fixture,
        key,
        mailbox: Mailbox::new(ill),
    };
    let walked = match path {
        Path::RelayMaintain => fixture.partitions.walk(&post, proxy, trial).await,
        _ => post.walk(proxy, path, trial).await,
    };
    let mut delivered = fixture.delivered.lock().map_err(|_| "a trial panicked")?;
    delivered.extend(post.mailbox.take());
    walked
}

/// What the first client does over the wire; where its outcome comes from.
struct Errand<'a> {
    path: Path,
    /// Commits when the first window was read.
    late: Option<&'a Client>,
    lease: Duration,
}

impl<D: DriverExt> Post<'_, D> {
    async fn walk(&self, proxy: &CuttingProxy, path: Path, trial: &Trial) -> Result<()> {
        let calm = self.fixture.calm.outbox();
        let subscription = Subscription::new(self.key)
            .begin(pgonce::outbox::Begin::Now)
            .topics([self.key])
            .backoff(BACKOFF, BACKOFF);
        calm.create_subscription(&subscription).await?;
        let subject = format!("{}-a", self.key);
        let beside = self.in_the_same_lane_as(&subject).await?;
        let mut late = None;
        let expected = match path {
            Path::RelayWindow => {
                late = Some(self.publish_late(3).await?);
                for n in [1, 2, 4] {
                    self.publish(pgonce::DEFAULT_SCHEMA, n, &subject).await?;
                }
                4
            }
            _ => {
                for n in 1..=3 {
                    self.publish(pgonce::DEFAULT_SCHEMA, n, &subject).await?;
                }
                self.publish(pgonce::DEFAULT_SCHEMA, 4, &beside).await?;
                4
            }
        };
        if path == Path::RelayRedrive {
            let errand = Errand {
                path: Path::RelayPark,
                late: None,
                lease: CALM_LEASE,
            };
            self.act(&calm, "before", &errand).await?;
            self.mailbox.heal();
        }

        proxy.start_over();
        proxy.arm_trial(trial);
        let first = self.fixture.through(proxy, Policy::default().tries(1))?;
        let holds = holds(trial);
        let (over, first_is_over) = watch::channel(false);
        let errand = Errand {
            path,
            late: late.as_ref().map(|(client, _)| client),
            lease: LEASE,
        };
        let first_client = async {
            let outbox = first.outbox();
            let acted = async {
                self.saw(self.act(&outbox, "first", &errand).await);
                if proxy.fired().is_none() || holds {
                    see_it_end(&first).await;
                }
            };
            let acted = timeout(STUCK, acted).await;
            proxy.disarm();
            // The receiver may have finished already.
            let _ = over.send(true);
            acted
        };
        let (acted, second) =
            tokio::join!(first_client, self.meanwhile(proxy, holds, first_is_over));
        acted.map_err(|_| format!("the first relay was not through within {STUCK:?}"))?;
        second?;
        if let Some((late, attempt)) = &late {
            // It may have committed already: then there is nothing to commit.
            late.batch_execute("commit").await?;
            let outcome = pgonce_testkit::Outcome::Success(json!("late"));
            self.fixture.history.outcome(*attempt, outcome);
        }
        self.finish(path, expected).await?;
        calm.drop_subscription(self.key).await?;
        Ok(())
    }

    /// Publishes an event, and records that it was asked for and its outcome.
    pub(super) async fn publish(&self, schema: &str, n: i64, subject: &str) -> Result<()> {
        let (attempt, payload) = self.invoke(n);
        let params = [self.key, subject, &payload].map(|text| Param::Text(Some(text)));
        let sql = format!("select {schema}.publish($1, 'storm', $2, $3::text::jsonb)::text");
        let id = ask(&self.fixture.calm, &sql, &params).await?;
        let outcome = pgonce_testkit::Outcome::Success(json!(id));
        self.fixture.history.outcome(attempt, outcome);
        Ok(())
    }

    /// Publishes an event about a subject of its own in a transaction that stays open.
    async fn publish_late(&self, n: i64) -> Result<(Client, u64)> {
        let client = connect(&self.fixture.database.url()).await?;
        let (attempt, payload) = self.invoke(n);
        client.batch_execute("begin").await?;
        let sql = "select pgonce.publish($1, 'storm', $1, $2::text::jsonb)";
        client.execute(sql, &[&self.key, &payload]).await?;
        Ok((client, attempt))
    }

    fn invoke(&self, n: i64) -> (u64, String) {
        let intent = format!("{}/{n}", self.key);
        let payload = json!({ "intent": intent, "sequence": n });
        let attempt = self.fixture.history.invoke(intent, payload.clone());
        (attempt, payload.to_string())
    }

    /// A subject whose events are settled together with those of this one.
    async fn in_the_same_lane_as(&self, subject: &str) -> Result<String> {
        let sql = "select s from generate_series(1, 1000) i, format('%s-%s', $1::text, i) s \
             where pgonce._lane_of('', s) = pgonce._lane_of('', $1) limit 1";
        let found = ask(&self.fixture.calm, sql, &[Param::Text(Some(subject))]).await?;
        found.ok_or_else(|| "no subject of a thousand is in the same lane".into())
    }

    /// What a relay does, step by step; at the first trouble it is as good as dead.
    async fn act(
        &self,
        outbox: &Outbox<D>,
        owner: &str,
        errand: &Errand<'_>,
    ) -> pgonce::Result<()> {
        if errand.path == Path::RelayRedrive {
            outbox.redrive(self.key, None).await?;
        }
        let lanes = outbox.claim_lanes(self.key, owner, errand.lease).await?;
        let mut held: Vec<LaneLease> = lanes.into_iter().map(as_held).collect();
        match errand.path {
            Path::RelayWindow => self.windows(outbox, &mut held, errand).await?,
            Path::RelayRedrive => {}
            _ => self.settled_page(outbox, &mut held).await?,
        }
        if matches!(errand.path, Path::RelaySettle | Path::RelayRedrive) {
            for _ in 0..2 {
                // The next one of the subject comes due when the first is settled.
                sleep(BACKOFF + WINDOW / 5).await;
                let due = outbox.due(self.key, &held, 100, 1 << 20).await?;
                self.settle(outbox, &held, due, None).await?;
            }
        }
        outbox.leave(self.key, owner).await
    }

    /// Two windows; somebody commits in between who wrote before the first.
    async fn windows(
        &self,
        outbox: &Outbox<D>,
        held: &mut [LaneLease],
        errand: &Errand<'_>,
    ) -> pgonce::Result<()> {
        for round in 0..2 {
            let mut cursors: Vec<&Cursor> = held.iter().map(|held| &held.cursor).collect();
            cursors.dedup();
            outbox.has_new_events(&cursors).await?;
            let page = outbox.read(self.key, held, 1000, 1 << 20).await?;
            go_on(held, &page.cursors);
            if self.fixture.sabotage {
                // What must never be done: the place is kept before anybody has the events.
                outbox.advance(self.key, held, round == 1).await?;
            }
            for message in &page.messages {
                self.mailbox.send(message).await;
            }
            outbox.advance(self.key, held, round == 1).await?;
            if let (0, Some(late)) = (round, errand.late) {
                let _ = late.batch_execute("commit").await;
            }
        }
        Ok(())
    }

    /// One window, of which not everything can be delivered.
    async fn settled_page(&self, outbox: &Outbox<D>, held: &mut [LaneLease]) -> pgonce::Result<()> {
        let page = outbox.read(self.key, held, 1000, 1 << 20).await?;
        go_on(held, &page.cursors);
        self.settle(outbox, held, page.messages, Some(())).await
    }

    /// Delivers events of one lane, and settles what came of them.
    async fn settle(
        &self,
        outbox: &Outbox<D>,
        held: &[LaneLease],
        messages: Vec<Message>,
        moves_on: Option<()>,
    ) -> pgonce::Result<()> {
        let Some(lane) = messages.first().map(|message| message.lane) else {
            return Ok(());
        };
        let Some(held) = held.iter().find(|held| held.lane == lane) else {
            return Ok(());
        };
        let mut stopped = Vec::new();
        let mut outcomes = Vec::new();
        for message in messages {
            let waits = message.act != Act::Send || stopped.contains(&message.subject);
            let outcome = match waits {
                true => Outcome::Hold,
                false => match self.mailbox.send(&message).await {
                    Delivery::Acknowledged => Outcome::Sent,
                    Delivery::Retry { reason, after } => Outcome::Retry { reason, after },
                    Delivery::Poison { reason } => Outcome::Dead { reason },
                    _ => Outcome::Hold,
                },
            };
            if outcome != Outcome::Sent {
                stopped.push(message.subject.clone());
            }
            outcomes.push((message.seq, outcome));
        }
        let settlement = Settlement {
            cursor: moves_on.map(|()| held.cursor.clone()),
            outcomes,
        };
        outbox.settle(self.key, lane, held.epoch, &settlement).await
    }

    /// While a message of the first is held, another relay takes over as soon as the lease allows.
    async fn meanwhile(
        &self,
        proxy: &CuttingProxy,
        holds: bool,
        mut first_is_over: watch::Receiver<bool>,
    ) -> Result<()> {
        if !holds {
            return Ok(());
        }
        loop {
            tokio::select! {
                _ = first_is_over.wait_for(|over| *over) => return Ok(()),
                _ = proxy.held() => {}
            }
            self.fixture.history.saw("second relay between");
            let stop = CancellationToken::new();
            let second = self.run_relay(LEASE, &stop);
            let leave = async {
                sleep(LEASE + 2 * WINDOW).await;
                stop.cancel();
                // It may have to wait for a lock that the first holds.
                sleep(WINDOW).await;
                proxy.release();
            };
            let (ran, ()) = tokio::join!(second, leave);
            ran?;
        }
    }

    /// The engine itself, over a connection without faults.
    fn relay(&self, lease: Duration) -> Relay<D, Mailbox> {
        Relay::new(self.fixture.calm.outbox(), self.key, self.mailbox.clone())
            .lease(lease)
            .keep_every(Duration::from_millis(20))
            .backoff(Duration::from_millis(5), Duration::from_millis(50))
    }

    /// Runs the engine until it is stopped. On a busy machine its last call may take longer than half of the short
    /// lease: then its lanes are free when the lease ends.
    async fn run_relay(&self, lease: Duration, stop: &CancellationToken) -> Result<()> {
        match self.relay(lease).run(stop.clone()).await {
            Err(Error::Uncertain(_)) if stop.is_cancelled() => Ok(()),
            ended => Ok(ended?),
        }
    }

    /// A calm relay, and a calm operator where one is needed, until everything has come.
    async fn finish(&self, path: Path, expected: usize) -> Result<()> {
        self.mailbox.heal();
        let stop = CancellationToken::new();
        let watching = async {
            let wait = match self.fixture.sabotage {
                true => SABOTAGE_TIMEOUT,
                false => STUCK,
            };
            let until = Instant::now() + wait;
            while self.mailbox.different() < expected && Instant::now() < until {
                if matches!(path, Path::RelayPark | Path::RelayRedrive) {
                    let moved = self.fixture.calm.outbox().redrive(self.key, None).await?;
                    self.fixture.history.saw_times("redriven", moved);
                }
                sleep(Duration::from_millis(5)).await;
            }
            stop.cancel();
            Ok::<_, Error>(())
        };
        let (ran, watched) = tokio::join!(self.run_relay(LAST_LEASE, &stop), watching);
        ran?;
        watched?;
        let there = self.mailbox.different();
        match there < expected {
            true => Err(format!("{there} of {expected} events came within {STUCK:?}").into()),
            false => Ok(()),
        }
    }

    fn saw(&self, acted: pgonce::Result<()>) {
        match acted {
            Err(Error::Fenced(_)) => self.fixture.history.saw("relay fenced"),
            Err(_) => self.fixture.history.saw("relay cut off"),
            Ok(()) => {}
        }
    }
}

pub(super) fn holds(trial: &Trial) -> bool {
    let holds = |fault: &pgonce_testkit::Fault| fault.action == Action::SecondClientBetween;
    trial.faults.iter().any(holds)
}

pub(super) fn as_held(lane: Lane) -> LaneLease {
    LaneLease {
        lane: lane.lane,
        epoch: lane.epoch,
        cursor: lane.cursor,
    }
}

/// The cursors of a page, for the lanes that it is of.
pub(super) fn go_on(held: &mut [LaneLease], cursors: &[(u8, Cursor)]) {
    for (lane, cursor) in cursors {
        if let Some(held) = held.iter_mut().find(|held| held.lane == *lane) {
            held.cursor = cursor.clone();
        }
    }
}
