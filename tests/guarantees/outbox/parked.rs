//! Trouble with one subject is that subject's alone, and its order survives it.

use std::time::Duration;

use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;
use pgonce::outbox::{LaneLease, Outcome, Settlement};
use pgonce_testkit::shared;
use pgonce_tests::{LogReader, Observer, TestDriver as _, publish};
use serde_json::json;

use super::one_reader;

/// Settles everything that was read: `what` for the numbers given, held and waiting ones as such,
/// the rest as sent. Answers what was sent.
pub(super) async fn deliver(reader: &mut LogReader, failing: &[(&str, &str)]) -> Vec<String> {
    let seen = reader.read_all(1000).await;
    let mut sent = Vec::new();
    for lane in reader.held.iter().map(|held| held.0).collect::<Vec<_>>() {
        let mut stopped = Vec::new();
        let mut outcomes = Vec::new();
        for event in seen.iter().filter(|event| event.lane == lane) {
            let failing = failing.iter().find(|(n, _)| *n == event.n);
            let what = match (event.act.as_str(), failing) {
                ("send", _) if stopped.contains(&event.subject) => "hold",
                ("send", Some((_, what))) => {
                    stopped.push(event.subject.clone());
                    what
                }
                ("send", None) => {
                    sent.push((event.seq, event.n.clone()));
                    "sent"
                }
                (act, _) => act,
            };
            outcomes.push(json!({"seq": event.seq, "what": what, "reason": "test"}));
        }
        assert_eq!(reader.settle(lane, &json!(outcomes)).await, "");
    }
    sent.sort();
    sent.into_iter().map(|(_, n)| n).collect()
}

/// Delivers what is parked and due, again and again, until nothing is.
pub(super) async fn deliver_due(reader: &LogReader) -> Vec<String> {
    let mut sent = Vec::new();
    loop {
        let due = reader.due().await;
        if due.is_empty() {
            return sent;
        }
        for (seq, n) in due {
            for held in &reader.held {
                // Only the lane that it is in knows it.
                assert_eq!(
                    reader
                        .settle(held.0, &json!([{"seq": seq, "what": "sent"}]))
                        .await,
                    ""
                );
            }
            sent.push(n);
        }
    }
}

async fn states(see: &Observer) -> String {
    see.text("select coalesce(string_agg(payload ->> 'n' || ' ' || state, ', ' order by seq), '') from pgonce.parked").await
}

#[tokio::test]
async fn a_poisoned_subject_waits_with_everything_behind_it_and_the_others_flow() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    for (subject, n) in [("a", 1), ("a", 2), ("b", 3), ("a", 4)] {
        see.run(&publish(subject, n)).await;
    }
    assert_eq!(deliver(&mut reader, &[("2", "dead")]).await, ["1", "3"]);
    see.run(&publish("a", 5)).await;
    see.run(&publish("b", 6)).await;
    assert_eq!(deliver(&mut reader, &[]).await, ["6"]);
    assert_eq!(states(see).await, "2 dead, 4 behind, 5 behind");
    assert!(reader.due().await.is_empty());
    let letter = see
        .rows("select subject, attempts, reason, behind from pgonce.dead_letters")
        .await;
    let expected = ["a", "1", "test", "2"].map(|cell| Some(cell.to_owned()));
    assert_eq!(letter, [expected]);

    // In order, and what comes meanwhile queues up behind.
    assert_eq!(see.number("select pgonce.redrive('c')").await, 1);
    see.run(&publish("a", 7)).await;
    assert!(deliver(&mut reader, &[]).await.is_empty());
    assert_eq!(deliver_due(&reader).await, ["2", "4", "5", "7"]);
    assert_eq!(states(see).await, "");
    see.run(&publish("a", 8)).await;
    assert_eq!(deliver(&mut reader, &[]).await, ["8"]);
}

/// So many dead letters, each of a subject of its own, come due in each second of a redrive, in order.
#[tokio::test]
async fn a_redrive_comes_due_at_its_rate() {
    let (world, _reader) = one_reader().await;
    let see = &world.see;
    see.run(
        "insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, parked_at, created_at, size, message_id, topic, type, headers)
         select '', 'c', 's' || i, i, pgonce._lane_of('', 's' || i), 'dead', now(), now(), 1, gen_random_uuid(), 't', 'x', '{}' from generate_series(1, 500) i",
    )
    .await;
    let seconds = "select string_agg(format('%s..%s', d.first, d.last), ' ' order by d.second) from (select min(k.seq) as first, max(k.seq) as last,
        floor(extract(epoch from k.due_at - (select min(due_at) from pgonce.parked))) as second from pgonce.parked k group by 3) d";
    for (rate, expected) in [
        ("", "1..200 201..400 401..500"),
        (", p_rate => 400", "1..400 401..500"),
        (", p_rate => 1000000", "1..500"),
    ] {
        see.run("update pgonce.parked set state = 'dead', due_at = null")
            .await;
        let redrive = format!("select pgonce.redrive('c'{rate})");
        assert_eq!(see.number(&redrive).await, 500);
        assert_eq!(see.text(seconds).await, expected, "{rate}");
    }
    for rate in ["0", "-1", "null"] {
        let redrive = format!("select pgonce.redrive('c', p_rate => {rate})");
        assert_eq!(see.code(&redrive).await, "22023", "{rate}");
    }
}

