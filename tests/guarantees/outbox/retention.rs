//! The log is given back by the partition, never before everybody has read it, and nobody holds it in
//! silence.

use std::time::{Duration, Instant};

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::{LogReader, World, publish};

use super::one_reader;

pub(super) const PARTITIONS: &str =
    "select string_agg(from_seq::text, ' ' order by from_seq) from pgonce.outbox_partition";
const EVENTS: &str = "select count(*) from pgonce.outbox";

/// Small partitions: 1 to 100 and so on.
pub(super) async fn small() -> (World<TokioPostgres>, LogReader) {
    let (world, reader) = one_reader().await;
    world
        .see
        .run(
            "drop table pgonce.outbox_1, pgonce.outbox_1000001; delete from pgonce.outbox_partition;
             create table pgonce.outbox_1 partition of pgonce.outbox for values from (1) to (101);
             insert into pgonce.outbox_partition values (1, 101);
             update pgonce.outbox_state set partition_rows = 100, keep = '1 hour'",
        )
        .await;
    world
        .see
        .run("select pgonce._create_outbox_partitions()")
        .await;
    (world, reader)
}

pub(super) async fn fill(world: &World<TokioPostgres>, events: u32) {
    for _ in 0..events / 50 {
        let sql =
            "select pgonce.publish('t', 'x', 's' || i, '{\"n\": 1}') from generate_series(1, 50) i";
        world.see.run(sql).await;
        world
            .see
            .run("select pgonce._create_outbox_partitions()")
            .await;
    }
    world.see.run("select pgonce._record_watermark(1)").await;
    // Nobody else locks them: housekeeping does not wait for long.
    let quiet = "select string_agg(format('alter table %s set (autovacuum_enabled = off)', inhrelid::regclass), ';') \
                 from pg_inherits where inhparent = 'pgonce.outbox'::regclass";
    world.see.run(&world.see.text(quiet).await).await;
}

/// Reads everything and keeps it, until the database agrees that it is over.
pub(super) async fn catch_up(
    world: &World<TokioPostgres>,
    reader: &mut LogReader,
    subscription: &str,
    floor: i64,
) {
    let reached = format!(
        "select min((cursor).floor) from pgonce.outbox_cursor where subscription = '{subscription}'"
    );
    while world.see.number(&reached).await < floor {
        reader.read_all(1000).await;
        reader.keep().await;
    }
}

#[tokio::test]
async fn partitions_are_created_ahead_and_dropped_when_everybody_is_past_them() {
    let (world, mut reader) = small().await;
    let see = &world.see;
    assert_eq!(see.text(PARTITIONS).await, "1 101");
    fill(&world, 250).await;
    assert_eq!(see.text(PARTITIONS).await, "1 101 201 301 401");
    see.run("select pgonce._move_clock('30 min')").await;
    assert_eq!(
        see.number("select pgonce._drop_outbox_partitions()").await,
        0,
        "nobody has read it"
    );
    catch_up(&world, &mut reader, "c", 250).await;
    assert_eq!(
        see.number("select pgonce._drop_outbox_partitions()").await,
        0,
        "it is to be kept for an hour"
    );
    see.run("select pgonce._move_clock('31 min')").await;
    assert_eq!(
        see.number("select pgonce._drop_outbox_partitions()").await,
        2
    );
    assert_eq!(
        (see.text(PARTITIONS).await, see.number(EVENTS).await),
        ("201 301 401".into(), 50)
    );
    reader.claim_again().await;
    see.run(&publish("s", 2)).await;
    assert_eq!(reader.numbers().await, ["2"]);
}

