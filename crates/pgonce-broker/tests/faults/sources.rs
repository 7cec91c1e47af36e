//! A consumer of a real broker that is killed at any of its fault points: the next one goes on.

use pgonce::faults::{self, CONSUMER_POINTS};

use super::ONE_AT_A_TIME;
use pgonce_tests::consumer as fixture;

#[path = "../sources/broker_fixtures.rs"]
#[allow(dead_code)]
mod broker_fixtures;
#[path = "../sources/conformance.rs"]
#[allow(dead_code, unused_imports, unused_macros)]
mod conformance;

use broker_fixtures::{NatsDurable, NatsOrdered, Rabbit, RedisGroup, RedisOrdered, Site};
use conformance::Stage;

async fn killed_at_any_point<S: Site>() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for place in CONSUMER_POINTS {
        let stage = Stage::<S>::new(false).await;
        let (fixture, keys) = (&stage.fixture, Stage::<S>::keys());
        // One fails with a transient error, so that the stored inbox is used as well.
        let failed = std::sync::atomic::AtomicBool::new(false);
        fixture.witness.script(move |id| {
            if id == "m5" && !failed.swap(true, std::sync::atomic::Ordering::SeqCst) {
                return Err(pgonce::Error::work("later"));
            }
            Ok(())
        });
        let patient = "select pgonce.define_inbox('c', p_max_attempts => 100, p_backoff => '10 ms', p_max_backoff => '40 ms')";
        fixture.world.see.run(patient).await;
        stage.site.send_numbers(1..=40, keys).await;
        let paused = faults::pause(place);
        let running = stage.run().await;
        paused.reached().await;
        running.kill().await;
        faults::disarm_all();
        // Its leases run out.
        fixture
            .world
            .see
            .run("select pgonce._move_clock('1 minute')")
            .await;
        let heir = stage.run().await;
        stage.site.send_numbers(41..=48, keys).await;
        fixture.wait_for(48).await;
        heir.stop().await.unwrap();
        stage.settle_all().await;
        fixture.check().await;
        let left = "select count(*) from pgonce.inbox_message where status <> 'processed'";
        assert_eq!(fixture.world.see.number(left).await, 0, "{place}");
    }
}

#[tokio::test]
async fn killed_at_any_point_the_next_reader_of_a_durable_consumer_of_nats_goes_on() {
    killed_at_any_point::<NatsDurable>().await;
}

#[tokio::test]
async fn killed_at_any_point_the_next_reader_of_a_stream_of_nats_goes_on_in_order() {
    killed_at_any_point::<NatsOrdered>().await;
}

#[tokio::test]
async fn killed_at_any_point_the_next_reader_of_a_queue_of_rabbitmq_goes_on() {
    killed_at_any_point::<Rabbit>().await;
}

#[tokio::test]
async fn killed_at_any_point_the_next_of_a_group_of_redis_goes_on() {
    killed_at_any_point::<RedisGroup>().await;
}

#[tokio::test]
async fn killed_at_any_point_the_next_reader_of_a_stream_of_redis_goes_on_in_order() {
    killed_at_any_point::<RedisOrdered>().await;
}
