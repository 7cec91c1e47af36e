//! Servers that crash, fail over and commit carelessly: nothing that was relayed is lost afterwards,
//! and nothing that was committed is skipped.

use std::time::Duration;

use pgonce_testkit::{Postgres, Replication, wait_until};
use pgonce_tests::{Observer, install};
use rustix::process::{Pid, Signal, kill_process};

use super::fixture::{DEADLINE, Running, Witness, publish, relay_to};

async fn private() -> (Postgres, Observer) {
    let server = Postgres::builder().start().await.unwrap();
    install(server.url()).await.unwrap();
    let see = Observer::connect(&server.url()).await;
    see.run("select pgonce.create_subscription('c')").await;
    (server, see)
}

#[tokio::test]
async fn what_was_relayed_survives_a_crash_although_the_writer_commits_carelessly() {
    let (server, see) = private().await;
    see.run("create role careless login; alter role careless set synchronous_commit = off; select pgonce.grant_to('careless', 'app')").await;
    let url = server.url().replace("postgres@", "careless@");
    for round in 1..=5 {
        let writer = Observer::connect(&url).await;
        assert_eq!(
            writer
                .text("select current_setting('synchronous_commit')")
                .await,
            "off"
        );
        let see = Observer::connect(&server.url()).await;
        // Nobody flushes in the background: what is durable is so because the relay made it so.
        let pid = see
            .number("select pid from pg_stat_activity where backend_type = 'walwriter'")
            .await;
        let walwriter = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        kill_process(walwriter, Signal::STOP).unwrap();
        // Nor does the relay for another reason: once it is under way, it keeps its place never.
        see.run("select pgonce._release_lanes('c', owner) from pgonce.outbox_relay")
            .await;
        let hour = Duration::from_secs(3600);
        let sink = Witness::default();
        let running = Running::start(
            relay_to(&server.url(), sink.clone())
                .lease(hour)
                .keep_every(hour),
        );
        see.run(&publish(100 + round, 1)).await;
        wait_until("the relay to be under way", DEADLINE, || async {
            sink.numbers().contains(&(100 + round))
        })
        .await
        .unwrap();
        writer.run(&publish(round, 1)).await;
        wait_until("the event", DEADLINE, || async {
            sink.numbers().contains(&round)
        })
        .await
        .unwrap();
        server.crash().await.unwrap();
        running.kill().await;
        server.start_again().await.unwrap();
        let see = Observer::connect(&server.url()).await;
        let there =
            format!("select count(*) from pgonce.outbox where payload @> '{{\"n\": {round}}}'");
        assert_eq!(
            see.number(&there).await,
            1,
            "it was relayed, and then erased"
        );
    }
}

#[tokio::test]
async fn a_relay_lives_through_crashes_and_restarts_of_the_server() {
    let (server, _) = private().await;
    let sink = Witness::default();
    let running =
        Running::start(relay_to(&server.url(), sink.clone()).lease(Duration::from_secs(2)));
    let mut n = 0;
    for round in 0..3 {
        let see = Observer::connect(&server.url()).await;
        for _ in 0..20 {
            n += 1;
            see.run(&publish(n, 4)).await;
        }
        match round {
            0 => server.crash().await.unwrap(),
            _ => server.stop().await.unwrap(),
        }
        server.start_again().await.unwrap();
    }
    sink.wait_for(n).await;
    running.stop().await.unwrap();
    sink.check();
}

#[tokio::test]
async fn after_a_failover_nothing_committed_is_skipped_and_old_epochs_are_void() {
    let (primary, see) = private().await;
    let standby = primary.standby(Replication::Asynchronous).await.unwrap();
    let sink = Witness::default();
    let running = Running::start(relay_to(&primary.url(), sink.clone()));
    for n in 1..=20 {
        see.run(&publish(n, 4)).await;
    }
    sink.wait_for(20).await;
    let claimed = see
        .number("select max(epoch) from pgonce.outbox_cursor")
        .await;
    standby.wait_until_caught_up_with(&primary).await.unwrap();
    // From here on the standby misses everything: events, places, epochs.
    standby.fall_behind().await.unwrap();
    see.run(&publish(99, 1000)).await;
    wait_until("what will be lost", DEADLINE, || async {
        sink.numbers().contains(&99)
    })
    .await
    .unwrap();
    primary.crash().await.unwrap();
    running.kill().await;
    standby.promote().await.unwrap();
    let see = Observer::connect(&standby.url()).await;
    see.run("select pgonce._move_clock('1 minute')").await;
    for n in 21..=40 {
        see.run(&publish(n, 4)).await;
    }
    let running = Running::start(relay_to(&standby.url(), sink.clone()));
    wait_until("what came after", DEADLINE, || async {
        (1..=40).all(|n| sink.numbers().contains(&n))
    })
    .await
    .unwrap();
    assert!(
        see.number("select min(epoch) from pgonce.outbox_cursor")
            .await
            > claimed
    );
    running.stop().await.unwrap();
    sink.check();
}

