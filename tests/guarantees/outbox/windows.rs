//! Nothing is skipped, nothing stalls, nothing is turned round, no matter who commits when.

use std::collections::{BTreeMap, HashSet};

use pgonce::Isolation;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_testkit::Binaries;
use pgonce_tests::{LogReader, Observer, Setting, World, publish, runner};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

use super::one_reader;

#[tokio::test]
async fn who_commits_late_is_not_skipped() {
    let (world, mut reader) = one_reader().await;
    let late = world.observer().await;
    late.run(&format!("begin; {}", publish("late", 1))).await;
    world.see.run(&publish("early", 2)).await;
    let seen = reader.read(1000).await;
    assert_eq!(seen.len(), 1);
    late.run("commit").await;
    let then = reader.read(1000).await;
    assert_eq!(then[0].n, "1");
    // A reader that goes on from the highest number seen would have lost it.
    assert!(then[0].seq < seen[0].seq);
    assert!(reader.numbers().await.is_empty());
}

#[tokio::test]
async fn an_open_writer_stalls_nobody() {
    let (world, mut reader) = one_reader().await;
    let (unrelated, publisher) = (world.observer().await, world.observer().await);
    unrelated
        .run("begin; update account set balance = 0 where id = 1")
        .await;
    publisher
        .run(&format!("begin; {}", publish("open", 0)))
        .await;
    for n in 1..=3 {
        world.see.run(&publish("s", n)).await;
        assert_eq!(reader.numbers().await, [n.to_string()]);
    }
    publisher.run("commit").await;
    assert_eq!(reader.numbers().await, ["0"]);
}

#[tokio::test]
async fn the_order_of_transaction_ids_does_not_turn_a_subject_round() {
    for limit in [1000, 1] {
        let (world, mut reader) = one_reader().await;
        // More than a page, so that the limit of 1 walks the window lane by lane.
        if limit == 1 {
            world
                .see
                .run("select pgonce.publish('t', 'x', 'other', '{}') from generate_series(1, 40)")
                .await;
        }
        let second = world.observer().await;
        second.run("begin; select pg_current_xact_id()").await;
        world.see.run(&publish("s", 1)).await;
        second.run(&publish("s", 2)).await;
        second.run("commit").await;
        let by_xid = "select string_agg(payload ->> 'n', '' order by xid, seq) from pgonce.outbox where subject = 's'";
        assert_eq!(world.see.text(by_xid).await, "21");
        let seen = reader.read_all(limit).await;
        let order: String = (seen.iter().filter(|e| e.subject == "s"))
            .map(|e| e.n.as_str())
            .collect();
        assert_eq!(order, "12");
    }
}

#[tokio::test]
async fn a_subtransaction_counts_as_its_transaction() {
    let (world, mut reader) = one_reader().await;
    let writer = world.observer().await;
    writer
        .run(&format!(
            "begin; savepoint a; {}; rollback to a; {}; savepoint b; {}; release b",
            publish("s", 1),
            publish("s", 2),
            publish("s", 3)
        ))
        .await;
    world.see.run(&publish("t", 4)).await;
    assert_eq!(reader.numbers().await, ["4"]);
    writer.run("commit").await;
    assert_eq!(reader.numbers().await, ["2", "3"]);
}

#[tokio::test]
async fn what_was_rolled_back_is_never_seen_and_its_gap_stops_nobody() {
    let (world, mut reader) = one_reader().await;
    world
        .see
        .run(&format!("begin; {}; rollback", publish("s", 1)))
        .await;
    world
        .see
        .run("select nextval('pgonce.outbox_seq') from generate_series(1, 100)")
        .await;
    assert!(reader.numbers().await.is_empty());
    world.see.run(&publish("s", 2)).await;
    assert_eq!(reader.numbers().await, ["2"]);
}

#[tokio::test]
async fn a_pinned_horizon_changes_nothing() {
    let (world, mut reader) = one_reader().await;
    let pin = world.observer().await;
    pin.run("begin isolation level repeatable read; select pg_current_xact_id()")
        .await;
    for n in 1..=5 {
        world.see.run(&publish("s", n)).await;
        assert_eq!(reader.numbers().await, [n.to_string()]);
        assert_eq!(reader.keep().await, 16);
    }
    // What is over can be proven only up to the oldest writer still at work.
    let floor = "select max((cursor).floor) from pgonce.outbox_cursor";
    world.see.run("select pgonce._record_watermark(1)").await;
    assert!(reader.numbers().await.is_empty());
    reader.keep().await;
    assert_eq!(world.see.number(floor).await, 0);
    pin.run("rollback").await;
    // Tests in other databases of the server pin it, too, for a moment.
    while world.see.number(floor).await < 5 {
        assert!(reader.numbers().await.is_empty());
        reader.keep().await;
    }
}

