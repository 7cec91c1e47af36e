//! The verdict, by somebody who looks at no key and no record of pgonce's: the effects that are in the
//! database, counted in a table where nothing is unique, beside the answers that clients got.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;
use tokio_postgres::NoTls;

use super::client::Counts;
use super::plan::{Intent, Kind, Plan};
use super::shop::{NewOrder, Order};
use super::storm::Answers;
use super::{Result, WATCH};

/// Examples of each kind of trouble in the report; the rest is counted.
const EXAMPLES: usize = 3;

/// What a storm came to.
#[derive(Debug, Default, Serialize)]
pub(super) struct Findings {
    pub(super) intents: u64,
    pub(super) clients: u64,
    pub(super) attempts: u64,
    pub(super) effects: u64,
    pub(super) replays: u64,
    pub(super) conflicts: u64,
    pub(super) turned_away: u64,
    pub(super) cuts: u64,
    pub(super) broken: u64,
    pub(super) kills: u64,
    pub(super) crashes: u64,
    pub(super) sessions_ended: u64,
    pub(super) struck: u64,
    /// Effects too many.
    pub(super) duplicates: u64,
    /// Intents that were answered as done, and have no effect.
    pub(super) lost: u64,
    /// Intents whose clients got different answers.
    pub(super) unequal: u64,
    /// Changed requests that were not refused.
    pub(super) unrefused: u64,
    /// Clients without an answer.
    pub(super) unanswered: u64,
    /// Effects that nobody asked for, or that differ from what was asked and answered.
    pub(super) wrong: u64,
    /// Everything above in words, with examples.
    pub(super) problems: Vec<String>,
}

/// What the database holds of one reference.
#[derive(Debug, Default)]
struct Held {
    effects: u64,
    orders: Vec<(i64, NewOrder)>,
}

