//! Retention never weakens uniqueness: a marker goes only when its promise is over.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::{Observer, World};
use uuid::{NoContext, Timestamp, Uuid};

async fn world() -> World<TokioPostgres> {
    let world = World::<TokioPostgres>::new().await;
    // Nobody was promised more before.
    let define = "select pgonce.define_inbox('c', '10 days', '5 days', '3 days'); \
         update pgonce.inbox_contract set kept_before = null, kept_before_until = null where consumer = 'c'";
    world.see.run(define).await;
    world
}

/// An id that carries the database's time, some days away.
async fn id_of(see: &Observer, days: i64) -> String {
    let now = see
        .number("select extract(epoch from pgonce.now())::bigint")
        .await;
    let at = Timestamp::from_unix(NoContext, u64::try_from(now + days * 86_400).unwrap(), 0);
    Uuid::new_v7(at).to_string()
}

async fn accept(see: &Observer, id: &str) -> bool {
    see.text(&format!("select pgonce.accept('c', 's', '{id}')"))
        .await
        == "t"
}

async fn maintain(see: &Observer) {
    see.run("select pgonce._create_inbox_partitions(), pgonce._drop_inbox_partitions(), pgonce._purge_inbox()")
        .await;
}

/// A sender chooses ids, and with them days: one of the day after tomorrow keeps no other day out of its partition, and a day
/// that has markers without one keeps them.
#[tokio::test]
async fn an_id_from_the_future_keeps_no_other_day_out_of_its_partition() {
    let world = world().await;
    let see = &world.see;
    let early = id_of(see, 2).await;
    assert!(accept(see, &early).await);
    let create = "select pgonce._create_inbox_partitions()";
    assert_eq!(see.number(create).await, 2, "today and tomorrow");
    assert_eq!(see.number(create).await, 0);
    let today = id_of(see, 0).await;
    assert!(accept(see, &today).await);
    let rest = "select string_agg(message_id, ' ') from pgonce.inbox_marker_default";
    assert_eq!(see.text(rest).await, early);
    assert!(!accept(see, &early).await && !accept(see, &today).await);
}

/// A new day's partition locks nobody out but those whose day has none.
#[tokio::test]
async fn the_partition_of_a_day_is_attached_beside_writers_of_other_days() {
    let world = world().await;
    let see = &world.see;
    maintain(see).await;
    see.run("select pgonce._move_clock('1 day')").await;
    let writer = world.observer().await;
    let today = id_of(see, 0).await;
    writer.run("begin").await;
    assert!(accept(&writer, &today).await);
    let create = "select pgonce._create_inbox_partitions()";
    assert_eq!(see.number(create).await, 1, "the writer is in nobody's way");
    writer.run("commit").await;
}

#[tokio::test]
async fn a_copy_is_known_for_as_long_as_was_promised_whatever_its_id() {
    let world = world().await;
    let see = &world.see;
    maintain(see).await;
    // Made now, long before it came, in the future, and without any time.
    let ids = [
        id_of(see, 0).await,
        id_of(see, -9).await,
        id_of(see, -400).await,
        id_of(see, 1).await,
        id_of(see, 300).await,
        "timeless".to_owned(),
        "0190f5a2-7c3e-4000-8000-000000000000".to_owned(),
    ];
    for id in &ids {
        assert!(accept(see, id).await, "{id}");
    }
    for day in 1..=9 {
        see.run("select pgonce._move_clock('1 day')").await;
        maintain(see).await;
        for id in &ids {
            assert!(!accept(see, id).await, "day {day}: {id} is applied again");
        }
    }
    see.run("select pgonce._move_clock('3 days')").await;
    for _ in 0..3 {
        maintain(see).await;
    }
    let kept = "select coalesce(string_agg(message_id, ','), 'none') from pgonce.inbox_marker where consumer = 'c'";
    assert_eq!(see.text(kept).await, "none");
}

