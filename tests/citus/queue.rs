//! The work queue on Citus: jobs of a tenant are claimed, ended and kept in order on the tenant's server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pgonce::Result;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::queue::{Finished, Job};
use pgonce_tests::{Observer, TestDriver as _, random};
use rand::RngExt as _;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;
use crate::distributed::{distributed, migrator, once};
use crate::load::move_of;

const TENANTS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// One server, and what its jobs are called there: by their payload, since numbers differ.
struct Side {
    see: Observer,
    ids: BTreeMap<i64, i64>,
    held: BTreeMap<i64, i64>,
}

impl Side {
    async fn new(url: &str) -> Self {
        Self {
            see: Observer::connect(url).await,
            ids: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    async fn enqueue(&mut self, payload: i64, rest: &str) {
        let sql =
            format!("select id from pgonce.enqueue('q', '{payload}', {rest}, p_tenant => 't')");
        self.ids.insert(payload, self.see.number(&sql).await);
    }

    /// The payloads of what a claim gives.
    async fn claim(&mut self, limit: usize) -> BTreeSet<i64> {
        let sql = format!(
            "select payload, fence from pgonce.claim_jobs('{{q}}', 'w', '60 seconds', {limit})"
        );
        let mut given = BTreeSet::new();
        for row in self.see.rows(&sql).await {
            let number = |n: usize| row[n].as_deref().unwrap().parse::<i64>().unwrap();
            self.held.insert(number(0), number(1));
            assert!(given.insert(number(0)), "given twice: {}", number(0));
        }
        given
    }

    fn named(&self, payload: i64) -> (i64, i64) {
        let fence = self.held.get(&payload).copied().unwrap_or_default();
        (self.ids[&payload], fence)
    }

    /// What a statement about a job answers, or its SQLSTATE.
    async fn answer(&self, sql: &str) -> String {
        let code = self.see.code(&format!("begin; {sql}; rollback")).await;
        if !code.is_empty() {
            self.see.run("rollback").await;
            return code;
        }
        self.see.text(sql).await
    }

    async fn statuses(&self) -> Vec<Vec<Option<String>>> {
        let sql = "select k.payload, case when j.status in ('ready', 'blocked') then 'waits' else j.status end, j.attempts \
                     from pgonce.jobs j join pgonce.job k on k.tenant = j.tenant and k.id = j.id order by k.payload::int";
        self.see.rows(sql).await
    }
}

async fn random_jobs(name: &str, max_per_key: usize) {
    let db = distributed(Cluster::shared().await, name).await;
    let plain = pgonce_testkit::shared(None).await.unwrap();
    let plain = plain.create_database(name).await.unwrap();
    migrator(&plain.url()).up().await.unwrap();
    let mut sides = [Side::new(&plain.url()).await, Side::new(db.url()).await];
    for side in &sides {
        side.see
            .run(&format!(
                "select pgonce.define_queue('q', p_max_attempts => 3, p_max_per_key => {max_per_key}); \
                 select pgonce._set_clock('2026-01-01')"
            ))
            .await;
    }
    let (mut random, mut last, mut claimed) = (random(), 0, 0);
    for step in 0..300_usize {
        // The client asks another server each time.
        sides[1].see = Observer::connect(&db.urls[step % 3]).await;
        let some = random.random_range(1..=last.max(1));
        match random.random_range(0..100) {
            0..40 => {
                last += 1;
                let key = match random.random_bool(0.7) {
                    true => format!("'{}'", random.random_range(0..5)),
                    false => "null".to_owned(),
                };
                let delay = match random.random_bool(0.2) {
                    true => random.random_range(1..200),
                    false => 0,
                };
                let priority = random.random_range(-1..2);
                let rest = format!(
                    "p_key => {key}, p_priority => {priority}, p_run_at => pgonce.now() + interval '{delay} seconds'"
                );
                for side in &mut sides {
                    side.enqueue(last, &rest).await;
                }
            }
            40..65 => {
                let limit = random.random_range(1..6);
                let expected = sides[0].claim(limit).await;
                let given = sides[1].claim(limit).await;
                assert_eq!(given, expected, "step {step}");
                claimed += given.len();
            }
            65..95 if last > 0 => {
                let how = random.random_range(0..10);
                let (retryable, delay) = (random.random_bool(0.7), random.random_range(1..120));
                let mut answers = Vec::new();
                for side in &sides {
                    let (id, fence) = side.named(some);
                    let sql = match how {
                        0..6 => format!(
                            "select pgonce.finish_jobs('[{{\"tenant\": \"t\", \"id\": {id}, \"fence\": {fence}, \"result\": 1}}]')"
                        ),
                        6..8 => format!(
                            "select pgonce.fail_job({id}, {fence}, {retryable}, 'x', 'y', '{delay} seconds', 't')"
                        ),
                        8 => format!("select pgonce.cancel_job({id}, null, 't')"),
                        _ => format!(
                            "select count(*) from pgonce.renew_jobs('[{{\"tenant\": \"t\", \"id\": {id}, \"fence\": {fence}, \"progress\": 5}}]', '1 minute')"
                        ),
                    };
                    answers.push(side.answer(&sql).await);
                }
                assert_eq!(answers[1], answers[0], "step {step}");
            }
            _ => {
                let seconds = random.random_range(1..90);
                for side in [&sides[0].see, &db.see().await] {
                    side.run(&format!(
                        "select pgonce._move_clock(interval '{seconds} seconds')"
                    ))
                    .await;
                }
            }
        }
    }
    assert!(claimed > 20, "{claimed}");
    let expected = sides[0].claim(1).await;
    assert_eq!(sides[1].claim(1).await, expected);
    assert_eq!(sides[1].statuses().await, sides[0].statuses().await);
    migrator(db.url()).check().await.unwrap();
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn random_jobs_are_given_and_ended_as_on_one_server() {
    random_jobs("jobs", 1).await;
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn as_many_jobs_of_a_key_run_as_on_one_server() {
    random_jobs("jobs_by_two", 2).await;
}

/// A worker of the SDK whose effect commits with the end of the job.
fn worker(url: &str, stop: &CancellationToken) -> JoinHandle<()> {
    let handler = |job: Job<TokioPostgres>| async move { effect(&job).await };
    let worker = once(url)
        .worker(["q"], handler)
        .concurrency(4)
        .prefetch(4)
        .lease(Duration::from_secs(5))
        .poll_interval(Duration::from_millis(20));
    tokio::spawn(worker.run(stop.clone().cancelled_owned()))
}

async fn effect(job: &Job<TokioPostgres>) -> Result<Finished> {
    let (tenant, n): (&str, String) = (job.tenant(), job.payload()?);
    let order = format!("insert into orders (tenant, key) values ('{tenant}', '{n}')");
    job.transact(async |mut tx| {
        TokioPostgres::exec(tx.conn(), &order).await?;
        Ok(1)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn workers_on_every_node_do_each_job_once_and_those_of_a_key_in_order() {
    let db = distributed(Cluster::shared().await, "worked").await;
    let see = db.see().await;
    for tenant in TENANTS {
        see.run(&format!(
            "select from generate_series(1, 40) n, pgonce.enqueue('q', to_jsonb(n::text), p_key => case when n % 4 > 0 then (n % 4)::text end, \
                 p_group => 'all', p_tenant => '{tenant}')"
        ))
        .await;
    }
    let stop = CancellationToken::new();
    let workers: Vec<_> = db.urls.iter().map(|url| worker(url, &stop)).collect();
    see.wait_until("select count(*) = 0 from pgonce.job_live")
        .await;
    stop.cancel();
    for worker in workers {
        worker.await.unwrap();
    }
    let effects = "select count(*) from orders";
    assert_eq!(see.number(effects).await, 200);
    let distinct = "select count(*) from (select distinct tenant, key from orders) o";
    assert_eq!(see.number(distinct).await, 200);
    for tenant in TENANTS {
        for key in 1..4 {
            let order = format!(
                "select string_agg(j.payload #>> '{{}}', ' ' order by e.ended_at) from pgonce.job j \
                   join pgonce.job_end e on e.tenant = j.tenant and e.id = j.id where j.tenant = '{tenant}' and j.key = '{key}'"
            );
            let turns = (1..=40).filter(|n| n % 4 == key);
            let expected: Vec<_> = turns.map(|n: i32| n.to_string()).collect();
            assert_eq!(see.text(&order).await, expected.join(" "));
        }
        let group = once(db.url()).job_group(tenant, "all").await.unwrap();
        let group = group.unwrap();
        assert_eq!((&*group.status, group.succeeded), ("finished", 40));
    }
}

async fn claim_one(see: &Observer, tenant: &str) -> (i64, i64) {
    let sql = format!(
        "select id, fence from pgonce._claim_tenant_jobs('{{q}}', 'w', '1 hour', 1, '{tenant}')"
    );
    let rows = see.rows(&sql).await;
    let number = |n: usize| rows[0][n].as_deref().unwrap().parse().unwrap();
    (number(0), number(1))
}

fn finish_one(tenant: &str, (id, fence): (i64, i64)) -> String {
    format!(
        "select pgonce.finish_jobs('[{{\"tenant\": \"{tenant}\", \"id\": {id}, \"fence\": {fence}}}]')"
    )
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn jobs_of_a_tenant_that_moves_keep_their_order_and_their_fences_rise() {
    let db = distributed(Cluster::shared().await, "moved_jobs").await;
    let see = db.see().await;
    let enqueue = "select id from pgonce.enqueue('q', '1', p_key => 'k', p_tenant => 't')";
    let (mut numbers, mut fences) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        numbers.push(see.number(enqueue).await);
        let held = claim_one(&see, "t").await;
        fences.push(held.1);
        numbers.push(see.number(enqueue).await);
        see.run(&move_of("t", "block_writes")).await;
        // Who held it before the move ends it after.
        see.run(&finish_one("t", held)).await;
        assert_eq!(see.code(&finish_one("t", held)).await, "P4012");
        let next = claim_one(&see, "t").await;
        assert_eq!(Some(&next.0), numbers.get(2 * fences.len() - 1));
        see.run(&finish_one("t", next)).await;
    }
    assert!(
        numbers.is_sorted() && fences.is_sorted(),
        "{numbers:?} {fences:?}"
    );
    assert!(numbers.iter().chain(&fences).all(|n| *n < 1 << 53));
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn what_time_brings_comes_to_each_tenant_on_its_server() {
    let db = distributed(Cluster::shared().await, "timed_jobs").await;
    let see = db.see().await;
    see.run(
        "select pgonce.define_queue('q', p_max_attempts => 2, p_keep => '1 day'); \
         select pgonce._set_clock('2026-01-01 12:00+00')",
    )
    .await;
    for tenant in TENANTS {
        see.run(&format!(
            "select pgonce.define_schedule('nightly', '0 3 * * *', 'q', '\"night\"', p_tenant => '{tenant}'); \
             select from pgonce.enqueue('q', '\"late\"', p_run_at => pgonce.now() + interval '1 hour', p_tenant => '{tenant}'); \
             select from pgonce.enqueue('q', '\"left\"', p_tenant => '{tenant}')"
        ))
        .await;
        claim_one(&see, tenant).await;
    }
    let claim = "select tenant, payload from pgonce.claim_jobs('{q}', 'w', '1 hour', 10)";
    assert!(see.rows(claim).await.is_empty());
    see.run("select pgonce._move_clock('25 hours')").await;
    // The worker vanished, the hour and a night have passed: three jobs for each, one tenant at a time.
    let mut given: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in 0..TENANTS.len() {
        let node = Observer::connect(&db.urls[node % 3]).await;
        for row in node.rows(claim).await {
            let cell = |n: usize| row[n].clone().unwrap();
            assert!(given.entry(cell(0)).or_default().insert(cell(1)));
        }
    }
    let three = BTreeSet::from(["\"late\"", "\"left\"", "\"night\""].map(str::to_owned));
    assert_eq!(given.len(), TENANTS.len());
    assert!(given.values().all(|jobs| *jobs == three), "{given:?}");
    // One that vanishes as often as it may is a dead letter, which can be tried again.
    see.run("select pgonce._move_clock('2 hours')").await;
    for _ in 0..2 * TENANTS.len() {
        see.run(claim).await;
    }
    let dead = "select dead from pgonce.queues where queue = 'q'";
    assert_eq!(see.number(dead).await, 5);
    assert_eq!(see.number("select pgonce.retry_jobs('q')").await, 5);
    assert_eq!(see.number(dead).await, 0);
    let all = "select count(*) from pgonce.jobs";
    assert_eq!(see.number(all).await, 15);
    // What has ended goes when its time is over.
    let jobs = "select jsonb_agg(jsonb_build_object('tenant', tenant, 'id', id, 'fence', fence)) from pgonce.job_live \
                where state = 'running'";
    let running = see.text(jobs).await;
    let count = serde_json::from_str::<Vec<serde_json::Value>>(&running)
        .unwrap()
        .len();
    assert_eq!(count, 10);
    let finish = format!("select pgonce.finish_jobs('{running}')");
    assert_eq!(see.number(&finish).await, count as i64);
    assert_eq!(see.number("select pgonce._purge_jobs(100)").await, 0);
    see.run("select pgonce._move_clock('2 days')").await;
    assert_eq!(
        see.number("select pgonce._purge_jobs(100)").await,
        count as i64
    );
    assert_eq!(see.number(all).await, 15 - count as i64);
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn limits_of_a_queue_hold_for_each_tenant() {
    let db = distributed(Cluster::shared().await, "limited_jobs").await;
    let see = db.see().await;
    see.run("select pgonce.define_queue('q', p_max_running => 3); select pgonce.define_queue('r', p_rate => 2, p_rate_per => '1 hour')")
        .await;
    let other = Observer::connect(&db.urls[1]).await;
    for tenant in ["a", "b"] {
        see.run(&format!(
            "select from generate_series(1, 9) n, pgonce.enqueue('q', to_jsonb(n), p_tenant => '{tenant}'); \
             select from generate_series(1, 9) n, pgonce.enqueue('r', to_jsonb(n), p_tenant => '{tenant}')"
        ))
        .await;
        for (queue, most) in [("q", 3), ("r", 2)] {
            let claim = format!(
                "select count(*) from pgonce._claim_tenant_jobs('{{{queue}}}', 'w', '1 hour', 2, '{tenant}')"
            );
            let mut given = 0;
            for see in [&see, &other, &see] {
                given += see.number(&claim).await;
            }
            assert_eq!(given, most, "{queue} of {tenant}");
        }
    }
}

/// Enqueues until it is stopped; a job is left only when it is acknowledged.
fn enqueuer(url: &str, number: usize, stop: &CancellationToken) -> JoinHandle<i64> {
    let (url, stop) = (url.to_owned(), stop.clone());
    let tenant = TENANTS[number % TENANTS.len()];
    tokio::spawn(async move {
        let (mut client, mut acknowledged) = (None, 0);
        // Not more than workers can do in time.
        while !stop.is_cancelled() && acknowledged < 300 {
            let name = format!("{number}-{acknowledged}");
            let key = acknowledged % 3;
            let enqueue = format!(
                "select from pgonce.enqueue('q', '\"{name}\"', p_unique_key => '{name}', p_key => '{key}', p_tenant => '{tenant}')"
            );
            while !sent(&url, &mut client, &enqueue).await {
                client = None;
                tokio::task::yield_now().await;
            }
            acknowledged += 1;
        }
        acknowledged
    })
}

async fn sent(url: &str, client: &mut Option<tokio_postgres::Client>, sql: &str) -> bool {
    if client.is_none()
        && let Ok((new, connection)) = tokio_postgres::connect(url, tokio_postgres::NoTls).await
    {
        tokio::spawn(connection);
        *client = Some(new);
    }
    match client {
        Some(client) => client.batch_execute(sql).await.is_ok(),
        None => false,
    }
}

async fn crashed(victim: usize) {
    let cluster = Cluster::start().await;
    let db = distributed(&cluster, "crashed_jobs").await;
    let (stop, stop_workers) = (CancellationToken::new(), CancellationToken::new());
    let enqueuers: Vec<_> = (0..3).map(|n| enqueuer(db.url(), n, &stop)).collect();
    let workers: Vec<_> = (0..2).map(|_| worker(db.url(), &stop_workers)).collect();
    let done = "select count(*) from pgonce.job_end";
    for _ in 0..3 {
        let see = db.see().await;
        let from = see.number(done).await;
        let more = format!("select count(*) >= {} from pgonce.job_end", from + 40);
        see.wait_until(&more).await;
        cluster.nodes[victim].crash().await.unwrap();
        cluster.nodes[victim].start_again().await.unwrap();
    }
    stop.cancel();
    let mut acknowledged = 0;
    for enqueuer in enqueuers {
        acknowledged += enqueuer.await.unwrap();
    }
    let see = db.see().await;
    see.run("select recover_prepared_transactions()").await;
    see.wait_until("select count(*) = 0 from pgonce.job_live")
        .await;
    stop_workers.cancel();
    for worker in workers {
        worker.await.unwrap();
    }
    println!("node {victim} crashed 3 times: {acknowledged} jobs acknowledged");
    for count in [
        "select count(*) from orders",
        "select count(*) from (select distinct tenant, key from orders) o",
        "select count(*) from pgonce.job",
        "select count(*) from pgonce.job_end where status = 'succeeded'",
    ] {
        assert_eq!(see.number(count).await, acknowledged, "{count}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn jobs_survive_crashes_of_a_worker_and_have_one_effect_each() {
    crashed(1).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Citus: make citus-tests"]
async fn jobs_survive_crashes_of_the_coordinator_and_have_one_effect_each() {
    crashed(0).await;
}
