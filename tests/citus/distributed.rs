//! pgonce's tables distributed by tenant, with the user's.

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::{Migrator, NOT_DISTRIBUTED};
use pgonce::{Claim, ClaimKind, Error, Failure, Intent, Lease, Once};
use pgonce_testkit::wait_until;
use pgonce_tests::{Observer, TestDriver as _};

use crate::cluster::{Cluster, Db, ORDERS};

const MINUTE: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_secs(300);

pub(crate) fn migrator(url: &str) -> Migrator<TokioPostgres> {
    Migrator::new(TokioPostgres::connect(url, 1))
}

pub(crate) fn once(url: &str) -> Once<TokioPostgres> {
    Once::builder(TokioPostgres::connect(url, 4))
        .distributed()
        .build()
        .unwrap()
}

fn intent(tenant: &str, key: &str) -> Intent {
    Intent::new("orders.create", key, &1)
        .unwrap()
        .tenant(tenant)
        .unwrap()
}

pub(crate) async fn distributed(cluster: &Cluster, name: &str) -> Db {
    let db = cluster.database(name).await;
    db.see().await.run(ORDERS).await;
    migrator(db.url())
        .distribute(Some("public.orders"))
        .up()
        .await
        .unwrap();
    db
}

/// An order, once.
pub(crate) async fn order(
    once: &Once<TokioPostgres>,
    tenant: &str,
    key: &str,
) -> pgonce::Result<bool> {
    let insert = format!("insert into orders (tenant, key) values ('{tenant}', '{key}')");
    let work = |mut tx: pgonce::Attempt<TokioPostgres>| {
        let insert = insert.clone();
        async move {
            TokioPostgres::exec(tx.conn(), &insert).await?;
            tx.succeed(&1).await
        }
    };
    Ok(once.run(&intent(tenant, key), work).await?.replayed())
}

async fn lease(once: &Once<TokioPostgres>, tenant: &str, key: &str) -> Claim<Lease<TokioPostgres>> {
    once.lease(&intent(tenant, key), MINUTE).await.unwrap()
}

