//! One relay at a time moves a lane, and a zombie moves nothing.

use pgonce_tests::{LogReader, publish};
use serde_json::json;

use super::one_reader;

#[tokio::test]
async fn a_zombie_with_an_old_epoch_can_read_keep_and_settle_nothing() {
    let (world, mut zombie) = one_reader().await;
    world.see.run(&publish("s", 1)).await;
    assert_eq!(zombie.numbers().await, ["1"]);
    world.see.run("select pgonce._move_clock('2 hours')").await;
    let mut heir = LogReader::claim(world.observer().await, "c", "heir").await;
    assert_eq!(heir.held.len(), 16);
    for (old, new) in zombie.held.iter().zip(&heir.held) {
        assert!(new.1 > old.1);
    }
    let before = world
        .see
        .text("select string_agg(c::text, ';' order by lane) from pgonce.outbox_cursor c")
        .await;
    let lane = zombie.lane_of("s").await;
    assert_eq!(zombie.keep().await, 0);
    assert_eq!(
        zombie
            .settle(lane, &json!([{"seq": 1, "what": "dead"}]))
            .await,
        "P4012"
    );
    for call in ["_read_lanes", "_due_parked"] {
        let sql = format!("select pgonce.{call}('c', {})", zombie.held_sql());
        assert_eq!(world.see.code(&sql).await, "P4012", "{call}");
    }
    let after = world
        .see
        .text("select string_agg(c::text, ';' order by lane) from pgonce.outbox_cursor c")
        .await;
    assert_eq!(before, after);
    // What the zombie did not keep comes again.
    assert_eq!(heir.numbers().await, ["1"]);
}

#[tokio::test]
async fn a_lease_that_ran_out_holds_nothing_until_it_is_renewed() {
    let (world, mut reader) = one_reader().await;
    world.see.run("select pgonce._move_clock('2 hours')").await;
    assert_eq!(reader.keep().await, 0);
    let epochs: Vec<_> = reader.held.iter().map(|held| held.1).collect();
    reader.claim_again().await;
    assert_eq!(reader.keep().await, 16);
    assert_eq!(
        epochs,
        reader.held.iter().map(|held| held.1).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn relays_share_the_lanes_evenly_and_none_is_held_twice() {
    let (world, mut first) = one_reader().await;
    let mut second = LogReader::claim(world.observer().await, "c", "second").await;
    assert!(second.held.is_empty(), "they are all taken");
    first.claim_again().await;
    let surplus = "select count(*) from pgonce._claim_lanes('c', 'reader', '1 hour') where surplus";
    assert_eq!(world.see.number(surplus).await, 8);
    // The first gives the upper half back.
    let (kept, back) = first.held.split_at(8);
    let (kept, back) = (kept.to_vec(), back.to_vec());
    first.held = back;
    let release = format!(
        "select count(*) from pgonce._advance_lanes('c', {}, true)",
        first.held_sql()
    );
    assert_eq!(world.see.number(&release).await, 8);
    first.held = kept;
    second.claim_again().await;
    let lanes = |reader: &LogReader| reader.held.iter().map(|held| held.0).collect::<Vec<_>>();
    assert_eq!(
        (lanes(&first), lanes(&second)),
        ((0..8).collect(), (8..16).collect())
    );
    for n in 0..40 {
        world.see.run(&publish(&format!("s{n}"), n)).await;
    }
    let (a, b) = (first.numbers().await, second.numbers().await);
    assert!(!a.is_empty() && !b.is_empty());
    assert_eq!(a.len() + b.len(), 40);
    // One goes: the other gets everything.
    world
        .see
        .run("select pgonce._release_lanes('c', 'reader')")
        .await;
    second.claim_again().await;
    assert_eq!(second.held.len(), 16);
}

#[tokio::test]
async fn claims_at_the_same_time_never_wait_and_never_overlap() {
    let (world, reader) = one_reader().await;
    drop(reader);
    world
        .see
        .run("select pgonce._release_lanes('c', 'reader')")
        .await;
    let (a, b) = (world.observer().await, world.observer().await);
    a.run("begin").await;
    let got = "select count(*) from pgonce._claim_lanes('c', '";
    assert_eq!(a.number(&format!("{got}a', '1 hour')")).await, 16);
    assert_eq!(b.number(&format!("{got}b', '1 hour')")).await, 0);
    a.run("commit").await;
    let twice = "select count(*) from pgonce.outbox_cursor where owner <> 'a'";
    assert_eq!(world.see.number(twice).await, 0);
}

#[tokio::test]
async fn two_subscriptions_read_the_same_log_each_at_its_own_place() {
    let (world, mut one) = one_reader().await;
    world
        .see
        .run("select pgonce.create_subscription('d')")
        .await;
    let mut other = LogReader::claim(world.observer().await, "d", "reader").await;
    world.see.run(&publish("s", 1)).await;
    assert_eq!(one.numbers().await, ["1"]);
    one.keep().await;
    world.see.run(&publish("s", 2)).await;
    assert_eq!(other.numbers().await, ["1", "2"]);
    assert_eq!(one.numbers().await, ["2"]);
}

#[tokio::test]
async fn bad_calls_are_refused_with_a_code() {
    let (world, reader) = one_reader().await;
    let held = reader.held_sql();
    for (sql, code) in [
        (
            "select pgonce._claim_lanes('nobody', 'me', '1 s')".to_owned(),
            "42704",
        ),
        (
            "select pgonce._claim_lanes('c', '', '1 s')".to_owned(),
            "22023",
        ),
        (
            "select pgonce._claim_lanes('c', 'me', '0 s')".to_owned(),
            "22023",
        ),
        ("select pgonce.create_subscription('c')".to_owned(), "42710"),
        ("select pgonce.create_subscription('')".to_owned(), "23514"),
        (
            "select pgonce.create_subscription(null)".to_owned(),
            "22023",
        ),
        (
            "select pgonce.create_subscription('d', 'later')".to_owned(),
            "22023",
        ),
        (
            "select pgonce.create_subscription('d', p_when_full => 'explode')".to_owned(),
            "23514",
        ),
        (
            "select pgonce.alter_subscription('nobody')".to_owned(),
            "42704",
        ),
        (
            format!("select pgonce._read_lanes('c', {held}, 0)"),
            "22023",
        ),
        ("select pgonce.skip('c', 1, '')".to_owned(), "22023"),
        (
            "select pgonce.evict_subscription('c', '')".to_owned(),
            "22023",
        ),
        (
            "select pgonce.evict_subscription('nobody', 'why')".to_owned(),
            "42704",
        ),
        ("select pgonce.replay('c', 1, now())".to_owned(), "22023"),
        ("select pgonce.redrive('nobody')".to_owned(), "42704"),
        (
            "select pgonce.set_outbox_retention(null)".to_owned(),
            "22023",
        ),
        (
            "select pgonce.set_outbox_retention('2 days', '1 day')".to_owned(),
            "23514",
        ),
    ] {
        assert_eq!(world.see.code(&sql).await, code, "{sql}");
    }
    let lane = reader.held[0].0;
    assert_eq!(reader.settle(lane, &json!([])).await, "");
    world.see.run(&publish("s", 1)).await;
    let lane = reader.lane_of("s").await;
    assert_eq!(
        reader
            .settle(lane, &json!([{"seq": 1, "what": "eaten"}]))
            .await,
        "22023"
    );
}