#[tokio::test]
async fn a_long_backlog_is_walked_in_pages_while_others_commit() {
    let (world, mut reader) = one_reader().await;
    let late = world.observer().await;
    late.run(&format!("begin; {}", publish("s0", 0))).await;
    world
        .see
        .run("select pgonce.publish('orders', 'x', 's' || i % 50, jsonb_build_object('n', i)) from generate_series(1, 2000) i")
        .await;
    let mut seen = reader.read(160).await;
    assert!(seen.len() < 500, "a page holds {} events", seen.len());
    late.run("commit").await;
    world.see.run(&publish("s1", 2001)).await;
    seen.extend(reader.read_all(160).await);
    assert_eq!(seen.len(), 2002);
    let mut subjects: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for event in &seen {
        subjects
            .entry(&event.subject)
            .or_default()
            .push(event.n.parse().unwrap());
    }
    for (subject, numbers) in &subjects {
        let rest = if *subject == "s0" {
            // The one that committed late comes in a later window.
            assert_eq!(numbers.last(), Some(&0));
            &numbers[..numbers.len() - 1]
        } else {
            &numbers[..]
        };
        assert!(rest.is_sorted(), "{subject}: {numbers:?}");
    }
    let once: HashSet<_> = seen.iter().map(|event| event.seq).collect();
    assert_eq!(once.len(), 2002);
}

/// How many pages of the cache a call touches.
async fn pages_touched(see: &Observer, call: &str) -> i64 {
    let plan = format!("explain (analyze, buffers, format json) {call}");
    let plan: serde_json::Value = serde_json::from_str(&see.text(&plan).await).unwrap();
    plan[0]["Plan"]["Shared Hit Blocks"].as_i64().unwrap()
}

#[tokio::test]
async fn what_an_open_transaction_has_written_is_passed_by_however_much_it_is() {
    let (world, mut reader) = one_reader().await;
    let many =
        "select count(pgonce.publish('t', 'x', 's' || i, '{}')) from generate_series(1, 20000) i";
    let (bulk, other) = (world.observer().await, world.observer().await);
    // One was at work for the reader's snapshot already, one came after.
    bulk.run(&format!("begin; {many}")).await;
    world.see.run(&publish("s", 1)).await;
    assert_eq!(reader.numbers().await, ["1"]);
    other.run(&format!("begin; {many}")).await;
    world.see.run(&publish("s", 2)).await;
    let cursor = reader.held[0].2.replace('"', "\\\"");
    let has_new_events = format!("select pgonce._has_new_events('{{\"{cursor}\"}}')");
    let read = format!(
        "select * from pgonce._read_lanes('c', {})",
        reader.held_sql()
    );
    for call in [has_new_events, read] {
        // The first call also reads the catalogue.
        pages_touched(&world.see, &call).await;
        let pages = pages_touched(&world.see, &call).await;
        assert!(pages < 300, "{pages} pages for {call}");
    }
    assert_eq!(reader.numbers().await, ["2"]);
    bulk.run("commit").await;
    other.run("commit").await;
    assert_eq!(reader.read_all(4096).await.len(), 40_000);
}

#[tokio::test]
async fn a_large_event_does_not_make_a_large_page() {
    let (world, mut reader) = one_reader().await;
    let sql = "select pgonce.publish('t', 'x', 's', jsonb_build_object('n', i, 'big', repeat(md5(i::text), 8000))) \
         from generate_series(1, 40) i";
    world.see.run(sql).await;
    let first = reader.read(1000).await;
    // 4 MiB for sixteen lanes: one event of a quarter is the lane's share.
    assert!(first.len() <= 2, "{} large events at once", first.len());
    assert_eq!(first.len() + reader.read_all(1000).await.len(), 40);
}

