//! Worker processes of a queue are killed at every point of their protocol and at any moment: no job is lost, none has two
//! effects, and the jobs of a key have theirs in order.

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::faults::QUEUE_POINTS;
use pgonce_testkit::wait_until;
use pgonce_tests::{TestDriver, World, random_moment};
use rand::RngExt as _;

use crate::process::Worker;
use crate::{TIMEOUT, at_each, kills};

/// Nothing keeps an effect from being there twice.
const TABLES: &str = "
create table made (at bigint generated always as identity, n bigint not null);
select pgonce.define_queue('q', p_backoff => '10 ms', p_max_backoff => '50 ms', p_max_attempts => 1000);
";

/// A key's jobs are these many apart.
const KEYS: u64 = 11;

struct Scene<D: TestDriver> {
    world: World<D>,
}

impl<D: TestDriver> Scene<D> {
    async fn set(jobs: u64) -> Self {
        let world = World::<D>::new().await;
        world.see.run(TABLES).await;
        let fill = format!(
            "select from generate_series(1, {jobs}) n, pgonce.enqueue('q', to_jsonb(n), p_key => (n % {KEYS})::text)"
        );
        world.see.run(&fill).await;
        Self { world }
    }

    fn worker(&self, faults: &str) -> Worker {
        Worker::start(D::NAME, &self.world.url(), "queue", "work", faults)
    }

    async fn made(&self) -> i64 {
        self.world.see.number("select count(*) from made").await
    }

    /// Waits until every job has ended, ends the workers, and looks.
    async fn check(&self, what: &str, workers: Vec<Worker>) {
        let see = &self.world.see;
        let over = "select not exists (select from pgonce.job_live)";
        wait_until("every job to end", TIMEOUT, || async {
            see.text(over).await == "t"
        })
        .await
        .unwrap();
        for mut worker in workers {
            worker.send("stop").await;
            let ended = worker.ended().await;
            assert!(ended.status.success(), "{what}: {ended:?}");
        }
        let twice = "select coalesce(string_agg(n::text, ' '), '') from (select n from made group by n having count(*) > 1) x";
        assert_eq!(see.text(twice).await, "", "{what}: took effect twice");
        let lost = "select count(*) from pgonce.job j left join pgonce.job_end e using (tenant, id) left join made m on m.n = j.payload::bigint \
            where e.status is distinct from 'succeeded' or (m.n is null) <> (j.payload::bigint % 7 = 0)";
        assert_eq!(see.number(lost).await, 0, "{what}: lost");
        let turned = format!(
            "select count(*) from (select n, lag(n) over (partition by n % {KEYS} order by at) as before from made) x where before > n"
        );
        assert_eq!(
            see.number(&turned).await,
            0,
            "{what}: a key is turned round"
        );
    }
}

/// One worker dies at the point, another goes on.
async fn killed_at<D: TestDriver>(point: &str) {
    let what = format!("{} {point}", D::NAME);
    let scene = Scene::<D>::set(60).await;
    let victim = scene.worker(&format!("{point}=kill@2")).ended().await;
    assert!(victim.was_killed(), "{what}: {victim:?}");
    scene.check(&what, vec![scene.worker("")]).await;
}

#[tokio::test]
async fn a_worker_killed_at_any_point_leaves_every_job_one_effect_with_sqlx() {
    at_each(QUEUE_POINTS, killed_at::<Sqlx>).await;
}

#[tokio::test]
async fn a_worker_killed_at_any_point_leaves_every_job_one_effect_with_tokio_postgres() {
    at_each(QUEUE_POINTS, killed_at::<TokioPostgres>).await;
}

/// A worker whose connection breaks at the point goes on by itself.
#[tokio::test]
async fn a_worker_that_loses_its_connection_at_any_point_goes_on() {
    let strike = async |point: &str| {
        let scene = Scene::<TokioPostgres>::set(60).await;
        let worker = scene.worker(&format!("{point}=error@2"));
        scene.check(point, vec![worker]).await;
    };
    at_each(QUEUE_POINTS, strike).await;
}

#[tokio::test]
async fn workers_killed_at_any_moment_leave_every_job_one_effect() {
    let jobs = 150 * kills() as u64;
    let scene = Scene::<TokioPostgres>::set(jobs).await;
    let mut random = pgonce_tests::random();
    let mut workers = vec![scene.worker(""), scene.worker("")];
    let mut in_the_middle = 0;
    let last = (jobs - jobs / 7) as i64;
    for _ in 0..kills() {
        let goal = (scene.made().await + 20).min(last);
        wait_until("jobs to take effect", TIMEOUT, || async {
            scene.made().await >= goal
        })
        .await
        .unwrap();
        random_moment(&mut random).await;
        let dead = workers.remove(random.random_range(0..2));
        dead.kill();
        dead.ended().await;
        in_the_middle += usize::from(scene.made().await < last);
        workers.push(scene.worker(""));
    }
    assert!(
        in_the_middle > 0,
        "everything was over before the first kill"
    );
    scene.check("at any moment", workers).await;
    println!("{in_the_middle} kills in the middle of {jobs} jobs");
}
