//! Consumer processes are killed at every point of their protocol and at any moment, while another, who is
//! given the same messages, lives on: each takes effect once, nothing is lost, and a key's order holds.

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::faults::CONSUMER_POINTS;
use pgonce_testkit::wait_until;
use pgonce_tests::{TestDriver, World, random_moment};
use rand::RngExt as _;

use crate::process::Worker;
use crate::{TIMEOUT, at_each, kills};

/// What a source has to give, and what came of it. Nothing keeps an effect from being there twice.
const TABLES: &str = "
create table letters (n bigint primary key, acked boolean not null default false);
create table received (at bigint generated always as identity, n bigint not null);
select pgonce.define_inbox('c', p_backoff => '10 ms', p_max_backoff => '50 ms', p_max_attempts => 1000);
";

/// A key's messages are these many apart.
const KEYS: u64 = 10;

struct Scene<D: TestDriver> {
    world: World<D>,
    /// Whether copies are known by ids or by positions.
    by: &'static str,
}

impl<D: TestDriver> Scene<D> {
    async fn set(by: &'static str, letters: u64) -> Self {
        let world = World::<D>::new().await;
        world.see.run(TABLES).await;
        let fill = format!("insert into letters select generate_series(1, {letters})");
        world.see.run(&fill).await;
        Self { world, by }
    }

    fn consumer(&self, faults: &str) -> Worker {
        Worker::start(D::NAME, &self.world.url(), "consume", self.by, faults)
    }

    async fn received(&self) -> i64 {
        self.world.see.number("select count(*) from received").await
    }

    /// Waits until everything is settled and nothing waits, ends the consumers, and looks.
    async fn check(&self, what: &str, consumers: Vec<Worker>) {
        // A source with positions is not asked again for what the cursor is past.
        let settled = match self.by {
            "positions" => {
                "(select position from pgonce.inbox_cursor) = (select max(n) from letters)"
            }
            _ => "(select bool_and(acked) from letters)",
        };
        let over = &format!(
            "select {settled} and not exists (select from pgonce.inbox_message where status <> 'processed')"
        );
        wait_until("everything to be applied", TIMEOUT, || async {
            self.world.see.text(over).await == "t"
        })
        .await
        .unwrap();
        for mut consumer in consumers {
            consumer.send("stop").await;
            let ended = consumer.ended().await;
            assert!(ended.status.success(), "{what}: {ended:?}");
        }
        let see = &self.world.see;
        let twice = "select coalesce(string_agg(n::text, ' '), '') from (select n from received group by n having count(*) > 1) x";
        assert_eq!(see.text(twice).await, "", "{what}: took effect twice");
        let lost = "select coalesce(string_agg(n::text, ' '), '') from letters where n not in (select n from received)";
        assert_eq!(see.text(lost).await, "", "{what}: lost");
        if self.by == "positions" {
            let turned = format!(
                "select count(*) from (select n, lag(n) over (partition by n % {KEYS} order by at) as before from received) x where before > n"
            );
            assert_eq!(
                see.number(&turned).await,
                0,
                "{what}: a key is turned round"
            );
        }
    }
}

/// One consumer dies at the point, another gets the same messages.
async fn killed_at<D: TestDriver>(by: &'static str, point: &str) {
    let what = format!("{} {by} {point}", D::NAME);
    let scene = Scene::<D>::set(by, 60).await;
    let victim = scene.consumer(&format!("{point}=kill@1")).ended().await;
    assert!(victim.was_killed(), "{what}: {victim:?}");
    scene.check(&what, vec![scene.consumer("")]).await;
}

async fn killed_at_every_point<D: TestDriver>() {
    for by in ["ids", "positions"] {
        at_each(CONSUMER_POINTS, |point| killed_at::<D>(by, point)).await;
    }
}

#[tokio::test]
async fn a_consumer_killed_at_any_point_leaves_every_message_one_effect_with_sqlx() {
    killed_at_every_point::<Sqlx>().await;
}

#[tokio::test]
async fn a_consumer_killed_at_any_point_leaves_every_message_one_effect_with_tokio_postgres() {
    killed_at_every_point::<TokioPostgres>().await;
}

async fn killed_at_any_moment(by: &'static str) {
    let last = 150 * kills() as u64;
    let scene = Scene::<TokioPostgres>::set(by, last).await;
    let mut random = pgonce_tests::random();
    let mut consumers = vec![scene.consumer(""), scene.consumer("")];
    let mut in_the_middle = 0;
    for _ in 0..kills() {
        let mark = scene.received().await;
        let goal = (mark + 20).min(last as i64);
        let moved = || async { scene.received().await >= goal };
        wait_until("messages to take effect", TIMEOUT, moved)
            .await
            .unwrap();
        random_moment(&mut random).await;
        let dead = consumers.remove(random.random_range(0..2));
        dead.kill();
        dead.ended().await;
        in_the_middle += usize::from(scene.received().await < last as i64);
        consumers.push(scene.consumer(""));
    }
    assert!(
        in_the_middle > 0,
        "everything was over before the first kill"
    );
    scene
        .check(&format!("{by}, at any moment"), consumers)
        .await;
    println!("by {by}: {in_the_middle} kills in the middle of {last} messages");
}

#[tokio::test]
async fn consumers_killed_at_any_moment_apply_every_message_once_by_ids() {
    killed_at_any_moment("ids").await;
}

#[tokio::test]
async fn consumers_killed_at_any_moment_apply_every_message_once_by_positions() {
    killed_at_any_moment("positions").await;
}
