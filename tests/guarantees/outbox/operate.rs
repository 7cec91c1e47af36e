//! What operators do: look, give again, recover. Each is one SQL call, and does what it says and no more.

use pgonce::outbox::Subscription;
use pgonce_tests::{LogReader, Observer, install, publish};
use serde_json::json;

use super::life::private;
use super::one_reader;
use super::parked::{deliver, deliver_due};

async fn fates(see: &Observer) -> String {
    let sql = "select string_agg(f.fate, ' ' order by f.seq) from pgonce.outbox o, pgonce.event_status('c', o.seq) f";
    see.text(sql).await
}

#[tokio::test]
async fn the_state_of_an_event_is_shown_wherever_it_is() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    for n in 1..=4 {
        see.run(&publish(if n == 4 { "b" } else { "a" }, n)).await;
    }
    assert_eq!(fates(see).await, "waiting waiting waiting waiting");
    deliver(&mut reader, &[("2", "dead")]).await;
    see.run(&publish("a", 5)).await;
    assert_eq!(fates(see).await, "passed dead behind passed waiting");
    see.run("select pgonce.skip('c', 2, 'typo')").await;
    see.run("select pgonce.publish('other', 'x', 's', null, p_deliver_at => pgonce.now() + interval '1 h')")
        .await;
    deliver(&mut reader, &[]).await;
    assert_eq!(
        fates(see).await,
        "passed skipped behind passed behind delayed"
    );
    assert_eq!(
        see.text("select reason from pgonce.event_status('c', 2)")
            .await,
        "typo"
    );
    see.run("select pgonce.alter_subscription('c', p_topics => '{nothing}')")
        .await;
    assert!(fates(see).await.starts_with("unwanted skipped"));
    assert_eq!(
        see.number("select count(*) from pgonce.event_status('c', 99)")
            .await,
        0
    );
    assert_eq!(
        see.code("select pgonce.event_status('nobody', 1)").await,
        "42704"
    );
}

#[tokio::test]
async fn a_range_comes_again_in_order_and_nothing_else_does() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    for n in 1..=9 {
        see.run(&publish(if n % 2 == 0 { "a" } else { "b" }, n))
            .await;
    }
    deliver(&mut reader, &[]).await;
    see.run(&publish("a", 10)).await;
    let range = "select pgonce.replay_range('c', p_from_seq => 4, p_to_seq => 8)";
    assert_eq!(see.number(range).await, 5);
    assert_eq!(see.number(range).await, 0, "they are parked already");
    // What is new does not wait for them.
    assert_eq!(deliver(&mut reader, &[]).await, ["10"]);
    let (mut even, mut odd) = (Vec::new(), Vec::new());
    for n in deliver_due(&reader).await {
        let number: u32 = n.parse().unwrap();
        if number.is_multiple_of(2) {
            &mut even
        } else {
            &mut odd
        }
        .push(number);
    }
    assert_eq!((even, odd), (vec![4, 6, 8], vec![5, 7]));
    assert!(deliver(&mut reader, &[]).await.is_empty());

    // Not what the subscription has yet to read, nor what it does not want.
    see.run(&publish("a", 11)).await;
    let all = "select pgonce.replay_range('c', p_from_time => '-infinity')";
    assert_eq!(see.number(all).await, 10);
    see.run(
        "delete from pgonce.parked; select pgonce.alter_subscription('c', p_topics => '{nothing}')",
    )
    .await;
    assert_eq!(see.number(all).await, 0);
}

#[tokio::test]
async fn a_range_that_makes_no_sense_or_is_too_long_is_refused() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    for n in 1..=4 {
        see.run(&publish("a", n)).await;
    }
    deliver(&mut reader, &[]).await;
    for bad in [
        "'c'",
        "'c', p_to_seq => 3",
        "'c', p_from_seq => 1, p_from_time => now()",
        "'c', p_from_seq => 1, p_to_time => now()",
        "'c', p_from_seq => 1, p_limit => 3",
        "'c', p_from_seq => 1, p_limit => 0",
    ] {
        let call = format!("select pgonce.replay_range({bad})");
        assert_eq!(see.code(&call).await, "22023", "{bad}");
    }
    assert_eq!(see.number("select count(*) from pgonce.parked").await, 0);
    see.run("select pgonce.evict_subscription('c', 'test')")
        .await;
    let call = "select pgonce.replay_range('c', p_from_seq => 1)";
    assert_eq!(see.code(call).await, "P4031");
}

