//! The outbox on Citus: events travel as jobs of the tenant's server, and arrive as on one server.

use std::sync::Arc;
use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::outbox::{Begin, Message, Subscription};
use pgonce::{Attempt, Event, Failure, Intent};
use pgonce_broker::{Delivery, Relay, Sink};
use pgonce_testkit::wait_until;
use pgonce_tests::relay::{DEADLINE, Running, Witness};
use pgonce_tests::{Observer, TestDriver as _};
use serde_json::json;

use crate::cluster::{Cluster, Db};
use crate::distributed::{distributed, migrator, once};
use crate::load::move_of;

pub(crate) const SUBSCRIBE: &str = "select pgonce.create_subscription('c', 'now', p_backoff => '10 milliseconds', p_max_attempts => 5)";

pub(crate) fn relay(url: &str, sink: &Witness) -> Relay<TokioPostgres, Witness> {
    let backoff = Duration::from_millis(5);
    Relay::new(once(url).outbox(), "c", sink.clone()).backoff(backoff, backoff * 20)
}

pub(crate) async fn with_subscription(name: &str) -> (Db, Observer) {
    let db = distributed(Cluster::shared().await, name).await;
    let see = db.see().await;
    see.run(SUBSCRIBE).await;
    (db, see)
}

pub(crate) fn publish(n: u64, subject: &str, tenant: &str) -> String {
    format!(
        "select pgonce.publish('orders', 'order.changed', '{subject}', '{{\"n\": {n}}}', p_tenant => '{tenant}')"
    )
}

/// What a subscription waits for.
pub(crate) const WAITING: &str = "select count(*) from pgonce.job_live where queue = 'outbox/c'";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn an_event_exists_if_and_only_if_its_command_commits() {
    let (db, see) = with_subscription("published").await;
    let mut ids = Vec::new();
    for (n, url) in db.urls.iter().enumerate() {
        let (once, tenant) = (once(url), ["a", "b", "c"][n]);
        let intent = Intent::new("orders.create", "k", &1).unwrap();
        let intent = intent.tenant(tenant).unwrap();
        let work = |fails: bool| {
            let ids = std::sync::Mutex::new(Vec::new());
            let ids = std::sync::Arc::new(ids);
            let (kept, once, intent) = (ids.clone(), once.clone(), intent.clone());
            async move {
                let ended = once
                    .run(&intent, |mut tx: Attempt<TokioPostgres>| {
                        let ids = ids.clone();
                        async move {
                            let order = format!(
                                "insert into orders (tenant, key) values ('{}', 'k')",
                                tx.tenant()
                            );
                            TokioPostgres::exec(tx.conn(), &order).await?;
                            let event = Event::new("orders", "order.created").subject("7");
                            let id = tx.publish(event.payload(&json!({"n": 1}))?).await?;
                            ids.lock().unwrap().push(id);
                            if fails {
                                return Err(Failure::transient("later", "not now").into());
                            }
                            tx.succeed(&1).await
                        }
                    })
                    .await;
                let ids = kept.lock().unwrap().clone();
                (ended.is_ok(), ids)
            }
        };
        let (ok, _) = work(true).await;
        assert!(!ok);
        // That failure is recorded: later attempts are of the same life, and their events have the same id.
        let (ok, failed) = work(true).await;
        assert!(!ok);
        assert_eq!(see.number(WAITING).await, n as i64, "nothing was committed");
        let (ok, published) = work(false).await;
        assert!(ok);
        assert_eq!(published, failed);
        assert_eq!(
            published[0].get_version_num(),
            8,
            "not derived: {published:?}"
        );
        assert_eq!(see.number(WAITING).await, n as i64 + 1);
        let (ok, again) = work(false).await;
        assert!(ok && again.is_empty(), "a replay publishes nothing");
        ids.extend(published);
    }
    let sink = Witness::default();
    let running = Running::start(relay(&db.urls[1], &sink));
    wait_until("three events", DEADLINE, || async { sink.asked() == 3 })
        .await
        .unwrap();
    see.wait_until("select count(*) = 0 from pgonce.job").await;
    running.stop().await.unwrap();
    let mut sent: Vec<_> = sink.messages().iter().map(|message| message.id).collect();
    sent.sort_unstable();
    ids.sort_unstable();
    assert_eq!(sent, ids);
}

