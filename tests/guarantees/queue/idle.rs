//! What workers cost that have nothing to do.

use std::time::{Duration, Instant};

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::queue::Job;
use pgonce_testkit::wait_until;
use pgonce_tests::{Observer, World};
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(120);

/// A session that does nothing more reports what it has done after ten seconds.
const REPORTED: Duration = Duration::from_secs(11);

/// Transactions per second of a worker over so many defined queues, after it has done a job of each.
async fn transactions_per_second(queues: usize) -> f64 {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run(&format!(
        "select pgonce.define_queue('q' || n, p_max_running => 5) from generate_series(1, {queues}) n; \
         select from generate_series(1, {queues}) n, pgonce.enqueue('q' || n, '1')"
    ))
    .await;
    let names: Vec<String> = (1..=queues).map(|n| format!("q{n}")).collect();
    let stop = CancellationToken::new();
    let handler = |job: Job<TokioPostgres>| async move { job.done(&()) };
    let worker = world.once.worker(names, handler);
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    see.wait_until("select count(*) = 0 from pgonce.job_live")
        .await;
    let done = Instant::now();
    // The jobs themselves are not to be counted.
    wait_until("statistics of the jobs", DEADLINE, || async {
        done.elapsed() > REPORTED
    })
    .await
    .unwrap();
    let count = format!(
        "select xact_commit + xact_rollback from pg_stat_database where datname = '{}'",
        world.database()
    );
    // From another database, so that looking is not counted.
    let elsewhere = world.url().replace(world.database(), "postgres");
    let elsewhere = Observer::connect(&elsewhere).await;
    let count = async || elsewhere.number(&count).await;
    let (first, began) = (count().await, Instant::now());
    // Statistics are flushed once a second: several times that.
    wait_until("statistics over some seconds", DEADLINE, || async {
        count().await > first && began.elapsed() > Duration::from_secs(6)
    })
    .await
    .unwrap();
    let rate = (count().await - first) as f64 / began.elapsed().as_secs_f64();
    // It does not sleep too well: what comes is done.
    see.run(&format!("select from pgonce.enqueue('q{queues}', '2')"))
        .await;
    see.wait_until(&format!(
        "select count(*) = {} from pgonce.jobs where status = 'succeeded'",
        queues + 1
    ))
    .await;
    stop.cancel();
    running.await.unwrap();
    rate
}

#[expect(
    clippy::print_stderr,
    reason = "the figures, for a run with --nocapture"
)]
#[tokio::test]
async fn a_hundred_idle_queues_cost_hardly_more_than_one() {
    let (one, hundred) = tokio::join!(transactions_per_second(1), transactions_per_second(100));
    eprintln!("transactions per second with 1 and 100 idle queues: {one:.1}, {hundred:.1}");
    assert!(
        hundred <= one * 1.5,
        "idle queues are paid for one by one: {one:.1} and {hundred:.1} transactions a second"
    );
}
