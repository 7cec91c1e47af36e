//! Clients that send everything until it is acknowledged, and often once more, while servers crash and tenants move.

use std::time::Duration;

use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::Message;
use pgonce::ledger::Group;
use pgonce_testkit::wait_until;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, Db};
use crate::distributed::{distributed, once, order};

const TENANTS: [&str; 4] = ["a", "b", "c", "d"];
const DEADLINE: Duration = Duration::from_secs(300);

/// What clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// A message; its effect is an order.
    Message,
    /// Three messages at once, one of them twice; the effect of each is an order.
    Batch,
    /// A group of the ledger.
    Group,
    /// A command; its effect is an order.
    Command,
    /// A step of an entity.
    Step,
}

const WORKS: [Work; 5] = [
    Work::Message,
    Work::Batch,
    Work::Group,
    Work::Command,
    Work::Step,
];

type Tried = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

struct Sender {
    once: Once<TokioPostgres>,
    url: String,
    client: Option<Client>,
    tenant: &'static str,
}

impl Sender {
    async fn connect(&mut self) -> Tried {
        if self.client.is_none() {
            let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
            tokio::spawn(connection);
            self.client = Some(client);
        }
        Ok(())
    }

    async fn messages(&mut self, ids: &[String], batch: bool) -> Tried {
        self.connect().await?;
        let Some(client) = self.client.as_mut() else {
            return Ok(());
        };
        let mut tx = client.transaction().await?;
        let messages: Vec<_> = (ids.iter())
            .map(|id| Message::new(id, id).tenant(self.tenant))
            .collect();
        let new = match batch {
            true => {
                let (consumer, source) = ("billing", "shop");
                (self.once)
                    .accept_batch(&mut tx, consumer, source, &messages, self.tenant)
                    .await?
            }
            false => {
                let one = (self.once).accept(&mut tx, "billing", "shop", &messages[0]);
                one.await?.then(|| ids[0].clone()).into_iter().collect()
            }
        };
        for id in new {
            let order = format!(
                "insert into orders (tenant, key) values ('{}', '{id}')",
                self.tenant
            );
            tx.batch_execute(&order).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    async fn send(&mut self, work: Work, key: &str) -> Tried {
        match work {
            Work::Message => self.messages(&[key.to_owned()], false).await,
            Work::Batch => {
                let ids = ["x", "y", "z", "x"].map(|n| format!("{key}-{n}"));
                self.messages(&ids, true).await
            }
            Work::Group => {
                let group = Group::new("shop", key).debit("cash", 7).credit("ada", 7);
                self.once.post(&group, self.tenant).await?;
                Ok(())
            }
            Work::Command => {
                order(&self.once, self.tenant, key).await?;
                Ok(())
            }
            Work::Step => {
                self.connect().await?;
                let step = format!(
                    "select outcome from pgonce.transition('step', '{key}', 'open', '{key}', null, null, null, '{}')",
                    self.tenant
                );
                if let Some(client) = &self.client {
                    client.batch_execute(&step).await?;
                }
                Ok(())
            }
        }
    }
}

/// Sends until it is stopped. Returns how many keys were acknowledged.
fn client(url: &str, number: usize, stop: &CancellationToken) -> JoinHandle<(Work, i64)> {
    let work = WORKS[number % WORKS.len()];
    let mut sender = Sender {
        once: once(url),
        url: url.to_owned(),
        client: None,
        tenant: TENANTS[number % TENANTS.len()],
    };
    let stop = stop.clone();
    tokio::spawn(async move {
        let mut acknowledged = 0;
        while !stop.is_cancelled() {
            let key = format!("{number}-{acknowledged}");
            // A reply that was lost is sent again, and every third one anyway.
            for _ in 0..1 + usize::from(acknowledged % 3 == 0) {
                while sender.send(work, &key).await.is_err() {
                    sender.client = None;
                    tokio::task::yield_now().await;
                }
            }
            acknowledged += 1;
        }
        (work, acknowledged)
    })
}

/// Tables with accounts for every tenant.
pub(crate) async fn prepared(cluster: &Cluster, name: &str) -> Db {
    let db = distributed(cluster, name).await;
    let see = db.see().await;
    see.run("select pgonce.define_transition('step', '', 'open')")
        .await;
    for tenant in TENANTS {
        see.run(&format!(
            "select pgonce.ledger_open('cash', 'EUR', 'debit', null, 4, '{tenant}'); \
             select pgonce.ledger_open('ada', 'EUR', 'credit', 0, 1, '{tenant}')"
        ))
        .await;
    }
    db
}

const SO_FAR: &str = "select (select count(*) from pgonce.inbox_marker) + (select count(*) from pgonce.ledger_group)";

async fn wait_for_more(db: &Db, more: i64) {
    let from = db.see().await.number(SO_FAR).await;
    let enough = || async { db.see().await.number(SO_FAR).await >= from + more };
    wait_until("more of the load", DEADLINE, enough)
        .await
        .unwrap();
}

struct Load {
    stop: CancellationToken,
    clients: Vec<JoinHandle<(Work, i64)>>,
}

impl Load {
    fn start(urls: &[String]) -> Self {
        let stop = CancellationToken::new();
        let clients = (0..10)
            .map(|n| client(&urls[n % urls.len()], n, &stop))
            .collect();
        Self { stop, clients }
    }

    /// Ends it: what is there is what was acknowledged.
    async fn end(self, db: &Db, what: &str) {
        self.stop.cancel();
        let (mut messages, mut groups, mut commands, mut steps) = (0, 0, 0, 0);
        for client in self.clients {
            match client.await.unwrap() {
                (Work::Message, n) => messages += n,
                (Work::Batch, n) => messages += 3 * n,
                (Work::Group, n) => groups += n,
                (Work::Command, n) => commands += n,
                (Work::Step, n) => steps += n,
            }
        }
        let see = db.see().await;
        see.run("select recover_prepared_transactions()").await;
        println!(
            "{what}: {messages} messages, {groups} groups, {commands} commands and {steps} steps acknowledged"
        );
        for (count, expected) in [
            ("select count(*) from orders", messages + commands),
            (
                "select count(*) from (select distinct tenant, key from orders) o",
                messages + commands,
            ),
            ("select count(*) from pgonce.intent", commands),
            ("select count(*) from pgonce.transition_command", steps),
            (
                "select coalesce(sum(version), 0) from pgonce.transition_entity",
                steps,
            ),
            ("select count(*) from pgonce.inbox_marker", messages),
            ("select count(*) from pgonce.ledger_group", groups),
            ("select count(*) from pgonce.ledger_entry", 2 * groups),
            (
                "select coalesce(sum(balance), 0) from pgonce.ledger_accounts where account = 'ada'",
                7 * groups,
            ),
        ] {
            assert_eq!(see.number(count).await, expected, "{count}");
        }
        let wrong = see.rows("select * from pgonce.ledger_verify()").await;
        assert!(wrong.is_empty(), "{wrong:?}");
        assert!(messages > 0 && groups > 0 && commands > 0 && steps > 0);
    }
}

async fn crashed(victim: usize) {
    let cluster = Cluster::start().await;
    let db = prepared(&cluster, "crashed").await;
    let load = Load::start(&db.urls[..1]);
    for _ in 0..3 {
        wait_for_more(&db, 60).await;
        cluster.nodes[victim].crash().await.unwrap();
        cluster.nodes[victim].start_again().await.unwrap();
    }
    wait_for_more(&db, 60).await;
    load.end(&db, &format!("node {victim} crashed 3 times"))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn everything_that_was_acknowledged_survives_crashes_of_a_worker() {
    crashed(1).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn everything_that_was_acknowledged_survives_crashes_of_the_coordinator() {
    crashed(0).await;
}

/// Moves the shards of a tenant to the other worker.
pub(crate) fn move_of(tenant: &str, mode: &str) -> String {
    format!(
        "select citus_move_shard_placement(p.shardid, p.nodename, p.nodeport, n.nodename, n.nodeport, '{mode}') \
           from pg_dist_shard_placement p, pg_dist_node n \
          where p.shardid = get_shard_id_for_distribution_column('orders', '{tenant}') and n.groupid <> 0 and n.nodeport <> p.nodeport"
    )
}

/// Runs what moves shards, and again where Citus ended it for a deadlock with clients.
pub(crate) async fn moved(db: &Db, sql: &str) {
    for _ in 0..20 {
        match db.see().await.code(sql).await.as_str() {
            "" => return,
            "40P01" => {}
            code => panic!("{code}: {sql}"),
        }
    }
    panic!("always a deadlock: {sql}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn tenants_that_move_under_load_lose_and_double_nothing() {
    let cluster = Cluster::start().await;
    let db = prepared(&cluster, "moving").await;
    let see = db.see().await;
    let load = Load::start(&db.urls);
    for round in 0..6 {
        wait_for_more(&db, 40).await;
        let mode = ["block_writes", "force_logical"][round % 2];
        moved(&db, &move_of(TENANTS[round % TENANTS.len()], mode)).await;
    }
    // All to one server, and back into balance.
    let all = "select count(distinct nodeport) from pg_dist_shard_placement p join pg_dist_shard s on s.shardid = p.shardid \
               where s.logicalrelid = 'orders'::regclass";
    for tenant in TENANTS {
        let port = cluster.nodes[1].port();
        let away = format!(
            "{} and n.nodeport = {port}",
            move_of(tenant, "block_writes")
        );
        moved(&db, &away).await;
        wait_for_more(&db, 10).await;
    }
    let rebalance =
        "select rebalance_table_shards('orders', shard_transfer_mode => 'force_logical')";
    moved(&db, rebalance).await;
    assert_eq!(see.number(all).await, 2);
    wait_for_more(&db, 40).await;
    // What is recorded cannot be changed on a shard that has moved either.
    let change = "update pgonce.ledger_group set memo = '1' where tenant = 'a'";
    assert_eq!(see.code(change).await, "P4079");
    load.end(&db, "tenants moved and rebalanced").await;
}
