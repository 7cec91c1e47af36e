//! The mark that a message was applied commits with its effect, or not at all.

use std::time::Duration;

use futures_util::future::join;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::{Contract, Message, Tx, Verdict};
use pgonce::{Error, Result};
use pgonce_tests::{Cut, Cutter, TestDriver, World, for_each_driver, for_each_driver_and_setting};

const EFFECTS: &str = "select count(*) from effects";
const MARKS: &str = "select count(*) from pgonce.inbox_marker";

fn message(id: &str, payload: &str) -> Message {
    Message::new(id, payload)
}

async fn effect<D: TestDriver>(tx: &mut Tx<D>, id: &str) -> Result<()> {
    let sql = format!("insert into effects values ('', 'inbox', '{id}')");
    D::exec(tx.conn(), &sql).await
}

/// One delivery of one message: begin, mark, effect, commit.
async fn deliver<D: TestDriver>(
    world: &World<D>,
    consumer: &str,
    message: &Message,
) -> Result<Verdict> {
    let mut batch = world.once.inbox().begin().await?;
    let verdict = batch.dedupe(consumer, "shop", &[message]).await?[0];
    if verdict == Verdict::New {
        effect::<D>(&mut batch.lend("")?, &message.id).await?;
    }
    batch.commit().await?;
    Ok(verdict)
}

async fn a_message_is_applied_once_however_often_it_comes<D: TestDriver>(world: World<D>) {
    let paid = message("evt-1", "paid");
    for n in 0..10 {
        let expected = if n == 0 {
            Verdict::New
        } else {
            Verdict::Duplicate
        };
        assert_eq!(deliver(&world, "billing", &paid).await.unwrap(), expected);
    }
    // Another consumer has a memory of its own; another tenant, and another source, too.
    assert_eq!(deliver(&world, "audit", &paid).await.unwrap(), Verdict::New);
    let theirs = message("evt-1", "paid").tenant("acme");
    assert_eq!(
        deliver(&world, "billing", &theirs).await.unwrap(),
        Verdict::New
    );
    assert_eq!(world.see.number(EFFECTS).await, 3);
    assert_eq!(world.see.number(MARKS).await, 3);
}

async fn a_forced_error_leaves_neither_mark_nor_effect<D: TestDriver>(world: World<D>) {
    let paid = message("evt-1", "paid");
    let mut batch = world.once.inbox().begin().await.unwrap();
    assert_eq!(
        batch.dedupe("billing", "shop", &[&paid]).await.unwrap(),
        [Verdict::New]
    );
    let mut tx = batch.lend("").unwrap();
    effect::<D>(&mut tx, "evt-1").await.unwrap();
    assert_eq!(
        D::exec(tx.conn(), "select 1/0").await.unwrap_err().code(),
        "22012"
    );
    drop(tx);
    // The failed transaction says ROLLBACK to a COMMIT, without an error: ours is an error.
    assert_eq!(batch.commit().await.unwrap_err().code(), "25P02");
    // Dropped half-way, too.
    let mut batch = world.once.inbox().begin().await.unwrap();
    batch.dedupe("billing", "shop", &[&paid]).await.unwrap();
    drop(batch);
    world.see.wait_until_clean().await;
    assert_eq!(
        (
            world.see.number(EFFECTS).await,
            world.see.number(MARKS).await
        ),
        (0, 0)
    );
    assert_eq!(
        deliver(&world, "billing", &paid).await.unwrap(),
        Verdict::New
    );
}

