//! Trouble with one subject is that subject's alone, and its order survives it.

use pgonce_tests::{LogReader, Observer, publish};
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
