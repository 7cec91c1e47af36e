//! A relay, or a consumer, that fails, panics or is killed at any of its fault points loses nothing and turns nothing
//! round. (Fault points are the process's, so these tests have a process of their own.)

#![allow(clippy::unwrap_used)]

#[path = "../relay/ground.rs"]
#[allow(dead_code)]
mod ground;

mod consumer;
#[path = "../consumer/ground.rs"]
#[allow(dead_code)]
mod consumer_ground;
mod sources;

use std::time::Duration;

use ground::{Ground, Running};
use pgonce::faults::{self, Action, RELAY_POINTS};
use pgonce_broker::Delivery;
use pgonce_testkit::wait_until;

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Forty events about four subjects; one is poison, so that lanes are settled as well.
async fn troubled_ground() -> Ground {
    let ground = Ground::new().await;
    ground.sink.script(|n| {
        (n == 5).then(|| Delivery::Poison {
            reason: "test".into(),
        })
    });
    ground.publish(1, 40, 4).await;
    ground
}

/// A relay that nobody disturbs delivers what is left.
async fn finish(ground: &Ground, place: &str) {
    faults::disarm_all();
    ground.expire_leases().await;
    let running = ground.run();
    ground.publish(41, 48, 4).await;
    ground
        .world
        .see
        .wait_until("select count(*) > 0 from pgonce.parked where state = 'dead'")
        .await;
    ground.sink.heal();
    ground.outbox.redrive("c", None).await.unwrap();
    ground.sink.wait_for(48).await;
    running.stop().await.unwrap();
    let again = ground.sink.check();
    assert!(again <= 40, "{place}: {again} came again");
}

#[tokio::test]
async fn killed_at_any_point_the_next_relay_goes_on() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for place in RELAY_POINTS {
        let ground = troubled_ground().await;
        let paused = faults::pause(place);
        let running = ground.run();
        paused.reached().await;
        running.kill().await;
        finish(&ground, place).await;
    }
}

#[tokio::test]
async fn paused_at_any_point_until_another_took_over_it_does_no_harm() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for place in RELAY_POINTS {
        let ground = troubled_ground().await;
        let paused = faults::pause(place);
        let zombie = ground.run();
        paused.reached().await;
        // Its lanes are taken from it: where only its delivery stands still, it would renew a lease.
        let taken = "select pgonce.leave_lanes('c', owner) from pgonce.outbox_relay";
        ground.world.see.run(taken).await;
        let heir = ground.run();
        ground
            .world
            .see
            .wait_until("select count(*) > 0 from pgonce.parked where state = 'dead'")
            .await;
        let moved = "select string_agg((cursor)::text || epoch, ';' order by lane) from pgonce.outbox_cursor";
        heir.stop().await.unwrap();
        let before = ground.world.see.text(moved).await;
        // It wakes up and finds out: whatever it had in hand, it keeps nothing of it over the heir's.
        paused.resume();
        ground.publish(41, 44, 4).await;
        ground.sink.heal();
        ground.outbox.redrive("c", None).await.unwrap();
        ground.sink.wait_for(44).await;
        zombie.stop().await.unwrap();
        assert_ne!(
            ground.world.see.text(moved).await,
            before,
            "{place}: it claimed again"
        );
        ground.sink.check();
    }
}

#[tokio::test]
async fn failing_at_any_point_it_goes_on_by_itself() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for place in RELAY_POINTS {
        let ground = troubled_ground().await;
        faults::arm(place, 1, Action::Error);
        let before = faults::reached(place);
        let running = Running::start(ground.relay());
        ground
            .world
            .see
            .wait_until("select count(*) > 0 from pgonce.parked where state = 'dead'")
            .await;
        ground.sink.heal();
        ground.outbox.redrive("c", None).await.unwrap();
        ground.sink.wait_for(40).await;
        // How far it is, a relay tells the database only now and then.
        let reached = async || faults::reached(place) > before;
        wait_until(format!("{place} is reached"), PATIENCE, reached)
            .await
            .unwrap();
        running.stop().await.unwrap();
        ground.sink.check();
    }
}