/// Events of every kind, some of them wanted by nobody.
const EVENTS: [&str; 8] = [
    "'orders', 'order.created', 'o-1', '{\"n\": 1}'",
    "'orders', 'order.created', 'o-1', '{\"n\": 2, \"b\": 1.50, \"a\": 123456789012345678901234567890}'",
    "'orders', 'order.lost', 'o-1', '{\"n\": 3}'",
    "'refunds.eu', 'order.created', 'o-2', '{\"n\": 4}', '00000000-0000-0000-0000-000000000004', '{\"traceparent\": \"00-1\"}'",
    "'refunds_eu', 'order.created', 'o-2', '{\"n\": 5}'",
    "'orders', 'order.created', 'o-1', '{\"n\": 6}', p_deliver_at => pgonce.now() + interval '1 hour'",
    "'orders', 'order.created', 'o-1', '{\"n\": 7}'",
    "'orders', 'order.created', 'o-3', '{\"n\": 8}', p_tenant => 'other'",
];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn events_arrive_as_on_one_server_where_filters_want_them() {
    let db = distributed(Cluster::shared().await, "filtered").await;
    let plain = pgonce_testkit::shared(None).await.unwrap();
    let plain = plain.create_database("filtered").await.unwrap();
    migrator(&plain.url()).up().await.unwrap();
    let wanted = Subscription::new("c")
        .begin(Begin::Now)
        .topics(["orders", "refunds.*"])
        .types(["*.created"])
        .tenants(["t*"]);
    let mut seen = Vec::new();
    for (url, distributed) in [(plain.url(), false), (db.url().to_owned(), true)] {
        let once = match distributed {
            true => once(&url),
            false => pgonce::Once::tokio_postgres(TokioPostgres::connect(&url, 2).pool().clone()),
        };
        once.outbox().create_subscription(&wanted).await.unwrap();
        let see = Observer::connect(&url).await;
        for event in EVENTS {
            let tenant = match event.contains("p_tenant") {
                true => "",
                false => ", p_tenant => 't1'",
            };
            let rest = format!("select pgonce.publish({event}{tenant})");
            see.run(&rest).await;
        }
        let sink = Witness::default();
        let running = Running::start(Relay::new(once.outbox(), "c", sink.clone()));
        wait_until("what is due", DEADLINE, || async {
            sink.numbers().len() == 4
        })
        .await
        .unwrap();
        see.run("select pgonce._move_clock('2 hours')").await;
        wait_until("what was delayed", DEADLINE, || async {
            sink.numbers().len() == 5
        })
        .await
        .unwrap();
        running.stop().await.unwrap();
        let mut messages = sink.messages();
        assert_eq!(
            messages.last().unwrap().payload.as_deref(),
            Some(r#"{"n": 6}"#)
        );
        messages.sort_by(|one, other| one.payload.cmp(&other.payload));
        let plain = messages.into_iter().map(|message| {
            let own = message.id.as_u128() == 4;
            (
                message.tenant,
                message.topic,
                message.kind,
                message.subject,
                message.headers,
                message.payload,
                own,
            )
        });
        seen.push(plain.collect::<Vec<_>>());
    }
    assert_eq!(seen[1], seen[0]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn an_event_that_fails_holds_back_its_subject_and_no_other() {
    let (db, see) = with_subscription("held_back").await;
    for n in 1..=30 {
        let subject = ["x", "y", "z"][n as usize % 3];
        see.run(&publish(n, subject, ["a", "b"][n as usize % 2]))
            .await;
    }
    let sink = Witness::default();
    // One never, one not at first.
    let tries = std::sync::atomic::AtomicU64::new(0);
    sink.script(move |n| match n {
        7 => Some(Delivery::Poison {
            reason: "no".into(),
        }),
        8 if tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 3 => {
            Some(Delivery::Retry {
                reason: "later".into(),
                after: Duration::from_millis(20),
            })
        }
        _ => None,
    });
    let relays: Vec<_> = (db.urls.iter())
        .map(|url| Running::start(relay(url, &sink)))
        .collect();
    // 7 holds back those of its subject and its tenant: 13, 19 and 25.
    wait_until("all but four", DEADLINE, || async {
        sink.numbers().len() == 26
    })
    .await
    .unwrap();
    let left: Vec<_> = (1..=30).filter(|n| !sink.numbers().contains(n)).collect();
    assert_eq!(left, [7, 13, 19, 25]);
    let dead = "select seq, tenant, topic, subject, attempts, reason, parked_at is not null from pgonce.dead_letters";
    see.wait_until("select behind = 3 from pgonce.dead_letters")
        .await;
    let rows = see.rows(dead).await;
    let cells: Vec<_> = rows[0][1..]
        .iter()
        .map(|cell| cell.as_deref().unwrap())
        .collect();
    assert_eq!(
        (rows.len(), &*cells),
        (1, &["b", "orders", "y", "1", "no", "t"][..])
    );
    let backlog = &once(db.url()).outbox().backlog().await.unwrap()[0];
    assert_eq!(
        (backlog.parked[2], backlog.stuck),
        (1, false),
        "{backlog:?}"
    );
    let listed = "select count(*) from pgonce.jobs where queue = 'outbox/c' and status = 'dead'";
    assert_eq!(see.number(listed).await, 1);
    assert_eq!(
        see.number("select dead from pgonce.queues where queue = 'outbox/c'")
            .await,
        1
    );
    // Tried once more it fails once more; then it is skipped, and those behind it come.
    let redrive = "select pgonce.redrive('c', 'y', p_tenant => 'b')";
    assert_eq!(see.number("select pgonce.redrive('c', 'x')").await, 0);
    assert_eq!(
        see.number("select pgonce.redrive('c', p_since => now() + interval '1 hour')")
            .await,
        0
    );
    let asked = sink.asked();
    assert_eq!(see.number(redrive).await, 1);
    wait_until("another try", DEADLINE, || async { sink.asked() > asked })
        .await
        .unwrap();
    see.wait_until("select count(*) = 1 from pgonce.dead_letters")
        .await;
    let seq = see.number("select seq from pgonce.dead_letters").await;
    assert_eq!(
        see.code(&format!("select pgonce.skip('c', {seq}, '')"))
            .await,
        "22023"
    );
    assert_eq!(
        see.text(&format!("select pgonce.skip('c', {seq}, 'wrong')"))
            .await,
        "t"
    );
    assert_eq!(
        see.text(&format!("select pgonce.skip('c', {seq}, 'wrong')"))
            .await,
        "f"
    );
    wait_until("those behind it", DEADLINE, || async {
        sink.numbers().len() == 29
    })
    .await
    .unwrap();
    for relay in relays {
        relay.stop().await.unwrap();
    }
    assert_eq!(sink.check(), 0);
    let kept = "select failure_message from pgonce.jobs where queue = 'outbox/c'";
    assert_eq!(see.rows(kept).await, [[Some("wrong".to_owned())]]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn a_sink_that_is_down_costs_no_attempts_and_one_that_is_gone_ends_the_relay() {
    let (db, see) = with_subscription("down").await;
    let sink = Witness::default();
    sink.script(|_| {
        Some(Delivery::Unavailable {
            reason: "down".into(),
        })
    });
    let running = Running::start(relay(db.url(), &sink));
    see.run(&publish(1, "x", "a")).await;
    // Alone it is put off, again and again.
    see.wait_until("select count(*) > 0 from pgonce.job_live where failure_code = 'defer'")
        .await;
    let asked = sink.asked();
    wait_until("more tries than an event has", DEADLINE, || async {
        sink.asked() > asked + 20
    })
    .await
    .unwrap();
    sink.heal();
    wait_until("the event", DEADLINE, || async { sink.numbers() == [1] })
        .await
        .unwrap();
    sink.script(|_| {
        Some(Delivery::Gone {
            reason: "no such endpoint".into(),
        })
    });
    see.run(&publish(2, "x", "a")).await;
    let ended = running.ended().await.unwrap_err();
    assert_eq!(ended.code(), "P4031");
    assert!(ended.to_string().contains("no such endpoint"), "{ended}");
    // Nothing more is kept for it.
    see.run(&publish(3, "x", "a")).await;
    assert_eq!(see.number(WAITING).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn events_of_a_tenant_that_moves_keep_their_order() {
    let (db, see) = with_subscription("moved_events").await;
    let sink = Witness::default();
    let mut n = 0;
    for round in 0..6 {
        for _ in 0..5 {
            n += 1;
            see.run(&publish(n, "x", "a")).await;
        }
        see.run(&move_of("a", "block_writes")).await;
        if round == 2 {
            // Half of them before the next moves, while a relay runs.
            Running::start(relay(db.url(), &sink)).kill().await;
        }
    }
    // The lease of the relay that was killed may hold one.
    see.run("select pgonce._move_clock('1 minute')").await;
    let running = Running::start(relay(&db.urls[2], &sink));
    sink.wait_for(n).await;
    running.stop().await.unwrap();
    sink.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs Citus: make citus-tests"]
async fn an_event_that_was_sent_and_not_recorded_comes_again_with_its_id_before_later_ones() {
    let (db, see) = with_subscription("sent_again").await;
    see.run(&publish(1, "x", "a")).await;
    see.run(&publish(2, "x", "a")).await;
    let sink = Witness::default();
    let (go_on, wait) = std::sync::mpsc::channel();
    let wait = std::sync::Mutex::new(wait);
    sink.script(move |_| {
        // Once the other side is gone it no longer waits.
        let _ = wait.lock().unwrap().recv();
        None
    });
    let running = Running::start(relay(db.url(), &sink));
    see.wait_until("select count(*) = 1 from pgonce.job_live where state = 'running'")
        .await;
    // The end of the delivery cannot be recorded.
    let locker = db.see().await;
    locker
        .run("begin; select id from pgonce.job_live where tenant = 'a' and state = 'running' for update")
        .await;
    go_on.send(()).unwrap();
    wait_until("the first event", DEADLINE, || async {
        sink.numbers() == [1]
    })
    .await
    .unwrap();
    let recording =
        "from pg_stat_activity where query like '%finish_jobs%' and pid <> pg_backend_pid()";
    see.wait_until(&format!("select count(*) > 0 {recording}"))
        .await;
    running.kill().await;
    see.run(&format!("select pg_terminate_backend(pid) {recording}"))
        .await;
    see.wait_until(&format!("select count(*) = 0 {recording}"))
        .await;
    locker.run("rollback").await;
    drop(go_on);
    see.run("select pgonce._move_clock('1 minute')").await;
    let running = Running::start(relay(&db.urls[1], &sink));
    sink.wait_for(2).await;
    running.stop().await.unwrap();
    assert_eq!(sink.numbers(), [1, 1, 2]);
    assert_eq!(sink.check(), 1);
}

/// Never acknowledges anything; counts the events that it has in hand.
#[derive(Clone, Default)]
struct Hanging(Arc<()>);

impl Hanging {
    async fn wait_until_it_has(&self, events: usize) {
        let what = format!("{events} events in hand");
        wait_until(what, DEADLINE, || async {
            Arc::strong_count(&self.0) == 2 + events
        })
        .await
        .unwrap();
    }
}

impl Sink for Hanging {
    async fn send(&self, _: &Message) -> Delivery {
        let _in_hand = self.0.clone();
        std::future::pending().await
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn a_delivery_ends_with_its_lease_and_what_is_left_at_a_stop_is_given_back() {
    let (db, see) = with_subscription("given_back").await;
    let sink = Hanging::default();
    let hanging = Relay::new(once(db.url()).outbox(), "c", sink.clone())
        .lease(Duration::from_secs(2))
        .drain_timeout(Duration::from_millis(50));
    let running = Running::start(hanging);
    see.run(&publish(1, "x", "a")).await;
    sink.wait_until_it_has(1).await;
    let cancel = "select pgonce.cancel_job((select id from pgonce.job_live), 'wrong', 'a')";
    assert_eq!(see.text(cancel).await, "t");
    sink.wait_until_it_has(0).await;
    see.run(&publish(2, "x", "a")).await;
    sink.wait_until_it_has(1).await;
    running.stop().await.unwrap();
    let state = "select state from pgonce.job_live";
    assert_eq!(see.text(state).await, "ready");
    let witness = Witness::default();
    let delivered = relay(&db.urls[1], &witness).run_once(Default::default());
    assert!(delivered.await.unwrap());
    assert_eq!(witness.numbers(), [2]);
}