#[tokio::test]
async fn filters_choose_and_a_star_means_anything_but_nothing_else_does() {
    let (world, _) = one_reader().await;
    let see = &world.see;
    see.run("select pgonce.create_subscription('some', p_topics => '{a_*,b}', p_types => '{x.*}', p_tenants => '{t1}')").await;
    let mut reader = LogReader::claim(world.observer().await, "some", "r").await;
    let rows = [
        ("a_1", "x.y", "t1", 1),
        ("aX1", "x.y", "t1", 2),
        ("b", "x.", "t1", 3),
        ("bb", "x.y", "t1", 4),
        ("b", "xy", "t1", 5),
        ("b", "x.y", "t2", 6),
        ("b", "x.y", "", 7),
    ];
    for (topic, kind, tenant, n) in rows {
        see.run(&format!("select pgonce.publish('{topic}', '{kind}', null, '{{\"n\": {n}}}', p_tenant => '{tenant}')")).await;
    }
    assert_eq!(reader.numbers().await, ["1", "3"]);
    see.run("select pgonce.alter_subscription('some', p_topics => '{*}', p_tenants => '{*}')")
        .await;
    see.run("select pgonce.publish('z', 'x.', null, '{\"n\": 8}')")
        .await;
    assert_eq!(reader.numbers().await, ["8"]);
}

/// What nobody wants is walked in pages too: a call that has to pass all of it at once may never end in time.
#[tokio::test]
async fn a_long_backlog_that_is_not_wanted_is_walked_in_pages() {
    let (world, _) = one_reader().await;
    let see = &world.see;
    see.run("select pgonce.create_subscription('rare', 'start', p_topics => '{rare}')")
        .await;
    // All in one lane, with one that is wanted at the end.
    let noise =
        "select count(pgonce.publish('noise', 'x', 's', '{}')) from generate_series(1, 10000) i";
    see.number(noise).await;
    see.run("select pgonce.publish('rare', 'x', 's', '{\"n\": 1}')")
        .await;
    let mut reader = LogReader::claim(world.observer().await, "rare", "r").await;
    let mut pages = 0;
    let found = loop {
        let read = format!(
            "select * from pgonce._read_lanes('rare', {}, 16)",
            reader.held_sql()
        );
        let touched = pages_touched(see, &read).await;
        let seen = reader.read(16).await;
        if !seen.is_empty() {
            break seen;
        }
        assert!(touched < 3000, "page {pages} touched {touched} blocks");
        pages += 1;
        assert!(pages < 10, "the cursor does not move");
    };
    assert_eq!((pages, found.len()), (4, 1));
    assert_eq!(found[0].n, "1");
    assert!(reader.read_all(16).await.is_empty());
    assert!(reader.held.iter().all(|held| held.2.ends_with(",,)")));
}

#[tokio::test]
async fn a_subscription_that_begins_now_gets_what_commits_from_now_on() {
    let (world, _) = one_reader().await;
    let open = world.observer().await;
    world.see.run(&publish("s", 1)).await;
    open.run(&format!("begin; {}", publish("s", 2))).await;
    world
        .see
        .run("select pgonce.create_subscription('new', 'now')")
        .await;
    let mut reader = LogReader::claim(world.observer().await, "new", "r").await;
    assert!(reader.numbers().await.is_empty());
    open.run("commit").await;
    assert_eq!(reader.numbers().await, ["2"]);
}

#[tokio::test]
async fn it_is_the_same_on_every_installed_major_and_isolation_level() {
    for binaries in Binaries::all().unwrap() {
        let setting = Setting {
            major: Some(binaries.major()),
            isolation: Isolation::ReadCommitted,
            pooler: false,
        };
        let world = World::<TokioPostgres>::in_setting(setting).await;
        world
            .see
            .run("select pgonce.create_subscription('c')")
            .await;
        for level in ["read committed", "repeatable read", "serializable"] {
            let session = world.observer().await;
            session
                .run(&format!("set default_transaction_isolation = '{level}'"))
                .await;
            let late = world.observer().await;
            late.run(&format!("begin; {}", publish("late", 1))).await;
            let mut reader = LogReader::claim(session, "c", "r").await;
            let publish_many = "select pgonce.publish('t', 'x', 's' || i, '{\"n\": 2}') from generate_series(1, 300) i";
            world.see.run(publish_many).await;
            assert_eq!(reader.read_all(32).await.len(), 300, "{binaries:?} {level}");
            late.run("commit").await;
            assert_eq!(reader.numbers().await, ["1"], "{binaries:?} {level}");
            assert_eq!(reader.keep().await, 16);
            let maintain = "select pgonce._create_outbox_partitions(), pgonce._drop_outbox_partitions(), pgonce._record_watermark(1)";
            world.see.run(maintain).await;
            world
                .see
                .run("select pgonce._release_lanes('c', 'r')")
                .await;
        }
    }
}