#[tokio::test]
async fn ids_that_carry_a_time_go_by_whole_partitions() {
    let world = world().await;
    let see = &world.see;
    maintain(see).await;
    let (id, late) = (id_of(see, 0).await, id_of(see, 0).await);
    assert!(accept(see, &id).await);
    let part =
        format!("select tableoid::regclass from pgonce.inbox_marker where message_id = '{id}'");
    let part = see.text(&part).await;
    assert!(part.starts_with("pgonce.inbox_marker_2"), "{part}");
    // One of that day comes late: the day is over only when it is.
    see.run("select pgonce._move_clock('8 days')").await;
    assert!(accept(see, &late).await);
    see.run("select pgonce._move_clock('4 days')").await;
    maintain(see).await;
    assert!(!accept(see, &late).await);
    see.run("select pgonce._move_clock('7 days')").await;
    maintain(see).await;
    assert_eq!(
        see.text(&format!("select to_regclass('{part}') is null"))
            .await,
        "t"
    );
    // What comes for a day that is gone is still known as a copy of itself.
    assert!(accept(see, &late).await);
    assert!(!accept(see, &late).await);
    maintain(see).await;
    assert!(!accept(see, &late).await);
}

#[tokio::test]
async fn a_partition_that_somebody_is_writing_to_is_not_dropped_under_him() {
    let world = world().await;
    let see = &world.see;
    maintain(see).await;
    let id = id_of(see, 0).await;
    see.run("select pgonce._move_clock('30 days')").await;
    let writer = world.observer().await;
    writer
        .run(&format!("begin; select pgonce.accept('c', 's', '{id}')"))
        .await;
    see.run("select pgonce._drop_inbox_partitions()").await;
    writer.run("commit").await;
    see.run("select pgonce._drop_inbox_partitions()").await;
    assert!(!accept(see, &id).await);
}

#[tokio::test]
async fn a_shorter_contract_takes_nothing_back_that_was_promised() {
    let world = world().await;
    let see = &world.see;
    assert!(accept(see, "old").await);
    see.run("select pgonce.define_inbox('c', '1 day', '1 hour')")
        .await;
    see.run("select pgonce.define_inbox('c', '2 days', '1 hour')")
        .await;
    see.run("select pgonce._move_clock('9 days')").await;
    maintain(see).await;
    assert!(!accept(see, "old").await);
    see.run("select pgonce._move_clock('2 days')").await;
    maintain(see).await;
    assert!(accept(see, "old").await);
    // From then on the new one holds.
    see.run("select pgonce._move_clock('3 days')").await;
    maintain(see).await;
    assert!(accept(see, "old").await);
    // For ever is for ever.
    see.run("select pgonce.define_inbox('e', null); select pgonce.accept('e', 's', 'm')")
        .await;
    see.run("select pgonce.define_inbox('e', '2 days', '1 hour'); select pgonce.define_inbox('e', '1 day', '1 hour')").await;
    see.run("select pgonce._move_clock('1000 days')").await;
    maintain(see).await;
    assert_eq!(see.text("select pgonce.accept('e', 's', 'm')").await, "f");
}

/// Nothing was promised before: a contract that is shorter than the default holds from the first message on.
#[tokio::test]
async fn a_new_consumer_with_a_short_contract_keeps_no_longer() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_inbox('fresh', '1 day', '1 hour')")
        .await;
    let accept = "select pgonce.accept('fresh', 's', 'm')";
    assert_eq!(see.text(accept).await, "t");
    see.run("select pgonce._move_clock('23 hours')").await;
    maintain(see).await;
    assert_eq!(see.text(accept).await, "f");
    see.run("select pgonce._move_clock('2 hours')").await;
    maintain(see).await;
    assert_eq!(see.text(accept).await, "t");
}

#[tokio::test]
async fn stored_messages_go_when_they_are_done_and_never_before() {
    let world = world().await;
    let see = &world.see;
    for (n, outcome) in ["receive", "retry", "poison", "poison"].iter().enumerate() {
        let sql =
            format!("select pgonce.store_message('c', 's', 'm{n}', '', p_outcome => '{outcome}')");
        see.run(&sql).await;
    }
    see.run("select pgonce.skip_message('c', (select seq from pgonce.inbox_message where message_id = 'm3'), 'x')").await;
    see.run("select pgonce.finish_messages('c', (select jsonb_agg(to_jsonb(m)) from pgonce.claim_messages('c', 'me', '1 s', 1) m))").await;
    let left = "select string_agg(message_id, ' ' order by seq) from pgonce.inbox_message";
    see.run("select pgonce._move_clock('2 days')").await;
    maintain(see).await;
    assert_eq!(see.text(left).await, "m0 m1 m2 m3");
    see.run("select pgonce._move_clock('100 days')").await;
    maintain(see).await;
    assert_eq!(see.text(left).await, "m1 m2");
}

