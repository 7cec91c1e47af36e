//! Consumers by SQL: a batch of events is settled once, with its effects, or not at all.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::{Observer, World, publish};
use serde_json::Value;

async fn world() -> World<TokioPostgres> {
    let world = World::new().await;
    let see = &world.see;
    see.run("select pgonce.create_subscription('c')").await;
    see.run("create table applied (subject text, n text)").await;
    world
}

/// What a consumer gets: events and batch of each lane.
async fn claim(see: &Observer, owner: &str) -> Vec<(Vec<Value>, String)> {
    let claim = format!("select events, batch from pgonce.claim_events('c', '{owner}', '1 hour')");
    let rows = see.rows(&claim).await.into_iter();
    let read = |row: Vec<Option<String>>| {
        let mut cells = row.into_iter().map(Option::unwrap);
        let events = serde_json::from_str(&cells.next().unwrap()).unwrap();
        (events, cells.next().unwrap())
    };
    rows.map(read).collect()
}

fn numbers(claimed: &[(Vec<Value>, String)]) -> Vec<String> {
    let events = claimed.iter().flat_map(|(events, _)| events);
    events
        .map(|event| event["payload"]["n"].to_string())
        .collect()
}

fn settle(batch: &str, failed: &str) -> String {
    format!("select pgonce.settle_events('c', '{batch}', '{failed}')")
}

/// Effects and settlement in one transaction; answers the SQLSTATE, empty for none.
async fn apply(see: &Observer, (events, batch): &(Vec<Value>, String)) -> String {
    see.run("begin").await;
    for event in events {
        let (subject, n) = (event["subject"].as_str().unwrap(), &event["payload"]["n"]);
        see.run(&format!("insert into applied values ('{subject}', '{n}')"))
            .await;
    }
    let code = see.code(&settle(batch, "[]")).await;
    see.run(if code.is_empty() {
        "commit"
    } else {
        "rollback"
    })
    .await;
    code
}

const APPLIED: &str = "select string_agg(n, ',' order by n::int) from applied";