#[tokio::test]
async fn every_act_of_an_operator_on_a_subscription_leaves_a_row() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    for n in 1..=2 {
        see.run(&publish("a", n)).await;
    }
    // Nothing to move, nothing done.
    see.run("select pgonce.redrive('c'); select pgonce.drop_subscription('nobody'); select pgonce.import_cancel('nothing')")
        .await;
    deliver(&mut reader, &[("1", "dead")]).await;
    see.run(
        "select pgonce.redrive('c', 'a', p_reason => 'ticket 7'); select pgonce.replay_range('c', 1, 2); \
         select pgonce.recover('c', '2000-01-01', true); select pgonce.replay('c', 1); \
         select pgonce.evict_subscription('c', 'gone'); select pgonce.drop_subscription('c'); select pgonce.purge(10, 'by hand')",
    )
    .await;
    let acts = "select string_agg(concat_ws(' ', act, scope, key, role, nullif(reason, '')), ', ' order by number) from pgonce.operator_act where act <> 'grant'";
    assert_eq!(
        see.text(acts).await,
        "create outbox c * postgres from start, redrive outbox c a postgres ticket 7, replay outbox c * postgres from 1 to 2, \
         recover outbox c * postgres skipped since 2000-01-01 00:00:00+00, replay outbox c * postgres from 1, \
         evict outbox c * postgres gone, drop outbox c * postgres, purge intents * postgres by hand"
    );
}

#[tokio::test]
async fn what_is_skipped_is_recorded_with_a_reason_and_the_next_moves() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    for n in 1..=3 {
        see.run(&publish("a", n)).await;
    }
    deliver(&mut reader, &[("1", "dead")]).await;
    assert_eq!(
        see.text("select pgonce.skip('c', 1, 'typo in the address')")
            .await,
        "t"
    );
    assert_eq!(see.text("select pgonce.skip('c', 1, 'again')").await, "f");
    assert_eq!(deliver_due(&reader).await, ["2", "3"]);
    let record = "select concat_ws('|', seq, reason, skipped_by) from pgonce.outbox_skipped";
    assert_eq!(see.text(record).await, "1|typo in the address|postgres");
}

#[tokio::test]
async fn a_skipped_event_does_not_come_back_when_the_relay_dies() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    see.run(&publish("a", 1)).await;
    see.run(&publish("a", 2)).await;
    deliver(&mut reader, &[("1", "dead")]).await;
    see.run("select pgonce.skip('c', 1, 'no'); select pgonce._move_clock('2 hours')")
        .await;
    let mut heir = LogReader::claim(world.observer().await, "c", "heir").await;
    assert!(heir.numbers().await.is_empty());
    assert_eq!(deliver_due(&heir).await, ["2"]);
}

#[tokio::test]
async fn a_transient_failure_is_retried_after_a_growing_pause_and_then_dead() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    see.run("select pgonce.alter_subscription('c', p_max_attempts => 4, p_backoff => '10 s', p_max_backoff => '30 s')").await;
    see.run("select pgonce._set_clock('2026-01-01')").await;
    see.run(&publish("a", 1)).await;
    see.run(&publish("a", 2)).await;
    assert!(deliver(&mut reader, &[("1", "retry")]).await.is_empty());
    let pause =
        "select extract(epoch from due_at - pgonce.now()) from pgonce.parked where state = 'retry'";
    let lane = reader.lane_of("a").await;
    for (least, most) in [(5.0, 10.0), (10.0, 20.0), (15.0, 30.0)] {
        assert!(reader.due().await.is_empty());
        let pause: f64 = see.text(pause).await.parse().unwrap();
        assert!(
            (least..=most).contains(&pause),
            "{pause} is not in {least}..{most}"
        );
        see.run("select pgonce._move_clock('30 s')").await;
        assert_eq!(reader.due().await[0], (1, "1".to_owned()));
        reader
            .settle(lane, &json!([{"seq": 1, "what": "retry", "reason": "no"}]))
            .await;
    }
    assert_eq!(states(see).await, "1 dead, 2 behind");
    see.run("select pgonce._move_clock('1 day')").await;
    assert!(reader.due().await.is_empty());
}

