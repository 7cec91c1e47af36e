//! A consumer that fails, or is killed, at any of its fault points applies everything once and loses nothing.

use std::time::Duration;

use pgonce::faults::{self, Action, CONSUMER_POINTS};

use super::ONE_AT_A_TIME;
use super::consumer_ground::{Ground, Running};

/// Forty messages of four keys; one fails for now, so that the stored inbox is used as well.
async fn troubled_ground() -> Ground {
    let ground = Ground::new().await;
    // More attempts than faults can take away.
    ground.world.see.run("select pgonce.define_inbox('c', p_max_attempts => 100, p_backoff => '10 ms', p_backoff_at_most => '40 ms')").await;
    let failed = std::sync::atomic::AtomicBool::new(false);
    ground.witness.script(move |id| {
        if id == "m5" && !failed.swap(true, std::sync::atomic::Ordering::SeqCst) {
            return Err(pgonce::Error::work("later"));
        }
        Ok(())
    });
    ground.send(1, 40, 4);
    ground
}

/// A consumer that nobody disturbs does what is left.
async fn finish(ground: &Ground, place: &str) {
    faults::disarm_all();
    // Leases of those who were killed run out.
    ground
        .world
        .see
        .run("select pgonce.move_clock('1 minute')")
        .await;
    let running = ground.run();
    ground.send(41, 48, 4);
    ground.wait_for(48).await;
    ground
        .wait(place, || async { ground.shop.waiting() == 0 })
        .await;
    running.stop().await.unwrap();
    ground.check().await;
    let left = "select count(*) from pgonce.inbox_message where status <> 'processed'";
    assert_eq!(ground.world.see.number(left).await, 0, "{place}");
}

#[tokio::test]
async fn killed_at_any_point_the_next_consumer_goes_on() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for place in CONSUMER_POINTS {
        let ground = troubled_ground().await;
        let paused = faults::pause(place);
        let running = ground.run();
        paused.reached().await;
        running.kill().await;
        finish(&ground, place).await;
    }
}

#[tokio::test]
async fn paused_at_any_point_while_another_does_the_work_it_does_no_harm() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for place in CONSUMER_POINTS {
        let ground = troubled_ground().await;
        let paused = faults::pause(place);
        let zombie = Running::start(ground.consumer().drain_timeout(Duration::from_secs(30)));
        paused.reached().await;
        // The broker gives up on it and delivers everything to somebody else.
        ground
            .world
            .see
            .run("select pgonce.move_clock('1 minute')")
            .await;
        let heir = ground.run();
        ground.send(1, 40, 4);
        paused.resume();
        ground.wait_for(40).await;
        ground
            .wait(place, || async { ground.shop.waiting() == 0 })
            .await;
        heir.stop().await.unwrap();
        zombie.stop().await.unwrap();
        finish(&ground, place).await;
    }
}

#[tokio::test]
async fn failing_at_any_point_it_goes_on_by_itself() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for place in CONSUMER_POINTS {
        let ground = troubled_ground().await;
        let before = faults::reached(place);
        faults::arm(place, 1, Action::Error);
        let running = Running::start(ground.consumer().lease(Duration::from_millis(300)));
        ground
            .wait(place, || async { faults::reached(place) > before })
            .await;
        // A claim that was lost on the way ends with its lease.
        ground
            .world
            .see
            .run("select pgonce.move_clock('1 minute')")
            .await;
        ground.wait_for(40).await;
        running.stop().await.unwrap();
        finish(&ground, place).await;
    }
}
