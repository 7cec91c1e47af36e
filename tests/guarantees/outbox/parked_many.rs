//! However much is parked, a call of a relay reads little of it.

use pgonce_tests::{Observer, publish};
use serde_json::json;

use super::one_reader;
use super::parked::deliver;

/// What one statement reads of the parked events, in index entries.
async fn entries_read(see: &Observer, sql: &str) -> i64 {
    let read = "select coalesce(sum(idx_tup_fetch + seq_tup_read), 0) from pg_stat_xact_user_tables where relname = 'parked'";
    see.run("begin").await;
    see.run(sql).await;
    let entries = see.number(read).await;
    see.run("rollback").await;
    entries
}

#[tokio::test]
async fn settling_one_event_costs_the_same_however_many_are_behind_it() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    for n in 1..=2 {
        see.run(&publish("a", n)).await;
    }
    deliver(&mut reader, &[("1", "dead")]).await;
    see.run(
        "insert into pgonce.parked select k.tenant, k.subscription, k.subject, k.seq + i, k.lane, k.state, k.attempts, k.due_at,
             k.parked_at, k.reason, k.created_at, k.size, gen_random_uuid(), k.topic, k.type, k.headers, jsonb_build_object('n', k.seq + i)
           from pgonce.parked k, generate_series(1, 4998) i where k.state = 'behind'",
    )
    .await;
    assert_eq!(see.number("select pgonce.redrive('c')").await, 1);
    let due = reader.due().await;
    let expected: Vec<i64> = (1..=100).collect();
    assert_eq!(
        due.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(),
        expected,
        "a run, in order"
    );
    let lane = reader.lane_of("a").await;
    let held = reader.held.iter().find(|held| held.0 == lane).unwrap();
    let settle = |what: &str| {
        format!(
            "select pgonce._settle_lane('c', {lane}, {}, null, '[{{\"seq\": 1, \"what\": \"{what}\"}}]')",
            held.1
        )
    };
    for what in ["sent", "retry"] {
        let entries = entries_read(see, &settle(what)).await;
        assert!((1..50).contains(&entries), "{what} reads {entries} entries");
    }
    // Each that is held is not counted against all the others again.
    for n in 5001..=5100 {
        see.run(&publish("a", n)).await;
    }
    let held_back: Vec<_> = reader
        .read(1000)
        .await
        .iter()
        .map(|event| json!({"seq": event.seq, "what": "hold"}))
        .collect();
    assert_eq!(held_back.len(), 100);
    let held = reader.held.iter().find(|held| held.0 == lane).unwrap();
    let settle = format!(
        "select pgonce._settle_lane('c', {lane}, {}, null, '{}')",
        held.1,
        json!(held_back)
    );
    let entries = entries_read(see, &settle).await;
    assert!(entries < 20_000, "100 that are held read {entries} entries");
}

/// Parked copies of the one event that is parked, each with a number and a time of its own.
fn delayed(count: u32, subject: &str, due_at: &str) -> String {
    format!(
        "insert into pgonce.parked select k.tenant, k.subscription, {subject}, k.seq + i, \
             pgonce._lane_of('', {subject}), 'delayed', 0, {due_at}, k.parked_at, k.reason, k.created_at, k.size, \
             gen_random_uuid(), k.topic, k.type, k.headers, jsonb_build_object('n', k.seq + i) \
           from pgonce.parked k, generate_series(1, {count}) i; \
         select setval('pgonce.outbox_seq', {count} + 10)"
    )
}

#[tokio::test]
async fn a_subject_moves_on_beside_any_number_of_its_events_that_wait_for_their_time() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    see.run("select pgonce.publish('t', 'x', 'a', '{\"n\": 1}', p_deliver_at => pgonce.now() + interval '1 day')")
        .await;
    deliver(&mut reader, &[]).await;
    see.run(&delayed(5000, "k.subject", "k.due_at")).await;
    let publish_all =
        "select pgonce.publish('t', 'x', 'a', '{\"n\": 2}') from generate_series(1, 100)";
    see.run(publish_all).await;
    let (lane, seen) = (reader.lane_of("a").await, reader.read(1000).await);
    let outcomes: Vec<_> = (seen.iter().enumerate())
        .map(
            |(at, event)| json!({"seq": event.seq, "what": if at == 0 { "retry" } else { "hold" }}),
        )
        .collect();
    assert_eq!(outcomes.len(), 100);
    let held = reader.held.iter().find(|held| held.0 == lane).unwrap();
    let settle = format!(
        "select pgonce._settle_lane('c', {lane}, {}, null, '{}')",
        held.1,
        json!(outcomes)
    );
    let entries = entries_read(see, &settle).await;
    assert!((1..20_000).contains(&entries), "{entries} entries");
    assert_eq!(reader.settle(lane, &json!(outcomes)).await, "");
    see.run(publish_all).await;
    let read = format!("select pgonce._read_lanes('c', {})", reader.held_sql());
    let entries = entries_read(see, &read).await;
    assert!((1..20_000).contains(&entries), "{entries} entries");
}

#[tokio::test]
async fn what_is_due_is_found_however_much_is_due_and_whatever_the_statistics_say() {
    for (subject, limit) in [("'s' || i", 5_000), ("k.subject", 30_000)] {
        let (world, mut reader) = one_reader().await;
        let see = &world.see;
        see.run("alter table pgonce.parked set (autovacuum_enabled = off); \
                 select pgonce.publish('t', 'x', 'a', '{\"n\": 1}', p_deliver_at => pgonce.now() + interval '1 day')")
            .await;
        deliver(&mut reader, &[]).await;
        let all_now = "pgonce.now() - interval '1 minute'";
        see.run(&delayed(5000, subject, all_now)).await;
        let due = format!("select pgonce._due_parked('c', {})", reader.held_sql());
        let entries = entries_read(see, &due).await;
        assert!(
            (1..limit).contains(&entries),
            "{subject}: {entries} entries"
        );
        // Of one subject a run, in order.
        let due = reader.due().await;
        assert_eq!(due.len(), 100);
        if subject == "k.subject" {
            assert!(due.is_sorted(), "{due:?}");
        }
    }
}
