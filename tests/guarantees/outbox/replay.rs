//! A replay only goes back: what was not read stays unread, and what is older than asked for does not come again.

use std::collections::BTreeSet;

use pgonce_tests::{LogReader, Observer, publish};

use super::one_reader;

const MARK: &str = "select pgonce._record_watermark(1)";

/// What subscription `c` has not read: the numbers, with who is at work left out.
async fn unread(see: &Observer) -> BTreeSet<i64> {
    let sql = "select o.seq from pgonce.outbox o join pgonce.outbox_cursor l on l.subscription = 'c' and l.lane = o.lane \
               where pgonce._is_unread(o.seq, o.xid, l.cursor, (select base_seq from pgonce.outbox_state))";
    let rows = see.rows(sql).await;
    rows.into_iter()
        .map(|mut row| row[0].take().unwrap().parse().unwrap())
        .collect()
}

async fn replay(see: &Observer, from: i64) -> Option<i64> {
    let sql = format!("select pgonce.replay('c', {from})");
    see.rows(&sql).await[0][0]
        .take()
        .map(|first| first.parse().unwrap())
}

/// Goes back to many numbers, each in a transaction that is undone: nothing comes again but what was asked for.
async fn goes_back_everywhere(see: &Observer, what: &str) {
    let older = comes_again_everywhere(see, what).await;
    assert_eq!(older, BTreeSet::new(), "{what}");
}

/// The same; what came again and is older than asked for.
async fn comes_again_everywhere(see: &Observer, what: &str) -> BTreeSet<i64> {
    let mut older = BTreeSet::new();
    let before = unread(see).await;
    let last = see.number("select max(seq) from pgonce.outbox").await;
    let all = see
        .rows("select seq from pgonce.outbox")
        .await
        .into_iter()
        .map(|mut row| row[0].take().unwrap().parse().unwrap())
        .collect::<BTreeSet<i64>>();
    for from in [1, 2, last / 3, last / 2, last - 1, last, last + 1, 100_000] {
        see.run("begin").await;
        let first = replay(see, from).await;
        let after = unread(see).await;
        see.run("rollback").await;
        let asked: BTreeSet<i64> = all.range(from..).copied().collect();
        let again = after.difference(&before).next().copied();
        assert_eq!(first, again, "{what}, from {from}");
        let expected: BTreeSet<i64> = before.union(&asked).copied().collect();
        let missing: Vec<_> = expected.difference(&after).collect();
        assert!(missing.is_empty(), "{what}, from {from}: {missing:?}");
        older.extend(after.difference(&expected));
    }
    older
}

#[tokio::test]
async fn a_replay_adds_to_what_is_unread_and_takes_nothing_away() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    let many =
        "select pgonce.publish('t', 'x', 's' || i, '{\"n\": 1}') from generate_series(1, 200) i";
    see.run(many).await;
    goes_back_everywhere(see, "nothing was read").await;
    see.run(many).await;
    // Of each lane 16.
    reader.read(1).await;
    assert_eq!(reader.keep().await, 16);
    assert!(unread(see).await.len() > 100);
    goes_back_everywhere(see, "in the middle of pages").await;
    reader.read_all(1000).await;
    assert_eq!(reader.keep().await, 16);
    assert!(unread(see).await.is_empty());
    goes_back_everywhere(see, "everything was read").await;
    let open = world.observer().await;
    open.run(&format!("begin; {}", publish("late", 7))).await;
    see.run(many).await;
    reader.read_all(1000).await;
    reader.keep().await;
    open.run("commit").await;
    see.run(many).await;
    assert_eq!(unread(see).await.len(), 201);
    goes_back_everywhere(see, "somebody committed late").await;
    // The same, when it has gone back once already.
    replay(see, 500).await;
    assert_eq!(reader.keep().await, 0, "it is fenced");
    goes_back_everywhere(see, "after a replay").await;
    reader.claim_again().await;
    let expected = unread(see).await;
    let came = reader.read_all(10).await;
    assert_eq!(came.len(), expected.len(), "each once");
    let came: BTreeSet<i64> = came.into_iter().map(|event| event.seq).collect();
    assert_eq!(came, expected);
    reader.keep().await;
    assert!(unread(see).await.is_empty());
}

