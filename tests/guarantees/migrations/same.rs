//! However it came to be, the result is the same.

use pgonce::migrate::{MIGRATIONS, Migrator, Routines, State};
use pgonce_testkit::{Binaries, PgBouncer, shared, wait_until_lock_waited};

use super::place::{Place, sqlx_driver, tokio_driver};

async fn fresh_dump() -> String {
    let place = Place::new().await;
    place.migrator().up().await.unwrap();
    place.dump("pgonce").await
}

#[tokio::test]
async fn migrations_applied_one_by_one_equal_a_fresh_install() {
    let place = Place::new().await;
    for migration in MIGRATIONS {
        let report = place.migrator().up_to(migration.number).await.unwrap();
        assert_eq!(report.applied, [migration.name]);
        assert_eq!(report.routines, migration.number == MIGRATIONS.len() as u32);
    }
    assert_eq!(place.dump("pgonce").await, fresh_dump().await);
}

#[tokio::test]
async fn up_twice_equals_up_once_and_both_drivers_do_the_same() {
    let place = Place::new().await;
    let first = place.sqlx_migrator().up().await.unwrap();
    assert_eq!(first.applied.len(), MIGRATIONS.len());
    assert!(first.routines && first.newer.is_empty());
    let once = place.dump("pgonce").await;
    let second = place.migrator().up().await.unwrap();
    assert!(second.applied.is_empty() && !second.routines);
    assert_eq!(place.dump("pgonce").await, once);
    assert_eq!(once, fresh_dump().await);
    place.migrator().check().await.unwrap();
}

#[tokio::test]
async fn another_schema_differs_by_its_name_only() {
    let place = Place::new().await;
    for schema in ["elsewhere", "pgonce"] {
        place.migrator().schema(schema).up().await.unwrap();
    }
    let elsewhere = place.dump("elsewhere").await.replace("elsewhere", "pgonce");
    assert_eq!(elsewhere, place.dump("pgonce").await);

    let claim = "select outcome from elsewhere.claim('orders.create', 'k', '\\x01')";
    assert_eq!(place.text(claim).await, "fresh");
    place.run("drop schema pgonce cascade").await;
    assert_eq!(place.text(claim).await, "fresh");
}

#[tokio::test]
async fn a_schema_name_that_needs_quotes_is_refused() {
    let place = Place::new().await;
    for name in [
        "",
        "Has Space",
        "pg_mine",
        "a.b",
        "x\"; drop schema public; --",
    ] {
        let migrator = place.migrator().schema(name);
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
    let place = Place::new().await;
    let plan = place.migrator().plan().await.unwrap();
    assert!(!plan.is_empty() && plan.routines());
    let folder = tempfile(&plan.sql());
    place.program("psql", &["-X", "-q", "-f", &folder]);
    assert_eq!(place.dump("pgonce").await, fresh_dump().await);
    assert!(place.migrator().plan().await.unwrap().is_empty());
    assert!(
        place
            .migrator()
            .plan()
            .await
            .unwrap()
            .sql()
            .contains("nothing to do")
    );

    // Again, and without ON_ERROR_STOP: it must not do any harm.
    place.program("psql", &["-X", "-q", "-f", &folder]);
    assert_eq!(place.dump("pgonce").await, fresh_dump().await);
    std::fs::remove_file(folder).unwrap();
}

fn tempfile(text: &str) -> String {
    let path = std::env::temp_dir().join(format!("pgonce-plan-{}.sql", uuid::Uuid::new_v4()));
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn looking_changes_nothing() {
    let place = Place::new().await;
    let status = place.migrator().status().await.unwrap();
    assert!(!status.installed);
    assert!(
        status
            .migrations
            .iter()
            .all(|entry| entry.state == State::Pending)
    );
    assert_eq!(status.routines, Routines::Missing);
    assert!(!place.migrator().plan().await.unwrap().is_empty());
    assert_eq!(place.migrator().check().await.unwrap_err().code(), "P4100");
    let there = "select count(*)::text from pg_namespace where nspname = 'pgonce'";
    assert_eq!(place.text(there).await, "0");
}

#[tokio::test]
async fn the_second_of_two_migrators_waits_and_then_finds_it_done() {
    let place = Place::new().await;
    let url = place.database.url();
    // Whoever holds the migrators' lock is the first of them.
    let lock = "begin; select pg_advisory_xact_lock(20260102, hashtext('pgonce'))";
    place.run(lock).await;
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
    place.run("commit").await;
    let (first, second) = (
        first.await.unwrap().unwrap(),
        second.await.unwrap().unwrap(),
    );
    assert_eq!(first.applied.len() + second.applied.len(), MIGRATIONS.len());
    assert!(first.routines != second.routines, "{first:?} {second:?}");
    assert_eq!(place.dump("pgonce").await, fresh_dump().await);
}

#[tokio::test]
async fn many_migrators_at_once_apply_everything_once() {
    let place = Place::new().await;
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let migrator = place.migrator();
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
    assert_eq!(place.dump("pgonce").await, fresh_dump().await);
}

#[tokio::test]
async fn it_migrates_through_a_transaction_pooler() {
    let place = Place::new().await;
    let pooler = PgBouncer::in_front_of(place.server)
        .pool_mode_transaction()
        .start()
        .await
        .unwrap();
    let url = pooler.url_for(place.database.name());
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
        let place = Place::on(shared(binaries.major()).await.unwrap()).await;
        place.migrator().up().await.unwrap();
        place.sqlx_migrator().check().await.unwrap();
        let claim = "select outcome from pgonce.claim('orders.create', 'k', '\\x01', '30 s')";
        assert_eq!(
            place.text(claim).await,
            "fresh",
            "PostgreSQL {}",
            binaries.version()
        );
    }
}

#[tokio::test]
async fn settings_of_the_role_do_not_bend_what_is_installed() {
    let place = Place::new().await;
    place.run("create schema evil; create function evil.octet_length(text) returns integer language sql as 'select 0'").await;
    let database = place.database.name();
    for setting in [
        "search_path = evil, pg_catalog",
        "standard_conforming_strings = off",
        "default_transaction_isolation = serializable",
        "default_transaction_read_only = on",
        "check_function_bodies = off",
        "statement_timeout = '20ms'",
    ] {
        place
            .run(&format!("alter database {database} set {setting}"))
            .await;
    }
    place.migrator().up().await.unwrap();
    place
        .run(&format!("alter database {database} reset all"))
        .await;
    assert_eq!(place.dump("pgonce").await, fresh_dump().await);
}