/// What is parked already is in the range too: a range that is cut would look as if it were whole.
#[tokio::test]
async fn a_range_that_is_too_long_is_refused_although_some_of_it_is_parked() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    for n in 1..=6 {
        see.run(&publish("a", n)).await;
    }
    deliver(&mut reader, &[]).await;
    let range = |to: u32, limit: u32| {
        format!("select pgonce.replay_range('c', 1, {to}, p_limit => {limit})")
    };
    assert_eq!(see.number(&range(2, 2)).await, 2);
    assert_eq!(see.code(&range(6, 5)).await, "22023");
    assert_eq!(see.number(&range(6, 6)).await, 4);
}

#[tokio::test]
async fn a_replay_from_a_number_that_no_event_has_passes_by_nothing_that_is_to_come() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    see.run("select pgonce.create_subscription('d')").await;
    let mut other = LogReader::claim(world.observer().await, "d", "other").await;
    let open = world.observer().await;
    open.run(&format!("begin; {}", publish("open", 1))).await;
    see.run(&publish("a", 2)).await;
    deliver(&mut reader, &[]).await;
    assert_eq!(other.numbers().await, ["2"]);
    assert_eq!(other.keep().await, 16);
    let replay = "select coalesce(pgonce.replay('c', p_from_seq => 1000), 0)";
    assert_eq!(see.number(replay).await, 0);
    reader.claim_again().await;
    other.claim_again().await;
    open.run("commit").await;
    see.run(&publish("a", 3)).await;
    assert_eq!(deliver(&mut reader, &[]).await, ["1", "3"]);
    assert_eq!(other.numbers().await, ["1", "3"], "it is none of its own");
}

#[tokio::test]
async fn an_event_that_is_skipped_while_it_is_delivered_is_not_tried_again() {
    for (what, fate) in [
        ("retry", "skipped"),
        ("dead", "skipped"),
        ("defer", "skipped"),
        ("hold", "skipped"),
        // Nobody says that it was never delivered.
        ("sent", "passed"),
    ] {
        let (world, mut reader) = one_reader().await;
        let see = &world.see;
        for n in 1..=2 {
            see.run(&publish("a", n)).await;
        }
        deliver(&mut reader, &[("1", "dead")]).await;
        see.run("select pgonce.redrive('c')").await;
        assert_eq!(reader.due().await.len(), 2, "on their way to the sink");
        let skip = "select pgonce.skip('c', 1, 'cancelled')::int";
        assert_eq!(see.number(skip).await, 1);
        let lane = reader.lane_of("a").await;
        let epoch = reader.held.iter().find(|held| held.0 == lane).unwrap().1;
        let outcomes = json!([{"seq": 1, "what": what, "reason": "late"}]);
        see.run(&format!(
            "select pgonce._settle_lane('c', {lane}, {epoch}, null, '{outcomes}')"
        ))
        .await;
        assert_eq!(fates(see).await, format!("{fate} behind"), "{what}");
        let due: Vec<_> = reader.due().await.into_iter().map(|due| due.1).collect();
        assert_eq!(due, ["2"], "{what}");
    }
}

#[tokio::test]
async fn recovery_tries_again_what_failed_since_a_time_and_what_was_skipped_only_when_asked() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    see.run(&publish("old", 1)).await;
    deliver(&mut reader, &[("1", "dead")]).await;
    see.run("select pgonce._move_clock('30 minutes')").await;
    for n in 2..=5 {
        see.run(&publish(if n == 5 { "skipped" } else { "new" }, n))
            .await;
    }
    deliver(&mut reader, &[("2", "dead"), ("5", "dead")]).await;
    see.run("select pgonce.skip('c', 5, 'no')").await;

    let since = |more: &str| {
        format!("select pgonce.recover('c', pgonce.now() - interval '10 minutes'{more})")
    };
    assert_eq!(see.number(&since("")).await, 1);
    assert_eq!(deliver_due(&reader).await, ["2", "3", "4"]);
    assert_eq!(see.number(&since(", true")).await, 1);
    assert_eq!(
        see.number(&since(", true")).await,
        0,
        "it is under way already"
    );
    assert_eq!(deliver_due(&reader).await, ["5"]);
    assert_eq!(fates(see).await, "dead passed passed passed passed");
    assert_eq!(see.code("select pgonce.recover('c', null)").await, "22023");
    assert_eq!(
        see.code("select pgonce.recover('nobody', now())").await,
        "42704"
    );
}

