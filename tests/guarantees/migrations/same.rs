//! However it came to be, the result is the same.

use pgonce::migrate::{MIGRATIONS, Migrator, Routines, State};
use pgonce_testkit::{Binaries, PgBouncer, shared, wait_until_lock_waited};
use pgonce_tests::Observer;

use super::test_db::{TestDb, sqlx_driver, tokio_driver};

/// Takes the lock that migrators take.
const LOCK: &str = "begin; select pg_advisory_xact_lock(20260102, hashtext('pgonce'))";

async fn fresh_dump() -> String {
    let db = TestDb::new().await;
    db.migrator().up().await.unwrap();
    db.dump("pgonce").await
}

#[tokio::test]
async fn migrations_applied_one_by_one_equal_a_fresh_install() {
    let db = TestDb::new().await;
    for migration in MIGRATIONS {
        let report = db.migrator().up_to(migration.number).await.unwrap();
        assert_eq!(report.applied, [migration.name]);
        assert_eq!(report.routines, migration.number == MIGRATIONS.len() as u32);
    }
    assert_eq!(db.dump("pgonce").await, fresh_dump().await);
}

#[tokio::test]
async fn up_twice_equals_up_once_and_both_drivers_do_the_same() {
    let db = TestDb::new().await;
    let first = db.sqlx_migrator().up().await.unwrap();
    assert_eq!(first.applied.len(), MIGRATIONS.len());
    assert!(first.routines && first.newer.is_empty());
    let once = db.dump("pgonce").await;
    let second = db.migrator().up().await.unwrap();
    assert!(second.applied.is_empty() && !second.routines);
    assert_eq!(db.dump("pgonce").await, once);
    assert_eq!(once, fresh_dump().await);
    db.migrator().check().await.unwrap();
}

#[tokio::test]
async fn another_schema_differs_by_its_name_only() {
    let db = TestDb::new().await;
    for schema in ["elsewhere", "pgonce"] {
        db.migrator().schema(schema).up().await.unwrap();
    }
    let elsewhere = db.dump("elsewhere").await.replace("elsewhere", "pgonce");
    assert_eq!(elsewhere, db.dump("pgonce").await);

    let claim = "select outcome from elsewhere.claim('orders.create', 'k', '\\x01')";
    assert_eq!(db.text(claim).await, "fresh");
    db.run("drop schema pgonce cascade").await;
    assert_eq!(db.text(claim).await, "fresh");
}

#[tokio::test]
async fn a_schema_name_that_needs_quotes_is_refused() {
    let db = TestDb::new().await;
    for name in [
        "",
        "Has Space",
        "pg_mine",
        "a.b",
        "x\"; drop schema public; --",
    ] {
        let migrator = db.migrator().schema(name);
        assert_eq!(migrator.up().await.unwrap_err().code(), "22023", "{name}");
        assert_eq!(
            migrator.status().await.unwrap_err().code(),
            "22023",
            "{name}"
        );
    }
}

#[tokio::test]
async fn the_planned_script_run_by_psql_gives_the_same_and_only_once() {
    let db = TestDb::new().await;
    let plan = db.migrator().plan().await.unwrap();
    assert!(!plan.is_empty() && plan.routines());
    let folder = tempfile(&plan.sql());
    db.program("psql", &["-X", "-q", "-f", &folder]);
    assert_eq!(db.dump("pgonce").await, fresh_dump().await);
    assert!(db.migrator().plan().await.unwrap().is_empty());
    assert!(
        db.migrator()
            .plan()
            .await
            .unwrap()
            .sql()
            .contains("nothing to do")
    );

    // Again, and without ON_ERROR_STOP: it must not do any harm.
    db.program("psql", &["-X", "-q", "-f", &folder]);
    assert_eq!(db.dump("pgonce").await, fresh_dump().await);
    std::fs::remove_file(folder).unwrap();
}

