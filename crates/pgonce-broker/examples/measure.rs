//! What a relay costs and how fast it is, on a database of yours: drain, latency, memory.
//!
//! `cargo run --release -p pgonce-broker --example measure -- postgres://localhost/empty`

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::time::{Duration, Instant, SystemTime};

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::outbox::{Consumer, Message};
use pgonce::{Once, migrate::Migrator};
use pgonce_broker::{Delivery, Relay, Sink};
use tokio::sync::mpsc;
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;

const BACKLOG: usize = 100_000;
const LIVE: usize = 10_000;

struct Clock(mpsc::UnboundedSender<(SystemTime, String)>);

impl Sink for Clock {
    async fn send(&self, message: &Message) -> Delivery {
        let seen = (
            SystemTime::now(),
            message.payload.clone().unwrap_or_default(),
        );
        match self.0.send(seen) {
            Ok(()) => Delivery::Acknowledged,
            Err(_) => Delivery::Unavailable {
                reason: "gone".into(),
            },
        }
    }
}

fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.unwrap_or("VmHWM: unknown").to_owned()
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// The usual recipe, in batches of a thousand.
async fn skip_locked(client: &Client) -> Result<Duration, tokio_postgres::Error> {
    client
        .batch_execute(
            "create table if not exists usual (id bigint primary key, payload jsonb, published_at timestamptz);
             truncate usual; create index if not exists usual_open on usual (id) where published_at is null",
        )
        .await?;
    let fill = format!(
        "insert into usual select i, jsonb_build_object('n', i, 'x', repeat('x', 150)) from generate_series(1, {BACKLOG}) i"
    );
    client.batch_execute(&fill).await?;
    let batch = client
        .prepare(
            "with b as (select id from usual where published_at is null order by id limit 1000 for update skip locked)
             update usual u set published_at = now() from b where u.id = b.id returning u.id, u.payload::text",
        )
        .await?;
    let begun = Instant::now();
    while !client.query(&batch, &[]).await?.is_empty() {}
    Ok(begun.elapsed())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args()
        .nth(1)
        .ok_or("give the address of an empty database")?;
    let manager = deadpool_postgres::Manager::new(url.parse()?, NoTls);
    let pool = deadpool_postgres::Pool::builder(manager)
        .max_size(4)
        .build()?;
    Migrator::new(TokioPostgres::new(pool.clone())).up().await?;
    let once = Once::tokio_postgres(pool);
    let client = connect(&url).await?;
    let usual = skip_locked(&client).await?;
    println!(
        "SKIP LOCKED + UPDATE: {:.0} events/s",
        BACKLOG as f64 / usual.as_secs_f64()
    );

    for (what, subjects) in [("100k subjects", BACKLOG), ("one hot subject", 1)] {
        let outbox = once.outbox();
        let _ = outbox.drop_consumer("measure").await?;
        outbox
            .create_consumer(&Consumer::new("measure").begin(pgonce::outbox::Begin::Now))
            .await?;
        let fill = format!(
            "select count(pgonce.publish('t', 'x', 's' || i % {subjects}, jsonb_build_object('n', i, 'x', repeat('x', 150)))) from generate_series(1, {BACKLOG}) i"
        );
        client.batch_execute(&fill).await?;
        let (sender, mut events) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let begun = Instant::now();
        let relay = Relay::new(outbox, "measure", Clock(sender)).run(stop.clone());
        let relay = tokio::spawn(relay);
        for _ in 0..BACKLOG {
            events.recv().await.ok_or("the relay ended")?;
        }
        let drained = begun.elapsed().as_secs_f64();
        println!(
            "relay, {what}: {:.0} events/s; {}",
            BACKLOG as f64 / drained,
            memory()
        );

        // A thousand commits a second, each with the time at which its reply came.
        let (told, mut commits) = mpsc::unbounded_channel();
        for writer in 0..4 {
            let (client, told) = (connect(&url).await?, told.clone());
            tokio::spawn(async move {
                let publish = client
                    .prepare("select pgonce.publish('t', 'x', $1, to_jsonb($2::bigint))")
                    .await?;
                let mut tick = tokio::time::interval(Duration::from_millis(4));
                for n in 0..LIVE / 4 {
                    tick.tick().await;
                    let n = (writer * LIVE + n) as i64;
                    let subject = format!("s{}", n as usize % subjects);
                    client.execute(&publish, &[&subject, &n]).await?;
                    let _ = told.send((n, SystemTime::now()));
                }
                Ok::<_, tokio_postgres::Error>(())
            });
        }
        drop(told);
        let mut seen = std::collections::HashMap::new();
        while seen.len() < LIVE {
            let (at, payload) = events.recv().await.ok_or("the relay ended")?;
            seen.insert(payload, at);
        }
        let mut delays = Vec::with_capacity(LIVE);
        while let Some((n, committed)) = commits.recv().await {
            let at = seen.get(&n.to_string()).ok_or("an event is missing")?;
            delays.push(at.duration_since(committed).unwrap_or_default());
        }
        delays.sort_unstable();
        println!(
            "  commit to sink at 1000/s: p50 {:?}, p99 {:?}",
            delays[LIVE / 2],
            delays[LIVE / 100 * 99]
        );
        stop.cancel();
        relay.await??;
    }
    Ok(())
}
