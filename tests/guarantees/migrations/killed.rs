//! A migrator that dies leaves a database from which the next one goes on.

use pgonce::migrate::Migrator;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::test_db::{TestDb, sqlx_driver, tokio_driver};

/// What is in the schema, cheaper than a dump.
const PICTURE: &str = "
    select md5(string_agg(thing, ';' order by thing)) from (
        select pg_get_functiondef(p.oid) from pg_proc p where p.pronamespace = 'pgonce'::regnamespace
        union all select concat_ws(' ', a.attrelid::regclass, a.attnum, a.attname, a.atttypid::regtype)
          from pg_attribute a join pg_class c on c.oid = a.attrelid where c.relnamespace = 'pgonce'::regnamespace
        union all select conname || pg_get_constraintdef(oid) from pg_constraint where connamespace = 'pgonce'::regnamespace
        union all select pg_get_triggerdef(t.oid) from pg_trigger t
         where t.tgrelid = 'pgonce.intent'::regclass
        union all select number || checksum from pgonce.migration
        union all select checksum from pgonce.routines
        union all select scope || retention from pgonce.scope
        union all select name || next_block from pgonce.sweep
    ) as things (thing)";

/// The session kills itself at the n-th statement that changes the schema.
const SUICIDE: &str = "
    create schema trap;
    create sequence trap.counter;
    create table trap.at (n bigint);
    insert into trap.at values (0);
    create function trap.spring() returns event_trigger language plpgsql as $$
    begin
        if nextval('trap.counter') = (select n from trap.at) then
            perform pg_terminate_backend(pg_backend_pid());
        end if;
    end $$;
    create event trigger trap on ddl_command_end execute function trap.spring();";

/// The statements to strike at: a sample with both ends in it, or with `PGONCE_EXHAUSTIVE` all.
fn struck(statements: i64, random: &mut StdRng) -> Vec<i64> {
    const ENDS: i64 = 3;
    const STEP: i64 = 25;
    let all = std::env::var_os("PGONCE_EXHAUSTIVE").is_some();
    let offset = random.random_range(0..STEP);
    (1..=statements)
        .filter(|n| all || *n <= ENDS || *n > statements - ENDS || n % STEP == offset)
        .collect()
}

#[tokio::test]
async fn killed_at_any_statement_that_changes_the_schema_it_goes_on() {
    let seed = pgonce_tests::seed();
    let fresh = TestDb::new().await;
    fresh.migrator().up().await.unwrap();
    let wanted = fresh.text(PICTURE).await;

    let db = TestDb::new().await;
    db.run(SUICIDE).await;
    db.migrator().up().await.unwrap();
    let statements = db.text("select last_value::text from trap.counter").await;
    let statements: i64 = statements.parse().unwrap();
    assert!(statements > 50, "only {statements} statements can be cut");
    for statement in struck(statements, &mut StdRng::seed_from_u64(seed)) {
        db.run("drop schema if exists pgonce cascade").await;
        db.run(&format!(
            "select setval('trap.counter', 1, false); update trap.at set n = {statement}"
        ))
        .await;
        let attempt = if statement % 2 == 0 {
            db.migrator().up().await
        } else {
            db.sqlx_migrator().up().await
        };
        db.run("update trap.at set n = 0").await;
        assert_eq!(attempt.unwrap_err().code(), "08006", "{statement}");
        // One transaction: tables without their routines, or the other way round, would be half of it.
        let nothing = "select (to_regnamespace('pgonce') is null)::text";
        assert_eq!(
            db.text(nothing).await,
            "true",
            "killed at statement {statement}: half of it was committed"
        );
        db.migrator().up().await.unwrap();
        assert_eq!(
            db.text(PICTURE).await,
            wanted,
            "killed at statement {statement}"
        );
    }
    assert_eq!(db.dump("pgonce").await, fresh.dump("pgonce").await);
}

#[tokio::test]
async fn killed_at_random_moments_it_goes_on() {
    let fresh = TestDb::new().await;
    fresh.migrator().up().await.unwrap();
    let wanted = fresh.text(PICTURE).await;

    let seed = pgonce_tests::seed();
    let mut random = StdRng::seed_from_u64(seed);
    let db = TestDb::new().await;
    let victim = format!("{}?application_name=victim", db.database.url());
    let mut deaths = 0;
    for round in 0..10 {
        db.run("drop schema if exists pgonce cascade").await;
        let up = if random.random() {
            let migrator = Migrator::new(tokio_driver(&victim));
            tokio::spawn(async move { migrator.up().await })
        } else {
            let migrator = Migrator::new(sqlx_driver(&victim));
            tokio::spawn(async move { migrator.up().await })
        };
        for _ in 0..random.random_range(0..150) {
            db.run("select 1").await;
        }
        db.run("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'victim'").await;
        deaths += u32::from(up.await.unwrap().is_err());
        db.migrator().up().await.unwrap();
        assert_eq!(db.text(PICTURE).await, wanted, "seed {seed}, round {round}");
    }
    assert!(deaths > 0, "seed {seed}: nobody was killed");
    assert_eq!(
        db.dump("pgonce").await,
        fresh.dump("pgonce").await,
        "seed {seed}"
    );
}

#[tokio::test]
async fn a_statement_that_fails_in_the_middle_leaves_nothing() {
    let db = TestDb::new().await;
    db.run("create schema pgonce; create table pgonce.sweep (mine text)")
        .await;
    for error in [
        db.migrator().up().await.unwrap_err(),
        db.sqlx_migrator().up().await.unwrap_err(),
    ] {
        assert_eq!(error.code(), "42P07");
        let text = error.to_string();
        assert!(
            text.contains("0001_core") && text.contains("Choose another schema"),
            "{text}"
        );
    }
    let there =
        "select string_agg(relname, ',') from pg_class where relnamespace = 'pgonce'::regnamespace";
    assert_eq!(db.text(there).await, "sweep");
    db.run("drop table pgonce.sweep").await;
    db.migrator().up().await.unwrap();
}