#[tokio::test]
async fn a_sink_that_names_a_time_is_not_asked_before() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    see.run("select pgonce._set_clock('2026-01-01')").await;
    see.run(&publish("a", 1)).await;
    reader.read(1000).await;
    let lane = reader.lane_of("a").await;
    let later = json!([{"seq": 1, "what": "retry", "after_ms": 3_600_000}]);
    assert_eq!(reader.settle(lane, &later).await, "");
    see.run("select pgonce._move_clock('59 min')").await;
    assert!(reader.due().await.is_empty());
    see.run("select pgonce._move_clock('61 s')").await;
    // The reader's lease is over too: it claims again.
    reader.claim_again().await;
    assert_eq!(reader.due().await.len(), 1);
}

#[tokio::test]
async fn a_delayed_event_comes_when_it_is_due_and_nobody_waits_for_it() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    for (n, minutes) in [(1, 10), (2, 5)] {
        see.run(&format!(
            "select pgonce.publish('t', 'x', 'a', '{{\"n\": {n}}}', p_deliver_at => pgonce.now() + interval '{minutes} min')"
        ))
        .await;
    }
    see.run(&publish("a", 3)).await;
    assert_eq!(deliver(&mut reader, &[]).await, ["3"]);
    assert_eq!(states(see).await, "1 delayed, 2 delayed");
    assert!(reader.due().await.is_empty());
    see.run(&publish("a", 4)).await;
    assert_eq!(deliver(&mut reader, &[]).await, ["4"]);
    see.run("select pgonce._move_clock('6 min')").await;
    assert_eq!(deliver_due(&reader).await, ["2"]);
    // One that comes due behind a dead one waits for it.
    see.run(&publish("a", 5)).await;
    deliver(&mut reader, &[("5", "dead")]).await;
    see.run("select pgonce._move_clock('6 min')").await;
    assert!(reader.due().await.is_empty());
    see.run("select pgonce.redrive('c')").await;
    assert_eq!(deliver_due(&reader).await, ["5", "1"]);
}

#[tokio::test]
async fn an_event_held_for_one_that_was_settled_meanwhile_is_not_forgotten() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    see.run(&publish("a", 1)).await;
    deliver(&mut reader, &[("1", "dead")]).await;
    see.run(&publish("a", 2)).await;
    let seen = reader.read(1000).await;
    assert_eq!(seen[0].act, "hold");
    see.run("select pgonce.skip('c', 1, 'no')").await;
    let lane = reader.lane_of("a").await;
    assert_eq!(
        reader
            .settle(lane, &json!([{"seq": 2, "what": "hold"}]))
            .await,
        ""
    );
    assert_eq!(deliver_due(&reader).await, ["2"]);
}

#[tokio::test]
async fn who_commits_late_goes_before_a_dead_one_with_a_higher_number_and_blocks_nobody() {
    let (world, mut reader) = one_reader().await;
    let late = world.observer().await;
    late.run(&format!("begin; {}; {}", publish("a", 1), publish("a", 2)))
        .await;
    world.see.run(&publish("a", 3)).await;
    deliver(&mut reader, &[("3", "dead")]).await;
    late.run("commit").await;
    assert!(deliver(&mut reader, &[]).await.is_empty());
    assert_eq!(states(&world.see).await, "1 behind, 2 behind, 3 dead");
    assert_eq!(deliver_due(&reader).await, ["1", "2"]);
    world.see.run("select pgonce.redrive('c')").await;
    assert_eq!(deliver_due(&reader).await, ["3"]);
}

#[tokio::test]
async fn a_replay_passes_the_dead_letters_of_its_subject_in_order() {
    let (world, mut reader) = one_reader().await;
    for n in 1..=4 {
        world.see.run(&publish("a", n)).await;
    }
    deliver(&mut reader, &[("3", "dead")]).await;
    world.see.run("select pgonce.replay('c', 1)").await;
    reader.claim_again().await;
    deliver(&mut reader, &[]).await;
    assert_eq!(deliver_due(&reader).await, ["1", "2"]);
    world.see.run("select pgonce.redrive('c')").await;
    assert_eq!(deliver_due(&reader).await, ["3", "4"]);
}

