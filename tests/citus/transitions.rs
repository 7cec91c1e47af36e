//! State machines on Citus answer as on one server.

use pgonce_tests::{Observer, random};
use rand::RngExt as _;
use tokio::task::JoinHandle;
use tokio_postgres::NoTls;
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;
use crate::distributed::{distributed, migrator};
use crate::load::move_of;

const RULES: &str = "create function public.small(text, text, jsonb) returns boolean language sql immutable \
         return ($3 ->> 'n')::integer < 5; \
     select pgonce.define_transition('case', '', 'open'); select pgonce.define_transition('case', 'open', 'closed', 'public.small'); \
     select pgonce.define_transition('case', 'closed', 'open'); select pgonce.define_transition('case', 'open', 'late')";

async fn answer(see: &Observer, sql: &str) -> String {
    let code = see.code(&format!("begin; {sql}; rollback")).await;
    if !code.is_empty() {
        see.run("rollback").await;
        return code;
    }
    format!("{:?}", see.rows(sql).await)
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn random_commands_are_answered_as_on_one_server() {
    let db = distributed(Cluster::shared().await, "cases").await;
    let plain = pgonce_testkit::shared(None).await.unwrap();
    let plain = plain.create_database("cases").await.unwrap();
    migrator(&plain.url()).up().await.unwrap();
    let mut servers = vec![Observer::connect(&plain.url()).await];
    for url in &db.urls {
        servers.push(Observer::connect(url).await);
    }
    for see in &servers[..2] {
        see.run(RULES).await;
    }
    let mut random = random();
    let mut seen = std::collections::BTreeSet::new();
    for step in 0..300_usize {
        let (entity, command) = (random.random_range(0..6), random.random_range(0..120));
        let to = ["open", "closed", "late", "lost"][random.random_range(0..4)];
        let sql = match random.random_range(0..8) {
            0 => format!(
                "select made_now from pgonce.set_timer('case', '{entity}', 'answer', 'late', '-1 second', 't')"
            ),
            1 => "select entity, outcome from pgonce.fire_timers(1)".to_owned(),
            2 => format!(
                "select outcome, made_now, state, version from pgonce.transition('case', '{entity}', '{to}', 'c{command}', 'open', null, '{{\"n\": 1}}', 't')"
            ),
            _ => format!(
                "select outcome, made_now, state, version from pgonce.transition('case', '{entity}', '{to}', 'c{command}', null, null, '{{\"n\": {}}}', 't')",
                command % 7
            ),
        };
        let expected = answer(&servers[0], &sql).await;
        let got = answer(&servers[1 + step % 3], &sql).await;
        assert_eq!(got, expected, "{step}: {sql}");
        seen.insert(expected);
    }
    assert!(seen.len() > 8, "{seen:?}");
    let timeline = "select machine, entity, row_number() over (partition by entity order by seq), to_state, outcome, version, data \
                    from pgonce.timelines order by 2, 3";
    let expected = servers[0].rows(timeline).await;
    for see in &servers[1..] {
        assert_eq!(see.rows(timeline).await, expected);
    }
    let change = "update pgonce.transition_command set who = 'nobody' where tenant = 't'";
    assert_eq!(servers[1].code(change).await, "P4079");
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn an_entity_that_moves_to_another_server_keeps_its_timeline_and_its_timers() {
    let db = distributed(Cluster::shared().await, "moved_cases").await;
    let see = db.see().await;
    see.run(RULES).await;
    let command = |to: &str, id: usize| {
        format!(
            "select outcome from pgonce.transition('case', '7', '{to}', 'c{id}', null, null, '{{\"n\": 1}}', 't')"
        )
    };
    assert_eq!(see.text(&command("open", 0)).await, "applied");
    see.run("select pgonce.set_timer('case', '7', 'answer', 'late', '1 hour', 't')")
        .await;
    for round in 1..6 {
        let to = ["open", "closed"][round % 2];
        see.run(&move_of("t", "block_writes")).await;
        assert_eq!(see.text(&command(to, round)).await, "applied");
        assert_eq!(see.text(&command(to, round)).await, "applied", "again");
    }
    let versions = "select string_agg(version::text, ' ' order by seq) from pgonce.timelines where entity = '7'";
    assert_eq!(see.text(versions).await, "1 2 3 4 5 6");
    assert_eq!(see.text(&command("open", 6)).await, "applied");
    see.run("select pgonce.set_timer('case', '7', 'answer', 'late', '-1 second', 't')")
        .await;
    see.run(&move_of("t", "block_writes")).await;
    let fire = "select string_agg(outcome, ' ') from pgonce.fire_timers()";
    assert_eq!(see.text(fire).await, "applied");
    assert_eq!(see.text(fire).await, "");
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn every_command_is_one_task_on_the_server_of_the_tenant() {
    let db = distributed(Cluster::shared().await, "one_case").await;
    let see = db.see().await;
    for statement in [
        "select outcome from pgonce.transition('case', '7', 'open', 'c', null, null, null, 't')",
        "select made_now from pgonce.set_timer('case', '7', 'answer', 'late', '1 hour', 't')",
        "select made_now::text operator(pg_catalog.||) '' from pgonce.set_timer('case', '7', 'answer', 'late', '1 hour', 't')",
        "select * from pgonce._fire_tenant_timers(10, 't')",
    ] {
        let plan = see.rows(&format!("explain (costs off) {statement}")).await;
        let plan: Vec<String> = plan.into_iter().flatten().flatten().collect();
        let plan = plan.join("\n");
        assert!(plan.contains("Task Count: 1"), "{statement}:\n{plan}");
    }
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn a_timer_that_is_cancelled_ends_the_call_and_keeps_what_fired_before_it() {
    let db = distributed(Cluster::shared().await, "cancelled").await;
    let (see, firer) = (db.see().await, db.see().await);
    see.run(
        "create function public.never_ends(text, text, jsonb) returns boolean language plpgsql as \
             'begin perform pg_sleep(3600); return true; end'; \
         select pgonce.define_transition('slow', '', 'a'); select pgonce.define_transition('slow', 'a', 'b'); \
         select pgonce.define_transition('slow', 'a', 'c', 'public.never_ends')",
    )
    .await;
    for (entity, to, since) in [("first", "b", 3), ("slow", "c", 2), ("last", "b", 1)] {
        for sql in [
            format!(
                "select pgonce.transition('slow', '{entity}', 'a', 'new', null, null, null, 't')"
            ),
            format!(
                "select pgonce.set_timer('slow', '{entity}', 'sla', '{to}', '-{since} minutes', 't')"
            ),
        ] {
            see.run(&sql).await;
        }
    }
    let fire = "select coalesce(string_agg(entity || ' ' || outcome, ', '), 'none') from pgonce.fire_timers()";
    let mut servers = Vec::new();
    for url in &db.urls {
        servers.push(Observer::connect(url).await);
    }
    let cancel = "select count(pg_cancel_backend(pid)) from pg_stat_activity \
        where wait_event = 'PgSleep' and datname = current_database()";
    // Where the tenant's rows are; the call itself goes on.
    let cancel = async {
        let mut cancelled = 0;
        while cancelled == 0 {
            for server in &servers {
                cancelled += server.number(cancel).await;
            }
            tokio::task::yield_now().await;
        }
    };
    let (fired, ()) = futures_util::future::join(firer.text(fire), cancel).await;
    assert_eq!(fired, "first applied, slow failed");
    assert_eq!(firer.text(fire).await, "last applied");
    assert_eq!(firer.text(fire).await, "none");
}

/// Fires what is due until it is stopped, whatever servers do meanwhile.
fn firing(url: &str, stop: &CancellationToken) -> JoinHandle<()> {
    let (url, stop) = (url.to_owned(), stop.clone());
    tokio::spawn(async move {
        while !stop.is_cancelled() {
            // Cut off in the middle: another call finds what this one did not do.
            if let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await {
                tokio::spawn(connection);
                while !stop.is_cancelled()
                    && let Ok(()) = client
                        .batch_execute("select * from pgonce.fire_timers(3)")
                        .await
                {
                    tokio::task::yield_now().await;
                }
            }
            tokio::task::yield_now().await;
        }
    })
}

async fn timers_of_crashes(victim: usize) {
    let cluster = Cluster::start().await;
    let db = distributed(&cluster, "timers").await;
    let see = db.see().await;
    see.run(RULES).await;
    let tenants = ["a", "b", "c", "d"];
    let entities = 120;
    for tenant in tenants {
        see.run(&format!(
            "select from generate_series(1, {entities}) n, pgonce.transition('case', n::text, 'open', 'c' || n, null, null, null, '{tenant}'); \
             select from generate_series(1, {entities}) n, pgonce.set_timer('case', n::text, 'answer', 'late', '-1 second', '{tenant}')"
        ))
        .await;
    }
    let stop = CancellationToken::new();
    let clients: Vec<_> = (0..3).map(|_| firing(db.url(), &stop)).collect();
    let all = entities * tenants.len();
    for part in 1..=3 {
        let fired = "from pgonce.transition_timer where outcome = 'applied'";
        let see = db.see().await;
        see.wait_until(&format!("select count(*) >= {} {fired}", part * all / 5))
            .await;
        cluster.nodes[victim].crash().await.unwrap();
        cluster.nodes[victim].start_again().await.unwrap();
    }
    let see = db.see().await;
    see.run("select recover_prepared_transactions()").await;
    see.wait_until("select count(*) = 0 from pgonce.transition_timer where ended_at is null")
        .await;
    stop.cancel();
    for client in clients {
        client.await.unwrap();
    }
    for count in [
        "select count(*) from pgonce.transition_entity where state = 'late' and version = 2",
        "select count(*) from pgonce.transition_command where command like 'timer %' and outcome = 'applied'",
        "select count(*) from pgonce.transition_command where command like 'timer %'",
        "select count(*) from pgonce.transition_timer where outcome = 'applied'",
    ] {
        assert_eq!(see.number(count).await, all as i64, "{count}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn every_timer_fires_once_while_a_worker_crashes() {
    timers_of_crashes(1).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn every_timer_fires_once_while_the_coordinator_crashes() {
    timers_of_crashes(0).await;
}
