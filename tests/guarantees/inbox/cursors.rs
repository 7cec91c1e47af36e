//! Ordered sources: one fenced cursor for each partition.

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::{Inbox, PartitionLease, Position};
use pgonce::{Error, Result};
use pgonce_tests::{TestDriver, World, for_each_driver};

const LEASE: Duration = Duration::from_secs(10);

async fn take<D: TestDriver>(inbox: &Inbox<D>, owner: &str) -> Option<PartitionLease> {
    let taken = inbox.take_partition("c", "kafka:orders", "7", owner, LEASE);
    taken.await.unwrap()
}

/// One batch: an effect, and the cursor.
async fn apply<D: TestDriver>(
    inbox: &Inbox<D>,
    held: &PartitionLease,
    to: impl Into<Position>,
) -> Result<()> {
    let mut batch = inbox.begin().await?;
    let sql = "insert into effects values ('', 'cursor', 'x')";
    D::exec(batch.lend("")?.conn(), sql).await?;
    batch.commit_moved(held, to.into()).await
}

async fn effects_and_cursor_commit_together_or_not_at_all<D: TestDriver>(world: World<D>) {
    let inbox = world.once.inbox();
    let mut held = take(&inbox, "me").await.unwrap();
    assert_eq!(held.position, None);
    apply(&inbox, &held, 9).await.unwrap();
    held.position = Some(9.into());
    // Ids of two parts, such as a Redis stream's.
    apply(&inbox, &held, (9, 1)).await.unwrap();
    // From where it is not: the batch was committed before, and its reply lost.
    assert!(matches!(
        apply(&inbox, &held, 20).await,
        Err(Error::Fenced(_))
    ));
    held.position = Some((9, 1).into());
    assert_eq!(apply(&inbox, &held, 9).await.unwrap_err().code(), "22023");
    assert_eq!(world.see.number("select count(*) from effects").await, 2);
    assert_eq!(
        take(&inbox, "me").await.unwrap().position,
        Some((9, 1).into())
    );
}

async fn a_zombie_is_refused_and_leaves_nothing<D: TestDriver>(world: World<D>) {
    let inbox = world.once.inbox();
    let zombie = take(&inbox, "zombie").await.unwrap();
    apply(&inbox, &zombie, 5).await.unwrap();
    assert_eq!(take(&inbox, "heir").await, None, "its lease holds");
    world.see.run("select pgonce._move_clock('11 s')").await;
    let heir = take(&inbox, "heir").await.unwrap();
    assert!(heir.epoch > zombie.epoch);
    assert_eq!(heir.position, Some(5.into()));
    let mut late = zombie.clone();
    late.position = Some(5.into());
    assert!(matches!(
        apply(&inbox, &late, 6).await,
        Err(Error::Fenced(_))
    ));
    inbox.leave_partition(&late).await.unwrap();
    apply(&inbox, &heir, 6).await.unwrap();
    assert_eq!(world.see.number("select count(*) from effects").await, 2);
    // Given back, it is free at once; the position stays.
    inbox.leave_partition(&heir).await.unwrap();
    assert_eq!(
        take(&inbox, "third").await.unwrap().position,
        Some(6.into())
    );
}

async fn a_takeover_waits_for_the_batch_that_is_being_committed<D: TestDriver>(world: World<D>) {
    let inbox = world.once.inbox();
    let first = take(&inbox, "first").await.unwrap();
    world.see.run("select pgonce._move_clock('11 s')").await;
    // In the middle of its commit: the cursor is moved, but nobody sees it yet.
    let moving = format!(
        "begin; select pgonce._advance_partition('c', 'kafka:orders', '7', {}, null, null, 3, 0, '10 s')",
        first.epoch
    );
    world.see.run(&moving).await;
    let other = world.another("heir", 1, |b| b).inbox();
    let (heir, ()) = futures_util::future::join(take(&other, "heir"), async {
        world.observer().await.wait_until_asleep("heir").await;
        world.see.run("commit").await;
    })
    .await;
    // It has moved within its lease, so it stays; and never is the position taken from before.
    assert_eq!(heir, None);
    world.see.run("select pgonce._move_clock('11 s')").await;
    assert_eq!(take(&other, "heir").await.unwrap().position, Some(3.into()));
}

for_each_driver!(
    effects_and_cursor_commit_together_or_not_at_all,
    a_zombie_is_refused_and_leaves_nothing,
    a_takeover_waits_for_the_batch_that_is_being_committed,
);

#[tokio::test]
async fn consumers_sources_and_partitions_have_cursors_of_their_own() {
    let world = World::<TokioPostgres>::new().await;
    let inbox = world.once.inbox();
    for (consumer, source, partition) in [
        ("c", "s", "1"),
        ("d", "s", "1"),
        ("c", "t", "1"),
        ("c", "s", "2"),
    ] {
        let held = inbox
            .take_partition(consumer, source, partition, "me", LEASE)
            .await;
        let held = held.unwrap().unwrap();
        assert_eq!(held.position, None);
        apply(&inbox, &held, 7).await.unwrap();
    }
    assert_eq!(
        world
            .see
            .number("select count(*) from pgonce.inbox_cursor where position = 7")
            .await,
        4
    );
}

#[tokio::test]
async fn an_operator_can_move_a_consumer_and_its_worker_notices() {
    let world = World::<TokioPostgres>::new().await;
    let inbox = world.once.inbox();
    let mut held = take(&inbox, "me").await.unwrap();
    apply(&inbox, &held, 9).await.unwrap();
    held.position = Some(9.into());
    let set = "select pgonce.set_partition('c', 'kafka:orders', '7', 3, null, 'a bug was fixed')";
    assert_eq!(world.see.number(set).await, 9);
    assert!(matches!(
        apply(&inbox, &held, 10).await,
        Err(Error::Fenced(_))
    ));
    assert_eq!(take(&inbox, "me").await.unwrap().position, Some(3.into()));
    let audit = "select count(*) from pgonce.operator_act where act = 'set_partition' and key = 'kafka:orders 7' \
                 and reason = 'from 9 to 3: a bug was fixed' and before ->> 'position' = '9'";
    assert_eq!(world.see.number(audit).await, 1);
}
