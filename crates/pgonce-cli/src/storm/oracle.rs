//! The judge: what clients were told against what is in the database, and what was left behind.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use pgonce_testkit::checker::{self, Coverage, Effect};
use pgonce_testkit::{Entry, Told, wait_until};
use serde::Serialize;
use tokio_postgres::Client;

use super::ground::{Ground, connect};
use super::hand::Hand;
use super::path::Path;
use super::trial::Trialed;
use super::{Plan, Result};

/// Backends whose client was cut off end by themselves.
const CALM: Duration = Duration::from_secs(30);

/// One broken promise.
#[derive(Debug, Serialize)]
pub(super) struct Broken {
    pub(super) kind: String,
    /// Whose trial; nobody's if it is about all of them.
    pub(super) path: Option<String>,
    pub(super) action: Option<String>,
    /// The command that runs just this trial again.
    pub(super) replay: Option<String>,
    pub(super) told: String,
}

/// What a storm came to.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) broken: Vec<Broken>,
    pub(super) counts: BTreeMap<String, u64>,
    pub(super) attempts: usize,
    pub(super) effects: usize,
}

pub(super) async fn judge<D: Hand>(
    ground: &Ground<D>,
    trialed: &[Trialed],
    plan: &Plan,
) -> Result<Findings> {
    let by_key: HashMap<&str, &Trialed> = trialed.iter().map(|t| (&*t.key, t)).collect();
    let broken = |kind: &str, intent: &str, told: String| {
        let trial = by_key.get(intent);
        Broken {
            kind: kind.to_owned(),
            path: trial.map(|t| t.path.name()),
            action: trial.map(|t| t.actions()),
            replay: trial.map(|t| ground.config.replay(t.path, &t.trial)),
            told,
        }
    };
    let mut findings = Findings::default();
    let all = &mut findings.broken;
    for trial in trialed {
        if let Some(why) = &trial.stuck {
            all.push(broken("NeverAnswered", &trial.key, why.clone()));
        }
    }
    let client = connect(&ground.database.url()).await?;
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

    let fired = trialed.iter().map(|trial| trial.fired as u64).sum();
    ground.history.saw_times("fault", fired);
    ground.history.written()?;
    let query = "select intent, payload, (payload ->> 'amount')::bigint as amount from effect";
    let effects = Effect::read(&ground.database.url(), query).await?;
    let verdict = checker::check_covering(&ground.history, &effects, &coverage(trialed, plan));
    for violation in &verdict.violations {
        let kind = format!("{:?}", violation.kind);
        all.push(broken(&kind, &violation.intent, violation.to_string()));
    }
    for (intent, told) in authorship(ground, &client).await? {
        all.push(broken("WrongAuthor", &intent, told));
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

/// What the checker cannot know: which attempt an effect is of. Its maker must not have been told
/// that nothing was done, and an answer names the maker of the effect.
async fn authorship<D: Hand>(ground: &Ground<D>, client: &Client) -> Result<Vec<(String, String)>> {
    let (mut told, mut answers) = (HashMap::new(), HashMap::new());
    let mut asked = HashMap::new();
    for entry in ground.history.entries() {
        match entry {
            Entry::Invoke {
                intent, attempt, ..
            } => {
                asked.insert(attempt, intent);
            }
            Entry::Outcome {
                attempt,
                told: what,
                ..
            } => {
                if let (Told::Success(answer), Some(intent)) = (&what, asked.get(&attempt)) {
                    answers.insert(intent.clone(), answer["by"].as_i64());
                }
                told.insert(attempt, what);
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
        let maker = u64::try_from(by).ok().and_then(|by| told.get(&by));
        if let Some(Told::Failed(code)) = maker
            && !is_outside(&intent)
        {
            let what = format!(
                "attempt {by} was told that it did nothing ({code}), and its effect is there"
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
    let trials = trialed
        .iter()
        .filter(|trial| trial.path != Path::Migrate)
        .count() as u64;
    if plan.fault.is_some() {
        return Coverage::new().require("fault", 1);
    }
    let mut coverage = Coverage::new().require("fault", trials * 8 / 10);
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
    coverage
}
