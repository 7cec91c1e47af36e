//! The judge: the outcomes of clients against what is in the database, and what was left behind.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use pgonce::outbox::Subscription;
use pgonce_broker::Relay;
use pgonce_testkit::checker::{self, Coverage, Effect};
use pgonce_testkit::{Entry, Outcome, wait_until};
use serde::Serialize;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::business::BESIDE;
use super::driver_ext::DriverExt;
use super::fixture::{Fixture, connect};
use super::path::Path;
use super::post::{Ill, Mailbox, Taken};
use super::trial::Trialed;
use super::{Plan, Result};

/// Backends whose client was cut off end by themselves.
const CALM: Duration = Duration::from_secs(60);

/// One broken promise.
#[derive(Debug, Serialize)]
pub(super) struct Broken {
    pub(super) kind: String,
    /// Whose trial; nobody's if it is about all of them.
    pub(super) path: Option<String>,
    pub(super) action: Option<String>,
    /// The command that runs just this trial again.
    pub(super) replay: Option<String>,
    pub(super) detail: String,
}

/// What a storm came to.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) broken: Vec<Broken>,
    pub(super) counts: BTreeMap<String, u64>,
    pub(super) attempts: usize,
    pub(super) effects: usize,
}

pub(super) async fn judge<D: DriverExt>(
    fixture: &Fixture<D>,
    trialed: &[Trialed],
    plan: &Plan,
) -> Result<Findings> {
    let by_key: HashMap<&str, &Trialed> = trialed.iter().map(|t| (&*t.key, t)).collect();
    let broken = |kind: &str, intent: &str, detail: String| {
        // The events of a trial are named by its key and their number.
        let trial = by_key.get(intent.split('/').next().unwrap_or_default());
        Broken {
            kind: kind.to_owned(),
            path: trial.map(|t| t.path.name()),
            action: trial.map(|t| t.actions()),
            replay: trial.map(|t| fixture.config.replay(t.path, &t.trial)),
            detail,
        }
    };
    let mut findings = Findings::default();
    let all = &mut findings.broken;
    for trial in trialed {
        if let Some(why) = &trial.stuck {
            all.push(broken("NeverAnswered", &trial.key, why.clone()));
        }
    }
    let client = connect(&fixture.database.url()).await?;
    for (what, query) in LEFTOVERS {
        if let Err(error) = is_empty(&client, what, query).await {
            all.push(broken("LeftBehind", "", error.to_string()));
        }
    }
    let unfinished = "select key, status::text || ', lease until ' || coalesce(lease_until::text, '-') \
         from pgonce.intent where status in ('processing', 'failed_retryable')";
    for row in client.query(unfinished, &[]).await? {
        all.push(broken("Unfinished", row.try_get(0)?, row.try_get(1)?));
    }

    let stuck = trialed.iter().any(|trial| trial.stuck.is_some());
    let consumers = "select count(*) from pgonce.outbox_subscription";
    let left: i64 = client.query_one(consumers, &[]).await?.try_get(0)?;
    if left > 0 && !stuck {
        all.push(broken("LeftBehind", "", format!("{left} consumers")));
    }
    let delivered = match fixture.delivered.lock() {
        Ok(mut delivered) => std::mem::take(&mut *delivered),
        Err(_) => return Err("a trial panicked".into()),
    };
    let taken = Taken::from(&delivered);
    for (intent, detail) in &taken.torn {
        all.push(broken("TornId", intent, detail.clone()));
    }
    fixture.history.saw_times("delivered again", taken.again);
    for (kind, intent, detail) in beside(&client).await? {
        all.push(broken(kind, &intent, detail));
    }
    for (kind, intent, detail) in published(fixture, &client).await? {
        all.push(broken(kind, &intent, detail));
    }

    let fired = trialed.iter().map(|trial| trial.fired as u64).sum();
    fixture.history.saw_times("fault", fired);
    fixture.history.written()?;
    let query = "select intent, payload, (payload ->> 'amount')::bigint as amount from effect";
    let mut effects = Effect::read(&fixture.database.url(), query).await?;
    effects.extend(taken.effects);
    let verdict = checker::check_covering(&fixture.history, &effects, &coverage(trialed, plan));
    for violation in &verdict.violations {
        let kind = format!("{:?}", violation.kind);
        all.push(broken(&kind, &violation.intent, violation.to_string()));
    }
    for (intent, detail) in authorship(fixture, &client).await? {
        all.push(broken("WrongAuthor", &intent, detail));
    }
    findings.counts = verdict.counts;
    findings.attempts = verdict.attempts;
    findings.effects = verdict.effects;
    Ok(findings)
}