/// One step of a random run.
#[derive(Debug, Clone)]
enum Step {
    /// A writer publishes about a subject: number of the writer, of the subject.
    Publish(usize, usize),
    /// A writer ends its transaction: commits, or rolls back.
    End(usize, bool),
    /// Somebody reads, with this limit.
    Read(u32),
    /// Places are kept, and marks made.
    Keep,
}

const WRITERS: usize = 4;
const SUBJECTS: usize = 3;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0..WRITERS, 0..SUBJECTS).prop_map(|(writer, subject)| Step::Publish(writer, subject)),
        3 => (0..WRITERS, any::<bool>()).prop_map(|(writer, commit)| Step::End(writer, commit)),
        2 => prop_oneof![Just(1000u32), Just(1), Just(40)].prop_map(Step::Read),
        1 => Just(Step::Keep),
    ];
    proptest::collection::vec(step, 20..120)
}

#[tokio::test]
async fn whatever_the_writers_do_each_event_comes_once_and_each_subject_in_order() {
    let mut runner = runner(1);
    for _ in 0..8 {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let (world, mut reader) = one_reader().await;
        world.see.run("select pgonce._record_watermark(1)").await;
        let mut writers = Vec::new();
        for _ in 0..WRITERS {
            writers.push(world.observer().await);
        }
        // As a business does it: who writes about a subject holds its lock until the end.
        let mut holder: [Option<usize>; SUBJECTS] = [None; SUBJECTS];
        let mut pending: Vec<Vec<(usize, u32)>> = vec![Vec::new(); WRITERS];
        let (mut committed, mut seen, mut n) = (Vec::new(), Vec::new(), 0);
        for step in &steps {
            match *step {
                Step::Publish(writer, subject) => {
                    if holder[subject].is_some_and(|held| held != writer) {
                        continue;
                    }
                    holder[subject] = Some(writer);
                    n += 1;
                    let begin = if pending[writer].is_empty() {
                        "begin; "
                    } else {
                        ""
                    };
                    let sql = format!("{begin}{}", publish(&format!("s{subject}"), n));
                    writers[writer].run(&sql).await;
                    pending[writer].push((subject, n));
                }
                Step::End(writer, commit) => {
                    end(
                        &writers[writer],
                        commit,
                        &mut pending[writer],
                        &mut committed,
                    )
                    .await;
                    for held in holder.iter_mut().filter(|held| **held == Some(writer)) {
                        *held = None;
                    }
                }
                Step::Read(limit) => seen.extend(reader.read(limit).await),
                Step::Keep => {
                    reader.keep().await;
                    world.see.run("select pgonce._record_watermark(1)").await;
                }
            }
        }
        for (writer, observer) in writers.iter().enumerate() {
            end(observer, true, &mut pending[writer], &mut committed).await;
        }
        seen.extend(reader.read_all(40).await);
        let mut delivered: Vec<u32> = seen.iter().map(|event| event.n.parse().unwrap()).collect();
        for subject in 0..SUBJECTS {
            let name = format!("s{subject}");
            let numbers: Vec<u32> = (seen.iter().filter(|event| event.subject == name))
                .map(|event| event.n.parse().unwrap())
                .collect();
            assert!(numbers.is_sorted(), "{name}: {numbers:?} after {steps:?}");
        }
        delivered.sort_unstable();
        committed.sort_unstable();
        assert_eq!(delivered, committed, "{steps:?}");
    }
}

async fn end(
    writer: &Observer,
    commit: bool,
    pending: &mut Vec<(usize, u32)>,
    committed: &mut Vec<u32>,
) {
    if pending.is_empty() {
        return;
    }
    writer.run(if commit { "commit" } else { "rollback" }).await;
    let done = pending.drain(..).map(|(_, n)| n);
    if commit {
        committed.extend(done);
    }
}

/// Another one with a higher id has ended by then, so that the plain snapshot calls its own transaction ended.
#[tokio::test]
async fn a_subscription_from_now_on_gets_what_its_own_transaction_publishes() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.create_subscription('before')").await;
    let own = world.observer().await;
    own.run("begin; select pg_current_xact_id()").await;
    see.run("select pg_current_xact_id()").await;
    own.run(&format!(
        "select pgonce.create_subscription('c', 'now'); {}; commit",
        publish("s", 1)
    ))
    .await;
    let mut reader = LogReader::claim(world.observer().await, "c", "r").await;
    assert_eq!(reader.numbers().await, ["1"]);
}
