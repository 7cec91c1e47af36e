//! Partitions are made beside writers, whatever the default partition holds; what was in one that was emptied is known to be gone.

use super::retention::{PARTITIONS, catch_up, fill, small};

/// A partition beside a full default partition takes four calls. None looks through it while writers wait, each gives way to a
/// writer that is in its way, and each may be the last for a long time: events are published after every one of them.
#[tokio::test]
async fn a_partition_beside_a_full_default_partition_keeps_no_writer_waiting() {
    const CREATE: &str = "select pgonce._create_outbox_partitions()";
    const SCANNED: &str =
        "select pg_stat_get_xact_tuples_returned('pgonce.outbox_default'::regclass)";
    const REST: &str = "select count(*) from pgonce.outbox_default";
    let (world, mut reader) = small().await;
    let see = &world.see;
    // Nobody else locks it.
    see.run("alter table pgonce.outbox_default set (autovacuum_enabled = off)")
        .await;
    // Six mebibytes.
    see.run("select pgonce.publish('t', 'x', 's' || i, jsonb_build_object('n', repeat('x', 1500))) from generate_series(1, 4200) i")
        .await;
    assert_eq!(see.number(REST).await, 4000);
    let writer = world.observer().await;
    let mut published = 4200;
    let one = "select pgonce.publish('t', 'x', 's', '{}')";
    // What each is to find done, whether a writer is in its way, and how many partitions it makes.
    for (step, done, gives_way, made) in [
        (
            "constraint",
            "select count(*) from pg_constraint where conname ~ '^below_'",
            true,
            0,
        ),
        (
            "validation",
            "select count(*) from pg_constraint where conname ~ '^below_' and convalidated",
            false,
            0,
        ),
        (
            "partition",
            "select count(*) from pgonce.outbox_partition where from_seq > 10000000000",
            true,
            1,
        ),
        (
            "sequence",
            "select count(*) from pgonce.outbox_seq where last_value > 10000000000",
            true,
            0,
        ),
    ] {
        writer.run(&format!("begin; {one}")).await;
        assert_eq!(
            see.number(CREATE).await,
            0,
            "{step}: a writer is in the way"
        );
        assert_eq!(see.number(done).await, i64::from(!gives_way), "{step}");
        writer.run("commit").await;
        if gives_way {
            see.run("begin").await;
            let before = see.number(SCANNED).await;
            assert_eq!(see.number(CREATE).await, made, "{step}");
            assert_eq!(see.number(SCANNED).await, before, "{step}: under the lock");
            see.run("commit").await;
        }
        assert_eq!(see.number(done).await, 1, "{step}");
        see.run(one).await;
        published += 2;
    }
    assert_eq!(
        see.number(REST).await,
        4007,
        "the last one is in the partition"
    );
    let left = "select count(*) from pg_constraint where conname ~ '^below_'";
    assert_eq!(see.number(left).await, 0);
    assert_eq!(see.number(CREATE).await, 0, "enough are ahead");
    // Numbers that were left out are no events.
    see.run("select pgonce._sample()").await;
    assert_eq!(
        see.number("select max(events) from pgonce.sample").await,
        published
    );
    assert_eq!(
        reader.read_all(1000).await.len(),
        usize::try_from(published).unwrap()
    );
    fill(&world, 300).await;
    assert_eq!(see.number(REST).await, 4007);
    assert_eq!(reader.read_all(1000).await.len(), 300);
}

#[tokio::test]
async fn a_projection_is_not_made_anew_from_a_log_that_was_emptied() {
    let (world, mut reader) = small().await;
    let (see, inbox) = (&world.see, world.owner.inbox());
    see.run(
        "create function count_it(p_into regclass, p_event pgonce.projected) returns void language plpgsql as $$
         begin
             execute format('insert into %s as t values ($1, 1) on conflict (id) do update set n = t.n + 1', p_into) using p_event.entity;
         end $$",
    )
    .await;
    let define = |name: &str| {
        format!(
            "create table {name} (id text primary key, n bigint not null); \
             select pgonce.define_projection('{name}', '{name}', 'count_it', 'marker')"
        )
    };
    see.run(&define("early")).await;
    fill(&world, 150).await;
    catch_up(&world, &mut reader, "c", 150).await;
    see.run("select pgonce._move_clock('2 hours')").await;
    // Its partition is emptied and not dropped, since somebody writes into the log.
    let writer = world.observer().await;
    writer
        .run("begin; select pgonce.publish('t', 'x', 's', '{}')")
        .await;
    let drop = "select pgonce._drop_outbox_partitions()";
    assert_eq!(see.number(drop).await, 0);
    writer.run("commit").await;
    assert!(see.text(PARTITIONS).await.starts_with("1 101 "));
    assert_eq!(see.number("select count(*) from pgonce.outbox_1").await, 0);
    assert_eq!(inbox.rebuild("early").await.unwrap_err().code(), "P4031");
    assert_eq!(inbox.verify("early").await.unwrap_err().code(), "P4031");
    // One that begins now never had them.
    see.run(&define("late")).await;
    assert_eq!(inbox.rebuild("late").await.unwrap().events, 51);
    assert_eq!(see.number(drop).await, 1);
    assert_eq!(inbox.rebuild("late").await.unwrap().removed, 0);
}
