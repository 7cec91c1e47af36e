//! A worker that was stopped for longer than its lease, and goes on as if nothing had happened,
//! can do nothing any more.

use std::sync::Mutex;
use std::time::Duration;

use pgonce::{Ack, Claim, ClaimKind, Lease};
use pgonce_testkit::wait_until;
use pgonce_tests::{TestDriver, World, ZOMBIE_ACTS, effect, for_each_driver, intent};

use crate::TIMEOUT;
use crate::process::Worker;

const MINUTE: Duration = Duration::from_secs(60);

async fn a_worker_stopped_past_its_lease_is_turned_away_in_everything_it_does<D: TestDriver>(
    world: World<D>,
) {
    for settled in [false, true] {
        let key = |act: &str| format!("{settled} {act}");
        let mut worker = Worker::start(D::NAME, &world.url(), "zombie", &settled.to_string(), "");
        worker.says("held").await;
        worker.stop();

        let mut taken = Vec::new();
        for act in ZOMBIE_ACTS {
            let request = intent(&key(act));
            let fence: i64 = world.see.record(&request, "fence").await.parse().unwrap();
            let mut lease = takeover(&world, &key(act)).await;
            assert!(
                lease.kind() == ClaimKind::Takeover && lease.fence() > fence,
                "{act}: {lease:?}"
            );
            if settled {
                let mut attempt = lease.begin().await.unwrap();
                effect(&mut attempt).await.unwrap();
                let _ = attempt
                    .succeed(Ack::value("living").unwrap())
                    .await
                    .unwrap();
            } else {
                lease.heartbeat().await.unwrap();
                taken.push((act, lease));
            }
        }
        let before = world.see.dump().await;

        worker.resume();
        worker.send("go on").await;
        let ended = worker.ended().await;
        assert!(ended.status.success(), "{ended:?}");
        for act in ZOMBIE_ACTS {
            let outcome = ended.after(act);
            assert_eq!(
                outcome,
                Some("P4012"),
                "{act}, settled {settled}: {ended:?}"
            );
        }
        assert_eq!(world.see.dump().await, before, "settled {settled}");

        for (_, lease) in taken {
            let mut attempt = lease.begin().await.unwrap();
            effect(&mut attempt).await.unwrap();
            let _ = attempt
                .succeed(Ack::value("living").unwrap())
                .await
                .unwrap();
        }
        for act in ZOMBIE_ACTS {
            assert_eq!(
                world.see.effects(&intent(&key(act))).await,
                1,
                "{act}, settled {settled}"
            );
        }
        world.see.wait_until_clean().await;
    }
}

/// Waits until the lease has run out by the database's own clock, and takes over.
async fn takeover<D: TestDriver>(world: &World<D>, key: &str) -> Lease<D> {
    let taken = Mutex::new(None);
    wait_until("the lease to run out", TIMEOUT, || async {
        match world.owner.lease(&intent(key), MINUTE).await.unwrap() {
            Claim::Run(lease) => taken.lock().unwrap().insert(lease).fence() > 0,
            Claim::Busy { .. } => false,
            other => panic!("{other:?}"),
        }
    })
    .await
    .unwrap();
    taken.into_inner().unwrap().unwrap()
}

for_each_driver!(a_worker_stopped_past_its_lease_is_turned_away_in_everything_it_does);
