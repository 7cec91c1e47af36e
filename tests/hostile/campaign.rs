//! Random callers in a hostile setting, and an oracle outside of it. Callers try every path, several at a time for each
//! request; what they learn goes into a history that no fault reaches, and is compared with what took effect:
//! nothing twice, no two answers, nothing acknowledged that is missing, nothing done that everybody was refused,
//! nothing held for longer than its lease and one retry, no error that the setting does not explain, and enough that is
//! answered.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{join, join_all};
use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::scope::{Busy, Contract};
use pgonce::{Error, Intent, Once, Result};
use pgonce_testkit::checker::{Effect, check};
use pgonce_testkit::{Database, History, Outcome, Postgres, shared};
use pgonce_tests::{Observer, TestDriver, install, poll_pause, random_moment, seed, slow_work};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::callers::{
    Joins, LEASE, Request, SqlCaller, answer_of, atomic, failing, hangs, is_unknown, leased,
    vanishing,
};
use crate::tally::Tally;

/// How many operations a campaign has by default.
const OPERATIONS: u64 = 240;
const CALLERS: usize = 6;
/// Far longer than an operation, a lease and a retry take together, on a machine that is busy.
const HANGS: Duration = Duration::from_secs(40);
const DAY: Duration = Duration::from_secs(86_400);
const EFFECTS: &str = "select key as intent from effects";

/// So many operations are tried in every setting; default: 240, or `PGONCE_HOSTILE_OPERATIONS`.
fn operations() -> u64 {
    let chosen = std::env::var("PGONCE_HOSTILE_OPERATIONS").ok();
    chosen.and_then(|n| n.parse().ok()).unwrap_or(OPERATIONS)
}

/// A database of a campaign's own, from the usual template.
pub(crate) async fn database(major: Option<u32>) -> (&'static Postgres, Database) {
    let server = shared(major).await.unwrap();
    server.template("campaign", install).await.unwrap();
    (server, server.database_from("campaign").await.unwrap())
}

/// Callers, and what they learned.
pub(crate) struct Campaign {
    /// Where the oracle looks, past any pooler or proxy.
    oracle: String,
    tokio: Once<TokioPostgres>,
    sqlx: Once<Sqlx>,
    url: String,
    history: History,
    /// By key: the payload that is asked for in the end.
    asked: Mutex<BTreeMap<String, Value>>,
    tally: Tally,
    preambles: &'static [&'static str],
    seed: u64,
    next: AtomicU64,
    last: AtomicU64,
    over: AtomicBool,
    /// How far the database's clock may have been wrong when a lease was given.
    clock_error: Duration,
}

impl Campaign {
    /// Callers that connect to `url`. What the callers need is defined on `oracle`, the database itself.
    pub(crate) async fn new(oracle: &str, url: &str) -> Self {
        Self::with(oracle, url, 8, false).await
    }

    /// Callers with pools of so many connections each, behind a transaction pooler or not.
    pub(crate) async fn with(oracle: &str, url: &str, connections: u32, pooler: bool) -> Self {
        let define = Once::builder(TokioPostgres::connect(oracle, 1))
            .build()
            .unwrap();
        let contract = Contract::keep(DAY).lease(LEASE);
        define.define_scope("rejects", &contract).await.unwrap();
        let waits = contract.busy(Busy::Wait).wait_timeout(LEASE);
        define.define_scope("waits", &waits).await.unwrap();
        Self {
            oracle: oracle.to_owned(),
            tokio: once(url, connections, pooler),
            sqlx: once(url, connections, pooler),
            url: url.to_owned(),
            history: History::new(),
            asked: Mutex::default(),
            tally: Tally::new(),
            preambles: &[""],
            seed: seed(),
            next: AtomicU64::new(0),
            last: AtomicU64::new(0),
            over: AtomicBool::new(false),
            clock_error: Duration::ZERO,
        }
    }