async fn a_batch_is_decided_by_one_statement<D: TestDriver>(world: World<D>) {
    deliver(&world, "billing", &message("b", "1"))
        .await
        .unwrap();
    let batch_of = [
        ("a", "1"),
        ("b", "1"),
        ("c", "1"),
        ("c", "1"),
        ("b", "2"),
        ("d", "1"),
        ("d", "9"),
    ];
    let messages: Vec<_> = batch_of
        .iter()
        .map(|(id, payload)| message(id, payload))
        .collect();
    let mut batch = world.once.inbox().begin().await.unwrap();
    let all: Vec<_> = messages.iter().collect();
    use Verdict::{Conflict, Duplicate, New};
    assert_eq!(
        batch.dedupe("billing", "shop", &all).await.unwrap(),
        [New, Duplicate, New, Duplicate, Conflict, New, Conflict]
    );
    batch.commit().await.unwrap();
    assert_eq!(world.see.number(MARKS).await, 4);
}

/// New, known, mixed, known again, and new after copies: each goes another way.
async fn a_batch_that_is_taken_on_with_begin_gets_the_same_verdicts<D: TestDriver>(
    world: World<D>,
) {
    use Verdict::{Conflict, Duplicate, New};
    type Batch<'a> = (&'a [(&'a str, &'a str)], &'a [Verdict]);
    let inbox = world.once.inbox();
    let batches: [Batch<'_>; 8] = [
        (&[("b", "1"), ("a", "1")], &[New, New]),
        (&[("a", "1"), ("b", "1")], &[Duplicate, Duplicate]),
        (&[("b", "2"), ("a", "1")], &[Conflict, Duplicate]),
        (&[("d", "1"), ("c", "1")], &[New, New]),
        (
            &[("e", "1"), ("a", "1"), ("e", "1"), ("e", "2")],
            &[New, Duplicate, Duplicate, Conflict],
        ),
        (&[("a", "1")], &[Duplicate]),
        (
            &[("f", "1"), ("a", "1"), ("f", "1")],
            &[New, Duplicate, Duplicate],
        ),
        (&[], &[]),
    ];
    for (batch_of, expected) in batches {
        let messages: Vec<_> = batch_of
            .iter()
            .map(|(id, payload)| message(id, payload))
            .collect();
        let all: Vec<_> = messages.iter().collect();
        let timeout = Some(Duration::from_secs(60));
        let begun = inbox.begin_deduped(timeout, "billing", "shop", &all).await;
        let (batch, verdicts) = begun.unwrap();
        assert_eq!(verdicts, expected, "{batch_of:?}");
        batch.commit().await.unwrap();
    }
    assert_eq!(world.see.number(MARKS).await, 6);
    let theirs = message("a", "1").tenant("acme");
    let ours = message("a", "1");
    let begun = inbox
        .begin_deduped(None, "billing", "shop", &[&theirs, &ours])
        .await;
    let (batch, verdicts) = begun.unwrap();
    assert_eq!(verdicts, [New, Duplicate]);
    batch.roll_back().await.unwrap();
    let long = message(&"x".repeat(256), "1");
    for together in [vec![&long], vec![&long, &theirs], vec![&long, &ours]] {
        let end = inbox
            .begin_deduped(None, "billing", "shop", &together)
            .await;
        assert_eq!(end.map(drop).unwrap_err().code(), "22023");
    }
    assert_eq!(world.see.number(MARKS).await, 6);
}

/// The SDK reads the day itself: a marker in another partition than SQL callers look in would be no marker.
async fn markers_have_the_day_that_sql_reads_from_their_ids<D: TestDriver>(world: World<D>) {
    let time = "018f4e2a-7c3e-7000-8000-0000000000";
    let mut ids = vec![pgonce::key::fresh(), pgonce::key::fresh().to_uppercase()];
    ids.extend(["00", "-0", "g0", "é", " 0", "0"].map(|end| format!("{time}{end}")));
    ids.extend(
        ["7", "8", "9", "a", "B", "c", "f", "-"]
            .map(|c| format!("018f4e2a-7c3e-7000-{c}000-000000000001")),
    );
    ids.extend(
        ["0", "6", "7", "8", "-"].map(|v| format!("ffffffff-ffff-{v}fff-bfff-ffffffffffff")),
    );
    ids.extend(
        [
            "00000000-0000-7000-8000-000000000000",
            "0000000000000-7000-8000-000000000000",
            "x",
        ]
        .map(String::from),
    );
    let messages: Vec<_> = ids.iter().map(|id| message(id, "1")).collect();
    let all: Vec<_> = messages.iter().collect();
    let begun = world.once.inbox().begin_deduped(None, "c", "s", &all).await;
    let (batch, verdicts) = begun.unwrap();
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::New));
    batch.commit().await.unwrap();
    let strays = "select count(*) from pgonce.inbox_marker where day <> pgonce._day_of(message_id)";
    assert_eq!(world.see.number(strays).await, 0);
    let days = "select count(distinct day) from pgonce.inbox_marker";
    assert_eq!(world.see.number(days).await, 5);
}

