//! The server crashes, fails over, or comes back as another: by promotion, by dump and restore, here or elsewhere.

use std::process::Command;

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Claim, Intent, Once};
use pgonce_testkit::{Postgres, Replication};
use pgonce_tests::{Observer, TestDriver as _, install};

use crate::address::Address;
use crate::callers::LEASE;
use crate::campaign::{Campaign, in_time};
use crate::settings::refused;

async fn private() -> Postgres {
    let server = Postgres::builder()
        // What is not flushed by its commit is lost in a crash.
        .setting("wal_writer_delay", "10s")
        .start()
        .await
        .unwrap();
    let database = server.create_database("hostile").await.unwrap();
    install(database.url()).await.unwrap();
    server
}

/// Neither the role's setting nor one inside the work makes an acknowledgement that a crash erases.
#[tokio::test]
async fn the_server_crashes_where_nobody_waits_for_its_commits() {
    in_time(async {
        let server = private().await;
        let url = server.url_for("hostile");
        let campaign = Campaign::with(&url, &url, 3, false)
            .await
            .preambles(&["", "set local synchronous_commit = off"])
            .allows(&["08006", "08007"], 15);
        let see = Observer::connect(&url).await;
        see.run("alter database hostile set synchronous_commit = off")
            .await;
        drop(see);
        campaign
            .work_while(async |random| {
                campaign.some_operations(random).await;
                campaign.some_operations(random).await;
                server.crash().await.unwrap();
                server.start_again().await.unwrap();
            })
            .await;
        campaign.end().await;
    })
    .await;
}

/// A standby refuses everything that is not finished, and once promoted goes on where the primary was.
#[tokio::test]
async fn a_standby_refuses_and_is_promoted_under_load() {
    in_time(async {
        let primary = private().await;
        let standby = primary.standby(Replication::Synchronous).await.unwrap();
        let url = primary.url_for("hostile");
        let done = Intent::new("rejects", "done before", "request").unwrap();
        let once = Once::builder(TokioPostgres::connect(&url, 1))
            .build()
            .unwrap();
        let _ = once.run(&done, pgonce_tests::work).await.unwrap();
        let effects = Observer::connect(&url).await;
        effects.run("delete from effects").await;
        standby.wait_until_caught_up_with(&primary).await.unwrap();
        let there = standby.url_for("hostile");
        let see = Observer::connect(&there).await;
        refused::<TokioPostgres>(&there, &done, &see).await;
        refused::<Sqlx>(&there, &done, &see).await;
        for call in [
            "pgonce.claim('s', 'k', '\\x01')",
            "pgonce.claim('s', 'k', '\\x01', '1 s')",
            "pgonce.accept('c', 's', 'm')",
            "pgonce.publish('t', 'y', 's', '{}')",
        ] {
            let code = see.code(&format!("select {call}")).await;
            assert!(["25006", "55000"].contains(&&*code), "{call}: {code:?}");
        }

        let address = Address::of(primary.port()).await;
        let campaign = Campaign::new(&url, &address.url_for("hostile"))
            .await
            .allows(&["08006", "08007"], 25);
        let mut failed_over = false;
        campaign
            .work_while(async |random| {
                campaign.some_operations(random).await;
                if !failed_over {
                    primary.crash().await.unwrap();
                    standby.promote().await.unwrap();
                    address.point_at(standby.port());
                    failed_over = true;
                }
            })
            .await;
        assert!(failed_over, "the load ended before the failover");
        campaign.looks_at(&there).end().await;
    })
    .await;
}

/// Dumps the roles of a server and a database, and restores them into another, which is empty.
fn copy(server: &Postgres, from: &str, to: &str) {
    let program = |name| Command::new(server.binaries().program(name).unwrap());
    let file = std::env::temp_dir().join(format!("pgonce-hostile-{}.sql", uuid::Uuid::new_v4()));
    let mut roles = program("pg_dumpall");
    roles.args(["-d", from, "--roles-only", "-f"]).arg(&file);
    // Some of them are there already.
    let mut restore_roles = program("psql");
    restore_roles.args(["-X", "-q", "-d", to, "-f"]).arg(&file);
    let mut dump = program("pg_dump");
    dump.args(["-d", from, "-f"]).arg(&file);
    let mut restore = program("psql");
    restore
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", to, "-f"])
        .arg(&file);
    for mut command in [roles, restore_roles, dump, restore] {
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{command:?}: {said}");
    }
    std::fs::remove_file(file).unwrap();
}

