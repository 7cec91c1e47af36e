//! What a receiver says of an event.

use std::time::Duration;

use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;
use pgonce::outbox::{LaneLease, Outcome, Settlement};
use pgonce_testkit::shared;
use pgonce_tests::{Observer, TestDriver as _, publish};

/// A receiver may say anything, in any letters, and name any time.
#[tokio::test]
async fn a_failure_that_the_server_cannot_write_down_does_not_hold_its_lane() {
    let server = shared(None).await.unwrap();
    let see = Observer::connect(&server.url()).await;
    see.run("create database reasons_in_latin1 encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0").await;
    let url = server.url_for("reasons_in_latin1");
    let migrator = Migrator::new(TokioPostgres::connect(&url, 1));
    migrator.up().await.unwrap();
    let inside = Observer::connect(&url).await;
    inside.run("select pgonce.create_subscription('c')").await;
    for n in 1..=2 {
        inside.run(&publish(&format!("s{n}"), n)).await;
    }
    let once = Once::tokio_postgres(TokioPostgres::connect(&url, 4).pool().clone());
    let outbox = once.outbox();
    let hour = Duration::from_secs(3600);
    let lanes = outbox.claim_lanes("c", "r", hour).await.unwrap();
    let leases: Vec<_> = (lanes.iter())
        .map(|lane| LaneLease {
            lane: lane.lane,
            epoch: lane.epoch,
            cursor: lane.cursor.clone(),
        })
        .collect();
    let page = outbox.read("c", &leases, 100, 100_000).await.unwrap();
    assert_eq!(page.messages.len(), 2);
    for (message, after) in page.messages.iter().zip([Duration::ZERO, Duration::MAX]) {
        let lane = lanes.iter().find(|lane| lane.lane == message.lane).unwrap();
        let reason = "\u{6f22}\0 is no letter here".to_owned();
        let settlement = Settlement {
            cursor: None,
            outcomes: vec![(message.seq, Outcome::Retry { reason, after })],
        };
        outbox
            .settle("c", lane.lane, lane.epoch, &settlement)
            .await
            .unwrap();
    }
    let parked = "select string_agg(state || ' ' || reason || ' ' || (due_at > pgonce.now() + interval '50 years'), ', ' order by seq) \
         from pgonce.parked";
    assert_eq!(
        inside.text(parked).await,
        "retry ? is no letter here false, retry ? is no letter here true"
    );
    outbox
        .evict("c", "410: \u{6f22}\0 has moved")
        .await
        .unwrap();
    let why = "select evicted_why from pgonce.outbox_subscription";
    assert_eq!(inside.text(why).await, "410: ? has moved");
    drop((inside, migrator, outbox, once));
    see.run("drop database reasons_in_latin1 with (force)")
        .await;
}
