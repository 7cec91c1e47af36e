use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{Call, Plan};
use crate::history::{History, Outcome};

/// More attempts than these by one client are pointless while the faults go on.
const MOST_TRIES: u32 = 40;
/// How often another payload is sent under a used key. It never succeeds, and most answers are cut off.
const CONFLICTS: u32 = 4;
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// Those who call the handler.
pub(super) struct Clients<H> {
    pub(super) handler: Arc<H>,
    pub(super) plan: Plan,
    pub(super) url: String,
    pub(super) history: Arc<History>,
    /// Attempts that have ended.
    pub(super) ended: watch::Sender<u64>,
    /// Makes this storm's intents differ from those of an earlier one in the same database.
    pub(super) run: u32,
}

impl<H, F> Clients<H>
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Outcome> + Send + 'static,
{
    pub(super) fn intent(&self, number: u64) -> String {
        format!("storm-{:08x}-{number}", self.run)
    }

    /// Several clients ask for one intent at the same time, each until it gets success.
    pub(super) async fn ask_for(self: Arc<Self>, number: u64, until: Instant) {
        let mut clients = JoinSet::new();
        for _ in 0..self.plan.duplicates {
            let client = Arc::clone(&self);
            clients.spawn(async move {
                let payload = (client.plan.payload)(number);
                client
                    .insist(&client.intent(number), &payload, MOST_TRIES, until)
                    .await
            });
        }
        let mut done = false;
        while let Some(client) = clients.join_next().await {
            done |= matches!(client, Ok(Some(Outcome::Success(_))));
        }
        if done && self.plan.conflicts && Instant::now() < until {
            let payload = (self.plan.payload)(number);
            let other = (self.plan.payload)(number + 1);
            if other != payload {
                self.insist(&self.intent(number), &other, CONFLICTS, until)
                    .await;
            }
        }
    }

    /// Tries until it gets success; gives its last answer.
    pub(super) async fn insist(
        &self,
        intent: &str,
        payload: &Value,
        tries: u32,
        until: Instant,
    ) -> Option<Outcome> {
        let mut last = None;
        let mut pause = Duration::from_millis(1);
        for _ in 0..tries {
            if Instant::now() >= until {
                break;
            }
            let outcome = self.call(intent, payload).await;
            let done = matches!(outcome, Outcome::Success(_));
            last = Some(outcome);
            if done {
                break;
            }
            sleep(pause.mul_f64(0.5 + rand::random::<f64>())).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
        last
    }

    /// One attempt.
    pub(super) async fn call(&self, intent: &str, payload: &Value) -> Outcome {
        let attempt = self.history.invoke(intent, payload.clone());
        let call = Call {
            intent: intent.to_owned(),
            payload: payload.clone(),
            url: self.url.clone(),
            attempt,
            history: Arc::clone(&self.history),
        };
        // A task of its own, so that a panic is an outcome and not the end of the storm; in a
        // set, which ends its task when it is dropped.
        let mut task = JoinSet::new();
        let handler = Arc::clone(&self.handler);
        task.spawn(async move { handler(call).await });
        let outcome = match timeout(self.plan.call_timeout, task.join_next()).await {
            Ok(Some(Ok(outcome))) => outcome,
            Ok(Some(Err(error))) => {
                self.history.saw("panic");
                Outcome::Unknown(format!("the handler did not end well: {error}"))
            }
            Ok(None) | Err(_) => {
                self.history.saw("given up");
                Outcome::Unknown(format!("no answer within {:?}", self.plan.call_timeout))
            }
        };
        self.history.outcome(attempt, outcome.clone());
        self.ended.send_modify(|ended| *ended += 1);
        outcome
    }
}