#[tokio::test]
async fn a_subscription_that_is_behind_holds_the_log_and_is_reported_until_it_is_evicted() {
    let (world, mut reader) = small().await;
    let see = &world.see;
    see.run("select pgonce.create_subscription('slow')").await;
    fill(&world, 250).await;
    catch_up(&world, &mut reader, "c", 250).await;
    see.run("select pgonce._move_clock('2 hours')").await;
    assert_eq!(
        see.number("select pgonce._drop_outbox_partitions()").await,
        0
    );
    let stuck = "select subscription || ' ' || waiting from pgonce.outbox_backlog where stuck";
    assert_eq!(see.text(stuck).await, "slow 250");
    see.run("select pgonce.evict_subscription('slow', 'it was forgotten')")
        .await;
    assert_eq!(
        see.number("select pgonce._drop_outbox_partitions()").await,
        2
    );
    let claim = "select pgonce._claim_lanes('slow', 'r', '1 hour')";
    assert_eq!(see.code(claim).await, "P4031");
    // It may read on with what is left.
    assert_eq!(see.number("select pgonce.replay('slow')").await, 201);
    let mut back = LogReader::claim(world.observer().await, "slow", "r").await;
    assert_eq!(back.numbers().await.len(), 50);
}

#[tokio::test]
async fn a_subscription_that_wants_none_of_what_it_is_behind_is_reported_too() {
    let (world, mut reader) = small().await;
    let see = &world.see;
    let narrow = "select pgonce.create_subscription('narrow', p_topics => '{none}')";
    see.run(narrow).await;
    fill(&world, 250).await;
    catch_up(&world, &mut reader, "c", 250).await;
    see.run("select pgonce._move_clock('2 hours')").await;
    let stuck = "select string_agg(subscription || ' ' || waiting, ',') from pgonce.outbox_backlog where stuck";
    assert_eq!(see.text(stuck).await, "narrow 0");
    assert_eq!(
        see.number("select pgonce._drop_outbox_partitions()").await,
        0
    );
    // Whatever it does not want is passed all the same, and the log is free.
    let mut narrow = LogReader::claim(world.observer().await, "narrow", "r").await;
    assert_eq!(narrow.numbers().await.len(), 0);
    narrow.keep().await;
    assert_eq!(
        see.number("select count(*) from pgonce.outbox_backlog where stuck")
            .await,
        0
    );
    assert_eq!(
        see.number("select pgonce._drop_outbox_partitions()").await,
        2
    );
}

#[tokio::test]
async fn the_maximum_age_evicts_a_subscription_that_has_not_read() {
    let (world, mut reader) = small().await;
    let see = &world.see;
    see.run("select pgonce.create_subscription('slow'); select pgonce.set_outbox_retention('1 hour', '1 day')").await;
    fill(&world, 150).await;
    catch_up(&world, &mut reader, "c", 150).await;
    see.run("select pgonce._move_clock('23 hours'); select pgonce._drop_outbox_partitions()")
        .await;
    assert_eq!(see.text(PARTITIONS).await, "1 101 201 301");
    see.run("select pgonce._move_clock('2 hours'); select pgonce._drop_outbox_partitions()")
        .await;
    assert_eq!(see.text(PARTITIONS).await, "101 201 301");
    let evicted = "select string_agg(subscription, ',') from pgonce.outbox_backlog where evicted_at is not null";
    assert_eq!(see.text(evicted).await, "slow");
}

#[tokio::test]
async fn who_is_still_writing_into_an_old_partition_keeps_it() {
    let (world, mut reader) = small().await;
    let late = world.observer().await;
    late.run(&format!("begin; {}", publish("late", 7))).await;
    fill(&world, 150).await;
    reader.read_all(1000).await;
    reader.keep().await;
    world.see.run("select pgonce._move_clock('2 hours')").await;
    assert_eq!(
        world
            .see
            .number("select pgonce._drop_outbox_partitions()")
            .await,
        0
    );
    // Not even an eviction takes it away from under the writer.
    world
        .see
        .run("select pgonce.evict_subscription('c', 'test')")
        .await;
    assert_eq!(
        world
            .see
            .number("select pgonce._drop_outbox_partitions()")
            .await,
        0
    );
    late.run("commit").await;
    assert_eq!(
        world
            .see
            .number("select count(*) from pgonce.outbox where subject = 'late'")
            .await,
        1
    );
}

