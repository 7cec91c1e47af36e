//! What relays cost that have nothing to do.

use std::time::Duration;

use pgonce::outbox::Subscription;
use pgonce_broker::Relay;
use pgonce_testkit::wait_until;
use tokio::time::Instant;

use super::fixture::{DEADLINE, Fixture, Running, Witness};

/// Transactions per second of the fixture's database, over so many polls of its relays.
async fn transactions_per_second(fixture: &Fixture) -> f64 {
    let count = format!(
        "select xact_commit + xact_rollback from pg_stat_database where datname = '{}'",
        fixture.world.database()
    );
    let count = async || fixture.world.see.number(&count).await;
    let (first, began) = (count().await, Instant::now());
    // Statistics are flushed once a second: several times that.
    wait_until("statistics over some seconds", DEADLINE, || async {
        count().await > first && began.elapsed() > Duration::from_secs(6)
    })
    .await
    .unwrap();
    let took = began.elapsed().as_secs_f64();
    f64::from(u32::try_from(count().await - first).unwrap()) / took
}

#[expect(
    clippy::print_stderr,
    reason = "the figures, for a run with --nocapture"
)]
#[tokio::test]
async fn thirty_idle_subscriptions_cost_hardly_more_than_one() {
    let fixture = Fixture::new().await;
    let mut running = Vec::new();
    let mut sinks = Vec::new();
    let mut rates = Vec::new();
    for count in [1, 30] {
        while running.len() < count {
            let name = format!("s{}", running.len());
            let outbox = &fixture.outbox;
            outbox
                .create_subscription(&Subscription::new(name.as_str()))
                .await
                .unwrap();
            let sink = Witness::default();
            sinks.push(sink.clone());
            running.push(Running::start(Relay::new(outbox.clone(), name, sink)));
        }
        let last = if count == 1 { 1 } else { 2 };
        fixture.publish(last, last, 1).await;
        for sink in &sinks {
            sink.wait_for(last).await;
        }
        // Cursors are written down, and looks after work come to their end.
        let held = format!(
            "select count(*) = {} from pgonce.outbox_cursor where lease_until > pgonce.now() and published > 0",
            count * 16
        );
        fixture.world.see.wait_until(&held).await;
        rates.push(transactions_per_second(&fixture).await);
    }
    eprintln!("transactions per second with 1 and 30 idle subscriptions: {rates:.0?}");
    let [one, thirty] = rates[..] else {
        panic!("two rates")
    };
    assert!(
        thirty < one * 1.5 + 40.0,
        "idle subscriptions are paid for one by one: {rates:?}"
    );
    // None of them sleeps too well.
    fixture.publish(3, 3, 1).await;
    for sink in &sinks {
        sink.wait_for(3).await;
    }
    for relay in running {
        relay.stop().await.unwrap();
    }
}

#[tokio::test]
async fn relays_look_for_themselves_while_their_poller_gets_no_answer() {
    let fixture = Fixture::new().await;
    let running = fixture.run();
    fixture.publish(1, 1, 1).await;
    fixture.sink.wait_for(1).await;
    let away = "alter function pgonce._poll_outbox(text, text[]) rename to poll_outbox_away";
    fixture.world.see.run(away).await;
    let began = Instant::now();
    for n in 2..=5 {
        fixture.publish(n, n, 1).await;
        fixture.sink.wait_for(n).await;
    }
    // Each would wait for fifteen seconds or more.
    let took = began.elapsed();
    assert!(took < Duration::from_secs(50), "four events took {took:?}");
    running.stop().await.unwrap();
}