/// A password that is being rotated, and an error that nobody knows: a relay waits for as long as it takes.
#[tokio::test]
async fn a_relay_outlives_a_password_that_changes_and_errors_that_nobody_knows() {
    let (server, see) = private().await;
    see.run("create role rotated login superuser password 'old'")
        .await;
    // Before all others: only this role needs its password.
    let rules = std::path::PathBuf::from(see.text("show hba_file").await);
    let others = std::fs::read_to_string(&rules).unwrap();
    std::fs::write(
        &rules,
        format!("host all rotated all scram-sha-256\nlocal all rotated scram-sha-256\n{others}"),
    )
    .unwrap();
    see.run("select pg_reload_conf()").await;
    let url = server.url().replace("postgres@", "rotated:old@");
    let sink = Witness::default();
    let relay = relay_to(&url, sink.clone());
    let counts = relay.counts();
    let running = Running::start(relay);
    see.run(&publish(1, 1)).await;
    sink.wait_for(1).await;
    let waits_for = async |code: &str| {
        wait_until(format!("error {code}"), DEADLINE, || async {
            counts
                .database_error()
                .is_some_and(|error| error.contains(code))
        })
        .await
        .unwrap();
    };
    let cut =
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = 'rotated'";
    see.run("alter role rotated password 'new'").await;
    see.run(cut).await;
    waits_for("28P01").await;
    see.run("alter role rotated password 'old'").await;
    see.run(&publish(2, 1)).await;
    sink.wait_for(2).await;
    see.run(
        "create function strange() returns trigger language plpgsql as $$ begin raise exception 'strange' using errcode = 'XX123'; end $$; \
         create trigger strange before update on pgonce.outbox_cursor for each row execute function strange()",
    )
    .await;
    see.run(cut).await;
    see.run(&publish(3, 1)).await;
    waits_for("XX123").await;
    see.run("drop trigger strange on pgonce.outbox_cursor")
        .await;
    sink.wait_for(3).await;
    running.stop().await.unwrap();
    sink.check();
}

/// The relay lives on while an older copy takes the place of its database: nothing that is published there is skipped,
/// and the server's log says what happened.
#[tokio::test]
async fn a_relay_that_finds_an_older_copy_under_its_address_skips_nothing_and_says_so() {
    let (server, see) = private().await;
    see.run("create database shop").await;
    let shop = server.url_for("shop");
    install(shop.clone()).await.unwrap();
    let on_shop = Observer::connect(&shop).await;
    on_shop.run("select pgonce.create_subscription('c')").await;
    let sink = Witness::default();
    let running = Running::start(relay_to(&shop, sink.clone()).lease(Duration::from_secs(2)));
    for n in 1..=5 {
        on_shop.run(&publish(n, 1)).await;
    }
    sink.wait_for(5).await;
    let close = "alter database shop allow_connections false; \
        select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = 'shop'";
    for statement in close.split("; ") {
        see.run(statement).await;
    }
    see.run("create database older template shop").await;
    see.run("alter database shop allow_connections true").await;
    let on_shop = Observer::connect(&shop).await;
    for n in 6..=30 {
        on_shop.run(&publish(n, 1)).await;
    }
    sink.wait_for(30).await;
    for statement in close.split("; ") {
        see.run(statement).await;
    }
    see.run("alter database shop rename to lost").await;
    see.run("alter database older rename to shop").await;
    see.run("alter database shop allow_connections true").await;
    let on_shop = Observer::connect(&shop).await;
    // As many as the relay has seen, and more: by their numbers alone some would look old.
    for n in 31..=70 {
        on_shop.run(&publish(n, 1)).await;
    }
    sink.wait_for(70).await;
    running.stop().await.unwrap();
    assert!(
        server
            .log()
            .unwrap()
            .contains("WARNING:  the outbox came here by dump and restore")
    );
}
