//! What takes long in an upgrade does so before anything is locked that others write.

use std::time::Duration;

use pgonce::migrate::Migrator;
use pgonce_tests::Observer;

use super::test_db::{TestDb, connect, tokio_driver};

#[tokio::test]
async fn an_upgrade_that_deletes_for_long_stops_no_writer_meanwhile() {
    let db = TestDb::new().await;
    db.migrator().up_to(11).await.unwrap();
    // In regions: an attempt whose record is gone, and one whose record is there.
    db.run(
        "insert into pgonce.region (id, name, is_self, joined_at) values (1, 'here', true, '2020-01-01'); \
         insert into pgonce.intent (fence, first_at, attempts, status, fingerprint, tenant, scope, key) \
             values (4, '2020-01-01', 2, 'processing', '\\x01', '', 's', 'there'); \
         insert into pgonce.attempt (fence, started_at, ended_at, followed_at, attempt, tenant, scope, key, outcome) \
             select 2, '2020-01-01', '2020-01-01', '2020-01-01', 1, '', 's', k, 'vanished' from unnest(array['gone', 'there']) k",
    )
    .await;
    let slow = connect(&db.database.url()).await;
    slow.batch_execute("begin; select from pgonce.attempt where key = 'gone' for update")
        .await
        .unwrap();
    let see = Observer::connect(&db.database.url()).await;
    let migrator = Migrator::new(tokio_driver(&db.database.url()));
    let migrator = migrator.lock_timeout(Duration::from_secs(600));
    let (up, locked) = futures_util::future::join(migrator.up(), async {
        see.wait_until(
            "select count(*) > 0 from pg_stat_activity \
              where wait_event_type = 'Lock' and datname = current_database()",
        )
        .await;
        let locked = "select coalesce(string_agg(distinct l.relation::regclass::text, ' '), '') \
            from pg_locks l join pg_class c on c.oid = l.relation and c.relkind in ('r', 'p') \
             join pg_database d on d.oid = l.database and d.datname = current_database() \
            where l.granted and l.locktype = 'relation' and c.relnamespace = 'pgonce'::regnamespace \
              and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')";
        let locked = see.text(locked).await;
        slow.batch_execute("rollback").await.unwrap();
        locked
    })
    .await;
    assert_eq!(locked, "", "nobody writes these meanwhile");
    up.unwrap();
    let left = "select string_agg(key, ' ') from pgonce.attempt";
    assert_eq!(db.text(left).await, "there");
}
