//! The sides in Rust: `peers <postgres url> <redis url> <side> <connections> <seconds>` prints first attempts and
//! duplicates a second; `peers <postgres url> <redis url> outbox <side> <messages>` the events a second of a log that is read from its start.

mod outbox;

use std::sync::Arc;
use std::time::{Duration, Instant};

use idempotent::fingerprint::{DefaultFingerprintStrategy, FingerprintStrategy};
use idempotent::store::valkey::ValkeyStore;
use idempotent::store::{IdempotencyStore, InsertResult};
use idempotent::{CachedResponse, IdempotencyEntry, IdempotencyKey, Metadata};
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::tokio_postgres::{Once, Query};
use pgonce::{Intent, ReplayCache};
use serde_json::json;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls, Statement};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ORDER: &str = "insert into orders (reference, item) values ($1, 'book') returning id";
const MESSAGE: &str = "insert into message (body) values (repeat('x', 200))";

const BOTH: &str = "with placed as (insert into orders (reference, item) values ($1, 'book') returning id), \
    sent as (insert into message (body) values (repeat('x', 200))) select id from placed";

const INSERT: &str =
    "insert into recipe (key, status) values ($1, 'processing') on conflict do nothing";
const DONE: &str = "update recipe set status = 'succeeded', answer = $2 where key = $1";
const ANSWER: &str = "select answer from recipe where key = $1 for update";

/// How many keys of each connection come again, over and over.
const AGAIN: u64 = 100;

enum Side {
    Bare(Connection),
    Recipe(Connection),
    Idempotent(Connection, ValkeyStore),
    Pgonce(Once),
    Execute(Once),
}

/// A connection with every statement prepared.
struct Connection {
    client: Client,
    order: Statement,
    message: Statement,
    insert: Statement,
    done: Statement,
    answer: Statement,
}

impl Connection {
    async fn open(url: &str) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        Ok(Self {
            order: client.prepare(ORDER).await?,
            message: client.prepare(MESSAGE).await?,
            insert: client.prepare(INSERT).await?,
            done: client.prepare(DONE).await?,
            answer: client.prepare(ANSWER).await?,
            client,
        })
    }

    async fn order(&self, key: &str) -> Result<i64> {
        let id = self.client.query_one(&self.order, &[&key]).await?.get(0);
        self.client.execute(&self.message, &[]).await?;
        Ok(id)
    }
}

impl Side {
    async fn place(&self, key: &str) -> Result<()> {
        match self {
            Self::Bare(conn) => {
                conn.client.batch_execute("begin").await?;
                conn.order(key).await?;
                conn.client.batch_execute("commit").await?;
            }
            Self::Recipe(conn) => {
                conn.client.batch_execute("begin").await?;
                if conn.client.execute(&conn.insert, &[&key]).await? == 1 {
                    let answer = conn.order(key).await?.to_string();
                    conn.client.execute(&conn.done, &[&key, &answer]).await?;
                } else {
                    conn.client.query_one(&conn.answer, &[&key]).await?;
                }
                conn.client.batch_execute("commit").await?;
            }
            Self::Idempotent(conn, store) => {
                let print = DefaultFingerprintStrategy.compute("place", key.as_bytes());
                let entry = IdempotencyEntry::new(print, Duration::from_secs(3600));
                let name = IdempotencyKey::new(key)?;
                if let InsertResult::Claimed { fencing_token } =
                    store.try_insert(&name, entry.clone()).await?
                {
                    conn.client.batch_execute("begin").await?;
                    let id = conn.order(key).await?;
                    conn.client.batch_execute("commit").await?;
                    let body = id.to_string().into_bytes().into();
                    let response = CachedResponse {
                        status_code: 201,
                        metadata: Metadata::default(),
                        body,
                    };
                    store
                        .complete(&name, entry.complete(response), fencing_token)
                        .await?;
                }
            }
            Self::Pgonce(once) => {
                let intent = Intent::new("peers", key, &json!({"reference": key}))?;
                let _answer = once
                    .run(&intent, async |mut tx| {
                        let order = tx.conn().prepare_cached(ORDER).await?;
                        let id: i64 = tx.conn().query_one(&order, &[&key]).await?.get(0);
                        let message = tx.conn().prepare_cached(MESSAGE).await?;
                        tx.conn().execute(&message, &[]).await?;
                        tx.succeed(&json!({"id": id})).await
                    })
                    .await?;
            }
            Self::Execute(once) => {
                let intent = Intent::new("peers", key, &json!({"reference": key}))?;
                let both = Query::new(BOTH).bind(key.to_owned(), Type::TEXT);
                let _answer = once.execute::<serde_json::Value>(&intent, both).await?;
            }
        }
        Ok(())
    }
}

