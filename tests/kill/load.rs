//! Callers who never give up: each intent is asked for by two of them until both have an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use pgonce::retry::Policy;
use pgonce::scope::{Busy, Contract};
use pgonce::{Ack, Attempt, ClaimKind, Done, Error, Intent, Lease, Once, Result};
use pgonce_testkit::checker::{Coverage, Effect, Verdict, check_covering};
use pgonce_testkit::{History, Outcome};
use pgonce_tests::{TestDriver, hex_text};
use rand::{RngExt as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::TIMEOUT;

const HOUR: Duration = Duration::from_secs(3600);
const LEASE: Duration = Duration::from_millis(500);
const CALLERS: usize = 3;
const EFFECTS: &str = "select key as intent, note::bigint as amount from effects";

/// How a clients does its work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mode {
    Atomic,
    Leased,
}

impl Mode {
    fn scope(self) -> &'static str {
        match self {
            Self::Atomic => "kill.atomic",
            Self::Leased => "kill.leased",
        }
    }
}

/// When each clients last had a success, and what everybody got as an answer.
pub(crate) struct Load {
    pub(crate) history: Arc<History>,
    pub(crate) clients: Vec<Clients>,
    stop: Arc<AtomicBool>,
    callers: JoinSet<()>,
    random: StdRng,
}

/// Some callers with one driver and one mode.
pub(crate) struct Clients {
    pub(crate) name: String,
    last: watch::Receiver<Instant>,
}

impl Clients {
    /// Waits for the first success after `since`.
    pub(crate) async fn back_at(&mut self, since: Instant) -> Instant {
        let back = timeout(TIMEOUT, self.last.wait_for(|last| *last > since)).await;
        *back
            .unwrap_or_else(|_| panic!("{} never came back", self.name))
            .unwrap()
    }
}

impl Load {
    pub(crate) fn new() -> Self {
        Self {
            history: Arc::default(),
            clients: Vec::new(),
            stop: Arc::default(),
            callers: JoinSet::new(),
            random: pgonce_tests::random(),
        }
    }

    /// Writes down the contracts that the clients work by.
    pub(crate) async fn define<D: TestDriver>(once: &Once<D>) {
        let contract = Contract::keep(HOUR * 24).busy(Busy::Wait).lease(LEASE);
        for mode in [Mode::Atomic, Mode::Leased] {
            once.define_scope(mode.scope(), &contract).await.unwrap();
        }
    }

    /// Sets both modes of a driver to work.
    pub(crate) fn begin<D: TestDriver>(&mut self, url: &str) {
        for mode in [Mode::Atomic, Mode::Leased] {
            let builder = || Once::builder(D::connect(url, 8)).owner("kill");
            let once = builder().build().unwrap();
            let one_try = builder().retry(Policy::none()).build().unwrap();
            let name = format!("{} {mode:?}", D::NAME);
            let (sender, last) = watch::channel(Instant::now());
            let clients = Arc::new(At {
                once,
                one_try,
                mode,
                name: name.clone(),
                history: self.history.clone(),
                next: AtomicU64::new(0),
                last: sender,
                stop: self.stop.clone(),
            });
            self.clients.push(Clients { name, last });
            for _ in 0..CALLERS {
                let clients = clients.clone();
                self.callers.spawn(async move { clients.work().await });
            }
        }
    }

    /// Waits until every clients had a success, and then a random number of further ones, so that
    /// whatever comes next hits them anywhere.
    pub(crate) async fn busy_for_a_while(&mut self) {
        let now = Instant::now();
        for clients in &mut self.clients {
            clients.back_at(now).await;
        }
        let mut last = self.clients[0].last.clone();
        for _ in 0..self.random.random_range(0..40) {
            timeout(TIMEOUT, last.changed()).await.unwrap().unwrap();
        }
    }

    /// Lets everybody get the answer they wait for, and no more.
    pub(crate) async fn finish(mut self) -> Arc<History> {
        self.stop.store(true, SeqCst);
        while let Some(caller) = timeout(TIMEOUT, self.callers.join_next())
            .await
            .expect("all are answered")
        {
            caller.unwrap();
        }
        self.history
    }
}

/// The answers against what is there.
pub(crate) async fn verdict(history: &History, url: &str, coverage: &Coverage) -> Verdict {
    let effects = Effect::read(url, EFFECTS).await.unwrap();
    check_covering(history, &effects, coverage)
}

struct At<D: TestDriver> {
    once: Once<D>,
    /// The same without retries, which would hide that a server is back soon after it was killed.
    one_try: Once<D>,
    mode: Mode,
    name: String,
    history: Arc<History>,
    next: AtomicU64,
    last: watch::Sender<Instant>,
    stop: Arc<AtomicBool>,
}

impl<D: TestDriver> At<D> {
    async fn work(&self) {
        while !self.stop.load(SeqCst) {
            // Two in a row are the same request.
            let number = self.next.fetch_add(1, SeqCst) / 2;
            let key = format!("{} {number}", self.name);
            let payload = json!({"amount": number});
            let mut once = match number % 4 {
                0 => &self.one_try,
                _ => &self.once,
            };
            while !self.attempt(once, &key, &payload).await {
                once = &self.once;
            }
        }
    }

    /// Asks once; whether there was an answer.
    async fn attempt(&self, once: &Once<D>, key: &str, payload: &Value) -> bool {
        let intent = Intent::new(self.mode.scope(), key, payload).unwrap();
        let attempt = self.history.invoke(key, payload.clone());
        let answer = json!({"attempt": attempt});
        let end = match self.mode {
            Mode::Atomic => {
                once.run(&intent, async |attempt| {
                    finish(attempt, payload, &answer).await
                })
                .await
            }
            Mode::Leased => {
                let work = async |lease: Lease<D>| {
                    if lease.kind() == ClaimKind::Takeover {
                        self.history.saw("takeover");
                    }
                    finish(lease.begin().await?, payload, &answer).await
                };
                once.run_leased(&intent, work).await
            }
        };
        let outcome = match &end {
            Ok(done) => Outcome::Success(done.ack().json().cloned().unwrap()),
            // The code that promises that nothing was committed.
            Err(error @ Error::Disconnected(_)) => Outcome::Failed(error.code().to_owned()),
            Err(
                error @ (Error::Uncertain(_)
                | Error::Busy { .. }
                | Error::Fenced(_)
                | Error::LostRace(_)),
            ) => Outcome::Unknown(error.code().to_owned()),
            Err(error) => panic!("{key}: {error}"),
        };
        self.history.outcome(attempt, outcome);
        if end.is_ok() {
            self.last.send_replace(Instant::now());
        }
        end.is_ok()
    }
}

async fn finish<D: TestDriver>(
    mut attempt: Attempt<D>,
    payload: &Value,
    answer: &Value,
) -> Result<Done> {
    let intent = attempt.intent();
    let sql = format!(
        "insert into effects values ('', '{}', {}, '{}')",
        intent.scope(),
        hex_text(intent.key()),
        payload["amount"]
    );
    D::exec(attempt.conn(), &sql).await?;
    attempt.succeed(Ack::value(answer)?).await
}