    /// Codes of errors that the setting explains, and how many of a hundred operations are answered in spite of them.
    pub(crate) fn allows(mut self, codes: &'static [&'static str], share: u64) -> Self {
        self.tally.allow(codes, share);
        self
    }

    /// The database's clock may be ahead or behind by so much.
    pub(crate) fn clock_error(mut self, error: Duration) -> Self {
        self.clock_error = error;
        self
    }

    /// What work says in its transaction before its effect: one of these.
    pub(crate) fn preambles(mut self, preambles: &'static [&'static str]) -> Self {
        self.preambles = preambles;
        self
    }

    /// The oracle looks there from now on.
    pub(crate) fn looks_at(mut self, oracle: &str) -> Self {
        oracle.clone_into(&mut self.oracle);
        self
    }

    /// Lets the callers work, with nobody in their way.
    pub(crate) async fn work(&self) {
        self.work_while(async |_| poll_pause().await).await;
    }

    /// Lets the callers work, and strikes again and again meanwhile. A strike that has begun ends.
    pub(crate) async fn work_while<S>(&self, mut strike: S)
    where
        S: AsyncFnMut(&mut StdRng),
    {
        self.over.store(false, SeqCst);
        self.last.fetch_add(operations(), SeqCst);
        let callers = async {
            join_all((0..CALLERS).map(|caller| self.calls(caller))).await;
            self.over.store(true, SeqCst);
        };
        let strikes = async {
            let mut random = StdRng::seed_from_u64(self.seed ^ u64::MAX);
            while !self.over.load(SeqCst) {
                strike(&mut random).await;
            }
        };
        join(callers, strikes).await;
    }

    /// Lets some operations begin: what strikes too often would only be waited for.
    pub(crate) async fn some_operations(&self, random: &mut StdRng) {
        let until = self.next.load(SeqCst) + random.random_range(3..40);
        while self.next.load(SeqCst) < until && !self.over.load(SeqCst) {
            poll_pause().await;
        }
        random_moment(random).await;
    }

    async fn calls(&self, caller: usize) {
        let mut random = StdRng::seed_from_u64(self.seed.wrapping_add(caller as u64));
        let mut sql = SqlCaller::at(&self.url);
        loop {
            let number = self.next.fetch_add(1, SeqCst);
            if number >= self.last.load(SeqCst) {
                self.next.fetch_sub(1, SeqCst);
                return;
            }
            // About four attempts at each request, near each other.
            let request = (number / 4).saturating_sub(random.random_range(0..2));
            let twisted = random.random_range(0..20) == 0;
            let preamble = self.preambles[random.random_range(0..self.preambles.len())];
            let path = random.random_range(0..12);
            let _ = self.call(&mut sql, request, twisted, preamble, path).await;
        }
    }

    /// One operation; the error where it was not answered.
    async fn call(
        &self,
        sql: &mut SqlCaller,
        number: u64,
        twisted: bool,
        preamble: &'static str,
        path: u32,
    ) -> Option<Error> {
        let is_message = number.is_multiple_of(5);
        let scope = if number.is_multiple_of(2) {
            "waits"
        } else {
            "rejects"
        };
        let key = format!("{} {number}", if is_message { "message" } else { scope });
        let payload = json!({"number": number, "twisted": twisted});
        let attempt = self.history.invoke(&key, payload.clone());
        (self.asked.lock().unwrap_or_else(PoisonError::into_inner))
            .entry(key.clone())
            .or_insert_with(|| payload.clone());
        let request = Request {
            intent: Intent::new(scope, key.as_str(), &payload).unwrap(),
            answer: answer_of(attempt),
            preamble,
        };
        let (tokio, sqlx) = (&self.tokio, &self.sqlx);
        let made = async {
            match path {
                0..6 if is_message => TokioPostgres::accepted(tokio, &request).await,
                _ if is_message => Sqlx::accepted(sqlx, &request).await,
                0 => vanishing(tokio, &request).await,
                1 => failing(sqlx, &request).await,
                2 | 3 => atomic(tokio, &request).await,
                4 => atomic(sqlx, &request).await,
                5 => leased(tokio, &request).await,
                6 => leased(sqlx, &request).await,
                7 => TokioPostgres::joined(tokio, &request).await,
                8 => Sqlx::joined(sqlx, &request).await,
                9 | 10 => sql.call(&request, false).await,
                _ => sql.call(&request, true).await,
            }
        };
        let made = timeout(HANGS, made).await.unwrap_or_else(|_| Err(hangs()));
        let way = format!("{} {path}", if is_message { "message" } else { "path" });
        self.tally.count(&key, &way, &made);
        self.note(attempt, made)
    }

    fn note(&self, attempt: u64, made: Result<Value>) -> Option<Error> {
        let (outcome, error) = match made {
            Ok(answer) => (Outcome::Success(answer), None),
            Err(error) if is_unknown(&error) => (Outcome::Unknown(error.to_string()), Some(error)),
            Err(error) => (Outcome::Failed(error.to_string()), Some(error)),
        };
        self.history.outcome(attempt, outcome);
        error
    }

    /// Makes a pooled connection forget all that it remembers.
    pub(crate) async fn discard_all(&self, sqlx: bool) {
        const DISCARD: &str = "discard all";
        if sqlx {
            let mut connection = self.sqlx.driver().pool().acquire().await.unwrap();
            Sqlx::exec(&mut connection, DISCARD).await.unwrap();
        } else {
            let client = self.tokio.driver().pool().get().await.unwrap();
            client.batch_execute(DISCARD).await.unwrap();
        }
    }

    /// Waits until all leases have run out, by the database's clock, and every transaction of a caller that is gone has ended.
    /// None of the leases is longer than its contract says.
    async fn leases_run_out(&self) {
        let see = Observer::connect(&self.oracle).await;
        let longest = (LEASE + self.clock_error).as_millis();
        let held = "from pgonce.intent where expires_at is null and lease_until > pgonce.now()";
        let longer = format!("select count(*) {held} + interval '{longest} ms'");
        assert_eq!(see.number(&longer).await, 0, "seed {}", self.seed);
        see.wait_until(&format!("select not exists (select {held})"))
            .await;
        see.wait_until_clean().await;
    }

    /// Asks for everything until it is answered: nothing may be stuck once what strikes has stopped and all leases have run
    /// out. What came late may hold it once more, for a lease and one retry interval at most.
    pub(crate) async fn ask_for_everything(&self) {
        self.leases_run_out().await;
        let keys: Vec<String> = (self.asked.lock().unwrap_or_else(PoisonError::into_inner))
            .keys()
            .cloned()
            .collect();
        let mut sql = SqlCaller::at(&self.url);
        for key in keys {
            let number = key.split(' ').next_back().unwrap().parse().unwrap();
            let mut held = Duration::ZERO;
            let asking = async {
                let mut twisted = false;
                while let Some(error) = self.call(&mut sql, number, twisted, "", 2).await {
                    match error {
                        // It came first with another payload, and is answered under that one.
                        Error::Conflict(_) => twisted = !twisted,
                        Error::Busy { retry_after, .. } => {
                            held += retry_after;
                            assert!(
                                held <= LEASE + retry_after,
                                "{key} is held by nobody: {}",
                                self.report()
                            );
                            slow_work(retry_after).await;
                        }
                        _ => poll_pause().await,
                    }
                }
            };
            if timeout(HANGS, asking).await.is_err() {
                panic!("{key} is stuck: {}", self.report());
            }
        }
    }

    /// Compares answers and effects, and panics where they do not fit.
    pub(crate) async fn check(&self) {
        let effects = Effect::read(&self.oracle, EFFECTS).await.unwrap();
        let verdict = check(&self.history, &effects);
        assert!(verdict.passed(), "seed {}: {verdict}", self.seed);
        self.tally.check(self.seed);
    }

    /// One event for each effect of an intent, and none without.
    async fn check_events(&self) {
        let odd = Observer::connect(&self.oracle)
            .await
            .rows(
                "select coalesce(e.key, o.subject), e.n, o.n \
                 from (select key, count(*) n from effects where key not like 'message%' group by 1) e \
                 full join (select subject, count(*) n from pgonce.outbox group by 1) o on o.subject = e.key \
                 where (e.n, o.n) is distinct from (1, 1)",
            )
            .await;
        assert!(odd.is_empty(), "seed {}: {odd:?}", self.seed);
    }

    /// All of it: checks, asks for everything, checks again.
    #[expect(
        clippy::print_stderr,
        reason = "the figures, for a run with --nocapture"
    )]
    pub(crate) async fn end(&self) {
        eprintln!("{}", self.tally);
        self.check().await;
        self.ask_for_everything().await;
        self.check().await;
        self.check_events().await;
    }

    fn report(&self) -> String {
        let lines = self.history.to_json_lines();
        let last: Vec<_> = lines.lines().rev().take(20).collect();
        last.join("\n")
    }
}

fn once<D: TestDriver>(url: &str, connections: u32, pooler: bool) -> Once<D> {
    let builder = Once::builder(D::connect(url, connections));
    let builder = if pooler {
        builder.behind_pooler()
    } else {
        builder
    };
    builder.build().unwrap()
}

/// The whole campaign in a database that `alter database … set` has made hostile, in a way that explains these errors.
pub(crate) async fn under(settings: &[&str], allowed: &'static [&'static str], share: u64) {
    let (_server, database) = database(None).await;
    let see = Observer::connect(&database.url()).await;
    let campaign = Campaign::new(&database.url(), &database.url())
        .await
        .allows(allowed, share);
    for setting in settings {
        see.run(&format!("alter database {} set {setting}", database.name()))
            .await;
    }
    campaign.work().await;
    campaign.end().await;
}

/// What a test may take; the long campaigns take longer.
pub(crate) async fn in_time<F: Future>(body: F) -> F::Output {
    let limit = Duration::from_secs(120 + operations() / 4);
    match timeout(limit, body).await {
        Ok(output) => output,
        Err(_) => panic!("it hangs: not done after {limit:?}"),
    }
}
