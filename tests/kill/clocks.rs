//! Only the database's clock decides about leases, however far it is from the workers' and
//! wherever it jumps.

use std::fs;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use pgonce::{Ack, Claim, ClaimKind, Lease};
use pgonce_tests::{TestDriver, World, effect, for_each_driver, intent};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

const MINUTE: Duration = Duration::from_secs(60);

async fn wherever_the_clock_jumps_there_is_one_holder_and_no_lease_is_dead_on_grant<
    D: TestDriver,
>(
    world: World<D>,
) {
    let seed = pgonce_tests::seed();
    let mut random = StdRng::seed_from_u64(seed);
    let request = intent("jumps");
    let mut leases: Vec<Lease<D>> = Vec::new();
    let mut takeovers = 0;
    for round in 0..40 {
        let by: i32 = random.random_range(-7200..7200);
        world
            .see
            .run(&format!(
                "select pgonce._move_clock(interval '{by} seconds')"
            ))
            .await;
        let asked = join_all((0..4).map(|_| world.owner.lease(&request, MINUTE))).await;
        let granted: Vec<_> = asked
            .into_iter()
            .filter_map(|claim| match claim.unwrap() {
                Claim::Run(lease) => Some(lease),
                Claim::Busy { .. } => None,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(
            granted.len() <= 1,
            "seed {seed}, round {round}: {granted:?}"
        );
        for lease in granted {
            let alive =
                "lease_until > pgonce.now() and lease_until <= pgonce.now() + interval '1 minute'";
            assert_eq!(
                world.see.record(&request, alive).await,
                "t",
                "seed {seed}, round {round}"
            );
            let last = leases.last().map_or(0, Lease::fence);
            assert!(
                lease.fence() > last,
                "seed {seed}, round {round}: {} after {last}",
                lease.fence()
            );
            takeovers += i32::from(lease.kind() == ClaimKind::Takeover);
            leases.push(lease);
        }
        let newest = leases.len() - 1;
        for (place, lease) in leases.iter_mut().enumerate().skip(newest.saturating_sub(3)) {
            let holds = lease.heartbeat().await.is_ok();
            assert_eq!(
                holds,
                place == newest,
                "seed {seed}, round {round}, lease {place} of {newest}"
            );
        }
    }
    assert!(
        takeovers > 0,
        "seed {seed}: the clock never left a lease behind"
    );

    let newest = leases.pop().unwrap();
    let mut attempt = newest.begin().await.unwrap();
    effect(&mut attempt).await.unwrap();
    let _ = attempt.succeed(Ack::status()).await.unwrap();
    for zombie in leases {
        assert_eq!(
            zombie.succeed(Ack::status()).await.unwrap_err().code(),
            "P4012",
            "seed {seed}"
        );
    }
    assert_eq!(world.see.effects(&request).await, 1);
}

async fn a_clock_that_goes_back_ends_no_lease_and_keeps_no_holder_from_finishing<D: TestDriver>(
    world: World<D>,
) {
    let request = intent("back");
    let Claim::Run(mut lease) = world.owner.lease(&request, MINUTE).await.unwrap() else {
        panic!("fresh")
    };
    world
        .see
        .run("select pgonce._move_clock(interval '-1 day')")
        .await;
    assert!(matches!(
        world.owner.lease(&request, MINUTE).await.unwrap(),
        Claim::Busy { .. }
    ));
    // The next heartbeat counts by the new time, so the jump is forgotten after one.
    lease.heartbeat().await.unwrap();
    assert_eq!(
        world
            .see
            .record(
                &request,
                "lease_until <= pgonce.now() + interval '1 minute'"
            )
            .await,
        "t"
    );
    let _ = lease.succeed(Ack::status()).await.unwrap();
}

/// A worker whose clock is wrong is no case of its own, because nobody asks for it.
#[test]
fn the_sdk_never_asks_the_worker_what_time_it_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("crates/pgonce/src");
    let mut folders = vec![root];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            // Keys may be made from the time: nothing is ever decided by them. And a user may
            // name a time, which is not asking for it.
            if path.is_dir() && !path.ends_with("key") {
                folders.push(path);
            } else if path.is_file() && !path.ends_with("key.rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text
                    .lines()
                    .filter(|line| !line.trim_start().starts_with("//"));
                for line in code {
                    let asks = ["SystemTime::now", "UNIX_EPOCH.elapsed", "Utc::now"];
                    assert!(
                        !asks.iter().any(|ask| line.contains(ask)),
                        "{}: {line}",
                        path.display()
                    );
                }
                read += 1;
            }
        }
    }
    assert!(
        read > 10,
        "only {read} files: is this test looking in the right place?"
    );
}

for_each_driver!(
    wherever_the_clock_jumps_there_is_one_holder_and_no_lease_is_dead_on_grant,
    a_clock_that_goes_back_ends_no_lease_and_keeps_no_holder_from_finishing,
);
