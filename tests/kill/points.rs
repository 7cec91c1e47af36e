//! A worker that dies, panics or loses its connection at any point of the protocol leaves an
//! intent that the next one finishes.

use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::faults::POINTS;
use pgonce::migrate::Migrator;
use pgonce::scope::{Busy, Contract};
use pgonce::{Claim, Intent, Lease};
use pgonce_testkit::shared;
use pgonce_tests::{Observer, SCOPE, TestDriver, World, for_each_driver};
use serde_json::{Value, json};

use crate::process::{Ended, Worker};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
const HOUR: Duration = Duration::from_secs(3600);
const WAITING: &str = "orders.waiting";

/// What the next one finds after a worker died at the point.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Next {
    /// Nothing at all.
    Fresh,
    /// The answer.
    Replay,
    /// A failure, or a lease given back.
    Retry,
    /// A lease that holds, and is taken over when it has run out.
    Takeover,
}

/// Every point, the path that leads there, and what it leaves.
const CASES: [(&str, &str, Next); 16] = [
    ("claim.before_open", "atomic", Next::Fresh),
    ("claim.opened", "atomic", Next::Fresh),
    ("succeed.before_settle", "atomic", Next::Fresh),
    ("succeed.settled", "atomic", Next::Replay),
    ("fail.before_record", "failing", Next::Fresh),
    ("fail.recorded", "failing", Next::Retry),
    ("lease.before_claim", "leased", Next::Fresh),
    ("lease.claimed", "leased", Next::Takeover),
    ("lease.before_heartbeat", "heartbeat", Next::Takeover),
    ("lease.renewed", "heartbeat", Next::Takeover),
    ("lease.before_begin", "leased", Next::Takeover),
    ("lease.began", "leased", Next::Takeover),
    ("lease.before_release", "release", Next::Takeover),
    ("lease.released", "release", Next::Retry),
    ("wait.before_sleep", "waiting", Next::Fresh),
    ("wait.woken", "waiting", Next::Fresh),
];

const MIGRATE: [&str; 2] = ["migrate.before_step", "migrate.stepped"];

#[test]
fn every_fault_point_has_a_kill() {
    let kills = CASES.iter().map(|(point, ..)| *point).chain(MIGRATE);
    assert_eq!(kills.collect::<Vec<_>>(), POINTS);
}

async fn a_worker_killed_at_any_point_is_survived_by_its_intent<D: TestDriver>(world: World<D>) {
    let scene = Scene::set(world).await;
    for (point, path, next) in CASES {
        let key = format!("{point} kill");
        let dead = scene.strike(point, path, &key, "kill").await;
        assert!(dead.was_killed(), "{point}: {dead:?}");
        assert_eq!(dead.answer(), None, "{point}: {dead:?}");
        let done = scene
            .finish(point, path, &key, next == Next::Takeover)
            .await;
        match next {
            Next::Replay => assert_eq!(
                done.answer(),
                Some(&*dead.id.to_string()),
                "{point}: {done:?}"
            ),
            _ => {
                assert_eq!(
                    done.after("kind"),
                    Some(&*format!("{next:?}")),
                    "{point}: {done:?}"
                );
                assert_eq!(
                    done.answer(),
                    Some(&*done.id.to_string()),
                    "{point}: {done:?}"
                );
            }
        }
    }
}

async fn a_worker_that_panics_at_any_point_goes_on_with_the_same_pool<D: TestDriver>(
    world: World<D>,
) {
    let scene = Scene::set(world).await;
    for (point, path, next) in CASES {
        let key = format!("{point} panic");
        let survivor = scene.strike(point, path, &key, "panic").await;
        assert!(
            survivor.status.success() && survivor.said.contains(&"panicked".to_owned()),
            "{point}: {survivor:?}"
        );
        scene.same_end(point, path, &key, next, &survivor).await;
    }
}

async fn a_worker_that_loses_its_connection_at_any_point_loses_nothing<D: TestDriver>(
    world: World<D>,
) {
    let scene = Scene::set(world).await;
    for (point, path, next) in CASES {
        let key = format!("{point} error");
        let survivor = scene.strike(point, path, &key, "error").await;
        let reached: u64 = survivor.after("reached").unwrap().parse().unwrap();
        assert!(
            survivor.status.success() && reached > 0,
            "{point}: {survivor:?}"
        );
        if ["atomic", "waiting"].contains(&path) {
            // Nobody outside has noticed anything.
            assert!(survivor.answer().is_some(), "{point}: {survivor:?}");
        }
        scene.same_end(point, path, &key, next, &survivor).await;
    }
}

async fn the_end_of_a_lease_outlasts_a_connection_that_was_not_to_be_had<D: TestDriver>(
    world: World<D>,
) {
    let scene = Scene::set(world).await;
    let point = "succeed.before_settle";
    let survivor = scene.strike(point, "ending", "ending", "error").await;
    // The point was passed twice: it failed, and was tried again.
    assert_eq!(survivor.after("reached"), Some("2"), "{survivor:?}");
    assert_eq!(survivor.answer(), Some(&*survivor.id.to_string()));
    let request = intent("ending", "ending");
    assert_eq!(
        scene.world.see.record(&request, "status").await,
        "succeeded"
    );
}

struct Scene<D: TestDriver> {
    world: World<D>,
}

impl<D: TestDriver> Scene<D> {
    async fn set(world: World<D>) -> Self {
        let long = Contract::keep(YEAR).lease(HOUR);
        world.owner.define_scope(SCOPE, &long).await.unwrap();
        let waiting = Contract::keep(YEAR).busy(Busy::Wait).wait_timeout(HOUR);
        world.owner.define_scope(WAITING, &waiting).await.unwrap();
        Self { world }
    }