impl Findings {
    pub(super) fn is_exactly_once(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Judges a storm that is over. Nothing may be under way in the database any more.
pub(super) async fn judge(
    plan: &Plan,
    answers: &[Answers],
    counts: &Counts,
    database: &str,
) -> Result<Findings> {
    let mut held = read(database).await?;
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    let mut found = Findings {
        intents: plan.intents.len() as u64,
        clients: plan.clients().count() as u64,
        attempts: count(&counts.attempts),
        effects: held.values().map(|held| held.effects).sum(),
        replays: count(&counts.replays),
        conflicts: count(&counts.conflicts),
        turned_away: count(&counts.turned_away),
        cuts: count(&counts.cuts),
        broken: count(&counts.broken),
        kills: count(&counts.kills),
        crashes: count(&counts.crashes),
        sessions_ended: count(&counts.sessions_ended),
        struck: count(&counts.struck),
        ..Findings::default()
    };
    let mut said = Said::default();
    for (intent, answers) in plan.intents.iter().zip(answers) {
        let held = held.remove(&intent.order.reference).unwrap_or_default();
        judge_intent(intent, answers, &held, &mut found, &mut said);
    }
    for (reference, held) in held {
        found.wrong += held.effects.max(1);
        said.say("effects that nobody asked for", || {
            format!("reference {reference:?}")
        });
    }
    found.problems = said.into_sentences();
    found.problems.extend(too_tame(plan, &found));
    Ok(found)
}

fn judge_intent(
    intent: &Intent,
    answers: &Answers,
    held: &Held,
    found: &mut Findings,
    said: &mut Said,
) {
    let name = || intent.order.reference.clone();
    let accepted = || {
        answers
            .iter()
            .flatten()
            .filter(|answer| answer.is_accepted())
    };

    let times = held.effects.max(held.orders.len() as u64);
    if times > 1 {
        found.duplicates += times - 1;
        said.say("intents that happened more than once", || {
            format!("{} × {times}", name())
        });
    }
    if held.effects == 0 {
        found.lost += 1;
        said.say("intents without an effect", name);
    }
    let missing = answers.iter().filter(|answer| answer.is_none()).count();
    if missing > 0 {
        found.unanswered += missing as u64;
        said.say("intents with clients that got no answer in time", name);
    }
    let first = accepted().next();
    if accepted().any(|answer| Some(answer) != first) {
        found.unequal += 1;
        said.say("intents whose clients got different answers", name);
    }

    // Two requests may race for one key. One of them has it; all others are to be refused.
    let winner: Option<Order> = first.and_then(|answer| serde_json::from_slice(&answer.body).ok());
    for (client, answer) in intent.clients.iter().zip(answers) {
        let Some(answer) = answer else { continue };
        let won = winner
            .as_ref()
            .is_some_and(|order| order.of == intent.sent_by(client));
        if won != answer.is_accepted() || !(won || answer.is_conflict()) {
            found.unrefused += 1;
            said.say(
                "answers other than 'made' to the first request and 422 P4002 to another",
                || format!("{}: {}", name(), answer.status),
            );
        }
    }
    if let Some(order) = winner
        && !held.orders.contains(&(order.id, order.of))
    {
        found.wrong += 1;
        said.say("answers that differ from what is in the database", name);
    }
}

/// A storm that hardly did anything proves nothing.
fn too_tame(plan: &Plan, found: &Findings) -> Vec<String> {
    let changed = plan.clients().filter(|client| client.changes).count() as u64;
    let cut = plan.clients().filter(|client| client.cut.is_some()).count() as u64;
    [
        ("attempts", found.attempts, found.clients + 1),
        (
            "kills of the service",
            found.kills,
            plan.disasters_of(Kind::KillService) as u64,
        ),
        (
            "crashes of PostgreSQL",
            found.crashes,
            plan.disasters_of(Kind::CrashDatabase) as u64,
        ),
        (
            "ended sessions",
            found.sessions_ended,
            plan.disasters_of(Kind::EndSessions) as u64,
        ),
        (
            "requests under way at disasters",
            found.struck,
            plan.disasters.len() as u64,
        ),
        (
            "requests that were cut off or broken",
            found.cuts + found.broken,
            cut / 2,
        ),
        ("clients with a changed request", changed, 1),
    ]
    .into_iter()
    .filter(|(_, got, least)| got < least)
    .map(|(what, got, least)| {
        format!("the storm was too tame to prove anything: {got} {what}, at least {least} wanted")
    })
    .collect()
}

async fn read(database: &str) -> Result<HashMap<String, Held>> {
    let (client, connection) = tokio_postgres::connect(database, NoTls).await?;
    let reading = async {
        let quiet = "select count(*) = 0 from pg_stat_activity where datname = current_database()
                     and pid <> pg_backend_pid() and backend_type = 'client backend' and application_name <> $1";
        pgonce_testkit::wait_until(
            "the service's sessions to end",
            Duration::from_secs(20),
            || async {
                client
                    .query_one(quiet, &[&WATCH])
                    .await
                    .is_ok_and(|row| row.get(0))
            },
        )
        .await?;
        let mut held: HashMap<String, Held> = HashMap::new();
        let orders = "select id, customer, reference, item, amount from orders";
        for row in client.query(orders, &[]).await? {
            let order = NewOrder {
                customer: row.get(1),
                reference: row.get(2),
                item: row.get(3),
                amount: row.get(4),
            };
            held.entry(order.reference.clone())
                .or_default()
                .orders
                .push((row.get(0), order));
        }
        let effects = "select coalesce(o.reference, 'no order ' || e.order_id), count(*)
                       from order_event e left join orders o on o.id = e.order_id group by 1";
        for row in client.query(effects, &[]).await? {
            held.entry(row.get(0)).or_default().effects = row.get::<_, i64>(1).unsigned_abs();
        }
        Ok(held)
    };
    tokio::select! {
        lost = connection => Err(lost.err().map_or("the connection was closed".into(), Into::into)),
        read = reading => read,
    }
}

/// Troubles by kind: how many, and a few of them.
#[derive(Debug, Default)]
struct Said(Vec<(&'static str, u64, Vec<String>)>);

impl Said {
    fn say(&mut self, kind: &'static str, example: impl FnOnce() -> String) {
        let at = self
            .0
            .iter()
            .position(|(known, ..)| *known == kind)
            .unwrap_or_else(|| {
                self.0.push((kind, 0, Vec::new()));
                self.0.len() - 1
            });
        let (_, times, examples) = &mut self.0[at];
        *times += 1;
        if examples.len() < EXAMPLES {
            examples.push(example());
        }
    }

    fn into_sentences(self) -> Vec<String> {
        let sentence = |(kind, times, examples): (&str, u64, Vec<String>)| {
            format!(
                "{times} {kind} ({}{})",
                examples.join(", "),
                if times > EXAMPLES as u64 { ", …" } else { "" }
            )
        };
        self.0.into_iter().map(sentence).collect()
    }
}