#[tokio::test]
async fn a_batch_is_applied_once_also_by_two_workers_of_one_owner() {
    let world = world().await;
    world.see.run(&publish("s", 1)).await;
    let (a, b) = (world.observer().await, world.observer().await);
    let (first, second) = (claim(&a, "w").await, claim(&b, "w").await);
    assert_eq!(numbers(&first), numbers(&second));
    assert_eq!(apply(&a, &first[0]).await, "");
    assert_eq!(apply(&b, &second[0]).await, "P4012");
    assert_eq!(world.see.text(APPLIED).await, "1");
    assert!(claim(&a, "w").await.is_empty());
    // A parked event is not moved by the cursor, and is settled once all the same.
    world.see.run(&publish("s", 2)).await;
    let failed = claim(&a, "w").await;
    let seq = &failed[0].0[0]["seq"];
    let reason = format!(r#"[{{"seq": {seq}, "reason": "no"}}]"#);
    assert_eq!(a.code(&settle(&failed[0].1, &reason)).await, "");
    world.see.run("select pgonce._move_clock('1 minute')").await;
    let (first, second) = (claim(&a, "w").await, claim(&b, "w").await);
    assert_eq!(
        (first[0].0[0]["attempts"].clone(), 1),
        (1.into(), second.len())
    );
    assert_eq!(apply(&a, &first[0]).await, "");
    assert_eq!(apply(&b, &second[0]).await, "P4012");
    assert_eq!(world.see.text(APPLIED).await, "1,2");
}

#[tokio::test]
async fn a_failed_event_may_be_named_by_text() {
    let world = world().await;
    world.see.run(&publish("s", 1)).await;
    let see = world.observer().await;
    let claimed = claim(&see, "w").await;
    let seq = &claimed[0].0[0]["seq"];
    let failed = format!(r#"[{{"seq": "{seq}", "reason": "no"}}]"#);
    assert_eq!(see.number(&settle(&claimed[0].1, &failed)).await, 0);
    see.run("select pgonce._move_clock('1 minute')").await;
    assert_eq!(numbers(&claim(&see, "w").await), ["1"], "it comes again");
}

#[tokio::test]
async fn a_batch_of_a_lost_lease_is_refused_and_its_events_go_to_another() {
    let world = world().await;
    world.see.run(&publish("s", 1)).await;
    let (zombie, heir) = (world.observer().await, world.observer().await);
    let old = claim(&zombie, "zombie").await;
    assert!(claim(&heir, "heir").await.is_empty());
    world.see.run("select pgonce._move_clock('2 hours')").await;
    let new = claim(&heir, "heir").await;
    assert_eq!(apply(&zombie, &old[0]).await, "P4012");
    assert_eq!(apply(&heir, &new[0]).await, "");
    assert_eq!(world.see.text(APPLIED).await, "1");
    let released = "select pgonce.release_events('c', 'heir')";
    assert_eq!(world.see.number(released).await, 16);
}

#[tokio::test]
async fn an_event_that_fails_holds_its_subject_and_no_other() {
    let world = world().await;
    for n in 0..6 {
        let subject = if n % 2 == 0 { "bad" } else { "good" };
        world.see.run(&publish(subject, n)).await;
    }
    let see = world.observer().await;
    let mut good = Vec::new();
    for (events, batch) in claim(&see, "w").await {
        let first = events[0]["seq"].as_i64().unwrap();
        if events[0]["subject"] == "bad" {
            let failed = format!(r#"[{{"seq": {first}, "reason": "no"}}]"#);
            assert_eq!(see.number(&settle(&batch, &failed)).await, 0);
        } else {
            good = vec![(events, batch.clone())];
            assert_eq!(see.number(&settle(&batch, "[]")).await, 3);
        }
    }
    assert_eq!(numbers(&good), ["1", "3", "5"]);
    // What comes for the subject waits behind it.
    world.see.run(&publish("bad", 6)).await;
    let held = claim(&see, "w").await;
    assert!(held.iter().all(|(events, _)| events.is_empty()));
    for (_, batch) in &held {
        assert_eq!(see.number(&settle(batch, "[]")).await, 0);
    }
    world.see.run("select pgonce._move_clock('1 minute')").await;
    assert_eq!(numbers(&claim(&see, "w").await), ["0", "2", "4", "6"]);
    // A permanent failure is a dead letter at once.
    let again = claim(&see, "w").await;
    let dead = format!(
        r#"[{{"seq": {}, "reason": "never", "permanent": true}}]"#,
        again[0].0[0]["seq"]
    );
    assert_eq!(see.code(&settle(&again[0].1, &dead)).await, "");
    let letters = "select reason from pgonce.dead_letters where subject = 'bad'";
    assert_eq!(world.see.text(letters).await, "never");
    assert!(claim(&see, "w").await.is_empty());
    let strange = settle(&again[0].1, r#"[{"seq": 99, "reason": "no"}]"#);
    assert_eq!(see.code(&strange).await, "P4012");
}

#[tokio::test]
async fn what_a_consumer_publishes_in_the_transaction_of_its_claim_is_not_passed_by() {
    let world = world().await;
    let see = world.observer().await;
    see.run("begin").await;
    see.run(&publish("own", 1)).await;
    // A transaction with a higher id ends first.
    world.see.run(&publish("other", 2)).await;
    let claimed = claim(&see, "w").await;
    assert_eq!(numbers(&claimed), ["2"]);
    see.run(&publish("own", 3)).await;
    for (_, batch) in &claimed {
        assert_eq!(see.code(&settle(batch, "[]")).await, "");
    }
    see.run("commit").await;
    assert_eq!(numbers(&claim(&see, "w").await), ["1", "3"]);
}

#[tokio::test]
async fn a_role_of_one_tenant_cannot_move_the_cursor_of_all() {
    let world = world().await;
    world
        .see
        .run("select pgonce.bind_tenant(session_user::name, 'acme')")
        .await;
    let claim = "select pgonce.claim_events('c', 'w')";
    assert_eq!(world.see.code(claim).await, "42501");
    for bad in ["'c', ''", "'c', 'w', '0'", "'c', 'w', '1 s', 0"] {
        let claim = format!("select pgonce.claim_events({bad})");
        world
            .see
            .run("select pgonce.bind_tenant(session_user::name, '')")
            .await;
        assert_eq!(world.see.code(&claim).await, "22023", "{bad}");
    }
}
