//! Everything arrives, in order, once; anyone who runs how many relays.

use std::time::Duration;

use pgonce::outbox::Subscription;
use pgonce_broker::sinks::{Channel, JsonLines};
use pgonce_broker::{Delivery, Relay};
use pgonce_testkit::wait_until;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio_util::sync::CancellationToken;

use super::fixture::{DEADLINE, Fixture, Running, publish, relay_to};

#[tokio::test]
async fn what_is_published_arrives_in_order_and_once() {
    let fixture = Fixture::new().await;
    fixture.publish(1, 50, 7).await;
    let running = fixture.run();
    fixture.publish(51, 100, 7).await;
    fixture.sink.wait_for(100).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.sink.check(), 0);
    // It kept its place and gave its lanes back: the next begins where it ended, at once.
    fixture.publish(101, 110, 7).await;
    let running = fixture.run();
    fixture.sink.wait_for(110).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.sink.check(), 0);
    let left = "select count(*) from pgonce.outbox_cursor where owner is not null";
    assert_eq!(fixture.world.see.number(left).await, 0);
}

#[tokio::test]
async fn a_backlog_longer_than_all_batches_arrives_in_order_and_once() {
    let fixture = Fixture::new().await;
    let sql = "select pgonce.publish('orders', 'x', 's' || i % 100, jsonb_build_object('n', i)) from generate_series(1, 1500) i";
    fixture.world.see.run(sql).await;
    let running = Running::start(fixture.relay().batch(16, 16 * 1024));
    fixture.sink.wait_for(1500).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.sink.check(), 0);
}

#[tokio::test]
async fn two_relays_share_the_work_and_one_takes_over_when_the_other_goes() {
    let fixture = Fixture::new().await;
    // Short, so that lanes move soon; but none may run out on a busy machine.
    let short = Duration::from_secs(12);
    let first = Running::start(fixture.relay().lease(short));
    fixture.publish(1, 20, 20).await;
    fixture.sink.wait_for(20).await;
    let second = Running::start(fixture.relay().lease(short));
    let shared = "select count(*) = 2 and min(n) = 8 and max(n) = 8 from (select owner, count(*) as n \
         from pgonce.outbox_cursor where owner is not null group by owner) o";
    fixture.world.see.wait_until(shared).await;
    fixture.publish(21, 120, 20).await;
    fixture.sink.wait_for(120).await;
    first.stop().await.unwrap();
    fixture.publish(121, 160, 20).await;
    fixture.sink.wait_for(160).await;
    second.stop().await.unwrap();
    assert_eq!(fixture.sink.check(), 0, "lanes were handed over in order");
}

#[tokio::test]
async fn what_commits_in_any_order_is_all_delivered() {
    let fixture = Fixture::new().await;
    let running = fixture.run();
    let unrelated = fixture.world.observer().await;
    unrelated
        .run("begin; update account set balance = 0 where id = 1")
        .await;
    let mut writers = Vec::new();
    for n in 1..=8 {
        let writer = fixture.world.observer().await;
        // Each about a subject of its own: nothing else says which goes first.
        writer.run(&format!("begin; {}", publish(n, 100))).await;
        writers.push(writer);
    }
    for writer in writers.iter().rev() {
        writer.run("commit").await;
    }
    fixture.sink.wait_for(8).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.sink.check(), 0);
}

#[tokio::test]
async fn run_once_delivers_what_is_there_and_leaves_what_is_for_later() {
    let hour = Duration::from_secs(3600);
    let fixture = Fixture::with(Subscription::new("c").backoff(hour, hour)).await;
    fixture.sink.script(|n| {
        (n == 3).then(|| Delivery::Retry {
            reason: "later".into(),
            after: Duration::ZERO,
        })
    });
    fixture.publish(1, 10, 10).await;
    let stop = CancellationToken::new();
    assert!(fixture.relay().run_once(stop.clone()).await.unwrap());
    assert_eq!(fixture.sink.numbers().len(), 9);
    let left = "select count(*) from pgonce.outbox_cursor where owner is not null";
    assert_eq!(fixture.world.see.number(left).await, 0);

    // Asked to stop before it was through, it says so.
    fixture.sink.script(|_| {
        Some(Delivery::Unavailable {
            reason: "down".into(),
        })
    });
    fixture.publish(11, 12, 10).await;
    let relay = fixture.relay().drain_timeout(Duration::ZERO);
    let counts = relay.counts();
    let (ran, ()) = tokio::join!(relay.run_once(stop.clone()), async {
        wait_until("a lane to wait for the sink", DEADLINE, || async {
            counts.waiting() > 0 && counts.lanes() == 16
        })
        .await
        .unwrap();
        stop.cancel();
    });
    assert!(!ran.unwrap());
    assert_eq!((counts.waiting(), counts.lanes()), (0, 0));
}

