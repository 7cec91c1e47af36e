//! Every way to make something happen once, as one call: what the caller learns is what the oracle writes down.

use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::retry::in_commit;
use pgonce::{
    Ack, Attempt, Claim, Done, Error, ErrorDetail, Event, Failure, Intent, Message, Once, Result,
};
use pgonce_tests::{TestDriver, hex_text};
use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// The length of every lease here.
pub(crate) const LEASE: Duration = Duration::from_millis(600);

/// The consumer and source of messages.
const CONSUMER: &str = "hostile";
const SOURCE: &str = "shop";

/// One request, as every path gets it.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) intent: Intent,
    /// What this attempt answers where it is the one that does the work.
    pub(crate) answer: Value,
    /// What the work says inside its transaction before anything else.
    pub(crate) preamble: &'static str,
}

impl Request {
    /// Leaves a trace that nothing but pgonce keeps from being left twice.
    fn insert(&self) -> String {
        let (scope, key) = (hex_text(self.intent.scope()), hex_text(self.intent.key()));
        format!("insert into effects values ('', {scope}, {key})")
    }

    fn effect(&self) -> String {
        format!("{}; {}", self.preamble, self.insert())
    }

    fn event(&self) -> Result<Event> {
        Event::new("orders", "order.created")
            .subject(self.intent.key())
            .payload(&1)
    }

    fn message(&self) -> Message {
        Message::new(self.intent.key(), self.intent.fingerprint().as_bytes())
    }
}

async fn do_it<D: TestDriver>(mut attempt: Attempt<D>, request: &Request) -> Result<Done> {
    D::exec(attempt.conn(), &request.effect()).await?;
    attempt.publish(request.event()?).await?;
    attempt.succeed(Ack::value(&request.answer)?).await
}

fn answer(done: &Done) -> Value {
    done.ack().json().cloned().unwrap_or_default()
}

fn busy() -> Error {
    let retry_after = Duration::from_millis(50);
    Error::Busy {
        retry_after,
        accepted: false,
    }
}

/// The answer of a claim that is not the caller's to do.
fn not_mine<R>(claim: Claim<R>) -> Result<Value> {
    match claim {
        Claim::Replay(done) => Ok(answer(&done)),
        Claim::Refused(failure) => Err(failure.into()),
        Claim::Busy { .. } | Claim::Run(_) => Err(busy()),
    }
}

pub(crate) async fn atomic<D: TestDriver>(once: &Once<D>, request: &Request) -> Result<Value> {
    let run = once.run(&request.intent, async |attempt| {
        do_it(attempt, request).await
    });
    Ok(answer(&run.await?))
}

pub(crate) async fn leased<D: TestDriver>(once: &Once<D>, request: &Request) -> Result<Value> {
    let run = once.run_leased(&request.intent, async |lease| {
        lease
            .transact(async |attempt| do_it(attempt, request).await)
            .await
    });
    Ok(answer(&run.await?))
}

/// A holder that vanishes: its lease runs out.
pub(crate) async fn vanishing<D: TestDriver>(once: &Once<D>, request: &Request) -> Result<Value> {
    match once.lease(&request.intent, LEASE).await? {
        Claim::Run(lease) => {
            drop(lease);
            Err(busy())
        }
        other => not_mine(other),
    }
}

/// Work that ends with a transient failure, which is recorded.
pub(crate) async fn failing<D: TestDriver>(once: &Once<D>, request: &Request) -> Result<Value> {
    let run = once.run(&request.intent, async |mut attempt: Attempt<D>| {
        D::exec(attempt.conn(), &request.effect()).await?;
        Err::<Done, _>(Failure::transient("no_luck", "not this time").into())
    });
    Ok(answer(&run.await?))
}

/// What runs in a transaction of the caller's own, which differs by driver.
pub(crate) trait Joins: TestDriver {
    async fn joined(once: &Once<Self>, request: &Request) -> Result<Value>;
    async fn accepted(once: &Once<Self>, request: &Request) -> Result<Value>;
}

impl Joins for Sqlx {
    async fn joined(once: &Once<Self>, request: &Request) -> Result<Value> {
        let tx = once.driver().pool().begin().await?;
        match once.join(tx, &request.intent).await? {
            Claim::Run(mut joined) => {
                Self::exec(joined.conn(), &request.effect()).await?;
                joined.publish(request.event()?).await?;
                let (done, tx) = joined.succeed(Ack::value(&request.answer)?).await?;
                tx.commit().await.map_err(|error| in_commit(error.into()))?;
                Ok(answer(&done))
            }
            other => not_mine(other),
        }
    }

    async fn accepted(once: &Once<Self>, request: &Request) -> Result<Value> {
        let mut tx = once.driver().pool().begin().await?;
        Self::exec(&mut tx, request.preamble).await?;
        if once
            .accept(&mut tx, CONSUMER, SOURCE, &request.message())
            .await?
        {
            Self::exec(&mut tx, &request.insert()).await?;
        }
        tx.commit().await.map_err(|error| in_commit(error.into()))?;
        Ok(Value::Null)
    }
}

impl Joins for TokioPostgres {
    async fn joined(once: &Once<Self>, request: &Request) -> Result<Value> {
        let mut client = from_pool(once).await?;
        let tx = client.transaction().await?;
        match once.join(tx, &request.intent).await? {
            Claim::Run(mut joined) => {
                joined.conn().batch_execute(&request.effect()).await?;
                joined.publish(request.event()?).await?;
                let (done, tx) = joined.succeed(Ack::value(&request.answer)?).await?;
                tx.commit().await.map_err(|error| in_commit(error.into()))?;
                Ok(answer(&done))
            }
            other => not_mine(other),
        }
    }

