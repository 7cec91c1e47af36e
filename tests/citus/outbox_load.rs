//! Publishers and relays while servers crash and tenants move: what was committed is delivered, in order within its subject, and
//! nothing else is.

use std::collections::BTreeSet;
use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Attempt, Event, Intent, Once};
use pgonce_tests::TestDriver as _;
use pgonce_tests::relay::{Running, Witness};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, Db};
use crate::distributed::{distributed, once};
use crate::load::{move_of, moved};
use crate::outbox::relay;

const TENANTS: [&str; 4] = ["a", "b", "c", "d"];

/// An order and its event, in one command.
async fn order(once: &Once<TokioPostgres>, tenant: &str, n: u64) -> pgonce::Result<()> {
    let intent = Intent::new("orders.create", n.to_string(), &n)?.tenant(tenant)?;
    let work = |mut tx: Attempt<TokioPostgres>| async move {
        let order = format!(
            "insert into orders (tenant, key) values ('{}', '{n}')",
            tx.tenant()
        );
        TokioPostgres::exec(tx.conn(), &order).await?;
        let event = Event::new("orders", "order.created").subject(n / 100_000);
        tx.publish(event.payload(&json!({"n": n}))?).await?;
        // What is rolled back in between is no event.
        let lost = format!(
            "savepoint s; select pgonce.publish('orders', 'lost', 's', '{{\"n\": 0}}', p_tenant => '{}'); rollback to s",
            tx.tenant()
        );
        TokioPostgres::exec(tx.conn(), &lost).await?;
        tx.succeed(&1).await
    };
    once.run(&intent, work).await.map(drop)
}

/// Orders until it is stopped, each until it is acknowledged. Returns how many were.
fn publisher(url: &str, number: u64, stop: &CancellationToken) -> JoinHandle<u64> {
    let (once, stop) = (once(url), stop.clone());
    let tenant = TENANTS[number as usize % TENANTS.len()];
    tokio::spawn(async move {
        let mut acknowledged = 0;
        // Not more than relays can deliver in time.
        while !stop.is_cancelled() && acknowledged < 250 {
            let n = number * 100_000 + acknowledged + 1;
            while order(&once, tenant, n).await.is_err() {
                tokio::task::yield_now().await;
            }
            acknowledged += 1;
        }
        acknowledged
    })
}

struct Load {
    stop: CancellationToken,
    publishers: Vec<JoinHandle<u64>>,
    relays: Vec<Running>,
    sink: Witness,
}

impl Load {
    async fn start(db: &Db) -> Self {
        let subscribe =
            "select pgonce.create_subscription('c', 'now', p_backoff => '50 milliseconds')";
        db.see().await.run(subscribe).await;
        let (stop, sink) = (CancellationToken::new(), Witness::default());
        Self {
            publishers: (0..4).map(|n| publisher(db.url(), n, &stop)).collect(),
            relays: (0..2).map(|_| Self::relay(db, &sink)).collect(),
            stop,
            sink,
        }
    }

    fn relay(db: &Db, sink: &Witness) -> Running {
        Running::start(relay(db.url(), sink).lease(Duration::from_secs(3)))
    }

    /// Waits until so many more were delivered.
    async fn go_on(&self, events: usize) {
        let goal = self.sink.numbers().len() + events;
        let more = || async { self.sink.numbers().len() >= goal };
        let limit = Duration::from_secs(120);
        pgonce_testkit::wait_until("more events", limit, more)
            .await
            .unwrap();
    }

    /// A relay is killed, and another begins.
    async fn replace_relay(&mut self, db: &Db) {
        self.relays.remove(0).kill().await;
        self.relays.push(Self::relay(db, &self.sink));
    }

    async fn end(self, db: &Db, what: &str) {
        self.stop.cancel();
        let mut acknowledged = 0;
        for publisher in self.publishers {
            acknowledged += publisher.await.unwrap();
        }
        let see = db.see().await;
        see.run("select recover_prepared_transactions()").await;
        see.wait_until("select count(*) = 0 from pgonce.job_live")
            .await;
        for relay in self.relays {
            relay.stop().await.unwrap();
        }
        let again = self.sink.check();
        let delivered: BTreeSet<u64> = self.sink.numbers().into_iter().collect();
        let orders = see.rows("select key from orders").await;
        let orders: Vec<u64> = (orders.into_iter())
            .map(|row| row[0].as_deref().unwrap().parse().unwrap())
            .collect();
        println!(
            "{what}: {acknowledged} commands acknowledged, {} events, {again} of them delivered again",
            delivered.len()
        );
        assert_eq!(orders.len() as u64, acknowledged);
        assert_eq!(delivered, orders.into_iter().collect());
    }
}

async fn crashed(victim: usize) {
    let cluster = Cluster::start().await;
    let db = distributed(&cluster, "crashed_events").await;
    let mut load = Load::start(&db).await;
    for _ in 0..3 {
        load.go_on(40).await;
        load.replace_relay(&db).await;
        cluster.nodes[victim].crash().await.unwrap();
        cluster.nodes[victim].start_again().await.unwrap();
    }
    load.go_on(40).await;
    load.end(&db, &format!("node {victim} crashed 3 times"))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn events_survive_crashes_of_a_worker() {
    crashed(1).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn events_survive_crashes_of_the_coordinator() {
    crashed(0).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn events_keep_their_order_while_tenants_move() {
    let cluster = Cluster::start().await;
    let db = distributed(&cluster, "moving_events").await;
    let mut load = Load::start(&db).await;
    for round in 0..6 {
        load.go_on(30).await;
        let mode = ["block_writes", "force_logical"][round % 2];
        moved(&db, &move_of(TENANTS[round % TENANTS.len()], mode)).await;
        if round == 3 {
            load.replace_relay(&db).await;
        }
    }
    load.go_on(30).await;
    load.end(&db, "tenants moved").await;
}