#[tokio::test]
async fn a_writer_is_never_turned_away_because_nobody_made_partitions() {
    let (world, mut reader) = small().await;
    let see = &world.see;
    let sql = "select pgonce.publish('t', 'x', 's' || i, '{}') from generate_series(1, 500) i";
    see.run(sql).await;
    assert_eq!(
        see.number("select count(*) from pgonce.outbox_default")
            .await,
        300
    );
    fill(&world, 150).await;
    assert_eq!(see.text(PARTITIONS).await, "1 101 650");
    assert_eq!(reader.read_all(100).await.len(), 650);
    see.run("select pgonce._record_watermark(1)").await;
    catch_up(&world, &mut reader, "c", 650).await;
    see.run("select pgonce._move_clock('2 hours'); select pgonce._drop_outbox_partitions()")
        .await;
    assert_eq!(
        see.number("select count(*) from pgonce.outbox_default")
            .await,
        0
    );
}

/// The housekeeper waits for a lock, for as long as it takes.
const WAITING: &str = "alter function pgonce._drop_outbox_partitions() set lock_timeout = '60s'";

#[tokio::test]
async fn what_commits_while_the_lock_is_waited_for_is_never_erased() {
    let (world, mut reader) = small().await;
    let see = &world.see;
    see.run(WAITING).await;
    // No partition is there for the last 300 of them, nor for any of those that come when the others are dropped.
    let (mut floor, publish) = (
        0,
        "select pgonce.publish('t', 'x', 's' || i, '{}') from generate_series(1, 500) i",
    );
    for _ in 0..2 {
        see.run("select pgonce._drop_outbox_partitions()").await;
        see.run(publish).await;
        see.run("select pgonce._record_watermark(1)").await;
        floor += 500;
        catch_up(&world, &mut reader, "c", floor).await;
        see.run("select pgonce._move_clock('2 hours')").await;
        reader.claim_again().await;
    }
    let (late, housekeeper) = (world.observer().await, world.observer().await);
    // Straight into the rest, so that only its lock is waited for: not that of the log, nor of a partition.
    late.run(
        "begin; insert into pgonce.outbox_default select e.* from pgonce._event_row('orders', 'order.changed', \
         'late', '{\"n\": 7}', null, '{}', null, '', 250) e",
    )
    .await;
    housekeeper
        .run("set application_name = 'housekeeper'")
        .await;
    let drop = housekeeper.number("select pgonce._drop_outbox_partitions()");
    let (_, ()) = futures_util::future::join(drop, async {
        see.wait_until_asleep("housekeeper").await;
        late.run("commit").await;
    })
    .await;
    assert_eq!(reader.numbers().await, ["7"]);
}

/// A writer that is always in the way delays housekeeping, and does not prevent it: each round tries more often than the
/// one before, and the first that gets through begins anew. Room is given back meanwhile.
#[tokio::test]
async fn a_round_that_missed_the_lock_is_followed_by_one_that_tries_more_often() {
    let (world, mut reader) = small().await;
    let see = &world.see;
    fill(&world, 250).await;
    catch_up(&world, &mut reader, "c", 250).await;
    see.run("select pgonce._move_clock('2 hours')").await;
    let (writer, housekeeper) = (world.observer().await, world.observer().await);
    housekeeper
        .run("set application_name = 'housekeeper'")
        .await;
    let drop = "select pgonce._drop_outbox_partitions()";
    let next = "select pgonce._lock_tries('outbox_drop')";
    writer
        .run("begin; select pgonce.publish('t', 'x', 's', '{}')")
        .await;
    for tries in [1, 2, 4, 8, 16, 16] {
        assert_eq!(see.number(next).await, tries);
        assert_eq!(housekeeper.number(drop).await, 0);
    }
    assert_eq!(see.text(PARTITIONS).await, "1 101 201 301 401");
    assert_eq!(see.number(EVENTS).await, 50, "the others are empty");
    // This one waits for the writer, however late that is.
    see.run(WAITING).await;
    let (dropped, ()) = futures_util::future::join(housekeeper.number(drop), async {
        see.wait_until_asleep("housekeeper").await;
        writer.run("commit").await;
    })
    .await;
    assert!(dropped > 0);
    assert_eq!(see.number(next).await, 1);
}