/// Commands a second of all workers, each with keys of its own.
async fn measure(
    sides: &[Arc<Side>],
    turn: &str,
    time: Duration,
    keys: Option<u64>,
) -> Result<(f64, u64)> {
    let began = Instant::now();
    let workers: Vec<_> = sides
        .iter()
        .cloned()
        .enumerate()
        .map(|(worker, side)| {
            let turn = turn.to_owned();
            tokio::spawn(async move {
                let mut count = 0u64;
                while began.elapsed() < time {
                    let n = keys.map_or(count, |keys| count % keys.max(1));
                    side.place(&format!("{turn}-{worker}-{n}")).await?;
                    count += 1;
                }
                Result::Ok(count)
            })
        })
        .collect();
    let mut all = 0;
    let mut fewest = u64::MAX;
    for worker in workers {
        let count = worker.await??;
        all += count;
        fewest = fewest.min(count);
    }
    Ok((all as f64 / began.elapsed().as_secs_f64(), fewest))
}

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [postgres, redis, name, connections, seconds] = &args[..] else {
        return Err(
            "usage: peers <postgres url> <redis url> <side> <connections> <seconds>".into(),
        );
    };
    if name == "outbox" {
        let rate = outbox::measure(postgres, connections, seconds.parse()?).await?;
        println!("{rate:.0}");
        return Ok(());
    }
    let (connections, time) = (
        connections.parse::<usize>()?,
        Duration::from_secs_f64(seconds.parse()?),
    );
    let manager = deadpool_postgres::Manager::new(postgres.parse()?, NoTls);
    let pool = deadpool_postgres::Pool::builder(manager)
        .max_size(connections)
        .build()?;
    let builder = pgonce::Once::builder(TokioPostgres::new(pool));
    let once = match &**name {
        "pgonce-cached" => builder.cache(ReplayCache::in_process()),
        "pgonce-redis" => builder.cache(ReplayCache::redis(redis, [7; 32])?),
        _ => builder,
    }
    .build()?;
    let mut sides = Vec::new();
    for _ in 0..connections {
        sides.push(Arc::new(match &**name {
            "bare" => Side::Bare(Connection::open(postgres).await?),
            "recipe" => Side::Recipe(Connection::open(postgres).await?),
            "idempotent" => {
                let store = ValkeyStore::new(redis::Client::open(&**redis)?).await?;
                Side::Idempotent(Connection::open(postgres).await?, store)
            }
            "pgonce" | "pgonce-cached" | "pgonce-redis" => Side::Pgonce(once.clone()),
            "pgonce-execute" => Side::Execute(once.clone()),
            other => return Err(format!("no side {other}").into()),
        }));
    }
    let turn = format!("rust-{name}-{}", std::process::id());
    let (first, made) = measure(&sides, &turn, time, None).await?;
    let again = match &**name {
        "bare" => 0.0,
        _ => measure(&sides, &turn, time, Some(made.min(AGAIN))).await?.0,
    };
    println!("{first:.0} {again:.0}");
    Ok(())
}