/// Its copies were promised to be known for ten days. What comes later under the same id is a message of its own, also where what
/// was stored of the first is still there.
#[tokio::test]
async fn a_message_that_comes_after_its_marker_went_is_kept() {
    let world = world().await;
    let see = &world.see;
    let keep = "select pgonce.define_inbox('c', '10 days', '5 days', '100 days'); \
         update pgonce.inbox_contract set kept_before = null, kept_before_until = null where consumer = 'c'";
    see.run(keep).await;
    let store = async |id: &str, outcome: &str| {
        let sql = format!(
            "select pgonce.store_message('c', 's', '{id}', '', p_outcome => '{outcome}', p_key => 'k')"
        );
        see.text(&sql).await
    };
    let claim = "select coalesce(string_agg(m.message_id, ' ' order by m.seq), '') from pgonce.claim_messages('c', 'me', '1 s', 9) m";
    store("done", "receive").await;
    see.run("select pgonce.finish_messages('c', (select jsonb_agg(to_jsonb(m)) from pgonce.claim_messages('c', 'me', '1 s', 1) m))").await;
    store("skipped", "poison").await;
    see.run("select pgonce.skip_message('c', seq, 'x') from pgonce.inbox_poison")
        .await;
    store("open", "poison").await;
    see.run("select pgonce._move_clock('11 days')").await;
    maintain(see).await;
    assert_eq!(
        see.number("select count(*) from pgonce.inbox_marker").await,
        0
    );
    for (id, outcome, verdict) in [
        ("done", "receive", "new"),
        ("skipped", "retry", "new"),
        ("open", "receive", "duplicate"),
    ] {
        assert_eq!(store(id, outcome).await, verdict, "{id}");
        assert_eq!(store(id, outcome).await, "duplicate", "{id}");
    }
    let rows = "select string_agg(concat_ws(' ', message_id, status, attempts, (settled_at is null)::text), ', ' order by seq) from pgonce.inbox_message";
    assert_eq!(
        see.text(rows).await,
        "open failed_final 0 true, done received 0 true, skipped failed_retryable 1 true"
    );
    // It is in its place behind what is stored of its key.
    assert_eq!(see.text(claim).await, "");
    see.run("select pgonce.skip_message('c', seq, 'x') from pgonce.inbox_poison")
        .await;
    assert_eq!(see.text(claim).await, "done");
}

#[tokio::test]
async fn a_purge_is_bounded_and_two_at_once_do_not_meet() {
    let world = world().await;
    let see = &world.see;
    see.run("select pgonce.accept('c', 's', i::text) from generate_series(1, 50) i")
        .await;
    see.run("select pgonce._move_clock('11 days')").await;
    assert_eq!(see.number("select pgonce._purge_inbox(20)").await, 20);
    let other = world.observer().await;
    other.run("begin; select pgonce._purge_inbox(10)").await;
    assert_eq!(see.number("select pgonce._purge_inbox(20)").await, 0);
    other.run("rollback").await;
    assert_eq!(see.number("select pgonce._purge_inbox(1000)").await, 30);
}

/// Days of `billing`, which forgets after two, with one marker on the first of them that `audit` keeps for ever. Answers the id
/// of that one.
async fn twenty_days(see: &Observer) -> String {
    see.run("select pgonce.define_inbox('audit', null), pgonce.define_inbox('billing', '2 days', '1 day')")
        .await;
    let mut first = None;
    for _ in 0..20 {
        see.run("select pgonce._create_inbox_partitions()").await;
        let id = id_of(see, 0).await;
        see.run(&format!("select pgonce.accept('billing', 's', '{id}')"))
            .await;
        if first.is_none() {
            see.run(&format!(
                "select pgonce.accept('audit', 's', '{id}'); \
                 select pgonce.accept('billing', 's', left('{id}', 24) || lpad(i::text, 12, '0')) from generate_series(1, 50) i"
            ))
            .await;
        }
        first.get_or_insert(id);
        see.run("select pgonce._move_clock('1 day')").await;
    }
    first.unwrap()
}

async fn drop_all(see: &Observer) {
    while see.number("select pgonce._drop_inbox_partitions()").await > 0 {}
}

const OLD_DAYS: &str = "select count(*) from pg_inherits i join pg_class c on c.oid = i.inhrelid \
    where i.inhparent = 'pgonce.inbox_marker'::regclass and c.relname ~ '[0-9]{8}$' \
    and right(c.relname, 8)::date < (pgonce.now() at time zone 'UTC')::date - 3";