/// The one place of a lane in its pages stays where it is.
#[tokio::test]
async fn a_replay_from_beyond_a_page_brings_what_is_behind_the_page_and_passes_nothing_by() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    let many =
        "select pgonce.publish('t', 'x', 's' || i, '{\"n\": 1}') from generate_series(1, 800) i";
    see.run(many).await;
    let late = world.observer().await;
    late.run(&format!("begin; {many}")).await;
    see.run(many).await;
    while !reader.read_all(1000).await.is_empty() {}
    assert_eq!(reader.keep().await, 16);
    late.run("commit").await;
    assert_eq!(unread(see).await.len(), 800);
    goes_back_everywhere(see, "before the first page").await;
    // Of each lane 16, in the middle of what committed late.
    reader.read(1).await;
    assert_eq!(reader.keep().await, 16);
    let before = unread(see).await;
    assert!((400..700).contains(&before.len()), "{}", before.len());
    let older = comes_again_everywhere(see, "in the middle of later pages").await;
    let first = *before.first().unwrap();
    assert!(older.first().is_some_and(|number| *number > first));
    // It is read once, however it came to be unread.
    replay(see, 2400).await;
    reader.claim_again().await;
    let expected = unread(see).await;
    let came = reader.read_all(10).await;
    assert_eq!(came.len(), expected.len(), "each once");
    reader.keep().await;
    assert!(unread(see).await.is_empty());
}

#[tokio::test]
async fn a_replay_from_a_time_brings_nothing_older_and_passes_by_nothing_that_waits() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    see.run("select pgonce.create_subscription('slow')").await;
    // No mark for a long time: the log is marked every 1000 numbers.
    see.run(MARK).await;
    for n in 1..=6 {
        see.run("select pgonce._move_clock('1 hour')").await;
        see.run(&publish("s", n)).await;
    }
    reader.claim_again().await;
    assert_eq!(reader.numbers().await.len(), 6);
    reader.keep().await;
    let since = |subscription: &str, minutes: u32| {
        format!(
            "select coalesce(pgonce.replay('{subscription}', \
                 p_from_time => pgonce.now() - interval '{minutes} min'), 0)"
        )
    };
    assert_eq!(see.number(&since("c", 130)).await, 4);
    reader.claim_again().await;
    assert_eq!(reader.numbers().await, ["4", "5", "6"]);
    reader.keep().await;
    see.run("select pgonce._move_clock('1 hour')").await;
    assert_eq!(see.number(&since("c", 30)).await, 0, "nothing is so new");
    reader.claim_again().await;
    assert!(reader.numbers().await.is_empty());
    assert_eq!(see.number(&since("slow", 130)).await, 0);
    assert_eq!(
        see.number("select coalesce(pgonce.replay('slow', 5), 0)")
            .await,
        0
    );
    let mut slow = LogReader::claim(world.observer().await, "slow", "r").await;
    assert_eq!(slow.numbers().await, ["1", "2", "3", "4", "5", "6"]);
}

#[tokio::test]
async fn an_evicted_subscription_reads_on_where_it_was_however_late_the_replay_begins() {
    let (world, mut reader) = one_reader().await;
    let see = &world.see;
    for n in 1..=4 {
        see.run(&publish("s", n)).await;
    }
    let _ = reader.read(1000).await;
    reader.keep().await;
    for n in 5..=8 {
        see.run(&publish("s", n)).await;
    }
    see.run("select pgonce.evict_subscription('c', 'late')")
        .await;
    assert_eq!(replay(see, 7).await, Some(5));
    reader.claim_again().await;
    assert_eq!(reader.numbers().await, ["5", "6", "7", "8"]);
}