pub(super) fn tempfile(text: &str) -> String {
    let path = std::env::temp_dir().join(format!("pgonce-plan-{}.sql", uuid::Uuid::new_v4()));
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_planned_script_puts_nothing_back_that_somebody_else_has_migrated_since() {
    let db = TestDb::new().await;
    db.migrator().up().await.unwrap();
    db.run("update pgonce.routines set checksum = 'old', version = '0.0.1'")
        .await;
    let plan = db.migrator().plan().await.unwrap();
    assert!(plan.routines() && plan.migrations().is_empty());
    let folder = tempfile(&plan.sql());
    // A later build, with the same migrations.
    db.run("update pgonce.routines set checksum = $$it's 'new'$$, version = '9.9.9'; alter function pgonce.purge cost 7")
        .await;
    let later = db.dump("pgonce").await;
    db.program("psql", &["-X", "-q", "-f", &folder]);
    assert_eq!(db.dump("pgonce").await, later);
    // It is for what was there when it was made.
    db.run("update pgonce.routines set checksum = 'old', version = '0.0.1'")
        .await;
    db.program("psql", &["-X", "-q", "-f", &folder]);
    assert_eq!(db.dump("pgonce").await, fresh_dump().await);
    std::fs::remove_file(folder).unwrap();
}

#[tokio::test]
async fn looking_changes_nothing() {
    let db = TestDb::new().await;
    let status = db.migrator().status().await.unwrap();
    assert!(!status.installed);
    assert!(
        status
            .migrations
            .iter()
            .all(|entry| entry.state == State::Pending)
    );
    assert_eq!(status.routines, Routines::Missing);
    assert!(!db.migrator().plan().await.unwrap().is_empty());
    assert_eq!(db.migrator().check().await.unwrap_err().code(), "P4100");
    let there = "select count(*)::text from pg_namespace where nspname = 'pgonce'";
    assert_eq!(db.text(there).await, "0");
}

#[tokio::test]
async fn the_second_of_two_migrators_waits_and_then_finds_it_done() {
    let db = TestDb::new().await;
    let url = db.database.url();
    // The holder of the migrators' lock is the first of them.
    db.run(LOCK).await;
    let named = |name: &str| format!("{url}?application_name={name}");
    let first = tokio::spawn({
        let migrator = Migrator::new(tokio_driver(&named("first")));
        async move { migrator.up().await }
    });
    let second = tokio::spawn({
        let migrator = Migrator::new(sqlx_driver(&named("second")));
        async move { migrator.up().await }
    });
    wait_until_lock_waited(&url, "first").await.unwrap();
    wait_until_lock_waited(&url, "second").await.unwrap();
    db.run("commit").await;
    let (first, second) = (
        first.await.unwrap().unwrap(),
        second.await.unwrap().unwrap(),
    );
    assert_eq!(first.applied.len() + second.applied.len(), MIGRATIONS.len());
    assert!(first.routines != second.routines, "{first:?} {second:?}");
    assert_eq!(db.dump("pgonce").await, fresh_dump().await);
}

#[tokio::test]
async fn many_migrators_at_once_apply_everything_once() {
    let db = TestDb::new().await;
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let migrator = db.migrator();
            tokio::spawn(async move { migrator.up().await.unwrap() })
        })
        .collect();
    let (mut applied, mut routines) = (0, 0);
    for task in tasks {
        let report = task.await.unwrap();
        applied += report.applied.len();
        routines += usize::from(report.routines);
    }
    assert_eq!((applied, routines), (MIGRATIONS.len(), 1));
    assert_eq!(db.dump("pgonce").await, fresh_dump().await);
}

#[tokio::test]
async fn it_migrates_through_a_transaction_pooler() {
    let db = TestDb::new().await;
    let pooler = PgBouncer::in_front_of(db.server)
        .pool_mode_transaction()
        .start()
        .await
        .unwrap();
    let url = pooler.url_for(db.database.name());
    Migrator::new(tokio_driver(&url))
        .schema("one")
        .up()
        .await
        .unwrap();
    Migrator::new(sqlx_driver(&url))
        .schema("two")
        .up()
        .await
        .unwrap();
    Migrator::new(sqlx_driver(&url))
        .schema("one")
        .check()
        .await
        .unwrap();
    Migrator::new(tokio_driver(&url))
        .schema("two")
        .check()
        .await
        .unwrap();
}

#[tokio::test]
async fn it_migrates_on_every_installed_major() {
    for binaries in Binaries::all().unwrap() {
        let db = TestDb::on(shared(binaries.major()).await.unwrap()).await;
        db.migrator().up().await.unwrap();
        db.sqlx_migrator().check().await.unwrap();
        let claim = "select outcome from pgonce.claim('orders.create', 'k', '\\x01', '30 s')";
        assert_eq!(
            db.text(claim).await,
            "fresh",
            "PostgreSQL {}",
            binaries.version()
        );
    }
}

#[tokio::test]
async fn settings_of_the_role_do_not_bend_what_is_installed() {
    let db = TestDb::new().await;
    db.run("create schema evil; create function evil.octet_length(text) returns integer language sql as 'select 0'").await;
    let database = db.database.name();
    for setting in [
        "search_path = evil, pg_catalog",
        "standard_conforming_strings = off",
        "default_transaction_isolation = serializable",
        "default_transaction_read_only = on",
        "check_function_bodies = off",
        "statement_timeout = '1s'",
    ] {
        db.run(&format!("alter database {database} set {setting}"))
            .await;
    }
    // It waits for another migrator, and for longer than that.
    db.run(LOCK).await;
    let url = format!("{}?application_name=waits", db.database.url());
    let migrator = Migrator::new(tokio_driver(&url));
    let migrating = tokio::spawn(async move { migrator.up().await });
    let waits = "select exists (select from pg_stat_activity where application_name = 'waits' and datname = current_database() \
                 and wait_event_type = 'Lock' and clock_timestamp() - query_start > interval '1.5 seconds')";
    let see = Observer::connect(&db.database.url()).await;
    see.wait_until(waits).await;
    db.run("commit").await;
    migrating.await.unwrap().unwrap();
    db.run(&format!("alter database {database} reset all"))
        .await;
    assert_eq!(db.dump("pgonce").await, fresh_dump().await);
}