    async fn accepted(once: &Once<Self>, request: &Request) -> Result<Value> {
        let mut client = from_pool(once).await?;
        let mut tx = client.transaction().await?;
        tx.batch_execute(request.preamble).await?;
        if once
            .accept(&mut tx, CONSUMER, SOURCE, &request.message())
            .await?
        {
            tx.batch_execute(&request.insert()).await?;
        }
        tx.commit().await.map_err(|error| in_commit(error.into()))?;
        Ok(Value::Null)
    }
}

async fn from_pool(once: &Once<TokioPostgres>) -> Result<deadpool_postgres::Object> {
    let pool = once.driver().pool();
    let refused = |error: deadpool_postgres::PoolError| match error {
        deadpool_postgres::PoolError::Backend(error) => error.into(),
        other => Error::Disconnected(other.to_string()),
    };
    pool.get().await.map_err(refused)
}

/// A caller in another language: the SQL functions by hand, in the simple protocol.
#[derive(Debug)]
pub(crate) struct SqlCaller {
    url: String,
    client: Option<Client>,
}

impl SqlCaller {
    pub(crate) fn at(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            client: None,
        }
    }

    /// Makes one of the paths happen on a clean connection.
    pub(crate) async fn call(&mut self, request: &Request, leased: bool) -> Result<Value> {
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => {
                let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
                tokio::spawn(connection);
                client
            }
        };
        let made = match leased {
            true => Self::leased(&client, request).await,
            false => Self::atomic(&client, request).await,
        };
        if made.is_ok() || client.batch_execute("rollback").await.is_ok() {
            self.client = Some(client);
        }
        made
    }

    async fn atomic(client: &Client, request: &Request) -> Result<Value> {
        client.batch_execute("begin").await?;
        let fence = match claim(client, request, "null").await? {
            Claimed::Mine(fence) => fence,
            Claimed::Answer(answer) => {
                client.batch_execute("rollback").await?;
                return Ok(answer);
            }
        };
        client.batch_execute(&publish(request)).await?;
        client.batch_execute(&succeed(request, &fence)).await?;
        let committed = client.batch_execute("commit").await;
        committed.map_err(|error| in_commit(error.into()))?;
        Ok(request.answer.clone())
    }

    async fn leased(client: &Client, request: &Request) -> Result<Value> {
        let lease = format!("'{} ms'", LEASE.as_millis());
        let fence = match claim(client, request, &lease).await.map_err(in_commit)? {
            Claimed::Mine(fence) => fence,
            Claimed::Answer(answer) => return Ok(answer),
        };
        let (scope, key) = names(request);
        client
            .batch_execute(&format!(
                "begin; select pgonce.guard({scope}, {key}, {fence})"
            ))
            .await?;
        client.batch_execute(&publish(request)).await?;
        client.batch_execute(&succeed(request, &fence)).await?;
        let committed = client.batch_execute("commit").await;
        committed.map_err(|error| in_commit(error.into()))?;
        Ok(request.answer.clone())
    }
}

enum Claimed {
    Mine(String),
    Answer(Value),
}

fn names(request: &Request) -> (String, String) {
    (
        hex_text(request.intent.scope()),
        hex_text(request.intent.key()),
    )
}

async fn claim(client: &Client, request: &Request, lease: &str) -> Result<Claimed> {
    let (scope, key) = names(request);
    let digest = pgonce_tests::digest_of(&request.intent);
    let sql = format!(
        "select outcome, fence, answer from pgonce.claim({scope}, {key}, {digest}, {lease})"
    );
    let rows = client.simple_query(&sql).await?;
    let row = rows.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let cell = |n| row.and_then(|row| row.get(n)).unwrap_or_default();
    match cell(0) {
        "fresh" | "takeover" | "retry" => Ok(Claimed::Mine(cell(1).to_owned())),
        "replay" => Ok(Claimed::Answer(cell(2).parse()?)),
        "busy" => Err(busy()),
        other => Err(Error::work(format!("the claim answered {other:?}"))),
    }
}

/// The effect and its event. The fault of a session that the setting ended comes out here.
fn publish(request: &Request) -> String {
    let (_, key) = names(request);
    format!(
        "{}; select pgonce.publish('orders', 'order.created', {key}, '1')",
        request.effect()
    )
}

fn succeed(request: &Request, fence: &str) -> String {
    let (scope, key) = names(request);
    let digest = pgonce_tests::digest_of(&request.intent);
    let answer = hex_text(&request.answer.to_string());
    format!("select pgonce.succeed({scope}, {key}, {digest}, {fence}, ({answer})::jsonb)")
}

/// An error as the history has it: only a lost reply of a commit leaves it open what happened.
pub(crate) fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::Uncertain(_))
}

/// What a caller who waits too long has.
pub(crate) fn hangs() -> Error {
    Error::Database(ErrorDetail {
        code: "HANGS".into(),
        message: "no answer in time".into(),
        detail: None,
        hint: None,
        constraint: None,
    })
}

/// An answer that names its attempt, so that two answers differ.
pub(crate) fn answer_of(attempt: u64) -> Value {
    json!({ "attempt": attempt })
}