const LEFTOVERS: [(&str, &str); 2] = [
    (
        "every session to be idle, outside of any transaction",
        "select count(*) from pg_stat_activity where datname = current_database() \
         and pid <> pg_backend_pid() and backend_type = 'client backend' and state <> 'idle'",
    ),
    (
        "every advisory lock to be free",
        "select count(*) from pg_locks where locktype = 'advisory' \
         and database = (select oid from pg_database where datname = current_database())",
    ),
];

async fn is_empty(client: &Client, what: &str, query: &str) -> pgonce_testkit::Result<()> {
    wait_until(what, CALM, || async {
        let row = client.query_one(query, &[]).await;
        row.and_then(|row| row.try_get::<_, i64>(0))
            .is_ok_and(|count| count == 0)
    })
    .await
}

/// Our book of calls, which has what the provider's has.
const CALLS: [(Path, &str); 3] = [
    (
        Path::ExternalKeyed,
        "select key as intent from pgonce.external_call where scope = 'storm.external-keyed' and status = 'confirmed' and disputed is null",
    ),
    (
        Path::ExternalLookUp,
        "select key as intent from pgonce.external_call where scope = 'storm.external-look-up' and status = 'confirmed' and disputed is null",
    ),
    (
        Path::ExternalReconcile,
        "select key as intent from pgonce.external_call where scope = 'storm.external-reconcile' and status = 'confirmed' and disputed is null",
    ),
];

/// Every effect of a path that writes something else too has it, nothing else has, and the ledger is whole.
async fn beside(client: &Client) -> Result<Vec<(&'static str, String, String)>> {
    let mut wrong = Vec::new();
    for (path, rows) in BESIDE.into_iter().chain(CALLS) {
        let query = format!(
            "select coalesce(e.intent, b.intent), b.intent is null \
             from (select distinct intent from effect where intent ~ $1) e full join ({rows}) b on b.intent = e.intent \
             where e.intent is null or b.intent is null"
        );
        let pattern = format!("^{}-[0-9]+$", path.name());
        for row in client.query(&query, &[&pattern]).await? {
            let kind = if row.try_get(1)? { "Lost" } else { "Phantom" };
            let detail = format!("effect and {} differ", path.name());
            wrong.push((kind, row.try_get(0)?, detail));
        }
    }
    let query = "select problem || ' ' || coalesce(account, '') || ' ' || detail from pgonce.ledger_verify()";
    for row in client.query(query, &[]).await? {
        wrong.push(("LedgerBroken", String::new(), row.try_get(0)?));
    }
    Ok(wrong)
}

/// Every effect of the path that publishes is delivered as one event with one id, and nothing else is.
async fn published<D: DriverExt>(
    fixture: &Fixture<D>,
    client: &Client,
) -> Result<Vec<(&'static str, String, String)>> {
    let (outbox, mailbox) = (fixture.calm.outbox(), Mailbox::new(Ill::No));
    let reader = Subscription::new("judge").topics([Path::Publish.name()]);
    outbox.create_subscription(&reader).await?;
    let relay = Relay::new(outbox.clone(), "judge", mailbox.clone());
    relay.run_once(CancellationToken::new()).await?;
    outbox.drop_subscription("judge").await?;
    let taken = Taken::from(&mailbox.take());
    let mut delivered = taken.by_intent();
    let mut wrong = Vec::new();
    let query = "select distinct intent from effect where intent like $1";
    let pattern = format!("{}-%", Path::Publish.name());
    for row in client.query(query, &[&pattern]).await? {
        let intent: String = row.try_get(0)?;
        match delivered.remove(&*intent) {
            Some(1) => {}
            Some(ids) => wrong.push(("Duplicate", intent, format!("delivered with {ids} ids"))),
            None => wrong.push(("Lost", intent, "done, and never delivered".to_owned())),
        }
    }
    let made_up = delivered.into_keys().map(|intent| {
        let what = "delivered, and never done".to_owned();
        ("Phantom", intent.to_owned(), what)
    });
    wrong.extend(made_up);
    Ok(wrong)
}

