//! Hands in the machinery: slots, subscriptions and publications that somebody changed, and records that somebody locks.

use std::time::{Duration, Instant};

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::region::{Mode, Rule, define_rule, join};
use pgonce_tests::{Observer, intent, work};

use super::places::{Place, Places, TIMEOUT};

async fn run(place: &Place, key: &str) -> bool {
    let done = place.once.run(&intent(key), work::<TokioPostgres>).await;
    done.unwrap().replayed()
}

/// What an operator sees where facts were missed, and that nothing moves until they are copied.
async fn is_missed_and_copied_by_a_join(places: &Places, key: &str) {
    let [eu, us] = &places.all[..] else { panic!() };
    let missed = "select missed and lag is null from pgonce.regions where name = 'eu'";
    us.see.wait_until(missed).await;
    let rule = Rule::new("*", Mode::Home).home("us");
    let error = define_rule(&places.members(), &rule, Duration::from_secs(5)).await;
    assert!(error.unwrap_err().to_string().contains("facts were missed"));
    let (this, others) = (us.member(), [eu.member()]);
    join(&this, 2, "us", "https://us.example", &others, TIMEOUT)
        .await
        .unwrap();
    places.settle().await;
    define_rule(&places.members(), &rule, TIMEOUT)
        .await
        .unwrap();
    assert!(run(us, key).await, "it was done in the other region");
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_that_a_changed_publication_left_out_are_missed() {
    let places = Places::start(2).await;
    places.rule(Rule::new("*", Mode::Home).home("eu")).await;
    let eu = &places.all[0];
    eu.see
        .run("alter publication pgonce_region drop table pgonce.region_fact_1")
        .await;
    assert!(!run(eu, "left out").await);
    let _ = eu.once.beat_region().await.unwrap();
    eu.see
        .run("alter publication pgonce_region add table pgonce.region_fact_1")
        .await;
    let _ = eu.once.beat_region().await.unwrap();
    is_missed_and_copied_by_a_join(&places, "left out").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_before_a_slot_that_was_dropped_and_made_again_are_missed() {
    let places = Places::start(2).await;
    places.rule(Rule::new("*", Mode::Home).home("eu")).await;
    let [eu, us] = &places.all[..] else { panic!() };
    us.see
        .run("alter subscription pgonce_region_2_1 disable")
        .await;
    let idle = "select not active from pg_replication_slots where slot_name = pgonce._region_slot(2::smallint)";
    eu.see.wait_until(idle).await;
    eu.see
        .run("select pg_drop_replication_slot(pgonce._region_slot(2::smallint))")
        .await;
    assert!(!run(eu, "between").await);
    let _ = eu.once.beat_region().await.unwrap();
    eu.see
        .run("select pg_create_logical_replication_slot(pgonce._region_slot(2::smallint), 'pgoutput')")
        .await;
    us.see
        .run("alter subscription pgonce_region_2_1 enable")
        .await;
    let _ = eu.once.beat_region().await.unwrap();
    is_missed_and_copied_by_a_join(&places, "between").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_records_hold_up_neither_replication_nor_heartbeats() {
    const KEYS: usize = 20;
    let places = Places::start(2).await;
    places.rule(Rule::new("*", Mode::Local)).await;
    let [eu, us] = &places.all[..] else { panic!() };
    us.see
        .run(&format!(
            "select pgonce.claim('orders.create', n::text, '\\x01', '1 hour') from generate_series(1, {KEYS}) n"
        ))
        .await;
    let locker = Observer::connect(&us.url()).await;
    locker
        .run("begin; select from pgonce.intent for update")
        .await;
    for key in 1..=KEYS {
        assert!(!run(eu, &key.to_string()).await);
    }
    assert!(!run(eu, "free").await);
    let _ = eu.once.beat_region().await.unwrap();
    let pending = format!("select count(*) >= {KEYS} from pgonce.region_pending");
    us.see.wait_until(&pending).await;
    let begun = Instant::now();
    let _ = us.once.beat_region().await.unwrap();
    // With two seconds for each of them it would be forty.
    assert!(begun.elapsed() < Duration::from_secs(20));
    locker.run("rollback").await;
    while us
        .see
        .number("select count(*) from pgonce.region_pending")
        .await
        > 0
    {
        let _ = us.once.beat_region().await.unwrap();
    }
    for key in 1..=KEYS {
        assert!(run(us, &key.to_string()).await, "{key}");
    }
    assert!(run(us, "free").await);
    places.settle().await;
}