fn held<R>(claim: Claim<R>) -> R {
    match claim {
        Claim::Run(held) => held,
        _ => panic!("not to be held"),
    }
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn commands_and_leases_keep_their_promises_whatever_node_a_client_asks() {
    let db = distributed(Cluster::shared().await, "promises").await;
    let see = db.see().await;
    let nodes: Vec<_> = db.urls.iter().map(|url| once(url)).collect();
    for tenant in ["a", "b", "c", "d"] {
        for (n, node) in nodes.iter().enumerate() {
            assert!(!order(node, tenant, &n.to_string()).await.unwrap());
        }
        for node in &nodes {
            for n in 0..nodes.len() {
                assert!(
                    order(node, tenant, &n.to_string()).await.unwrap(),
                    "a replay"
                );
            }
            let other = Intent::new("orders.create", "0", &2)
                .unwrap()
                .tenant(tenant)
                .unwrap();
            assert_eq!(node.claim(&other).await.unwrap_err().code(), "P4002");
        }
        // A lease that one node gave is busy on all, and is renewed and ended through any.
        let mut one = held(lease(&nodes[1], tenant, "leased").await);
        for node in &nodes {
            assert!(matches!(
                lease(node, tenant, "leased").await,
                Claim::Busy { .. }
            ));
            assert!(matches!(
                node.claim(&intent(tenant, "leased")).await.unwrap(),
                Claim::Busy { .. }
            ));
        }
        one.heartbeat().await.unwrap();
        let first = one.fence();
        one.fail(Failure::transient("later", "not now"))
            .await
            .unwrap();
        let again = held(lease(&nodes[2], tenant, "leased").await);
        assert_eq!(again.kind(), ClaimKind::Retry);
        assert!(again.fence() > first && again.fence() < 1 << 53);
        let _ = again.succeed(&2).await.unwrap();
        assert!(matches!(
            lease(&nodes[0], tenant, "leased").await,
            Claim::Replay(_)
        ));
        let gone = held(lease(&nodes[0], tenant, "refused").await);
        gone.fail(Failure::permanent("no", "never")).await.unwrap();
        assert!(matches!(
            order(&nodes[1], tenant, "refused").await,
            Err(Error::Refused(_))
        ));
    }
    assert_eq!(see.number("select count(*) from orders").await, 12);
    assert_eq!(see.number("select count(*) from pgonce.intent").await, 20);
    // An attempt that is open on one node is busy on the others.
    let open = held(nodes[0].claim(&intent("a", "open")).await.unwrap());
    for node in &nodes {
        assert!(matches!(
            node.claim(&intent("a", "open")).await.unwrap(),
            Claim::Busy { .. }
        ));
    }
    open.abandon().await.unwrap();
    migrator(db.url()).check().await.unwrap();
    assert!(migrator(db.url()).plan().await.unwrap().is_empty());
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn every_hot_statement_is_one_task_on_the_server_of_the_tenant() {
    let db = distributed(Cluster::shared().await, "explained").await;
    let see = db.see().await;
    for statement in [
        "select outcome, fence from pgonce.claim('s', 'k', '\\x01', null, null, 't')",
        "select outcome, fence from pgonce.claim('s', 'k', '\\x01', interval '1 minute', null, 't')",
        "select * from pgonce._claim_fast('s', 'k', '\\x01', 't')",
        "select * from pgonce.answer_of('s', 'k', '\\x01', 't')",
        "select pgonce.succeed('s', 'k', '\\x01', 2, null, null, null, 't')",
        "select 'done' from pgonce.fail('s', 'k', '\\x01', 2, true, 'c', 'm', null, 't')",
        "select pgonce.heartbeat('s', 'k', 2, '1 minute', 't')",
        "select pgonce.guard('s', 'k', 2, 't')",
        "select pgonce.release('s', 'k', 2, 't')",
        "select pgonce.try_lock('n', 't')",
        "insert into orders (tenant, key) values ('t', 'k')",
    ] {
        let plan = see.rows(&format!("explain (costs off) {statement}")).await;
        let plan: Vec<String> = plan.into_iter().flatten().flatten().collect();
        let plan = plan.join("\n");
        assert!(plan.contains("Task Count: 1"), "{statement}:\n{plan}");
        let node = "select nodeport from pg_dist_shard_placement where shardid = get_shard_id_for_distribution_column('orders', 't')";
        let port = format!("port={}", see.text(node).await);
        assert!(plan.contains(&port), "{statement}: not on {port}:\n{plan}");
    }
    // One server is written, so a commit needs no second phase. What prepared transactions there were is from the tables.
    let prepared = "select coalesce(string_agg(gid, ' '), '') from pg_dist_transaction";
    let before = see.text(prepared).await;
    see.run(
        "begin; select from pgonce.claim('s', 'one', '\\x01', null, null, 't'); \
         insert into orders (tenant, key) values ('t', 'one'); \
         select pgonce.succeed('s', 'one', '\\x01', 1, null, null, null, 't'); commit",
    )
    .await;
    let after = see.text(prepared).await;
    assert!(after.split(' ').all(|gid| before.contains(gid)), "{after}");
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn a_named_lock_is_the_same_for_clients_of_all_nodes() {
    let db = distributed(Cluster::shared().await, "locks").await;
    let nodes: Vec<_> = db.urls.iter().map(|url| once(url)).collect();
    for (n, node) in nodes.iter().enumerate() {
        let mut first = held(
            node.claim(&intent("t", &format!("first {n}")))
                .await
                .unwrap(),
        );
        assert!(first.try_lock("close").await.unwrap());
        for (m, other) in nodes.iter().enumerate() {
            let key = format!("second {n} {m}");
            let mut second = held(other.claim(&intent("t", &key)).await.unwrap());
            assert!(!second.try_lock("close").await.unwrap());
            let shortly = Duration::from_millis(5);
            assert!(!second.lock("close", shortly).await.unwrap());
            assert!(second.lock("another", MINUTE).await.unwrap());
            second.abandon().await.unwrap();
        }
        first.abandon().await.unwrap();
    }
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn clients_of_all_nodes_that_want_the_same_get_one_effect() {
    let db = distributed(Cluster::shared().await, "storm").await;
    let mut clients = Vec::new();
    for n in 0..12 {
        let once = once(&db.urls[n % 3]);
        clients.push(tokio::spawn(async move {
            for key in 0..40 {
                let name = key.to_string();
                let ordered = || order(&once, ["a", "b", "c"][key % 3], &name);
                while let Err(error) = ordered().await.map(drop) {
                    assert!(matches!(error, Error::Busy { .. }), "{error:?}");
                }
            }
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    let see = db.see().await;
    assert_eq!(see.number("select count(*) from orders").await, 40);
    assert_eq!(
        see.number("select count(distinct key) from orders").await,
        40
    );
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn what_is_not_distributed_is_refused() {
    let db = distributed(Cluster::shared().await, "refused").await;
    let see = db.see().await;
    for sql in [
        "select pgonce.store_message('c', 's', 'm', '\\x00', p_tenant => 't')",
        "select pgonce._lease_partition('c', 's', '0', 'w', '1 minute')",
        "select pgonce.create_subscription('s')",
        "select * from pgonce.ledger_repair('by hand', 't')",
        "select pgonce.bind_tenant('postgres', 't')",
        "select pgonce.grant_to('postgres', 'app')",
        "select * from pgonce._replay_state()",
    ] {
        assert_eq!(see.code(sql).await, NOT_DISTRIBUTED, "{sql}");
    }
    let (once, one) = (once(db.url()), intent("t", "k"));
    let execute = TokioPostgres::execute(&once, &one, "select $1::text as a", "x").await;
    assert_eq!(execute.unwrap_err().code(), NOT_DISTRIBUTED);
    let batch = once.inbox().begin().await;
    assert_eq!(batch.unwrap_err().code(), NOT_DISTRIBUTED);
    let rows =
        "select (select count(*) from pgonce.inbox_marker) + (select count(*) from pgonce.intent)";
    assert_eq!(see.number(rows).await, 0);
    // Without Citus there is nothing to distribute over.
    let plain = pgonce_testkit::shared(None).await.unwrap();
    let database = plain.create_database("plain").await.unwrap();
    let refused = migrator(&database.url()).distribute(None).up().await;
    assert_eq!(refused.unwrap_err().code(), NOT_DISTRIBUTED);
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn an_installation_of_the_coordinator_is_distributed_with_its_answers() {
    let db = Cluster::shared().await.database("converted").await;
    let see = db.see().await;
    migrator(db.url()).up().await.unwrap();
    see.run(
        "begin; select pgonce.claim('orders.create', 'k', '\\x01', null, null, 't'); \
         select pgonce.succeed('orders.create', 'k', '\\x01', 1, '7', null, null, 't'); commit; \
         select pgonce.define_scope('orders.create', '3 days'); \
         select pgonce.accept('billing', 'shop', 'm', '\\x01', 't'); select pgonce.define_inbox('billing', '20 days'); \
         select from pgonce.enqueue('mail', '7', p_key => 'k', p_tenant => 't'); \
         select from pgonce.enqueue('mail', '8', p_key => 'k', p_tenant => 't'); \
         select pgonce.ledger_open('cash', 'EUR', 'debit', p_tenant => 't'), pgonce.ledger_open('ada', 'EUR', 'credit', p_tenant => 't'); \
         select pgonce.ledger_post('shop', '1', '[{\"account\": \"cash\", \"debit\": 5}, {\"account\": \"ada\", \"credit\": 5}]', \
             p_tenant => 't')",
    )
    .await;
    see.run(ORDERS).await;
    let plan = migrator(db.url())
        .distribute(Some("public.orders"))
        .plan()
        .await
        .unwrap();
    see.run(&plan.sql()).await;
    for url in &db.urls {
        let node = Observer::connect(url).await;
        let claim =
            "select answer from pgonce.claim('orders.create', 'k', '\\x01', null, null, 't')";
        assert_eq!(node.text(claim).await, "7");
        let copy = "select pgonce.accept('billing', 'shop', 'm', '\\x01', 't')";
        assert_eq!(node.text(copy).await, "f");
        let balance = "select balance from pgonce.ledger_balance('ada', null, 't')";
        assert_eq!(node.number(balance).await, 5);
    }
    // A job that waits behind another of its key still does.
    let claim =
        "select string_agg(payload::text, ' ') from pgonce.claim_jobs('{mail}', 'w', '1 day', 5)";
    assert_eq!(see.text(claim).await, "7");
    let next = "select id from pgonce.enqueue('mail', '9', p_key => 'k', p_tenant => 't')";
    let last = "select max(id) from pgonce.job where payload = '8'";
    assert!(see.number(next).await > see.number(last).await);
    let keep = "select keep = '20 days' from pgonce.inbox_contract where consumer = 'billing'";
    assert_eq!(see.text(keep).await, "t");
    assert_eq!(
        see.number("select count(*) from pgonce.ledger_verify()")
            .await,
        0
    );
    assert!(migrator(db.url()).plan().await.unwrap().is_empty());
    see.run("update pgonce.routines set checksum = 'of another build'")
        .await;
    assert!(migrator(db.url()).up().await.unwrap().routines);
    assert!(!order(&once(&db.urls[2]), "t", "new").await.unwrap());
    // What is over goes, on every server.
    see.run("select pgonce._move_clock('8 days')").await;
    assert_eq!(see.number("select pgonce.purge(100)").await, 2);
    assert_eq!(see.number("select count(*) from pgonce.intent").await, 0);
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn a_tenant_that_moves_to_another_server_keeps_its_answers_and_its_fences_rise() {
    let db = distributed(Cluster::shared().await, "moved").await;
    let see = db.see().await;
    let once = once(db.url());
    assert!(!order(&once, "t", "done").await.unwrap());
    let before = held(lease(&once, "t", "leased").await);
    let fence = before.fence();
    see.run(
        "select citus_move_shard_placement(p.shardid, p.nodename, p.nodeport, n.nodename, n.nodeport, 'block_writes') \
           from pg_dist_shard_placement p, pg_dist_node n \
          where p.shardid = get_shard_id_for_distribution_column('orders', 't') and n.groupid <> 0 and n.nodeport <> p.nodeport",
    )
    .await;
    assert!(order(&once, "t", "done").await.unwrap(), "a replay");
    before
        .fail(Failure::transient("later", "not now"))
        .await
        .unwrap();
    let after = held(lease(&once, "t", "leased").await);
    assert!(after.fence() > fence);
    let _ = after.succeed(&1).await.unwrap();
}

/// Orders until it is stopped; a key is left only when it is acknowledged.
fn load(
    url: &str,
    client: usize,
    stop: &tokio_util::sync::CancellationToken,
) -> tokio::task::JoinHandle<u64> {
    let (once, stop) = (once(url), stop.clone());
    tokio::spawn(async move {
        let mut acknowledged = 0;
        while !stop.is_cancelled() {
            let (tenant, key) = (
                ["a", "b", "c", "d"][client % 4],
                format!("{client}-{acknowledged}"),
            );
            while order(&once, tenant, &key).await.is_err() {
                tokio::task::yield_now().await;
            }
            acknowledged += 1;
        }
        acknowledged
    })
}

async fn crashed_under_load(victim: usize, clients_at: usize) {
    let cluster = Cluster::start().await;
    let db = distributed(&cluster, "crashed").await;
    let stop = tokio_util::sync::CancellationToken::new();
    let clients: Vec<_> = (0..6)
        .map(|client| load(&db.urls[clients_at], client, &stop))
        .collect();
    let count = "select count(*) from pgonce.intent";
    for round in 1..=3 {
        let enough = || async {
            let see = Observer::connect(db.url()).await;
            see.number(count).await >= round * 100
        };
        wait_until("some orders", DEADLINE, enough).await.unwrap();
        cluster.nodes[victim].crash().await.unwrap();
        cluster.nodes[victim].start_again().await.unwrap();
    }
    let see = db.see().await;
    let so_far = see.number(count).await;
    see.wait_until(&format!(
        "select count(*) > {} from pgonce.intent",
        so_far + 50
    ))
    .await;
    stop.cancel();
    let mut acknowledged = 0;
    for client in clients {
        acknowledged += client.await.unwrap();
    }
    see.run("select recover_prepared_transactions()").await;
    let orders = see.number("select count(*) from orders").await;
    let distinct = see
        .number("select count(*) from (select distinct tenant, key from orders) o")
        .await;
    println!("node {victim} crashed 3 times: {acknowledged} acknowledged, {orders} orders");
    assert_eq!(
        (orders, distinct),
        (acknowledged as i64, acknowledged as i64)
    );
    assert_eq!(see.number(count).await, orders);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn a_worker_that_crashes_under_load_loses_and_doubles_nothing() {
    crashed_under_load(1, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn a_coordinator_that_crashes_under_load_loses_and_doubles_nothing() {
    crashed_under_load(0, 0).await;
}