#[tokio::test]
async fn full_dead_letters_stop_the_lane_or_discard_as_the_subscription_wants() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    see.run("select pgonce.alter_subscription('c', p_dead_limit => 1)")
        .await;
    see.run(&publish("a", 1)).await;
    deliver(&mut reader, &[("1", "dead")]).await;
    see.run(&publish("a", 2)).await;
    let cursor = reader.held.clone();
    reader.read(1000).await;
    let lane = reader.lane_of("a").await;
    let hold = json!([{"seq": 2, "what": "hold"}]);
    assert_eq!(reader.settle(lane, &hold).await, "P4060");
    // Nothing moved: a relay that dies now has lost nothing.
    let kept = format!("select cursor::text from pgonce.outbox_cursor where lane = {lane}");
    assert_eq!(
        see.text(&kept).await,
        cursor.iter().find(|held| held.0 == lane).unwrap().2
    );
    see.run("select pgonce.alter_subscription('c', p_when_full => 'discard')")
        .await;
    assert_eq!(reader.settle(lane, &hold).await, "");
    assert_eq!(states(see).await, "1 dead");
    let why = see
        .text("select reason from pgonce.outbox_skipped where seq = 2")
        .await;
    assert!(why.contains("full"), "{why}");
}

#[tokio::test]
async fn what_is_parked_for_one_subscription_is_delivered_to_the_other() {
    let (world, mut reader) = one_reader().await;
    world
        .see
        .run("select pgonce.create_subscription('d')")
        .await;
    let mut other = LogReader::claim(world.observer().await, "d", "reader").await;
    world.see.run(&publish("a", 1)).await;
    deliver(&mut reader, &[("1", "dead")]).await;
    world.see.run(&publish("a", 2)).await;
    assert_eq!(deliver(&mut other, &[]).await, ["1", "2"]);
    assert_eq!(
        world.see.text("select pgonce.drop_subscription('c')").await,
        "t"
    );
    assert_eq!(states(&world.see).await, "");
}

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
    for (subject, entries_at_most) in [("'s' || i", 5_000), ("k.subject", 30_000)] {
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
            (1..entries_at_most).contains(&entries),
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

#[tokio::test]
async fn what_is_due_behind_a_dead_letter_is_not_waited_for() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    see.run("select pgonce.publish('t', 'x', 'a', '{\"n\": 1}', p_deliver_at => pgonce.now() + interval '1 min')")
        .await;
    see.run(&publish("a", 2)).await;
    deliver(&mut reader, &[("2", "dead")]).await;
    reader.keep().await;
    see.run("select pgonce._move_clock('2 min')").await;
    let caught_up = "select pgonce.outbox_caught_up('c', pg_current_snapshot())";
    let due = "select cardinality(due) from pgonce._poll_outbox(null, '{c}')";
    assert_eq!(
        (see.text(caught_up).await.as_str(), see.number(due).await),
        ("t", 0)
    );
    see.run("select pgonce.redrive('c')").await;
    assert_eq!(
        (see.text(caught_up).await.as_str(), see.number(due).await),
        ("f", 1)
    );
    assert_eq!(deliver_due(&reader).await, ["2", "1"]);
    assert_eq!(
        (see.text(caught_up).await.as_str(), see.number(due).await),
        ("t", 0)
    );
}

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

#[tokio::test]
async fn a_deferred_event_is_tried_again_and_no_attempt_is_counted() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    for n in 1..=2 {
        see.run(&publish("a", n)).await;
    }
    let lane = reader.lane_of("a").await;
    reader.read(1000).await;
    let defer = json!([{"seq": 1, "what": "defer", "reason": "502"}, {"seq": 2, "what": "hold"}]);
    for _ in 0..20 {
        assert_eq!(reader.settle(lane, &defer).await, "");
        see.run("select pgonce._move_clock('1 min')").await;
        assert_eq!(reader.due().await.len(), 2);
    }
    let attempts = "select attempts from pgonce.parked where seq = 1";
    assert_eq!(see.number(attempts).await, 0);
    assert_eq!(deliver_due(&reader).await, ["1", "2"]);
}

/// A receiver that is being deployed, or whose credentials are wrong, gets hours before an event is given up.
#[tokio::test]
async fn by_default_an_event_is_tried_for_hours() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    see.run(&publish("a", 1)).await;
    assert!(deliver(&mut reader, &[("1", "retry")]).await.is_empty());
    let mut tries = 1;
    while states(see).await == "1 retry" {
        see.run("select pgonce._move_clock((select due_at - pgonce.now() from pgonce.parked) + interval '1 ms')")
            .await;
        reader.claim_again().await;
        let due = reader.due().await;
        assert_eq!(due.len(), 1, "after {tries}");
        let lane = see.number("select lane from pgonce.parked").await;
        let again = json!([{"seq": due[0].0, "what": "retry", "reason": "404"}]);
        assert_eq!(reader.settle(lane, &again).await, "");
        tries += 1;
    }
    assert_eq!(states(see).await, "1 dead");
    let took = "select pgonce.now() - created_at > interval '2 hours' from pgonce.parked";
    assert_eq!(see.text(took).await, "t", "{tries} tries");
}
