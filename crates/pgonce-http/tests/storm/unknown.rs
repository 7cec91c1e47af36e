//! Leased work with an unknown result is refused to all alike, and never done again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::scope::Stale;
use pgonce_testkit::checker::{self, Coverage, Effect};
use pgonce_testkit::{Action, CuttingProxy, Entry, FaultPlan, History, Outcome, Spread};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, timeout};

use crate::client::{ABANDONED, Try, send};
use crate::service::{Mode, Shore, TABLE, policy, vanishes};
use crate::support::World;
use crate::{EFFECTS, chosen, failures_are_true, url};

/// Faults that leave claims and answers unknown, on one connection each.
fn fault_plan(seed: u64, connections: u64) -> FaultPlan {
    let spread = Spread {
        connections,
        to_server: 12,
        to_client: 12,
        actions: vec![Action::DropReply, Action::DropReply, Action::CutAfter],
    };
    FaultPlan::random(seed, usize::try_from(connections).unwrap(), &spread)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_work_with_an_unknown_result_is_refused_to_all_alike_and_never_done_again() {
    let seed = chosen("PGONCE_STORM_SEED").unwrap_or_else(rand::random);
    let intents = chosen("PGONCE_STORM_INTENTS").unwrap_or(24);
    let world = World::<Sqlx>::new().await;
    world.run_sql(TABLE).await;
    let agreed = world.leased(policy().stale(Stale::Refuse));
    agreed.agree().await.unwrap();
    let proxy = CuttingProxy::start(("127.0.0.1", world.port)).unwrap();
    for trial in &fault_plan(seed, 4 * intents).trials {
        proxy.arm_trial(trial);
    }
    let shore = Shore::<Sqlx>::new(&world, Mode::Refusing);
    let service = shore.address(&proxy.url_for(&world.database)).await;
    let history = Arc::new(History::new());
    let mut clients = JoinSet::new();
    for number in 0..3 * intents {
        let history = history.clone();
        let intent = format!("delivery-{}", number % intents);
        let payload = json!({ "amount": number % intents });
        clients.spawn(async move {
            // Until there is a final answer.
            let mut retry = interval(Duration::from_millis(50));
            let until = Instant::now() + Duration::from_secs(120);
            loop {
                let number = history.invoke(&*intent, payload.clone());
                let (intent, payload) = (intent.clone(), payload.clone());
                let one = Try {
                    intent,
                    payload,
                    number,
                };
                let sent = timeout(Duration::from_secs(30), send(service, &one, seed));
                let outcome = match sent.await {
                    Ok(received) => received.outcome,
                    Err(_) => Outcome::Unknown("no answer in time".to_owned()),
                };
                history.outcome(number, outcome.clone());
                match &outcome {
                    Outcome::Success(_) => return,
                    Outcome::Unknown(why) if why == ABANDONED => {
                        history.saw("abandoned");
                        return;
                    }
                    _ => assert!(Instant::now() < until, "{one:?} last got {outcome:?}"),
                }
                retry.tick().await;
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    proxy.disarm();
    shore.drained().await;
    let effects = Effect::read(&url(&world), EFFECTS).await.unwrap();
    let vanished = (0..intents).filter(|amount| vanishes(*amount)).count();
    let enough = Coverage::new().require("abandoned", 3 * vanished as u64);
    let decision = checker::check_covering(&history, &effects, &enough);
    println!(
        "PGONCE_STORM_SEED={seed} {} faults, {decision}",
        proxy.all_fired().len()
    );
    assert!(decision.passed(), "PGONCE_STORM_SEED={seed}\n{decision}");
    assert!(!proxy.all_fired().is_empty(), "nothing was cut");
    failures_are_true(&world, &history, seed).await;
    no_answer_contradicts_it(&history, seed);
}

/// An intent is done for all who were answered, or abandoned for all of them.
fn no_answer_contradicts_it(history: &History, seed: u64) {
    let (mut intents, mut answers) = (BTreeMap::new(), BTreeMap::<_, BTreeSet<bool>>::new());
    for entry in history.entries() {
        match entry {
            Entry::Invoke {
                attempt, intent, ..
            } => drop(intents.insert(attempt, intent)),
            Entry::Outcome {
                attempt, outcome, ..
            } => {
                let done = match outcome {
                    Outcome::Success(_) => true,
                    Outcome::Unknown(why) if why == ABANDONED => false,
                    _ => continue,
                };
                answers
                    .entry(intents[&attempt].clone())
                    .or_default()
                    .insert(done);
            }
            Entry::Saw { .. } => {}
        }
    }
    for (intent, answers) in answers {
        assert_eq!(
            answers.len(),
            1,
            "{intent}: done and abandoned, PGONCE_STORM_SEED={seed}"
        );
    }
}