async fn copies_open_the_partition_of_their_day_and_no_other<D: TestDriver>(world: World<D>) {
    world
        .see
        .run("select pgonce._create_inbox_partitions()")
        .await;
    let inbox = world.another("copies", 1, |b| b).inbox();
    let messages = [(); 3].map(|()| message(&pgonce::key::fresh(), "1"));
    let all: Vec<_> = messages.iter().collect();
    // An index that is scanned stays locked until the end of the transaction; so do all that a plan is made for.
    let opened = "select count(*) from pg_locks l join pg_class c on c.oid = l.relation \
        where c.relkind = 'i' and c.relname like 'inbox_marker%' \
        and l.database = (select oid from pg_database where datname = current_database())";
    let mut counts = Vec::new();
    for n in 0..12 {
        let begun = inbox.begin_deduped(None, "c", "s", &all).await;
        let (batch, verdicts) = begun.unwrap();
        let expected = if n == 0 {
            Verdict::New
        } else {
            Verdict::Duplicate
        };
        assert_eq!(verdicts, [expected; 3]);
        if n > 0 {
            counts.push(world.see.number(opened).await);
        }
        batch.commit().await.unwrap();
    }
    // The plan is made once, or again after a change; not for each batch, and not for every day.
    assert_eq!(counts.iter().min(), Some(&1), "{counts:?}");
}

async fn two_workers_on_one_message_apply_it_once<D: TestDriver>(world: World<D>) {
    let paid = message("evt-1", "paid");
    for first_commits in [true, false] {
        let mut first = world.once.inbox().begin().await.unwrap();
        assert_eq!(
            first.dedupe("billing", "shop", &[&paid]).await.unwrap(),
            [Verdict::New]
        );
        let other = world.another("second", 1, |b| b);
        let second = async {
            let mut batch = other.inbox().begin().await.unwrap();
            let verdict = batch.dedupe("billing", "shop", &[&paid]).await.unwrap()[0];
            batch.commit().await.unwrap();
            verdict
        };
        let (verdict, ()) = join(second, async {
            world.see.wait_until_asleep("second").await;
            effect::<D>(&mut first.lend("").unwrap(), "evt-1")
                .await
                .unwrap();
            match first_commits {
                true => first.commit().await.unwrap(),
                false => first.roll_back().await.unwrap(),
            }
        })
        .await;
        let expected = if first_commits {
            Verdict::Duplicate
        } else {
            Verdict::New
        };
        assert_eq!(verdict, expected);
        world.see.run("delete from pgonce.inbox_marker").await;
    }
    assert_eq!(world.see.number(EFFECTS).await, 1);
}

async fn a_lost_commit_is_found_by_marking_again<D: TestDriver>(world: World<D>) {
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let once = world.another_at(&cutter.url_for(world.database()), 4, |b| b);
    for (cut, expected) in [
        (Cut::Reply, Verdict::Duplicate),
        (Cut::Request, Verdict::New),
    ] {
        let paid = message(&format!("{cut:?}"), "paid");
        let mut batch = once.inbox().begin().await.unwrap();
        batch.dedupe("billing", "shop", &[&paid]).await.unwrap();
        effect::<D>(&mut batch.lend("").unwrap(), &paid.id)
            .await
            .unwrap();
        cutter.arm("commit\0", cut);
        assert!(
            matches!(batch.commit().await, Err(Error::Uncertain(_))),
            "{cut:?}"
        );
        world.see.wait_until_clean().await;
        assert_eq!(deliver(&world, "billing", &paid).await.unwrap(), expected);
        let once = format!("select count(*) from effects where key = '{cut:?}'");
        assert_eq!(world.see.number(&once).await, 1);
    }
}

