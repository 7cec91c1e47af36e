//! A process to be murdered: walks one path of the protocol and says on stdout how far it came.
//!
//! `kill-worker DRIVER URL PATH KEY`; where it meets a fault is in `PGONCE_FAULTS`.

// It is a part of a test: what is unexpected ends it, and its output is its report.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod paying;
mod shelf;

use std::future::pending;
use std::io::{BufRead as _, stdin};
use std::sync::Arc;
use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::Tx;
use pgonce::migrate::Migrator;
use pgonce::outbox::Message;
use pgonce::queue::Job;
use pgonce::{Ack, Attempt, Claim, Done, Error, Failure, Intent, Lease, Once, Result};
use pgonce_broker::sinks::JsonLines;
use pgonce_broker::{Consumer, Dedup, Delivery, Relay, Sink};
use pgonce_tests::{SCOPE, TestDriver, effect, slow_work};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const HOUR: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [driver, url, path, key] = &args[..] else {
        panic!("kill-worker DRIVER URL PATH KEY, not {args:?}");
    };
    match driver.as_str() {
        Sqlx::NAME => live::<Sqlx>(url, path, key).await,
        TokioPostgres::NAME => live::<TokioPostgres>(url, path, key).await,
        other => panic!("there is no driver {other}"),
    }
}

/// Walks the path; after a panic it walks it again, with the same pool.
async fn live<D: TestDriver>(url: &str, path: &str, key: &str) {
    let once = Once::builder(D::connect(url, 4)).build().unwrap();
    loop {
        let walk = walk(
            once.clone(),
            url.to_owned(),
            path.to_owned(),
            key.to_owned(),
        );
        match tokio::spawn(walk).await {
            Ok(Ok(())) => break,
            Ok(Err(error)) => {
                println!("error {}", error.code());
                break;
            }
            Err(_) => println!("panicked"),
        }
    }
    if let Some((point, _)) = std::env::var("PGONCE_FAULTS")
        .ok()
        .as_deref()
        .and_then(|text| text.split_once('='))
    {
        println!("reached {}", pgonce::faults::reached(point));
    }
}

async fn walk<D: TestDriver>(once: Once<D>, url: String, path: String, key: String) -> Result<()> {
    let scope = if path == "waiting" {
        "orders.waiting"
    } else {
        SCOPE
    };
    let intent = Intent::new(scope, &key, &json!({"item": "book"}))?;
    match path.as_str() {
        "atomic" | "waiting" => say(once.run(&intent, succeed::<D>).await?),
        "failing" => say(once.run(&intent, fail::<D>).await?),
        "leased" => {
            let work = async |lease: Lease<D>| {
                println!("kind {:?}", lease.kind());
                finish(lease.begin().await?).await
            };
            say(once.run_leased(&intent, work).await?);
        }
        "heartbeat" => {
            let mut lease = take(&once, &intent, HOUR).await?;
            lease.heartbeat().await?;
            finish(lease.begin().await?).await.map(say)?;
        }
        "ending" => {
            let lease = take(&once, &intent, HOUR).await?;
            let answer = Ack::value(&json!({"by": std::process::id()}))?;
            say(lease.succeed(answer).await?);
        }
        "release" => take(&once, &intent, HOUR).await?.release().await?,
        "migrate" => drop(Migrator::new(once.driver().clone()).up().await?),
        "zombie" => zombie(&once, &key).await?,
        "relay" => relay(&once, &key).await?,
        "queue" => work_off(&once).await,
        "external" => {
            paying::pay(&once, &url, key == "keys", until_cancelled()).await;
        }
        "consume" => consume(&once, &url, &key).await?,
        other => panic!("there is no path {other}"),
    }
    Ok(())
}

async fn succeed<D: TestDriver>(attempt: Attempt<D>) -> Result<Done> {
    println!("kind {:?}", attempt.kind());
    finish(attempt).await
}

async fn fail<D: TestDriver>(mut attempt: Attempt<D>) -> Result<Done> {
    effect(&mut attempt).await?;
    Err(Failure::transient("later", "not now").into())
}

async fn finish<D: TestDriver>(mut attempt: Attempt<D>) -> Result<Done> {
    effect(&mut attempt).await?;
    attempt
        .succeed(Ack::value(&json!({"by": std::process::id()}))?)
        .await
}

fn say(done: Done) {
    println!("done {}", done.ack().json().unwrap()["by"]);
}

async fn take<D: TestDriver>(
    once: &Once<D>,
    intent: &Intent,
    length: Duration,
) -> Result<Lease<D>> {
    match once.lease(intent, length).await? {
        Claim::Run(lease) => Ok(lease),
        Claim::Busy { retry_after } => Err(Error::Busy {
            retry_after,
            accepted: false,
        }),
        other => panic!("{other:?}"),
    }
}