#[tokio::test]
async fn the_maximum_age_spares_a_subscription_that_has_read_all_while_a_transaction_is_open() {
    let (world, mut reader) = small().await;
    let see = &world.see;
    see.run("select pgonce.create_subscription('slow'); select pgonce.set_outbox_retention('1 hour', '1 day'); \
             create table elsewhere (a int)")
        .await;
    // It has nothing to do with the log, and the places of all lanes in it stay behind it.
    let open = world.observer().await;
    open.run("begin; insert into elsewhere values (1)").await;
    fill(&world, 150).await;
    assert_eq!(reader.numbers().await.len(), 150);
    assert_eq!(reader.keep().await, 16);
    see.run("select pgonce._move_clock('25 hours'); select pgonce._drop_outbox_partitions()")
        .await;
    let evicted = "select string_agg(subscription, ',') from pgonce.outbox_backlog where evicted_at is not null";
    assert_eq!(see.text(evicted).await, "slow");
    open.run("commit").await;
}

/// How long the slowest of many publishers took, each in a session without a transaction before, while `busy` goes on.
async fn slowest(world: &World<TokioPostgres>, busy: impl Future<Output = ()>) -> Duration {
    let writer = world.observer().await;
    let mut busy = std::pin::pin!(busy);
    let mut slowest = Duration::ZERO;
    loop {
        let began = Instant::now();
        let publish = writer.run("select pgonce.publish('t', 'x', 's', '{}')");
        tokio::select! {
            () = publish => slowest = slowest.max(began.elapsed()),
            () = &mut busy => return slowest,
        }
    }
}

/// While somebody writes in a long transaction, housekeeping asks for the log's lock again and again, of the outbox and of
/// the markers; those who come after it wait for one short try at most, never for all that it is ready to wait.
#[tokio::test]
async fn no_writer_waits_long_behind_housekeeping_that_waits_for_another() {
    let (world, mut reader) = small().await;
    let see = &world.see;
    fill(&world, 250).await;
    catch_up(&world, &mut reader, "c", 250).await;
    see.run("select pgonce._create_inbox_partitions()").await;
    see.run("select pgonce._move_clock('40 days')").await;
    let (long, housekeeper) = (world.observer().await, world.observer().await);
    long.run("begin; select pgonce.publish('t', 'x', 's', '{}'), pgonce.accept('c', 's', 'm')")
        .await;
    let round = "select pgonce._drop_outbox_partitions() + pgonce._drop_inbox_partitions()";
    let waited = slowest(&world, async {
        for _ in 0..6 {
            assert_eq!(housekeeper.number(round).await, 0);
        }
    })
    .await;
    let tries = "select pgonce._lock_tries('outbox_drop') + pgonce._lock_tries('inbox_drop')";
    assert_eq!(see.number(tries).await, 32, "it wanted the locks");
    // 15 ms, and what a busy machine adds to them. It was a second.
    assert!(waited < Duration::from_millis(300), "{waited:?}");
    long.run("commit").await;
    assert!(housekeeper.number(round).await > 0);
}

#[tokio::test]
async fn what_a_subscription_goes_back_to_while_the_lock_is_waited_for_is_never_erased() {
    let (world, mut reader) = small().await;
    let see = &world.see;
    see.run(WAITING).await;
    fill(&world, 250).await;
    catch_up(&world, &mut reader, "c", 250).await;
    see.run("select pgonce._move_clock('2 hours')").await;
    let (operator, housekeeper) = (world.observer().await, world.observer().await);
    operator.run("begin; select pgonce.replay('c', 1)").await;
    housekeeper
        .run("set application_name = 'housekeeper'")
        .await;
    let drop = housekeeper.number("select pgonce._drop_outbox_partitions()");
    let (_, ()) = futures_util::future::join(drop, async {
        see.wait_until_asleep("housekeeper").await;
        operator.run("commit").await;
    })
    .await;
    reader.claim_again().await;
    assert_eq!(reader.numbers().await.len(), 250);
}

