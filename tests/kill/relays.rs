//! Relay processes are killed at every point of their protocol and at any moment, while another lives
//! on: nothing is lost, what comes twice has one id, and no subject is turned round.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use futures_util::future::join_all;
use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::faults::RELAY_POINTS;
use pgonce_testkit::wait_until;
use pgonce_tests::{Observer, TestDriver, World, random_moment};
use rand::RngExt as _;
use serde_json::Value;

use crate::process::{Ended, Worker};
use crate::{TIMEOUT, at_each, kills};

/// Each has one event that is poison, so that its relay settles and parks.
const SUBJECTS: u64 = 20;

/// How many events there are before the relays come: some rounds of the subjects.
const FIRST: u64 = 5 * SUBJECTS;

/// A database with the subscription `c`, and the file that its relays write to.
struct Scene<D: TestDriver> {
    world: World<D>,
    file: PathBuf,
}

impl<D: TestDriver> Scene<D> {
    async fn set() -> Self {
        let world = World::<D>::new().await;
        world
            .see
            .run("select pgonce.create_subscription('c')")
            .await;
        let file = std::env::temp_dir().join(format!("pgonce-relayed-{}", world.database()));
        std::fs::write(&file, "").unwrap();
        Self { world, file }
    }

    fn relay(&self, faults: &str) -> Worker {
        let file = self.file.to_str().unwrap();
        Worker::start(D::NAME, &self.world.url(), "relay", file, faults)
    }

    /// Publishes numbers; those of the second round of subjects are poison, and one of each later round. One more is rolled back.
    async fn publish(&self, numbers: std::ops::RangeInclusive<u64>) {
        for n in numbers {
            self.world.see.run(&publish(n)).await;
        }
        let phantom = publish(1_000_000);
        self.world
            .see
            .run(&format!("begin; {phantom}; rollback"))
            .await;
    }

    /// Lets poison be taken, and what waits for it.
    async fn cure(&self) {
        std::fs::write(cure(&self.file), "").unwrap();
        self.world.see.run("select pgonce.redrive('c')").await;
    }

    /// Waits until every number was relayed.
    async fn wait_for(&self, last: u64) {
        wait_until(format!("events 1 to {last}"), TIMEOUT, || async {
            let mut numbers: Vec<u64> = read(&self.file).iter().map(number).collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers == (1..=last).collect::<Vec<_>>()
        })
        .await
        .unwrap();
    }
}

impl<D: TestDriver> Drop for Scene<D> {
    fn drop(&mut self) {
        // Some tests never make the cure.
        let _ = std::fs::remove_file(cure(&self.file));
        let _ = std::fs::remove_file(&self.file);
    }
}

fn cure(file: &Path) -> String {
    format!("{}.cured", file.display())
}