/// Takes a lease for each act, waits for a line, and then acts as if no time had passed.
async fn zombie<D: TestDriver>(once: &Once<D>, key: &str) -> Result<()> {
    let mut leases = Vec::new();
    for act in pgonce_tests::ZOMBIE_ACTS {
        let intent = Intent::new(SCOPE, format!("{key} {act}"), &json!({"item": "book"}))?;
        leases.push((act, take(once, &intent, SHORT).await?));
    }
    println!("held");
    stdin().lock().read_line(&mut String::new()).unwrap();
    for (act, mut lease) in leases {
        let end = match *act {
            "heartbeat" => lease.heartbeat().await,
            "hold" => lease.renew_while(pending::<()>()).await,
            "succeed" => lease.succeed(Ack::value("zombie")?).await.map(drop),
            "fail" => lease.fail(Failure::permanent("zombie", "too late")).await,
            "release" => lease.release().await,
            _ => match lease.begin().await {
                Ok(attempt) => finish(attempt).await.map(drop),
                Err(error) => Err(error),
            },
        };
        println!(
            "{act} {}",
            end.as_ref().map_or_else(Error::code, |()| "accepted")
        );
    }
    Ok(())
}

/// Relays the events of consumer `c` to the end of a file, until it gets the line to stop.
async fn relay<D: TestDriver>(once: &Once<D>, file: &str) -> Result<()> {
    let out = tokio::fs::OpenOptions::new().append(true).open(file).await;
    let sink = Squeamish {
        lines: JsonLines::new("/kill", out.unwrap()),
        cure: format!("{file}.cured").into(),
    };
    let relay = Relay::new(once.outbox(), "c", sink);
    relay.lease(SHORT * 3).run(until_cancelled()).await
}

/// Is cancelled when a line comes.
fn until_cancelled() -> CancellationToken {
    let stop = CancellationToken::new();
    let outcome = stop.clone();
    std::thread::spawn(move || {
        stdin().lock().read_line(&mut String::new()).unwrap();
        outcome.cancel();
    });
    stop
}

/// Does jobs until it gets the line to stop. The first takes longer than a heartbeat, some fail the first time, and some
/// have no effect of their own.
async fn work_off<D: TestDriver>(once: &Once<D>) {
    let handler = |job: Job<D>| async move {
        let n: i64 = job.payload()?;
        if n == 1 {
            slow_work(SHORT * 3).await;
        }
        match n {
            n if n % 5 == 3 && job.attempts() == 1 => Err(Error::work("not the first time")),
            n if n % 7 == 0 => job.done(&n),
            n => {
                job.transact(async |mut tx| {
                    let sql = format!("insert into made (n) values ({n})");
                    D::exec(tx.conn(), &sql).await?;
                    Ok(n)
                })
                .await
            }
        }
    };
    let worker = once.worker(["q"], handler).concurrency(4).prefetch(4);
    let worker = worker.lease(SHORT).poll_interval(SHORT / 50);
    worker.run(until_cancelled().cancelled_owned()).await;
}

/// Applies what is on the shelf, until it gets the line to stop. Some messages fail the first time.
async fn consume<D: TestDriver>(once: &Once<D>, url: &str, by: &str) -> Result<()> {
    let shelf = shelf::Shelf::open(url, by == "positions").await;
    let handler = |mut tx: Tx<D>, message: Arc<pgonce::inbox::Message>| async move {
        let n: i64 = message.json().unwrap().as_i64().unwrap();
        let sql = format!("insert into received (n) values ({n})");
        D::exec(tx.conn(), &sql).await?;
        match n % 31 == 7 && !message.redelivered {
            true => Err(Failure::transient("later", "not the first time").into()),
            false => Ok(()),
        }
    };
    let consumer = Consumer::new(once, "c", shelf, handler)
        .dedup(match by {
            "positions" => Dedup::Positions,
            _ => Dedup::Ids,
        })
        .batch(10, Duration::from_millis(1))
        .poll_stored(Duration::from_millis(20))
        .lease(SHORT);
    consumer.run(until_cancelled()).await
}

/// Does not take poison before somebody has made the file that cures it.
struct Squeamish<S> {
    lines: S,
    cure: std::path::PathBuf,
}

impl<S: Sink> Sink for Squeamish<S> {
    async fn send(&self, message: &Message) -> Delivery {
        if message.headers.get("poison").is_some() && !self.cure.exists() {
            return Delivery::Poison {
                reason: "it is poison".into(),
            };
        }
        self.lines.send(message).await
    }
}
