//! Processes and the broker are killed, and everything comes more than once; each order is counted once.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_nats::jetstream;
use full_circle::{CONSUMER, RELAY, STREAM, order, set_up};
use futures_util::future::join_all;
use pgonce_testkit::{Nats, shared, wait_until};
use sqlx::PgPool;

const DEADLINE: Duration = Duration::from_secs(120);
const ORDERS: i64 = 120;
const ACCOUNTS: i64 = 5;

/// A relay or a consumer that can be killed, as a process of its own.
struct Part {
    what: &'static str,
    database: String,
    nats: String,
    child: Child,
}

impl Part {
    fn start(what: &'static str, database: &str, nats: &str) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_full-circle"))
            .arg(what)
            .env("DATABASE_URL", database)
            .env("NATS_URL", nats)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            what,
            database: database.to_owned(),
            nats: nats.to_owned(),
            child,
        }
    }

    /// SIGKILL, in the middle of whatever it does; another takes its place.
    fn replace(&mut self) {
        *self = Self::start(self.what, &self.database, &self.nats);
    }

    /// As a supervisor does: a service that found no NATS at its start has ended, and is started again.
    fn keep_up(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            self.replace();
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn number(pool: &PgPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

/// How many messages the stream got, and how many of them the consumer has not settled.
async fn stream(nats: &Nats) -> (u64, u64) {
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let stream = context.get_stream(STREAM).await.unwrap();
    let got = stream.cached_info().state.last_sequence;
    match stream.consumer_info(CONSUMER).await {
        Ok(state) => (got, state.num_pending + state.num_ack_pending as u64),
        Err(_) => (got, got),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_often_parts_are_killed_and_things_repeated_each_order_counts_once() {
    let server = shared(None).await.unwrap();
    let empty = async |_: String| Ok::<(), std::io::Error>(());
    server.template("empty", empty).await.unwrap();
    let database = server.database_from("empty").await.unwrap();
    let pool = PgPool::connect(&database.url()).await.unwrap();
    let nats = Nats::start().await.unwrap();
    let once = set_up(&pool, &nats.url()).await.unwrap();
    let start = |what| Part::start(what, &database.url(), &nats.url());
    let mut parts = ["relay", "relay", "consume", "consume"].map(start);

    let counted = "select coalesce(sum(orders), 0)::bigint from balance";
    let mut kills = 0;
    for n in 1..=ORDERS {
        // Three clients at once send the same request; some are busy.
        let (key, account) = (format!("order-{n}"), format!("account-{}", n % ACCOUNTS));
        let asked = join_all((0..3).map(|_| order(&once, &key, &account, n))).await;
        let _: i64 = asked
            .into_iter()
            .find_map(Result::ok)
            .unwrap()
            .read()
            .unwrap();
        if n % 12 != 0 {
            continue;
        }
        // In the midst of it: some of these orders are counted, and not all.
        let some = || {
            parts.iter_mut().for_each(Part::keep_up);
            async { number(&pool, counted).await > n - 12 }
        };
        wait_until("some orders to be counted", DEADLINE, some)
            .await
            .unwrap();
        match (n / 12) % 3 {
            0 => {
                nats.kill().await.unwrap();
                nats.restart().await.unwrap();
            }
            1 => parts[kills % 2].replace(),
            _ => parts[2 + kills % 2].replace(),
        }
        kills += 1;
        if kills % 4 == 0 {
            // The relay's place is lost: everything is sent again.
            once.outbox().replay_from(RELAY, 1).await.unwrap();
        }
    }
    let all = || {
        parts.iter_mut().for_each(Part::keep_up);
        async { number(&pool, counted).await >= ORDERS }
    };
    wait_until("all orders to be counted", DEADLINE, all)
        .await
        .unwrap();
    // Whatever is still under way would be counted now, if it were counted again.
    let goal = once.outbox().goal().await.unwrap();
    let quiet = || {
        parts.iter_mut().for_each(Part::keep_up);
        async { once.outbox().caught_up(RELAY, &goal).await.unwrap() && stream(&nats).await.1 == 0 }
    };
    wait_until("everything to be settled", DEADLINE, quiet)
        .await
        .unwrap();
    drop(parts);

    let (sent, _) = stream(&nats).await;
    assert!(
        sent > ORDERS as u64,
        "{sent} messages: no copy ever came, and the test shows nothing"
    );
    assert_eq!(number(&pool, "select count(*) from orders").await, ORDERS);
    let differ = "select count(*) from ((select account, count(*), sum(amount)::bigint from orders group by 1) \
         except (select account, orders, amount from balance)) d";
    assert_eq!(number(&pool, differ).await, 0, "a balance is wrong");
    assert_eq!(
        number(&pool, "select count(*) from balance").await,
        ACCOUNTS
    );
    let poison = "select count(*) from pgonce.inbox_poison";
    assert_eq!(number(&pool, poison).await, 0);
}