    /// A worker walks the path and meets its fault there.
    async fn strike(&self, point: &str, path: &str, key: &str, action: &str) -> Ended {
        let name = format!("{point}.{action}");
        let url = format!("{}?application_name={name}", self.world.url());
        let faults = format!("{point}={action}");
        let start = || Worker::start(D::NAME, &url, path, key, &faults);
        let struck = if path == "waiting" {
            // Somebody else is at it, whose end the worker waits for.
            let Claim::Run(holder) = self.world.owner.claim(&intent(path, key)).await.unwrap()
            else {
                panic!("fresh")
            };
            let worker = start();
            if (point, action) == ("wait.before_sleep", "kill") {
                let dead = worker.ended().await;
                holder.abandon().await.unwrap();
                dead
            } else {
                crate::asleep(&self.world.see, &name).await;
                holder.abandon().await.unwrap();
                worker.ended().await
            }
        } else {
            start().ended().await
        };
        // No lock and no open transaction outlives it.
        self.world.see.wait_until_clean().await;
        struck
    }

    /// Another worker, without faults, finishes what the first left.
    async fn finish(&self, point: &str, path: &str, key: &str, leased: bool) -> Ended {
        let request = intent(path, key);
        if leased {
            assert!(
                self.is_busy(&request).await,
                "{point}: taken over before the lease ran out"
            );
            self.world
                .see
                .run("select pgonce._move_clock(interval '59 minutes')")
                .await;
            assert!(
                self.is_busy(&request).await,
                "{point}: taken over before the lease ran out"
            );
            self.world
                .see
                .run("select pgonce._move_clock(interval '2 minutes')")
                .await;
        }
        let path = match path {
            "failing" => "atomic",
            "heartbeat" | "release" => "leased",
            same => same,
        };
        let done = Worker::run(D::NAME, &self.world.url(), path, key, "").await;
        assert!(
            done.status.success() && done.answer().is_some(),
            "{point}: {done:?}"
        );
        let Claim::Replay(again) = self.world.owner.claim(&request).await.unwrap() else {
            panic!("{point}: no replay")
        };
        let again = again.read::<Value>().unwrap()["by"].to_string();
        assert_eq!(Some(&*again), done.answer(), "{point}: {done:?}");
        assert_eq!(self.world.see.effects(&request).await, 1, "{point}");
        self.world.see.wait_until_clean().await;
        done
    }

    /// One that lived on has the answer, or leaves the intent as a dead one would.
    async fn same_end(&self, point: &str, path: &str, key: &str, next: Next, first: &Ended) {
        let left = first.answer().is_none();
        let leased = left && self.is_leased(path, key).await;
        assert!(!leased || next == Next::Takeover, "{point}: {first:?}");
        let done = self.finish(point, path, key, leased).await;
        if !left {
            assert_eq!(
                done.answer(),
                first.answer(),
                "{point}: {first:?}, {done:?}"
            );
        }
    }

    async fn is_leased(&self, path: &str, key: &str) -> bool {
        let request = intent(path, key);
        self.world.see.records(&request).await == 1
            && self.world.see.record(&request, "status").await == "processing"
    }

    async fn is_busy(&self, request: &Intent) -> bool {
        let leased: Claim<Lease<D>> = self.world.owner.lease(request, HOUR).await.unwrap();
        let atomic = self.world.owner.claim(request).await.unwrap();
        matches!((leased, atomic), (Claim::Busy { .. }, Claim::Busy { .. }))
    }
}

fn intent(path: &str, key: &str) -> Intent {
    let scope = if path == "waiting" { WAITING } else { SCOPE };
    Intent::new(scope, key, &json!({"item": "book"})).unwrap()
}

#[tokio::test]
async fn a_migrator_killed_at_any_point_is_survived_by_its_migration() {
    let server = shared(None).await.unwrap();
    server
        .template("empty", async |_: String| Ok::<(), std::io::Error>(()))
        .await
        .unwrap();
    for driver in [Sqlx::NAME, TokioPostgres::NAME] {
        for point in MIGRATE {
            // Each is reached once: a migration is one transaction.
            for action in ["kill@1", "panic@1", "error@1"] {
                let database = server.database_from("empty").await.unwrap();
                let url = database.url();
                let first = Worker::run(
                    driver,
                    &url,
                    "migrate",
                    "none",
                    &format!("{point}={action}"),
                )
                .await;
                match action {
                    "panic@1" => assert!(
                        first.said.contains(&"panicked".to_owned()),
                        "{point}: {first:?}"
                    ),
                    "error@1" => {
                        assert_eq!(first.after("error"), Some("08006"), "{point}: {first:?}")
                    }
                    _ => assert!(first.was_killed(), "{point} {action}: {first:?}"),
                }
                let second = Worker::run(driver, &url, "migrate", "none", "").await;
                assert!(
                    second.status.success() && second.after("error").is_none(),
                    "{point} {action}: {second:?}"
                );
                Migrator::new(TokioPostgres::connect(&url, 1))
                    .check()
                    .await
                    .unwrap();
                Observer::connect(&url).await.wait_until_clean().await;
            }
        }
    }
}

for_each_driver!(
    a_worker_killed_at_any_point_is_survived_by_its_intent,
    a_worker_that_panics_at_any_point_goes_on_with_the_same_pool,
    a_worker_that_loses_its_connection_at_any_point_loses_nothing,
    the_end_of_a_lease_outlasts_a_connection_that_was_not_to_be_had,
);
