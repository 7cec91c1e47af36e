//! A provider that follows a script.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pgonce::external::{CallError, Effect, Found, Provider, Reply, Step, Storage};
use pgonce::{Error, Failure, Intent, Lease, Once};
use pgonce_tests::TestDriver;
use serde_json::{Value, json};

pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// How the bank answers a request.
#[derive(Debug, Clone)]
pub(super) enum Act {
    Confirm,
    Reject,
    NotNow,
    /// It has charged, and nobody gets the answer.
    Cut,
    /// It says that the result comes later.
    Accept(&'static str),
    /// Never answers.
    Hang,
    /// It has charged, and says this.
    Say(Reply),
}

#[derive(Debug)]
pub(super) struct Bank {
    pub(super) acts: Mutex<VecDeque<Act>>,
    /// Effect keys of the requests that came, in order.
    pub(super) came: Mutex<Vec<String>>,
    pub(super) found: Mutex<Option<Found>>,
    pub(super) asked: Mutex<u32>,
    pub(super) storage: Storage,
}

impl Bank {
    pub(super) fn new(acts: impl IntoIterator<Item = Act>) -> Self {
        Self {
            acts: Mutex::new(acts.into_iter().collect()),
            came: Mutex::default(),
            found: Mutex::default(),
            asked: Mutex::default(),
            storage: Storage::Full,
        }
    }

    pub(super) fn came(&self) -> Vec<String> {
        locked(&self.came).clone()
    }

    pub(super) fn knows(&self, found: Found) {
        *locked(&self.found) = Some(found);
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn receipt() -> Reply {
    Reply::new(&json!({"charged": 5, "card": "4242 4242"}))
        .unwrap()
        .reference("ch_1")
}

impl Provider for Bank {
    fn name(&self) -> &str {
        "bank"
    }

    async fn call(&self, effect: &Effect, _: &Value) -> Result<Reply, CallError> {
        locked(&self.came).push(effect.key.clone());
        let act = locked(&self.acts).pop_front().unwrap_or(Act::Confirm);
        match act {
            Act::Confirm => Ok(receipt()),
            Act::Reject => Err(CallError::Rejected(Failure::permanent(
                "declined", "no funds",
            ))),
            Act::NotNow => Err(CallError::NotSent("too many requests".into())),
            Act::Cut => Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()),
            Act::Accept(reference) => Err(CallError::Unknown {
                why: "accepted".into(),
                reference: Some(reference.into()),
            }),
            Act::Hang => std::future::pending().await,
            Act::Say(reply) => Ok(reply),
        }
    }

    async fn look_up(&self, _: &Effect) -> Result<Found, Box<dyn std::error::Error + Send + Sync>> {
        *locked(&self.asked) += 1;
        Ok(locked(&self.found).clone().unwrap_or(Found::Unknown))
    }

    fn store_request(&self) -> Storage {
        self.storage.clone()
    }

    fn store_response(&self) -> Storage {
        self.storage.clone()
    }
}

/// A payment: one step, whose reply is the answer.
pub(super) async fn pay<D: TestDriver>(
    once: &Once<D>,
    intent: &Intent,
    step: Step,
    bank: &Bank,
) -> Result<Reply, Error> {
    let step = &step;
    let done = once
        .run_leased(intent, |mut lease: Lease<D>| async move {
            let request = json!({"amount": 5, "card": "4242 4242"});
            let reply = lease.external().call(step.clone(), bank, &request).await?;
            let answer = (reply.reference.clone(), reply.body.clone());
            lease.succeed(&answer).await
        })
        .await?;
    let (reference, body) = done.into_answer()?;
    let mut reply = Reply::default();
    (reply.reference, reply.body) = (reference, body);
    Ok(reply)
}

/// The code of the failure that a payment ended with.
pub(super) fn code(paid: Result<Reply, Error>) -> String {
    match paid {
        Err(Error::Refused(failure) | Error::Failed(failure)) => failure.code().to_owned(),
        Err(error) => error.code().to_owned(),
        Ok(reply) => format!("{:?}", reply.reference),
    }
}