async fn a_commit_by_hand_is_an_error<D: TestDriver>(world: World<D>) {
    let mut batch = world.once.inbox().begin().await.unwrap();
    batch
        .dedupe("billing", "shop", &[&message("a", "1")])
        .await
        .unwrap();
    D::exec(batch.lend("").unwrap().conn(), "commit; begin")
        .await
        .unwrap();
    assert_eq!(batch.commit().await.unwrap_err().code(), "2D000");
}

for_each_driver_and_setting!(
    a_message_is_applied_once_however_often_it_comes,
    a_batch_is_decided_by_one_statement,
    a_batch_that_is_taken_on_with_begin_gets_the_same_verdicts,
);
for_each_driver!(
    markers_have_the_day_that_sql_reads_from_their_ids,
    copies_open_the_partition_of_their_day_and_no_other,
    a_forced_error_leaves_neither_mark_nor_effect,
    two_workers_on_one_message_apply_it_once,
    a_lost_commit_is_found_by_marking_again,
    a_commit_by_hand_is_an_error,
);

#[tokio::test]
async fn a_role_that_commits_carelessly_is_made_to_commit_durably() {
    let world = World::<TokioPostgres>::new().await;
    let database = world.database();
    world
        .see
        .run(&format!(
            "alter database {database} set synchronous_commit = off"
        ))
        .await;
    let see = world.observer().await;
    for sql in [
        "select pgonce.accept('c', 's', 'm')",
        "select pgonce.accept_batch('c', 's', '{a,b}')",
        "select pgonce.store_message('c', 's', 'stored', '')",
        "select pgonce.advance_projection('p', 'e', 1)",
        "select * from pgonce._lease_partition('c', 's', 'p', 'me', '1 minute')",
    ] {
        see.run("begin").await;
        see.run(sql).await;
        assert_eq!(see.text("show synchronous_commit").await, "on", "{sql}");
        see.run("commit").await;
    }
}

#[tokio::test]
async fn it_is_a_gate_in_one_statement_with_the_effect() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let one = "with gate as (select pgonce.accept('c', 's', 'm', sha256('x')) as fresh) \
         insert into effects select '', 'inbox', 'm' from gate where fresh";
    let many = "insert into effects select '', 'inbox', id from pgonce.accept_batch('c', 's', '{m,n,o,n}') id";
    for _ in 0..3 {
        see.run(one).await;
        see.run(many).await;
    }
    let seen = "select string_agg(key, ',' order by key) from effects";
    assert_eq!(see.text(seen).await, "m,n,o");
}

#[tokio::test]
async fn another_payload_under_the_same_id_is_loud_and_changes_nothing() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.accept('c', 's', 'm', sha256('one'))")
        .await;
    for sql in [
        "select pgonce.accept('c', 's', 'm', sha256('two'))",
        "select pgonce.accept_batch('c', 's', '{a,m,z}', array[sha256('a'), sha256('two'), sha256('z')])",
        "select pgonce.accept_batch('c', 's', '{b,b}', array[sha256('a'), sha256('b')])",
    ] {
        assert_eq!(see.code(sql).await, "P4050", "{sql}");
    }
    assert_eq!(
        see.number(MARKS).await,
        1,
        "the rest of the batch is rolled back"
    );
    // Without a hash nothing can be noticed.
    assert_eq!(see.text("select pgonce.accept('c', 's', 'm')").await, "f");
    let error = world
        .once
        .accept(
            &mut *world
                .once
                .driver()
                .pool()
                .get()
                .await
                .unwrap()
                .transaction()
                .await
                .unwrap(),
            "c",
            "s",
            &message("m", "two"),
        )
        .await;
    assert!(matches!(error, Err(Error::Conflict(_))), "{error:?}");
}