#[tokio::test]
async fn a_subscription_replays_from_a_number_or_a_time_and_its_relay_is_fenced() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    for n in 1..=4 {
        see.run("select pgonce._move_clock('1 hour')").await;
        see.run(&publish("s", n)).await;
    }
    reader.claim_again().await;
    assert_eq!(reader.numbers().await.len(), 4);
    assert_eq!(reader.keep().await, 16);
    see.run("select pgonce.create_subscription('other', 'now')")
        .await;
    assert_eq!(see.number("select pgonce.replay('c', 3)").await, 3);
    assert_eq!(reader.keep().await, 0, "what it had is void");
    reader.claim_again().await;
    assert_eq!(reader.numbers().await, ["3", "4"]);
    assert_eq!(reader.keep().await, 16);
    assert_eq!(
        see.number("select pgonce.replay('c', p_from_time => pgonce.now() - interval '130 min')")
            .await,
        2
    );
    reader.claim_again().await;
    assert_eq!(reader.numbers().await, ["2", "3", "4"]);
    let mut other = LogReader::claim(world.observer().await, "other", "r").await;
    assert!(other.numbers().await.is_empty());
}

#[tokio::test]
async fn a_role_with_every_part_can_relay_and_maintain_the_log() {
    let (world, reader) = small().await;
    drop(reader);
    let role = format!("relay_{}", world.database());
    world
        .see
        .run(&format!(
            "create role {role} login; select pgonce.grant_to('{role}', part) from unnest('{{app,relay,operator}}'::text[]) part"
        ))
        .await;
    let url = world.url().replace("postgres@", &format!("{role}@"));
    let app = pgonce_tests::Observer::connect(&url).await;
    app.run("select pgonce.create_subscription('app'); select pgonce.publish('t', 'x', 's' || i, '{\"n\": 1}') from generate_series(1, 250) i").await;
    app.run("select pgonce._create_outbox_partitions(); select * from pgonce.outbox_backlog; select * from pgonce.dead_letters; select * from pgonce.outbox_events").await;
    let mut reader = LogReader::claim(app, "app", "r").await;
    assert_eq!(reader.numbers().await.len(), 250);
    assert_eq!(reader.keep().await, 16);
    let app = pgonce_tests::Observer::connect(&url).await;
    app.run("select pgonce.redrive('app'); select pgonce.recover('app', now(), true); select pgonce.replay_range('app', 1); \
             select pgonce.event_status('app', 1); select pgonce.outbox_caught_up('app', pg_current_snapshot()); \
             table pgonce.outbox_lanes; table pgonce.outbox_subscriptions; table pgonce.outbox_log; table pgonce.outbox_wal_listeners; select pgonce.replay('app'); select pgonce.evict_subscription('app', 'x'); select pgonce._drop_outbox_partitions(); select pgonce.drop_subscription('app')").await;
    for sql in [
        "delete from pgonce.outbox",
        "truncate pgonce.outbox",
        "update pgonce.outbox set topic = 'x'",
    ] {
        assert_eq!(app.code(sql).await, "42501", "{sql}");
    }
    drop(app);
}

#[tokio::test]
async fn partitions_are_dropped_only_where_later_commits_can_be_seen() {
    let world = World::<TokioPostgres>::new().await;
    for function in ["_drop_outbox_partitions", "_drop_inbox_partitions"] {
        for level in ["repeatable read", "serializable"] {
            let call = format!("begin isolation level {level}; select pgonce.{function}()");
            assert_eq!(world.see.code(&call).await, "25001", "{function}, {level}");
            world.see.run("rollback").await;
        }
    }
}