fn publish(n: u64) -> String {
    let place = n % SUBJECTS;
    let (subject, poison) = match (n, place) {
        (..=FIRST, _) => (place, SUBJECTS < n && n <= 2 * SUBJECTS),
        // Each later round has poison where there was none, and an event that nothing stands in the way of.
        (_, 0) => (n, true),
        (_, 1) => (n, false),
        _ => (place, false),
    };
    let headers = if poison { r#"{"poison": true}"# } else { "{}" };
    format!(
        "select pgonce.publish('orders', 'order.changed', 's{subject}', '{{\"n\": {n}}}', p_headers => '{headers}')"
    )
}

/// The events that were relayed, in order.
fn read(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    // Its writer may be in the middle of a line.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines = whole.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn number(event: &Value) -> u64 {
    event["data"]["n"].as_u64().unwrap()
}

/// One id for each number, and each subject in order when what came again is left out. Answers how many
/// came again.
fn check(what: &str, events: &[Value]) -> usize {
    let mut ids = HashMap::new();
    let mut subjects: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut again = 0;
    for event in events {
        let (n, id) = (number(event), event["id"].as_str().unwrap());
        match ids.insert(n, id) {
            Some(before) => {
                assert_eq!(before, id, "{what}: event {n} came with two ids");
                again += 1;
            }
            None => {
                let subject = event["subject"].as_str().unwrap();
                subjects.entry(subject).or_default().push(n);
            }
        }
    }
    for (subject, numbers) in subjects {
        assert!(
            numbers.is_sorted(),
            "{what}: {subject} is turned round: {numbers:?}"
        );
    }
    again
}

/// One relay dies at the point, its twin goes on.
async fn killed_at<D: TestDriver>(point: &str, nth: u32) -> usize {
    let what = format!("{} {point}@{nth}", D::NAME);
    let scene = Scene::<D>::set().await;
    scene.publish(1..=FIRST).await;
    // It has all lanes before the other comes.
    let victim = tokio::spawn(scene.relay(&format!("{point}=kill@{nth}")).ended());
    wait_until("a relay", TIMEOUT, || async {
        let claimed = "select count(*) from pgonce.outbox_relay";
        victim.is_finished() || scene.world.see.number(claimed).await > 0
    })
    .await
    .unwrap();
    let mut heir = scene.relay("");
    // Whatever lanes it is left with, it comes by the point in the end: there is poison in every round. A round waits for the one
    // before: relays that cannot keep up would come by it later and later.
    let mut last = FIRST;
    while !victim.is_finished() {
        scene.publish(last + 1..=last + SUBJECTS).await;
        let relayed = || async {
            victim.is_finished()
                || read(&scene.file)
                    .iter()
                    .any(|event| number(event) == last + 1)
        };
        wait_until("a round", TIMEOUT, relayed).await.unwrap();
        last += SUBJECTS;
    }
    let dead = victim.await.unwrap();
    assert!(dead.was_killed(), "{what}: {dead:?}");
    let poison = SUBJECTS + (last - FIRST) / SUBJECTS;
    let parked = format!("select count(*) = {poison} from pgonce.parked where state = 'dead'");
    scene.world.see.wait_until(&parked).await;
    scene.cure().await;
    scene.publish(last + 1..=last + SUBJECTS).await;
    scene.wait_for(last + SUBJECTS).await;
    // What was relayed is settled a moment later, and a relay that stops meanwhile may leave it to the next.
    let settled = "select not exists (select from pgonce.parked)";
    scene.world.see.wait_until(settled).await;
    heir.send("stop").await;
    let Ended { status, said, .. } = heir.ended().await;
    assert!(status.success() && said.is_empty(), "{what}: {said:?}");
    let left = "select count(*) from pgonce.parked";
    assert_eq!(scene.world.see.number(left).await, 0, "{what}");
    check(&what, &read(&scene.file))
}

async fn killed_at_every_point<D: TestDriver>() {
    for nth in [1, 2] {
        let again = at_each(RELAY_POINTS, |point| killed_at::<D>(point, nth)).await;
        println!("{}, time {nth}: came again: {again:?}", D::NAME);
        // Delivered and not kept: so these prove that what comes again was looked at.
        let sent = RELAY_POINTS.iter().position(|point| *point == "relay.sent");
        assert!(again[sent.unwrap()] > 0, "{again:?}");
    }
}

#[tokio::test]
async fn a_relay_killed_at_any_point_is_survived_by_every_event_with_sqlx() {
    killed_at_every_point::<Sqlx>().await;
}

#[tokio::test]
async fn a_relay_killed_at_any_point_is_survived_by_every_event_with_tokio_postgres() {
    killed_at_every_point::<TokioPostgres>().await;
}

/// Publishes about its own subjects, two transactions open at a time, until the last number.
async fn write(see: Observer, other: Observer, numbers: Vec<u64>) {
    for pair in numbers.chunks(2) {
        see.run(&format!("begin; {}", publish(pair[0]))).await;
        if let Some(n) = pair.get(1) {
            other.run(&publish(*n)).await;
        }
        see.run("commit").await;
    }
}

#[tokio::test]
async fn relays_killed_at_any_moment_lose_nothing_and_turn_nothing_round() {
    let scene = Scene::<TokioPostgres>::set().await;
    std::fs::write(cure(&scene.file), "").unwrap();
    let mut random = pgonce_tests::random();
    let last = 400 * kills() as u64;
    let mut writers = Vec::new();
    for half in 0..2 {
        // The two of a pair are about different subjects.
        let numbers = (1..=last).filter(|n| n / 2 % 2 == half).collect();
        let (see, other) = (scene.world.observer().await, scene.world.observer().await);
        writers.push(tokio::spawn(write(see, other, numbers)));
    }
    let mut relays = vec![scene.relay(""), scene.relay("")];
    for kill in 0..kills() {
        let mark = read(&scene.file).len();
        let moved = || async {
            read(&scene.file).len() > mark + 20
                || kill > 0 && writers.iter().all(|w| w.is_finished())
        };
        wait_until("events to flow", TIMEOUT, moved).await.unwrap();
        random_moment(&mut random).await;
        let dead = relays.remove(random.random_range(0..2));
        dead.kill();
        dead.ended().await;
        relays.push(scene.relay(""));
    }
    join_all(writers).await;
    scene.wait_for(last).await;
    for mut relay in relays {
        relay.send("stop").await;
        let ended = relay.ended().await;
        assert!(ended.status.success() && ended.said.is_empty(), "{ended:?}");
    }
    let again = check("at any moment", &read(&scene.file));
    println!("{} kills, {last} events, {again} came again", kills());
}
