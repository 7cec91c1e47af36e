//! A commit whose reply was lost is found again, and never guessed about.

use pgonce::{Ack, Claim, Error, Failure, Result};
use pgonce_tests::{Cut, Cutter, TestDriver, World, effect, for_each_driver, intent, work};
use std::time::Duration;

const COMMIT: &str = "commit\0";

async fn a_lost_commit_is_resolved_by_claiming_again<D: TestDriver>(world: World<D>) {
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let once = world.another_at(&cutter.url_for(world.database()), 4, |b| b);
    for cut in [Cut::Reply, Cut::Crash, Cut::Request] {
        for round in 0..5 {
            let request = intent(&format!("{cut:?} {round}"));
            cutter.arm(COMMIT, cut);
            let done = once.run(&request, work::<D>).await.unwrap();
            assert!(!cutter.is_armed());
            // The commit that arrived is found; the one that did not is made again.
            assert_eq!(done.replayed(), cut != Cut::Request);
            assert_eq!(
                done.read::<serde_json::Value>().unwrap()["ordered"],
                request.key()
            );
            assert_eq!(world.see.effects(&request).await, 1);
        }
    }
    world.see.wait_until_clean().await;
}

async fn a_lost_commit_is_reported_as_uncertain_and_nothing_else<D: TestDriver>(world: World<D>) {
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let once = world.another_at(&cutter.url_for(world.database()), 4, |b| b);
    for (cut, effects) in [(Cut::Reply, 1), (Cut::Crash, 1), (Cut::Request, 0)] {
        let request = intent(&format!("{cut:?}"));
        let Claim::Run(mut attempt) = once.claim(&request).await.unwrap() else {
            panic!("fresh")
        };
        effect(&mut attempt).await.unwrap();
        cutter.arm(COMMIT, cut);
        let end = attempt.succeed(Ack::status()).await;
        assert!(matches!(end, Err(Error::Uncertain(_))), "{cut:?}: {end:?}");
        world.see.wait_until_clean().await;
        assert_eq!(world.see.effects(&request).await, effects);
    }
}

async fn a_lost_reply_to_a_recorded_failure_ends_in_that_failure<D: TestDriver>(world: World<D>) {
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let once = world.another_at(&cutter.url_for(world.database()), 4, |b| b);
    for cut in [Cut::Reply, Cut::Crash, Cut::Request] {
        let request = intent(&format!("{cut:?}"));
        cutter.arm("card_declined", cut);
        let end = once
            .run::<(), _, _>(&request, async |_attempt| {
                Err(Failure::permanent("card_declined", "no").into())
            })
            .await;
        assert!(!cutter.is_armed());
        assert!(matches!(end, Err(Error::Refused(_))), "{cut:?}: {end:?}");
        assert_eq!(world.see.record(&request, "status").await, "failed_final");
    }
}

/// What did not reach the server is sent again while the lease holds. What reached it stays uncertain: the
/// next try is turned away, and only a claim knows by whom.
#[track_caller]
fn assert_resolved(cut: Cut, end: Result<()>) {
    match cut {
        Cut::Request => assert!(end.is_ok(), "{end:?}"),
        Cut::Reply | Cut::Crash => assert!(matches!(end, Err(Error::Uncertain(_))), "{end:?}"),
    }
}

async fn a_lost_reply_to_a_lease_or_its_end_is_uncertain<D: TestDriver>(world: World<D>) {
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let once = world.another_at(&cutter.url_for(world.database()), 4, |b| b);
    let minute = Duration::from_secs(60);
    for cut in [Cut::Reply, Cut::Crash, Cut::Request] {
        // Warm, so that the name of the intent is sent only with the claim itself.
        let request = intent(&format!("warm {cut:?}"));
        let Claim::Run(lease) = once.lease(&request, minute).await.unwrap() else {
            panic!("fresh")
        };
        // One statement, which commits itself.
        cutter.arm(request.key(), cut);
        let end = lease.succeed(Ack::status()).await.map(drop);
        assert_resolved(cut, end);

        let request = intent(&format!("lost {cut:?}"));
        cutter.arm(request.key(), cut);
        let end = once.lease(&request, minute).await;
        assert!(matches!(end, Err(Error::Uncertain(_))), "{cut:?}: {end:?}");

        let request = intent(&format!("failing {cut:?}"));
        let Claim::Run(lease) = once.lease(&request, minute).await.unwrap() else {
            panic!("fresh")
        };
        cutter.arm("card_declined", cut);
        let end = lease.fail(Failure::permanent("card_declined", "no")).await;
        assert_resolved(cut, end);
    }
}

async fn a_connection_cut_inside_the_work_is_retried_and_leaves_nothing<D: TestDriver>(
    world: World<D>,
) {
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let once = world.another_at(&cutter.url_for(world.database()), 4, |b| b);
    for text in ["insert into effects", "begin", "pgonce."] {
        for cut in [Cut::Request, Cut::Reply] {
            let request = intent(&format!("{text} {cut:?}"));
            cutter.arm(text, cut);
            let done = once.run(&request, work::<D>).await.unwrap();
            assert!(!done.replayed());
            assert_eq!(world.see.effects(&request).await, 1);
            cutter.arm("never", cut);
        }
    }
    world.see.wait_until_clean().await;
}

for_each_driver!(
    a_lost_commit_is_resolved_by_claiming_again,
    a_lost_commit_is_reported_as_uncertain_and_nothing_else,
    a_lost_reply_to_a_recorded_failure_ends_in_that_failure,
    a_lost_reply_to_a_lease_or_its_end_is_uncertain,
    a_connection_cut_inside_the_work_is_retried_and_leaves_nothing,
);
