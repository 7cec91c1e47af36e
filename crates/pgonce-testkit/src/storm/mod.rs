mod call;
mod clients;
mod fault_injector;
mod report;
mod run;
mod target;

use std::time::Duration;

use serde_json::{Value, json};

pub use self::{call::Call, report::Report};
use crate::{Result, checker::Coverage, history::Outcome};

type Payload = dyn Fn(u64) -> Value + Send + Sync;

/// Begins to describe a storm over a handler: many intents, each asked for several times at
/// once, retried until it is answered, while connections are cut at random messages and sessions
/// are killed. Afterwards what everybody got as an answer is held against what took effect.
///
/// The handler is any async function that tries once. It reaches the database through
/// [`Call::url`] and with any driver; a shared pool is made on the first call (see the example).
/// It answers [`Outcome::Success`] only if the work is committed, [`Outcome::Failed`] only if this
/// attempt has certainly done nothing, and [`Outcome::Unknown`] for all else.
///
/// ```no_run
/// # struct Pool;
/// # async fn connect(url: &str) -> Pool { Pool }
/// # async fn place_order(pool: &Pool, key: &str, amount: i64) -> Result<i64, String> { Ok(1) }
/// # async fn example(database: &pgonce_testkit::Database) -> pgonce_testkit::Result<()> {
/// use pgonce_testkit::{Call, Outcome, storm};
/// use tokio::sync::OnceCell;
///
/// static POOL: OnceCell<Pool> = OnceCell::const_new();
///
/// let report = storm(|call: Call| async move {
///     let pool = POOL.get_or_init(|| connect(&call.url)).await;
///     let amount = call.payload["amount"].as_i64().unwrap_or(0);
///     match place_order(pool, &call.intent, amount).await {
///         Ok(id) => Outcome::Success(id.into()),
///         Err(error) => Outcome::Unknown(error),
///     }
/// })
/// .effects("select key as intent, amount from orders")
/// .intents(50)
/// .run(&database.url())
/// .await?;
/// report.assert_exactly_once();
/// # Ok(())
/// # }
/// ```
pub fn storm<H, F>(handler: H) -> Storm<H>
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Outcome> + Send + 'static,
{
    Storm {
        handler,
        plan: Plan {
            effects: None,
            intents: 100,
            duplicates: 3,
            at_once: 8,
            at_most: Duration::from_secs(30),
            call_timeout: Duration::from_secs(10),
            recovery_timeout: Duration::from_secs(20),
            seed: None,
            cuts: true,
            kills: false,
            outages: (0, Duration::ZERO),
            conflicts: false,
            payload: Box::new(|number| json!({ "amount": number % 97 + 1 })),
            coverage: Coverage::new(),
        },
    }
}

/// A storm that has not begun. Made by [`storm`].
#[must_use = "nothing happens before `run`"]
pub struct Storm<H> {
    handler: H,
    plan: Plan,
}

/// What a storm is like.
struct Plan {
    effects: Option<String>,
    intents: u64,
    duplicates: u64,
    at_once: usize,
    at_most: Duration,
    call_timeout: Duration,
    recovery_timeout: Duration,
    seed: Option<u64>,
    cuts: bool,
    kills: bool,
    outages: (u64, Duration),
    conflicts: bool,
    payload: Box<Payload>,
    coverage: Coverage,
}

impl<H, F> Storm<H>
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Outcome> + Send + 'static,
{
    /// The query that shows every effect: a row each, with a column `intent` that holds what was
    /// in [`Call::intent`]. Columns `payload`, `amount`, `subject` and `sequence` are checked as
    /// well where they are there: see [`Effect`](crate::checker::Effect). Needed.
    pub fn effects(mut self, query: impl Into<String>) -> Self {
        self.plan.effects = Some(query.into());
        self
    }

    /// How many different intents; 100 by default.
    pub fn intents(mut self, count: u64) -> Self {
        self.plan.intents = count;
        self
    }

    /// How many clients ask for each intent at the same time; 3 by default.
    pub fn duplicates(mut self, count: u64) -> Self {
        self.plan.duplicates = count.max(1);
        self
    }

    /// How many intents are under way at the same time; 8 by default.
    pub fn at_once(mut self, count: usize) -> Self {
        self.plan.at_once = count.max(1);
        self
    }

    /// When the storm ends, even if not all intents had their turn; 30 seconds by
    /// default. Then everything that was begun is brought to an end without faults.
    pub fn max_duration(mut self, time: Duration) -> Self {
        self.plan.at_most = time;
        self
    }

    /// When a single call is given up and dropped, as when a client disconnects; 10 seconds
    /// by default.
    pub fn call_timeout(mut self, time: Duration) -> Self {
        self.plan.call_timeout = time;
        self
    }

    /// How long, after the storm, everything that was begun may take to succeed
    /// without faults; 20 seconds by default. Leases must have expired by then.
    pub fn recovery_timeout(mut self, time: Duration) -> Self {
        self.plan.recovery_timeout = time;
        self
    }

    /// Repeats the faults of an earlier storm; without it the seed is random, and the report
    /// has it. (The same faults meet other moments: clients run at the same time.)
    pub fn seed(mut self, seed: u64) -> Self {
        self.plan.seed = Some(seed);
        self
    }

    /// Whether connections are cut, replies dropped and messages held back; yes by
    /// default.
    pub fn cuts(mut self, cuts: bool) -> Self {
        self.plan.cuts = cuts;
        self
    }

    /// Whether the server's sessions are terminated now and then, which the user of the database
    /// must be allowed to do; no by default.
    pub fn kills(mut self, kills: bool) -> Self {
        self.plan.kills = kills;
        self
    }

    /// How many times the database cannot be reached at all, and for how long each time; never by default. An outage that is
    /// longer than the handler's leases shows what it reports of work whose end could not be recorded. Further intents are
    /// asked for until all outages are over, and the storm fails where one is missing.
    pub fn outages(mut self, count: u64, length: Duration) -> Self {
        self.plan.outages = (count, length);
        self
    }

    /// Whether intents that have succeeded are asked for once more with another payload, which
    /// the handler must turn down; no by default.
    pub fn conflicts(mut self, conflicts: bool) -> Self {
        self.plan.conflicts = conflicts;
        self
    }

    /// Makes the payload of the intent of this number, always the same for the same number; an
    /// object with an `amount` by default. The handler must accept it: an intent that
    /// never succeeds breaks the promise.
    pub fn payload(mut self, make: impl Fn(u64) -> Value + Send + Sync + 'static) -> Self {
        self.plan.payload = Box::new(make);
        self
    }

    /// This state must be met so many times, or the storm proves too little: see [`Coverage`].
    pub fn require(mut self, state: impl Into<String>, times: u64) -> Self {
        self.plan.coverage = self.plan.coverage.require(state, times);
        self
    }

    /// Lets the storm loose. `url` leads straight to the database, which nobody else uses. It
    /// must be a test database: whatever the handler does, it does a hundred times.
    pub async fn run(self, url: &str) -> Result<Report> {
        run::run(self.handler, self.plan, url).await
    }
}
