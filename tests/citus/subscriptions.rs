//! Subscriptions on Citus, and what publishes for them.

use std::time::{Duration, SystemTime};

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::NOT_DISTRIBUTED;
use pgonce::{Attempt, Event, Intent, Once};
use pgonce_testkit::wait_until;
use pgonce_tests::relay::{DEADLINE, Running, Witness};
use pgonce_tests::{Observer, TestDriver};
use serde_json::json;
use uuid::Uuid;

use crate::cluster::{Cluster, ORDERS};
use crate::distributed::migrator;
use crate::outbox::{SUBSCRIBE, WAITING, publish, relay, with_subscription};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn subscriptions_come_change_and_go_with_what_waits_for_them() {
    let (db, see) = with_subscription("subscribed").await;
    assert_eq!(see.code(SUBSCRIBE).await, "42710");
    for sql in [
        "select pgonce.create_subscription('s')",
        "select pgonce.create_subscription('s', 'now', p_dead_limit => 5)",
        "select pgonce.create_subscription('s', 'now', p_when_full => 'discard')",
        "select pgonce.alter_subscription('c', p_when_full => 'discard')",
        "select pgonce.replay('c')",
        "select pgonce.replay_range('c', 1, 5)",
        "select * from pgonce.claim_events('c', 'w')",
        "select * from pgonce.event_status('c', 1)",
        "select pgonce.recover('c', now(), true)",
        "select pgonce.set_outbox_retention('1 day')",
    ] {
        assert_eq!(see.code(sql).await, "P4105", "{sql}");
    }
    for (sql, code) in [
        ("select pgonce.create_subscription('', 'now')", "22023"),
        (
            "select pgonce.create_subscription(repeat('x', 194), 'now')",
            "22023",
        ),
        ("select pgonce.create_subscription('s', 'then')", "22023"),
        (
            "select pgonce.create_subscription('s', 'now', p_max_attempts => 0)",
            "23514",
        ),
        (
            "select from pgonce.enqueue('outbox/c', '1', p_tenant => 'a')",
            "22023",
        ),
        (
            "select pgonce.define_queue('outbox/c', p_paused => true)",
            "22023",
        ),
        (
            "select pgonce.define_schedule('s', '* * * * *', 'outbox/c')",
            "22023",
        ),
        ("select pgonce.alter_subscription('nobody')", "42704"),
        ("select pgonce.evict_subscription('c', '')", "22023"),
        (
            "select pgonce.publish('', 'y', 's', '1', p_tenant => 'a')",
            "22023",
        ),
        (
            "select pgonce.publish('t', 'y', 's', '1', p_tenant => null)",
            "22023",
        ),
        (
            "select pgonce.publish('t', 'y', 's', '1', p_headers => '{\"Id\": 1}', p_tenant => 'a')",
            "22023",
        ),
        (
            "select pgonce.publish('t', 'y', 's', to_jsonb(repeat('x', 1048600)), p_tenant => 'a')",
            "P4041",
        ),
    ] {
        assert_eq!(see.code(sql).await, code, "{sql}");
    }
    // Workers of all queues get no events; who names the queue does.
    see.run(&publish(1, "x", "a")).await;
    let claim = |queues: &str| {
        format!("select payload ->> 'subject' from pgonce.claim_jobs({queues}, 'w', '1 hour', 5)")
    };
    assert_eq!(see.rows(&claim("null")).await.len(), 0);
    see.run("select from pgonce.enqueue('q', '1', p_tenant => 'a')")
        .await;
    assert_eq!(see.rows(&claim("null")).await.len(), 1);
    assert_eq!(
        see.rows(&claim("'{outbox/c}'")).await,
        [[Some("x".to_owned())]]
    );
    // What is changed holds for what is published then.
    let node = Observer::connect(&db.urls[1]).await;
    node.run("select pgonce.alter_subscription('c', p_topics => '{other}', p_max_attempts => 7)")
        .await;
    see.run(&publish(2, "x", "a")).await;
    assert_eq!(see.number(WAITING).await, 1);
    see.run("select pgonce.alter_subscription('c', p_topics => '{*}')")
        .await;
    see.run(&publish(3, "y", "b")).await;
    assert_eq!(see.number(WAITING).await, 2);
    let rules = "select max_attempts from pgonce.job_queue where queue = 'outbox/c'";
    assert_eq!(node.number(rules).await, 7);
    // Another build is loaded over it.
    see.run("update pgonce.routines set checksum = 'of another build'")
        .await;
    assert!(migrator(db.url()).up().await.unwrap().routines);
    migrator(db.url()).check().await.unwrap();
    let sink = Witness::default();
    let running = Running::start(relay(db.url(), &sink));
    wait_until("what is free", DEADLINE, || async { sink.numbers() == [3] })
        .await
        .unwrap();
    // One that a worker holds goes too, with the subscription, and its relays end.
    assert_eq!(see.text("select pgonce.drop_subscription('c')").await, "t");
    assert_eq!(running.ended().await.unwrap_err().code(), "42704");
    let left = "select (select count(*) from pgonce.job where queue like 'outbox/%') + (select count(*) from pgonce.job_queue where queue like 'outbox/%')";
    assert_eq!(see.number(left).await, 0);
    assert_eq!(see.text("select pgonce.drop_subscription('c')").await, "f");
    // A transaction that published for it before it was dropped, and commits after.
    see.run(SUBSCRIBE).await;
    let late = Observer::connect(&db.urls[2]).await;
    late.run(&format!("begin; {}", publish(4, "x", "a"))).await;
    see.run("select pgonce.drop_subscription('c')").await;
    late.run("commit").await;
    assert_eq!(see.number(WAITING).await, 1);
    see.run(SUBSCRIBE).await;
    assert_eq!(see.number(WAITING).await, 0);
    see.run(&publish(5, "x", "a")).await;
    assert!(
        relay(db.url(), &sink)
            .run_once(Default::default())
            .await
            .unwrap()
    );
    assert_eq!(sink.numbers(), [3, 5]);
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn a_subscription_gets_what_is_published_by_statements_that_see_it() {
    let (db, see) = with_subscription("seen").await;
    let waiting = "select string_agg(payload -> 'payload' ->> 'n', ' ' order by id) from pgonce.job where queue = 'outbox/late'";
    let open = [("read committed", "2"), ("repeatable read", "")];
    for (n, (isolation, expected)) in open.into_iter().enumerate() {
        let node = Observer::connect(&db.urls[1 + n]).await;
        node.run(&format!(
            "begin isolation level {isolation}; {}",
            publish(1, "x", "a")
        ))
        .await;
        see.run("select pgonce.create_subscription('late', 'now')")
            .await;
        node.run(&format!("{}; commit", publish(2, "x", "a"))).await;
        assert_eq!(see.text(waiting).await, expected, "{isolation}");
        see.run(&publish(3, "x", "a")).await;
        assert!(see.text(waiting).await.ends_with('3'));
        see.run("select pgonce.drop_subscription('late')").await;
    }
    assert_eq!(see.number(WAITING).await, 6);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn transitions_and_timers_publish_their_events() {
    let (db, see) = with_subscription("cases_published").await;
    see.run(
        "select pgonce.define_transition('case', '', 'open', p_topic => 'cases'); \
         select pgonce.define_transition('case', 'open', 'late', p_topic => 'cases')",
    )
    .await;
    for url in &db.urls {
        let node = Observer::connect(url).await;
        // Sent twice: one event.
        for _ in 0..2 {
            node.run("select from pgonce.transition('case', '7', 'open', 'c', p_data => '{\"n\": 1}', p_tenant => 't')")
                .await;
        }
    }
    see.run("select from pgonce.set_timer('case', '7', 'answer', 'late', '-1 second', 't')")
        .await;
    assert_eq!(
        see.text("select outcome from pgonce.fire_timers()").await,
        "applied"
    );
    let events = "select payload -> 'payload' from pgonce.job where queue = 'outbox/c' order by id";
    let rows = see.rows(events).await;
    let first: serde_json::Value = serde_json::from_str(rows[0][0].as_deref().unwrap()).unwrap();
    let expected = json!({"entity": "7", "from": "", "to": "open", "version": 1, "command": "c", "data": {"n": 1}});
    assert_eq!((rows.len(), first), (2, expected));
    let types = "select string_agg(payload ->> 'type', ' ' order by id) from pgonce.job where queue = 'outbox/c'";
    assert_eq!(see.text(types).await, "case.open case.late");
}

async fn publish_with<D: TestDriver>(url: &str, key: &str) {
    let once = Once::builder(D::connect(url, 2)).distributed().build();
    let intent = Intent::new("orders.create", key, &1).unwrap();
    let intent = intent.tenant("a").unwrap();
    let work = |mut tx: Attempt<D>| async move {
        let event = |kind: &str| Event::new("orders", kind).subject("7");
        tx.publish(event("plain").header("orderid", 7)).await?;
        let later = SystemTime::now() + Duration::from_secs(3600);
        let own = event("own").message_id(Uuid::from_u128(7));
        tx.publish(own.deliver_at(later).payload(&[1.5])?).await?;
        tx.succeed(&1).await
    };
    let _ = once.unwrap().run(&intent, work).await.unwrap();
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn both_drivers_publish_whatever_an_event_has() {
    let (db, see) = with_subscription("drivers").await;
    publish_with::<Sqlx>(&db.urls[1], "sqlx").await;
    publish_with::<TokioPostgres>(&db.urls[2], "tokio-postgres").await;
    let events = "select j.payload ->> 'type', j.payload -> 'headers', j.payload -> 'payload', l.state, j.payload ->> 'message_id' like '%-000000000007' \
                  from pgonce.job j join pgonce.job_live l on l.tenant = j.tenant and l.id = j.id order by 1, j.id";
    let row = |cells: [Option<&str>; 5]| cells.map(|cell| cell.map(str::to_owned)).to_vec();
    let own = row([
        Some("own"),
        Some("{}"),
        Some("[1.5]"),
        Some("scheduled"),
        Some("t"),
    ]);
    let plain = row([
        Some("plain"),
        Some("{\"orderid\": 7}"),
        None,
        Some("ready"),
        Some("f"),
    ]);
    assert_eq!(
        see.rows(events).await,
        [own.clone(), own, plain.clone(), plain]
    );
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn an_installation_with_subscriptions_or_queues_of_their_names_is_not_distributed() {
    let db = Cluster::shared().await.database("taken").await;
    let see = db.see().await;
    migrator(db.url()).up().await.unwrap();
    see.run(
        "select pgonce.create_subscription('c'); select from pgonce.enqueue('outbox/mine', '1'); \
         select pgonce.define_schedule('s', '* * * * *', 'outbox/mine')",
    )
    .await;
    see.run(ORDERS).await;
    for in_the_way in ["outbox_subscription", "job_live", "job_schedule"] {
        let refused = migrator(db.url()).distribute(Some("public.orders"));
        let refused = refused.up().await.unwrap_err();
        assert_eq!(refused.code(), NOT_DISTRIBUTED);
        assert!(refused.to_string().contains(in_the_way), "{refused}");
        see.run(&format!("delete from pgonce.{in_the_way}")).await;
    }
    let up = migrator(db.url()).distribute(Some("public.orders"));
    up.up().await.unwrap();
}