/// The question whether everything is delivered gets no reply: who asked is not held by it.
#[tokio::test]
async fn run_once_ends_when_it_is_asked_to_while_the_database_says_nothing() {
    let fixture = Fixture::new().await;
    fixture.sink.script(|_| {
        Some(Delivery::Unavailable {
            reason: "down".into(),
        })
    });
    fixture.publish(1, 1, 1).await;
    let stop = CancellationToken::new();
    let relay = fixture.relay().drain_timeout(Duration::ZERO);
    let running = tokio::spawn(relay.run_once(stop.clone()));
    let other = fixture.world.observer().await;
    other
        .run("begin; lock table pgonce.parked in access exclusive mode")
        .await;
    let waits = "select count(*) > 0 from pg_stat_activity where datname = current_database() \
         and wait_event_type = 'Lock' and query like '%outbox_caught_up%'";
    fixture.world.see.wait_until(waits).await;
    stop.cancel();
    let ran = tokio::time::timeout(DEADLINE, running).await;
    assert!(!ran.expect("it ends").unwrap().unwrap());
    other.run("rollback").await;
}

#[tokio::test]
async fn a_channel_hands_events_to_the_same_process() {
    let fixture = Fixture::new().await;
    let (sink, mut events) = Channel::bounded(4);
    let running = Running::start(Relay::new(fixture.outbox.clone(), "c", sink));
    fixture.publish(1, 10, 1).await;
    for n in 1..=10 {
        let event = tokio::time::timeout(DEADLINE, events.recv())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(event.payload.unwrap(), format!("{{\"n\": {n}}}"));
        assert_eq!(
            (event.topic.as_str(), event.kind.as_str()),
            ("orders", "order.changed")
        );
    }
    running.stop().await.unwrap();
}

#[tokio::test]
async fn json_lines_are_cloud_events() {
    let fixture = Fixture::with(Subscription::new("c").topics(["ord*"])).await;
    let (ours, theirs) = tokio::io::duplex(1024);
    let running = Running::start(Relay::new(
        fixture.outbox.clone(),
        "c",
        JsonLines::new("/shop", ours),
    ));
    fixture
        .world
        .see
        .run("select pgonce.publish('other', 'x', 's', '{}')")
        .await;
    fixture.publish(1, 3, 1).await;
    let mut lines = BufReader::new(theirs).lines();
    for n in 1..=3 {
        let line = tokio::time::timeout(DEADLINE, lines.next_line())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(event["data"]["n"], n);
        assert_eq!(
            (&event["specversion"], &event["source"]),
            (&"1.0".into(), &"/shop".into())
        );
        assert_eq!(
            (&event["type"], &event["subject"]),
            (&"order.changed".into(), &"s0".into())
        );
    }
    running.stop().await.unwrap();
}

#[tokio::test]
async fn numbers_are_delivered_digit_by_digit_and_one_that_no_float_holds_delays_nobody() {
    let fixture = Fixture::with(Subscription::new("c")).await;
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let published = [
        (
            r#"{"n": 1e400, "m": 12345678901234567.89}"#,
            r#"{"amount": 12345678901234567.89, "check": 12345678901234567890123}"#,
        ),
        (&format!(r#"{{"deep": {deep}}}"#), r#"{"far": 1e400}"#),
        ("{}", r#"{"last": true}"#),
    ];
    for (headers, payload) in published {
        let sql = format!(
            "select pgonce.publish('orders', 'x', 's', '{payload}', p_headers => '{headers}')"
        );
        fixture.world.see.run(&sql).await;
    }
    // The owner may write what a writer's policy refuses.
    fixture
        .world
        .see
        .run("update pgonce.outbox set created_at = 'infinity' where headers ? 'deep'")
        .await;
    let (ours, theirs) = tokio::io::duplex(4096);
    let sink = JsonLines::new("/shop", ours);
    let running = Running::start(Relay::new(fixture.outbox.clone(), "c", sink));
    let mut lines = BufReader::new(theirs).lines();
    let mut delivered = Vec::new();
    for _ in 0..3 {
        let line = tokio::time::timeout(DEADLINE, lines.next_line()).await;
        delivered.push(line.unwrap().unwrap().unwrap());
    }
    running.stop().await.unwrap();
    assert!(delivered[0].ends_with(
        r#","data":{"check": 12345678901234567890123, "amount": 12345678901234567.89}}"#
    ));
    assert!(
        delivered[0].contains(r#""m":"12345678901234567.89""#),
        "{}",
        delivered[0]
    );
    let far = format!(r#""n":"1{}""#, "0".repeat(400));
    assert!(delivered[0].contains(&far), "{}", delivered[0]);
    assert!(
        delivered[1].contains(r#""time":"9999-12-31T23:59:59.999999Z""#),
        "{}",
        delivered[1]
    );
    assert!(
        delivered[2].starts_with(r#"{"data":{"last":true},"#),
        "{}",
        delivered[2]
    );
}

#[tokio::test]
async fn an_unknown_or_evicted_subscription_ends_the_relay_with_a_reason() {
    let fixture = Fixture::new().await;
    let stranger = Relay::new(fixture.outbox.clone(), "nobody", fixture.sink.clone());
    assert_eq!(
        Running::start(stranger).ended().await.unwrap_err().code(),
        "42704"
    );
    let running = Running::start(
        relay_to(&fixture.world.url(), fixture.sink.clone()).lease(Duration::from_millis(300)),
    );
    fixture.publish(1, 1, 1).await;
    fixture.sink.wait_for(1).await;
    fixture.outbox.evict("c", "test").await.unwrap();
    assert_eq!(running.ended().await.unwrap_err().code(), "P4031");
    let backlog = fixture.outbox.backlog().await.unwrap();
    assert_eq!(
        (backlog.len(), backlog[0].evicted.as_deref()),
        (1, Some("test"))
    );
}
