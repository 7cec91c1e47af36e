//! What a build does with a database that is not its own age.

use pgonce::migrate::{CHANGED, MISSING, OUTDATED, Routines, State, TOO_NEW};

use super::test_db::TestDb;

const FROM_THE_FUTURE: &str = "insert into pgonce.migration (number, name, checksum, breaking) values (9999, '9999_future', 'x', ";

async fn installed() -> TestDb {
    let db = TestDb::new().await;
    db.migrator().up().await.unwrap();
    db
}

#[tokio::test]
async fn a_newer_and_breaking_schema_is_refused_with_its_code() {
    let db = installed().await;
    db.run(&format!("{FROM_THE_FUTURE} true)")).await;
    let migrator = db.migrator();
    for error in [
        migrator.up().await.unwrap_err(),
        migrator.check().await.unwrap_err(),
        migrator.plan().await.unwrap_err(),
    ] {
        assert!(matches!(error, pgonce::Error::Schema(_)));
        assert_eq!(error.code(), TOO_NEW);
        assert!(error.to_string().contains("9999_future"), "{error}");
    }
    let status = migrator.status().await.unwrap();
    assert_eq!(status.migrations.last().unwrap().state, State::Newer);
}

#[tokio::test]
async fn a_newer_schema_that_does_not_break_is_used_and_left_alone() {
    let db = installed().await;
    db.run(&format!(
        "{FROM_THE_FUTURE} false); update pgonce.routines set checksum = 'of the future'"
    ))
    .await;
    db.run("create or replace function pgonce._scope_is_allowed(p_tenant text, p_scope text, p_key text) returns boolean language sql stable parallel safe return null::boolean").await;
    let before = db.dump("pgonce").await;
    let report = db.migrator().up().await.unwrap();
    assert_eq!(report.newer, ["9999_future"]);
    assert!(report.applied.is_empty() && !report.routines);
    assert_eq!(db.dump("pgonce").await, before);
    assert_eq!(
        db.migrator().status().await.unwrap().routines,
        Routines::Newer
    );
    db.migrator().check().await.unwrap();
}

#[tokio::test]
async fn routines_of_an_older_build_are_replaced_and_those_of_a_newer_one_kept() {
    let db = installed().await;
    let fresh = db.dump("pgonce").await;
    let fake = "create or replace function pgonce._scope_is_allowed(p_tenant text, p_scope text, p_key text) returns boolean language sql stable parallel safe return null::boolean";
    db.run(&format!(
        "{fake}; update pgonce.routines set checksum = 'old', version = '0.0.1'"
    ))
    .await;
    assert_eq!(db.migrator().check().await.unwrap_err().code(), OUTDATED);
    assert!(db.migrator().up().await.unwrap().routines);
    assert_eq!(db.dump("pgonce").await, fresh);

    db.run(&format!(
        "{fake}; update pgonce.routines set checksum = 'new', version = '999.0.0'"
    ))
    .await;
    assert!(!db.migrator().up().await.unwrap().routines);
    db.migrator().check().await.unwrap();
}

#[tokio::test]
async fn a_changed_checksum_is_refused_with_its_code() {
    let db = installed().await;
    db.run("update pgonce.migration set checksum = 'tampered' where number = 1")
        .await;
    assert_eq!(db.migrator().up().await.unwrap_err().code(), CHANGED);
    assert_eq!(
        db.sqlx_migrator().check().await.unwrap_err().code(),
        CHANGED
    );
    assert_eq!(
        db.migrator().status().await.unwrap().migrations[0].state,
        State::Changed
    );
}

#[tokio::test]
async fn a_ledger_with_a_gap_is_refused() {
    let db = installed().await;
    db.run(&format!(
        "{FROM_THE_FUTURE} false); delete from pgonce.migration where number = 1"
    ))
    .await;
    assert_eq!(db.migrator().up().await.unwrap_err().code(), CHANGED);
}

#[tokio::test]
async fn a_missing_schema_is_distinguished_from_an_outdated_one() {
    let db = TestDb::new().await;
    assert_eq!(db.migrator().check().await.unwrap_err().code(), MISSING);
    db.migrator().up().await.unwrap();
    db.run("delete from pgonce.routines").await;
    assert_eq!(db.migrator().check().await.unwrap_err().code(), OUTDATED);
}

#[tokio::test]
async fn a_strict_database_stays_strict_over_a_migration() {
    let db = installed().await;
    db.run("select pgonce.set_strict(true); update pgonce.routines set checksum = 'old'")
        .await;
    let strict = db.dump("pgonce").await;
    assert!(db.migrator().up().await.unwrap().routines);
    assert_eq!(
        db.dump("pgonce").await.lines().count(),
        strict.lines().count()
    );
    let claim = db
        .client
        .query_one(
            "select outcome from pgonce.claim('nobody.defined', 'k', '\\x01')",
            &[],
        )
        .await;
    assert_eq!(claim.unwrap_err().code().unwrap().code(), "P4000");
}

#[tokio::test]
async fn it_does_not_make_the_application_queue_behind_a_long_transaction() {
    let db = installed().await;
    db.run("update pgonce.routines set checksum = 'old'").await;
    let app = super::test_db::connect(&db.database.url()).await;
    app.batch_execute("begin; select pgonce.claim('s', 'k', '\\x01', '30 s')")
        .await
        .unwrap();
    let hurried = db
        .migrator()
        .lock_timeout(std::time::Duration::from_millis(50));
    let error = hurried.up().await.unwrap_err();
    assert!(
        error.code() == "55P03" && error.to_string().contains("End it"),
        "{error}"
    );
    app.batch_execute("commit").await.unwrap();
    assert!(hurried.up().await.unwrap().routines);
}