#[tokio::test]
async fn batches_that_share_messages_in_opposite_orders_do_not_deadlock() {
    let world = World::<TokioPostgres>::new().await;
    let ids: Vec<String> = (0..200).map(|n| format!("m{n}")).collect();
    let forward: Vec<_> = ids.iter().map(|id| message(id, "x")).collect();
    let backward: Vec<_> = forward.iter().rev().cloned().collect();
    for round in 0..10 {
        let take = |messages: Vec<Message>| {
            let inbox = world.once.inbox();
            let consumer = format!("c{round}");
            async move {
                let mut batch = inbox.begin().await?;
                let all: Vec<_> = messages.iter().collect();
                let verdicts = batch.dedupe(&consumer, "shop", &all).await?;
                batch.commit().await?;
                Ok::<_, Error>(verdicts.iter().filter(|v| **v == Verdict::New).count())
            }
        };
        let (a, b) = join(take(forward.clone()), take(backward.clone())).await;
        assert_eq!(a.unwrap() + b.unwrap(), 200);
    }
}

#[tokio::test]
async fn copies_are_looked_up_by_their_key_however_much_was_received() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let accept = |ids: &str| {
        format!(
            "select count(*) from pgonce.accept_batch('c', 's', array(select {ids} from generate_series(1, 20) i))"
        )
    };
    // Planned while there is nothing, as a consumer's statements are.
    for n in 0..8 {
        assert_eq!(see.number(&accept(&format!("'{n}-' || i % 10"))).await, 10);
    }
    see.run("select pgonce.accept_batch('c', 's', array(select 'm' || i from generate_series(1, 5000) i))")
        .await;
    let read = "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_xact_user_tables where relname like 'inbox_marker%'";
    for (ids, fresh) in [("'m' || i", 0), ("'m' || 4990 + i", 10)] {
        see.run("begin").await;
        assert_eq!(see.number(&accept(ids)).await, fresh);
        let read = see.number(read).await;
        assert!(read < 500, "{read} rows were read for 20 messages");
        see.run("commit").await;
    }
}

#[tokio::test]
async fn names_that_do_not_fit_are_refused() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    for sql in [
        "select pgonce.accept('', 's', 'm')",
        "select pgonce.accept('c', null, 'm')",
        "select pgonce.accept('c', 's', '')",
        "select pgonce.accept('c', 's', repeat('m', 256))",
        "select pgonce.accept('c', 's', 'm', null, repeat('t', 256))",
        "select pgonce.accept_batch('c', 's', '{a,NULL}')",
        "select pgonce.accept_batch('c', 's', '{a,b}', array['x'::bytea])",
        "select pgonce.store_message('c', 's', 'm', null)",
        "select pgonce.store_message('c', 's', null, 'x')",
        "select pgonce.store_message('c', 's', 'm', 'x', p_outcome => 'perhaps')",
        "select pgonce.claim_messages('c', '', '1 s', 1)",
        "select pgonce.advance_projection('p', 'e', null)",
        "select pgonce._purge_inbox(0)",
        "select pgonce.skip_message('c', 1, '')",
        "select pgonce.replay_messages('c', '')",
    ] {
        assert_eq!(see.code(sql).await, "22023", "{sql}");
    }
    assert_eq!(
        see.code("select pgonce.define_inbox('c', '1 day', '2 days')")
            .await,
        "23514"
    );
    let short = Contract::default().keep(Duration::from_secs(5), Duration::from_secs(6));
    assert_eq!(
        world
            .owner
            .inbox()
            .define("c", &short)
            .await
            .unwrap_err()
            .code(),
        "23514"
    );
    assert_eq!(see.number(MARKS).await, 0);
}
