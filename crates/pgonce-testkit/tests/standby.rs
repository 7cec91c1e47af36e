//! Standbys: followed, fallen behind, promoted.

#![allow(clippy::unwrap_used)]

use pgonce_testkit::{Binaries, Postgres, Replication};
use tokio_postgres::{Client, NoTls};

async fn connect(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn numbers(client: &Client) -> Vec<i32> {
    let rows = client.query("select n from t order by n", &[]).await;
    rows.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn the_oldest_and_the_newest_version_can_be_followed_and_failed_over() {
    let mut installed = Binaries::all().unwrap();
    installed.sort_by_key(Binaries::major);
    let newest = installed.pop().unwrap();
    for binaries in installed.into_iter().take(1).chain([newest]) {
        let primary = Postgres::builder()
            .binaries(binaries)
            .start()
            .await
            .unwrap();
        let client = connect(&primary).await;
        let table = "create table t (n int); insert into t values (1)";
        client.batch_execute(table).await.unwrap();
        let synchronous = primary.standby(Replication::Synchronous).await.unwrap();
        let late = primary.standby(Replication::Asynchronous).await.unwrap();
        client
            .batch_execute("insert into t values (2)")
            .await
            .unwrap();
        late.wait_until_caught_up_with(&primary).await.unwrap();
        late.fall_behind().await.unwrap();
        client
            .batch_execute("insert into t values (3)")
            .await
            .unwrap();
        primary.crash().await.unwrap();

        for (standby, has) in [(&synchronous, vec![1, 2, 3]), (&late, vec![1, 2])] {
            standby.promote().await.unwrap();
            let client = connect(standby).await;
            assert_eq!(
                numbers(&client).await,
                has,
                "PostgreSQL {}",
                primary.major()
            );
            client
                .batch_execute("insert into t values (4)")
                .await
                .unwrap();
            standby.crash().await.unwrap();
            standby.start_again().await.unwrap();
            assert_eq!(numbers(&connect(standby).await).await.last(), Some(&4));
        }
    }
}

#[tokio::test]
async fn a_commit_waits_for_a_synchronous_standby_that_is_away() {
    let primary = Postgres::builder().start().await.unwrap();
    let client = connect(&primary).await;
    client
        .batch_execute("create table t (n int)")
        .await
        .unwrap();
    let standby = primary.standby(Replication::Synchronous).await.unwrap();
    standby.fall_behind().await.unwrap();
    let insert =
        tokio::spawn(async move { client.batch_execute("insert into t values (1)").await });
    let eye = connect(&primary).await;
    let waits = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'";
    pgonce_testkit::wait_until(
        "a commit that waits",
        std::time::Duration::from_secs(20),
        || async { eye.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 1 },
    )
    .await
    .unwrap();
    assert!(!insert.is_finished());
}
