//! What `run` says when the database goes away in the middle is never more than it knows.

use std::time::Duration;

use futures_util::future::join;
use pgonce::retry::Policy;
use pgonce::scope::{Busy, Contract};
use pgonce::{Ack, Claim, Error, Failure};
use pgonce_testkit::wait_until;
use pgonce_tests::{Cut, Cutter, SCOPE, TestDriver, World, effect, for_each_driver, intent, work};

const HOUR: Duration = Duration::from_secs(3600);

/// Ends the session that an attempt is on, from outside.
async fn cut_off<D: TestDriver>(world: &World<D>, attempt: &mut pgonce::Attempt<D>) {
    let pid = D::fetch(attempt.conn(), "select pg_backend_pid()")
        .await
        .unwrap()
        .unwrap();
    world
        .see
        .run(&format!("select pg_terminate_backend({pid})"))
        .await;
    world
        .see
        .wait_until(&format!(
            "select count(*) = 0 from pg_stat_activity where pid = {pid}"
        ))
        .await;
}

async fn a_commit_in_doubt_stays_in_doubt_when_nobody_can_be_asked<D: TestDriver>(world: World<D>) {
    for (cut, effects) in [(Cut::Reply, 1), (Cut::Request, 0)] {
        let mut doubts = 0;
        for round in 0..5 {
            let cutter = Cutter::in_front_of(world.server.port()).await;
            let waiting = Policy::default().tries(3).base(Duration::from_millis(200));
            let once = world.another_at(&cutter.url_for(world.database()), 2, |b| b.retry(waiting));
            let request = intent(&format!("{cut:?} {round}"));
            cutter.arm("commit\0", cut);
            let (end, ()) = join(once.run(&request, work::<D>), async {
                let is_cut = async || !cutter.is_armed();
                wait_until("the cut", crate::TIMEOUT, is_cut).await.unwrap();
                cutter.close();
            })
            .await;
            // A retry that was quicker than the end of the network has an answer.
            if let Err(error) = end {
                assert!(matches!(error, Error::Uncertain(_)), "{cut:?}: {error}");
                world.see.wait_until_clean().await;
                assert_eq!(world.see.effects(&request).await, effects);
                doubts += 1;
            }
        }
        assert!(doubts > 0, "{cut:?}: nobody was ever in doubt");
    }
}

async fn a_refusal_that_could_not_be_recorded_is_not_reported<D: TestDriver>(world: World<D>) {
    for retryable in [false, true] {
        let request = intent(&format!("refused {retryable}"));
        let mut tries = 0;
        let done = world
            .owner
            .run(&request, |mut attempt| {
                tries += 1;
                let first = tries == 1;
                let world = &world;
                async move {
                    if first {
                        cut_off(world, &mut attempt).await;
                        let failure = if retryable {
                            Failure::transient
                        } else {
                            Failure::permanent
                        };
                        return Err(failure("no", "not recorded anywhere").into());
                    }
                    effect(&mut attempt).await?;
                    attempt.succeed(Ack::status()).await
                }
            })
            .await;
        assert!(done.is_ok(), "{retryable}: {done:?}");
        assert_eq!((tries, world.see.effects(&request).await), (2, 1));
    }
}

async fn a_waiter_whose_session_is_killed_waits_on<D: TestDriver>(world: World<D>) {
    let waits = Contract::keep(HOUR).busy(Busy::Wait).wait_timeout(HOUR);
    world.owner.define_scope(SCOPE, &waits).await.unwrap();
    for leased in [false, true] {
        let request = intent(&format!("waited {leased}"));
        let name = format!("waiter{leased}");
        let waiter = world.another(&name, 2, |b| b);
        let Claim::Run(mut owner) = world.owner.claim(&request).await.unwrap() else {
            panic!("fresh")
        };
        effect(&mut owner).await.unwrap();
        let waiting = async {
            match leased {
                false => waiter.run(&request, work::<D>).await,
                true => {
                    waiter
                        .run_leased(&request, async |lease| lease.succeed(Ack::status()).await)
                        .await
                }
            }
        };
        let (done, ()) = join(waiting, async {
            for _ in 0..3 {
                let pid = crate::asleep(&world.see, &name).await;
                world.server.terminate_backend(pid).await.unwrap();
                world
                    .see
                    .wait_until(&format!(
                        "select count(*) = 0 from pg_stat_activity where pid = {pid}"
                    ))
                    .await;
            }
            crate::asleep(&world.see, &name).await;
            let _ = owner.succeed(Ack::value("owner's").unwrap()).await.unwrap();
        })
        .await;
        assert_eq!(done.unwrap().read::<String>().unwrap(), "owner's");
        assert_eq!(world.see.effects(&request).await, 1);
    }
}

for_each_driver!(
    a_commit_in_doubt_stays_in_doubt_when_nobody_can_be_asked,
    a_refusal_that_could_not_be_recorded_is_not_reported,
    a_waiter_whose_session_is_killed_waits_on,
);