#[tokio::test]
async fn a_marker_that_is_kept_for_ever_keeps_neither_other_days_nor_other_markers() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let first = twenty_days(see).await;
    drop_all(see).await;
    assert_eq!(see.number(OLD_DAYS).await, 1, "the day of audit");
    // What billing may forget of that day goes in steps.
    assert_eq!(see.number("select pgonce._purge_inbox(20)").await, 20);
    assert_eq!(see.number("select pgonce._purge_inbox(1000)").await, 31);
    assert_eq!(see.number("select pgonce._purge_inbox(1000)").await, 0);
    let left = format!(
        "select string_agg(consumer || ' ' || (message_id = '{first}')::text, ', ' order by consumer) \
         from pgonce.inbox_marker where day <= (pgonce.now() at time zone 'UTC')::date - 3"
    );
    assert_eq!(see.text(&left).await, "audit true");
    let copy = format!("select pgonce.accept('audit', 's', '{first}')");
    assert_eq!(see.text(&copy).await, "f");
}

/// Each time it has become twice as old, and not whenever somebody maintains the inbox.
#[tokio::test]
async fn a_day_that_is_kept_is_seldom_read_again() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let first = twenty_days(see).await;
    drop_all(see).await;
    see.run("select pgonce._purge_inbox()").await;
    let read = "select string_agg(name || ' ' || swept_at, ', ') from pgonce.sweep where name ~ '^inbox_marker_[0-9]{8}$'";
    let before = see.text(read).await;
    assert!(before.starts_with("inbox_marker_2"), "{before}");
    // One of that day comes late.
    let late = format!("select pgonce.accept('billing', 's', '{first}')");
    assert_eq!(see.text(&late).await, "t");
    see.run("select pgonce._move_clock('5 days')").await;
    maintain(see).await;
    assert_eq!(see.text(read).await, before);
    assert_eq!(see.text(&late).await, "f");
    see.run("select pgonce._move_clock('20 days')").await;
    drop_all(see).await;
    maintain(see).await;
    assert_ne!(see.text(read).await, before);
    assert_eq!(see.text(&late).await, "t");
    // When its last one may be forgotten the day goes, and what was remembered of it.
    see.run("delete from pgonce.inbox_marker where consumer = 'audit'; update pgonce.sweep set swept_at = pgonce.now() where swept_at = 'infinity'; \
             select pgonce._move_clock('3 days')")
        .await;
    drop_all(see).await;
    assert_eq!(see.number(OLD_DAYS).await, 0);
    assert_eq!(see.text(read).await, "");
}

/// Which is no date any more: the error would stop the purge for every consumer.
#[tokio::test]
async fn a_contract_over_thousands_of_years_stops_nobody() {
    let world = world().await;
    let see = &world.see;
    see.run("select pgonce.define_inbox('long', '100000 years', '1 day', '100000 years'); select pgonce.accept('long', 's', 'm')")
        .await;
    let id = id_of(see, 0).await;
    see.run(&format!(
        "select pgonce._create_inbox_partitions(); select pgonce.accept('long', 's', '{id}'); \
         select pgonce.store_message('long', 's', 'stored', '')"
    ))
    .await;
    assert!(accept(see, "short").await);
    see.run("select pgonce._move_clock('11 days')").await;
    drop_all(see).await;
    assert_eq!(see.number("select pgonce._purge_inbox()").await, 1);
    assert!(accept(see, "short").await);
    for id in ["m", &id] {
        let copy = format!("select pgonce.accept('long', 's', '{id}')");
        assert_eq!(see.text(&copy).await, "f");
    }
    // Nor is there a date until which what was promised holds.
    see.run("select pgonce.define_inbox('longer', '300000 years', '1 day'); select pgonce.accept('longer', 's', 'm'); \
             select pgonce.define_inbox('longer', '30 days', '1 day'); select pgonce._move_clock('40 days')")
        .await;
    drop_all(see).await;
    see.run("select pgonce._purge_inbox()").await;
    let copy = "select pgonce.accept('longer', 's', 'm')";
    assert_eq!(see.text(copy).await, "f");
}

/// As with the contract of scope "*": no look-up would ever find it.
#[tokio::test]
async fn the_contract_of_all_other_consumers_is_of_no_tenant() {
    let world = world().await;
    let define = |tenant: &str| {
        format!("select pgonce.define_inbox('*', '20 days', p_tenant => '{tenant}')")
    };
    assert_eq!(world.see.code(&define("acme")).await, "22023");
    world.see.run(&define("")).await;
}