/// Leases some intents anew; answers their fences.
async fn fences(url: &str, prefix: &str) -> Vec<i64> {
    let once = Once::builder(TokioPostgres::connect(url, 1))
        .build()
        .unwrap();
    let mut fences = Vec::new();
    for n in 0..20 {
        let intent = Intent::new("fences", format!("{prefix} {n}"), "request").unwrap();
        let Claim::Run(lease) = once.lease(&intent, LEASE).await.unwrap() else {
            panic!("fresh")
        };
        fences.push(lease.fence());
    }
    fences
}

/// The same database again, in place and elsewhere, with and without the positions of its sequences (a logical
/// replica has none): no fence is given out twice, each is higher than those before, and the work goes on.
#[tokio::test]
async fn a_dump_restored_in_place_and_elsewhere_repeats_no_fence() {
    in_time(async {
        let (server, other) = tokio::join!(private(), Postgres::builder().start());
        let other = other.unwrap();
        let url = server.url_for("hostile");
        // Pooled connections are ended once.
        let campaign = Campaign::with(&url, &url, 3, false)
            .await
            .allows(&["08006"], 30);
        campaign.work().await;
        let before = fences(&url, "before").await;

        let see = Observer::connect(&server.url()).await;
        let replica = other.create_database("replica").await.unwrap();
        copy(&server, &url, &replica.url());
        let there = Observer::connect(&replica.url()).await;
        there.run("alter sequence pgonce.lease_number restart").await;
        let elsewhere = fences(&replica.url(), "after").await;

        see.run(
            "alter database hostile allow_connections false; \
             select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = 'hostile'",
        )
        .await;
        see.run("alter database hostile rename to former").await;
        see.run("alter database former allow_connections true").await;
        let former = server.url_for("former");
        see.run("create database hostile").await;
        copy(&server, &former, &url);
        let in_place = fences(&url, "after").await;

        let highest = before.iter().max().unwrap();
        assert!(in_place.iter().chain(&elsewhere).all(|fence| fence > highest));
        assert!(!in_place.iter().any(|fence| elsewhere.contains(fence)));
        campaign.work().await;
        campaign.end().await;
    })
    .await;
}

/// Nobody waits for the session that is the first to notice that the database has another life.
#[tokio::test]
async fn the_first_lease_of_an_epoch_keeps_nobody_waiting() {
    let (_server, database) = crate::campaign::database(None).await;
    let url = database.url();
    let (first, second) = (Observer::connect(&url).await, Observer::connect(&url).await);
    let before = fences(&url, "before").await;
    // As a promoted standby finds it: three timelines later.
    first
        .run("update pgonce.installation set timeline = timeline - 3")
        .await;
    let lease = |key: &str| {
        format!("select fence from pgonce.claim('fences', '{key}', '\\x01', interval '1 hour')")
    };
    first.run("begin").await;
    let slow = first.number(&lease("slow")).await;
    second.run("set lock_timeout = '5s'").await;
    let quick = second.number(&lease("quick")).await;
    let quicker = fences(&url, "meanwhile").await;
    first.run("rollback").await;
    let after = second.number(&lease("after")).await;
    let highest = *before.iter().max().unwrap();
    assert!(highest < slow && slow < quick && quicker.iter().all(|fence| quick < *fence));
    assert!(
        quicker.iter().all(|fence| *fence < after),
        "{quicker:?} {after}"
    );
    let epochs = second.number("select epoch from pgonce.installation").await;
    assert!(after >> 37 == epochs && epochs >= (highest >> 37) + 3);
}

/// A partition's lease is renewed on every timeline, and not by a worker from before a failover.
#[tokio::test]
async fn a_partition_is_renewed_on_a_late_timeline_and_not_from_before() {
    let (_server, database) = crate::campaign::database(None).await;
    let see = Observer::connect(&database.url()).await;
    let timeline = |n: u32| {
        format!(
            "create or replace function pgonce._timeline() returns bigint language sql volatile return {n}::bigint"
        )
    };
    let renew =
        "select pgonce._renew_partition('c', 's', 'p', epoch, '1 hour') from pgonce.inbox_cursor";
    for n in [2_u32, 500, 100_000] {
        see.run(&timeline(n)).await;
        if n > 2 {
            assert_eq!(see.text(renew).await, "f", "{n}: from before");
        }
        see.run("select pgonce._lease_partition('c', 's', 'p', 'w', '1 hour')")
            .await;
        assert_eq!(see.text(renew).await, "t", "{n}");
    }
}
