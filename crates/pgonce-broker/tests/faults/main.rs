//! A relay, or a consumer, that fails, panics or is killed at any of its fault points loses nothing and turns nothing
//! round. (Fault points are the process's, so these tests have a process of their own.)

#![allow(clippy::unwrap_used)]

mod consumer;
mod sources;

use std::time::Duration;

use pgonce::faults::{self, Action, RELAY_POINTS};
use pgonce_broker::Delivery;
use pgonce_testkit::wait_until;
use pgonce_tests::relay::{Fixture, Running};

const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Forty events about four subjects; one is poison, so that lanes are settled as well.
async fn failing_fixture() -> Fixture {
    let fixture = Fixture::new().await;
    fixture.sink.script(|n| {
        (n == 5).then(|| Delivery::Poison {
            reason: "test".into(),
        })
    });
    fixture.publish(1, 40, 4).await;
    fixture
}

/// A relay that nobody disturbs delivers what is left.
async fn finish(fixture: &Fixture, place: &str) {
    faults::disarm_all();
    fixture.expire_leases().await;
    let running = fixture.run();
    fixture.publish(41, 48, 4).await;
    fixture
        .world
        .see
        .wait_until("select count(*) > 0 from pgonce.parked where state = 'dead'")
        .await;
    fixture.sink.heal();
    fixture.outbox.redrive("c", None).await.unwrap();
    fixture.sink.wait_for(48).await;
    running.stop().await.unwrap();
    let again = fixture.sink.check();
    assert!(again <= 40, "{place}: {again} came again");
}

#[tokio::test]
async fn killed_at_any_point_the_next_relay_goes_on() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for place in RELAY_POINTS {
        let fixture = failing_fixture().await;
        let paused = faults::pause(place);
        let running = fixture.run();
        paused.reached().await;
        running.kill().await;
        finish(&fixture, place).await;
    }
}

#[tokio::test]
async fn paused_at_any_point_until_another_took_over_it_does_no_harm() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for place in RELAY_POINTS {
        let fixture = failing_fixture().await;
        let paused = faults::pause(place);
        let zombie = fixture.run();
        paused.reached().await;
        // Its lanes are taken from it: where only its delivery stands still, it would renew a lease.
        let taken = "select pgonce._release_lanes('c', owner) from pgonce.outbox_relay";
        fixture.world.see.run(taken).await;
        let heir = fixture.run();
        fixture
            .world
            .see
            .wait_until("select count(*) > 0 from pgonce.parked where state = 'dead'")
            .await;
        let moved = "select string_agg((cursor)::text || epoch, ';' order by lane) from pgonce.outbox_cursor";
        heir.stop().await.unwrap();
        let before = fixture.world.see.text(moved).await;
        // It wakes up and finds out: whatever it had in hand, it keeps nothing of it over the heir's.
        paused.resume();
        fixture.publish(41, 44, 4).await;
        fixture.sink.heal();
        fixture.outbox.redrive("c", None).await.unwrap();
        fixture.sink.wait_for(44).await;
        zombie.stop().await.unwrap();
        assert_ne!(
            fixture.world.see.text(moved).await,
            before,
            "{place}: it claimed again"
        );
        fixture.sink.check();
    }
}

#[tokio::test]
async fn failing_at_any_point_it_goes_on_by_itself() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for place in RELAY_POINTS {
        let fixture = failing_fixture().await;
        faults::arm(place, 1, Action::Error);
        let before = faults::reached(place);
        let running = Running::start(fixture.relay());
        fixture
            .world
            .see
            .wait_until("select count(*) > 0 from pgonce.parked where state = 'dead'")
            .await;
        fixture.sink.heal();
        fixture.outbox.redrive("c", None).await.unwrap();
        fixture.sink.wait_for(40).await;
        // How far it is, a relay writes down only now and then.
        let reached = async || faults::reached(place) > before;
        wait_until(format!("{place} is reached"), DEADLINE, reached)
            .await
            .unwrap();
        running.stop().await.unwrap();
        fixture.sink.check();
    }
}