#[tokio::test]
async fn a_subscription_has_caught_up_when_all_that_was_there_is_kept_as_delivered() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    let writer = world.observer().await;
    let late = format!("begin; {}", publish("late", 1));
    writer.run(&late).await;
    see.run(&publish("a", 2)).await;
    let goal = see.text("select pg_current_snapshot()").await;
    let caught_up = format!("select pgonce.outbox_caught_up('c', '{goal}')");
    assert_eq!(see.text(&caught_up).await, "f");
    assert_eq!(deliver(&mut reader, &[]).await, ["2"]);
    // The late one was not there yet: it is not waited for, and neither is what comes after.
    writer.run("commit").await;
    see.run(&publish("a", 3)).await;
    assert_eq!(see.text(&caught_up).await, "t");
    let now = "select pgonce.outbox_caught_up('c', pg_current_snapshot())";
    assert_eq!(see.text(now).await, "f");
    deliver(&mut reader, &[("3", "retry")]).await;
    assert_eq!(
        see.text(now).await,
        "t",
        "what is to be tried later is not waited for"
    );
    see.run("select pgonce._move_clock('1 minute')").await;
    assert_eq!(see.text(now).await, "f", "what is due is");
}

#[tokio::test]
async fn lanes_show_what_waits_in_each_and_who_moves_it() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    for n in 1..=6 {
        see.run(&publish(&format!("s{n}"), n)).await;
    }
    let sum = "select sum(waiting) || ' ' || sum(parked) || ' ' || sum(dead) || ' ' || count(relay) || ' ' || \
         bool_and((oldest_at is null) = (waiting = 0)) from pgonce.outbox_lanes";
    assert_eq!(see.text(sum).await, "6 0 0 16 true");
    deliver(&mut reader, &[("3", "dead"), ("4", "retry")]).await;
    assert_eq!(see.text(sum).await, "0 2 1 16 true");
    see.run("select pgonce._move_clock('2 hours')").await;
    assert_eq!(see.text(sum).await, "0 2 1 0 true");
}

#[tokio::test]
async fn the_oldest_event_of_any_lane_counts_although_one_lane_alone_has_more_than_is_counted() {
    let (world, _) = one_reader().await;
    let see = &world.see;
    // The last lane has one event, and an hour later the first has more than are counted.
    for (lane, events) in [(15, 1), (0, 10_001)] {
        let subject = format!(
            "(select 's' || i from generate_series(1, 1000) i where pgonce._lane_of('', 's' || i) = {lane} limit 1)"
        );
        see.run(&format!(
            "select pgonce.publish('t', 'x', {subject}, '{{}}') from generate_series(1, {events})"
        ))
        .await;
        see.run("select pgonce._move_clock('1 hour')").await;
    }
    let backlog = "select waiting || ' ' || (oldest_age >= interval '2 hours') from pgonce.outbox_backlog where subscription = 'c'";
    assert_eq!(see.text(backlog).await, "10000 true");
}

#[tokio::test]
async fn patterns_are_shown_as_they_were_written() {
    let (world, _) = one_reader().await;
    let see = &world.see;
    let written = r"{orders,a_b*,100%,\\*,*\\,\\%_}";
    let create = format!("select pgonce.create_subscription('p', p_topics => '{written}')");
    see.run(&create).await;
    let shown = "select topics::text from pgonce.outbox_subscriptions where subscription = 'p'";
    let same = format!(
        "select topics = '{written}' from pgonce.outbox_subscriptions where subscription = 'p'"
    );
    assert_eq!(see.text(&same).await, "t", "{}", see.text(shown).await);
}

