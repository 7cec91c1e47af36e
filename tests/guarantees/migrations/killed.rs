//! A migrator that dies leaves a database from which the next one goes on.

use pgonce::migrate::Migrator;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::place::{Place, sqlx_driver, tokio_driver};

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

#[tokio::test]
async fn killed_at_any_statement_that_changes_the_schema_it_goes_on() {
    let fresh = Place::new().await;
    fresh.migrator().up().await.unwrap();
    let wanted = fresh.text(PICTURE).await;

    let place = Place::new().await;
    place.run(SUICIDE).await;
    let mut killed = 0;
    loop {
        place.run("drop schema if exists pgonce cascade").await;
        place
            .run(&format!(
                "select setval('trap.counter', 1, false); update trap.at set n = {}",
                killed + 1
            ))
            .await;
        let attempt = if killed % 2 == 0 {
            place.migrator().up().await
        } else {
            place.sqlx_migrator().up().await
        };
        place.run("update trap.at set n = 0").await;
        let died = attempt.is_err();
        if let Err(error) = attempt {
            assert_eq!(error.code(), "08006", "{error}");
        }
        place.migrator().up().await.unwrap();
        assert_eq!(
            place.text(PICTURE).await,
            wanted,
            "killed at statement {}",
            killed + 1
        );
        if !died {
            break;
        }
        // All is one transaction: some statements stand for all of them.
        killed += 9;
    }
    assert!(killed > 50, "only {killed} statements were cut");
    assert_eq!(place.dump("pgonce").await, fresh.dump("pgonce").await);
}

#[tokio::test]
async fn killed_at_random_moments_it_goes_on() {
    let fresh = Place::new().await;
    fresh.migrator().up().await.unwrap();
    let wanted = fresh.text(PICTURE).await;

    let seed: u64 = rand::random();
    let mut random = StdRng::seed_from_u64(seed);
    let place = Place::new().await;
    let victim = format!("{}?application_name=victim", place.database.url());
    let mut deaths = 0;
    for round in 0..20 {
        place.run("drop schema if exists pgonce cascade").await;
        let up = if random.random() {
            let migrator = Migrator::new(tokio_driver(&victim));
            tokio::spawn(async move { migrator.up().await })
        } else {
            let migrator = Migrator::new(sqlx_driver(&victim));
            tokio::spawn(async move { migrator.up().await })
        };
        for _ in 0..random.random_range(0..150) {
            place.run("select 1").await;
        }
        place.run("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'victim'").await;
        deaths += u32::from(up.await.unwrap().is_err());
        place.migrator().up().await.unwrap();
        assert_eq!(
            place.text(PICTURE).await,
            wanted,
            "seed {seed}, round {round}"
        );
    }
    assert!(deaths > 0, "seed {seed}: nobody was killed");
    assert_eq!(
        place.dump("pgonce").await,
        fresh.dump("pgonce").await,
        "seed {seed}"
    );
}

#[tokio::test]
async fn a_statement_that_fails_in_the_middle_leaves_nothing() {
    let place = Place::new().await;
    place
        .run("create schema pgonce; create table pgonce.sweep (mine text)")
        .await;
    for error in [
        place.migrator().up().await.unwrap_err(),
        place.sqlx_migrator().up().await.unwrap_err(),
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
    assert_eq!(place.text(there).await, "sweep");
    place.run("drop table pgonce.sweep").await;
    place.migrator().up().await.unwrap();
}