/// What the checker cannot know: which attempt an effect is of. Its maker must not have the outcome
/// that nothing was done, and an answer names the maker of the effect.
async fn authorship<D: DriverExt>(
    fixture: &Fixture<D>,
    client: &Client,
) -> Result<Vec<(String, String)>> {
    let (mut outcomes, mut answers) = (HashMap::new(), HashMap::new());
    let mut asked = HashMap::new();
    for entry in fixture.history.entries() {
        match entry {
            Entry::Invoke {
                intent, attempt, ..
            } => {
                asked.insert(attempt, intent);
            }
            Entry::Outcome {
                attempt,
                outcome: what,
                ..
            } => {
                if let (Outcome::Success(answer), Some(intent)) = (&what, asked.get(&attempt)) {
                    answers.insert(intent.clone(), answer["by"].as_i64());
                }
                outcomes.insert(attempt, what);
            }
            Entry::Saw { .. } => {}
        }
    }
    let mut wrong = Vec::new();
    for row in client
        .query("select intent, attempt from effect", &[])
        .await?
    {
        let (intent, by): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
        let maker = u64::try_from(by).ok().and_then(|by| outcomes.get(&by));
        if let Some(Outcome::Failed(code)) = maker
            && !is_outside(&intent)
        {
            let what = format!(
                "attempt {by} has the outcome that it did nothing ({code}), and its effect is there"
            );
            wrong.push((intent.clone(), what));
        }
        if let Some(Some(answer)) = answers.get(&intent)
            && *answer != by
        {
            let what = format!("the effect is of attempt {by}, the answer is of attempt {answer}");
            wrong.push((intent, what));
        }
    }
    Ok(wrong)
}

fn is_outside(intent: &str) -> bool {
    Path::of_intents()
        .filter(|path| path.is_outside())
        .any(|path| {
            intent
                .rsplit_once('-')
                .is_some_and(|(name, _)| name == path.name())
        })
}

/// A storm that hardly blew proves nothing: what a whole one must have met.
fn coverage(trialed: &[Trialed], plan: &Plan) -> Coverage {
    let counts = |trial: &&Trialed| !trial.repeated;
    let counted: Vec<_> = trialed.iter().filter(counts).collect();
    let count = |of: fn(Path) -> bool| counted.iter().filter(|t| of(t.path)).count() as u64;
    let (intents, relays) = (count(Path::is_of_intents), count(Path::is_of_relays));
    let (consumers, external) = (count(Path::is_of_consumers), count(Path::is_external));
    let recoveries = count(|path| path == Path::Recovery);
    let trials = intents - external - recoveries;
    if plan.fault.is_some() {
        return Coverage::new().require("fault", 1);
    }
    let mut coverage = Coverage::new().require("fault", (intents + relays + consumers) * 8 / 10);
    if !plan.paths.is_empty() {
        return coverage;
    }
    // Each in so many trials at least once; measured, with room for other machines.
    let rare = [
        ("replay", 3),
        ("busy", 25),
        ("conflict", 80),
        ("uncertain", 80),
        ("takeover", 25),
        ("fenced", 25),
        ("refused", 80),
        ("retry", 80),
        ("gone", 80),
        ("waited", 100),
        ("disconnected", 10),
        ("second client between", 10),
    ];
    for (state, one_in) in rare {
        coverage = coverage.require(state, (trials / one_in).max(1));
    }
    for (state, least) in [
        ("outcome not known", external / 20),
        ("reconciled", external / 100),
        ("recovered", recoveries / 50),
        ("released", recoveries / 50),
    ] {
        coverage = coverage.require(state, least);
    }
    let rare = [
        ("delivered again", 50),
        ("relay fenced", 50),
        ("relay cut off", 10),
        ("second relay between", 20),
        ("redriven", 50),
        ("partition dropped", 200),
    ];
    for (state, one_in) in rare.into_iter().filter(|_| relays > 0) {
        coverage = coverage.require(state, (relays / one_in).max(1));
    }
    let rare = [
        ("copy", 5),
        ("consumer cut off", 10),
        ("consumer fenced", 200),
        ("second consumer between", 20),
        ("stored message failed", 50),
    ];
    for (state, one_in) in rare.into_iter().filter(|_| consumers > 0) {
        coverage = coverage.require(state, (consumers / one_in).max(1));
    }
    coverage
}