/// It would let nothing through, and was read as if nothing had been said.
#[tokio::test]
async fn a_list_of_patterns_that_lets_nothing_through_is_refused() {
    let (world, _) = one_reader().await;
    let see = &world.see;
    for list in ["'{}'", "'{null}'", "array['orders', null]"] {
        for filter in ["p_topics", "p_types", "p_tenants"] {
            for call in ["create_subscription('none'", "alter_subscription('c'"] {
                let call = format!("select pgonce.{call}, {filter} => {list})");
                assert_eq!(see.code(&call).await, "22023", "{call}");
            }
        }
        see.run("create table if not exists made (id text primary key); \
                 create or replace function apply(regclass, pgonce.projected) returns void language plpgsql as 'begin end'")
            .await;
        let call = format!(
            "select pgonce.define_projection('p', 'made', 'apply', 'marker', p_topics => {list})"
        );
        assert_eq!(see.code(&call).await, "22023", "{call}");
    }
    let none: [&str; 0] = [];
    for subscription in [
        Subscription::new("none").topics(none),
        Subscription::new("none").types(none),
        Subscription::new("none").tenants(none),
    ] {
        let outbox = world.owner.outbox();
        let refused = outbox.create_subscription(&subscription).await.unwrap_err();
        assert_eq!(refused.code(), "22023", "{refused}");
    }
    let all = Subscription::new("all").tenants(["*"]);
    world
        .owner
        .outbox()
        .create_subscription(&all)
        .await
        .unwrap();
    see.run("select pgonce.alter_subscription('all', p_topics => '{*}')")
        .await;
    let filters = "select count(*) from pgonce.outbox_subscription where coalesce(topics, types, tenants) is not null";
    assert_eq!(see.number(filters).await, 0);
}

/// While a long stretch is walked in pages the cursors say only at their end that it is over.
#[tokio::test]
async fn views_do_not_read_what_a_page_has_passed() {
    // A server of its own: while a transaction is open that began before, in any database, nobody knows what is over.
    let (server, see) = private().await;
    install(server.url()).await.unwrap();
    see.run("select pgonce.create_subscription('c')").await;
    let mut reader = LogReader::claim(Observer::connect(&server.url()).await, "c", "r").await;
    see.run(
        "insert into pgonce.outbox select e.* from generate_series(1, 20000) i, lateral \
             pgonce._event_row('t', 'x', 's' || i % 16, jsonb_build_object('n', i), null, '{}', null, '', 20) e",
    )
    .await;
    reader.claim_again().await;
    let mut read = 0;
    while read < 19_000 {
        read += reader.read(1000).await.len();
    }
    assert_eq!(reader.keep().await, 16);
    assert!(read < 20_000, "in the middle of the stretch");
    let waiting = "select waiting from pgonce.outbox_backlog where subscription = 'c'";
    assert_eq!(
        see.number(waiting).await,
        20_000 - i64::try_from(read).unwrap()
    );
    let read = "select coalesce(sum(idx_tup_fetch + seq_tup_read), 0) from pg_stat_xact_user_tables \
         where relname ~ '^outbox_[0-9]+$'";
    for view in [
        "table pgonce.outbox_backlog",
        "table pgonce.outbox_lanes",
        "select pgonce.outbox_caught_up('c', pg_current_snapshot())",
    ] {
        see.run("begin; set local enable_seqscan = off; set local enable_bitmapscan = off")
            .await;
        see.run(view).await;
        let entries = see.number(read).await;
        see.run("rollback").await;
        assert!((1..5000).contains(&entries), "{view} reads {entries}");
    }
}

/// Compiling a query takes longer than to run it: the server begins to at a cost that views of a quiet log must not seem to have.
#[tokio::test]
async fn no_view_of_a_quiet_log_looks_expensive() {
    let (world, _reader) = one_reader().await;
    let see = &world.see;
    see.run("select pgonce.create_subscription('s' || n) from generate_series(1, 3) n")
        .await;
    for view in [
        "outbox_lanes",
        "outbox_backlog",
        "outbox_log",
        "outbox_subscriptions",
        "inbox_backlog",
    ] {
        let rows = see
            .rows(&format!("explain (format json) table pgonce.{view}"))
            .await;
        let plan: serde_json::Value = serde_json::from_str(rows[0][0].as_ref().unwrap()).unwrap();
        let cost = plan[0]["Plan"]["Total Cost"].as_f64().unwrap();
        assert!(cost < 100_000.0, "{view}: {cost}");
    }
}
