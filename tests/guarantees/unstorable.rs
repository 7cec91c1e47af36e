//! Leased work is recorded whatever its answer, its reference or its failure hold that cannot be kept.

use std::time::Duration;

use pgonce::migrate::Migrator;
use pgonce::scope::Contract;
use pgonce::{Ack, Error, Failure};
use pgonce_tests::{SCOPE, TestDriver, World, effect, for_each_driver, intent};

const MINUTE: Duration = Duration::from_secs(60);

/// It may have happened outside, and would happen again: without what cannot be kept, but recorded.
async fn leased_work_is_recorded_though_its_answer_cannot_be_kept<D: TestDriver>(world: World<D>) {
    let contract = Contract::keep(MINUTE).max_answer(40);
    world.owner.define_scope(SCOPE, &contract).await.unwrap();
    let deep = (0..200).fold(serde_json::json!(1), |inner, _| serde_json::json!([inner]));
    let unwritable: serde_json::Value = serde_json::json!({"a\0": 1});
    for (key, answer) in [
        ("large", serde_json::json!("x".repeat(50))),
        ("nul", serde_json::json!("\0")),
        ("name", unwritable),
        ("deep", deep),
        ("sealed", serde_json::json!({"pgonce_sealed": 1})),
    ] {
        for end in ["succeed", "transact"] {
            let wanted = intent(&format!("{key} {end}"));
            let mut runs = 0;
            let mut run = async || {
                let done = world.once.run_leased(&wanted, |lease| {
                    runs += 1;
                    let answer = &answer;
                    async move {
                        match end {
                            "succeed" => lease.succeed(answer).await,
                            _ => {
                                let work = |mut tx: pgonce::Attempt<D>| async move {
                                    effect(&mut tx).await?;
                                    tx.succeed(answer).await
                                };
                                lease.transact(work).await
                            }
                        }
                    }
                });
                done.await
                    .unwrap_or_else(|error| panic!("{key}, {end}: {error:?}"))
            };
            let (first, second) = (run().await, run().await);
            assert!(!first.replayed() && second.replayed(), "{key}, {end}");
            assert_eq!(first.ack(), second.ack(), "{key}, {end}");
            assert_eq!((runs, first.ack().json()), (1, None), "{key}, {end}");
            let effects = i64::from(end == "transact");
            assert_eq!(world.see.effects(&wanted).await, effects, "{key}, {end}");
        }
    }
    // What can be kept is kept: the reference.
    let large = Ack::value(&"x".repeat(50)).unwrap();
    let wanted = intent("referred");
    let done = world
        .once
        .run_leased(&wanted, |lease| {
            let ack = large
                .clone()
                .and_reference("order", 7)
                .keep_for(Duration::ZERO);
            async move { lease.succeed(ack).await }
        })
        .await
        .unwrap();
    assert_eq!(done.ack().reference(), Some(("order", "7")));
    assert!(world.run(&wanted).await.unwrap().replayed());
}

/// An answer, a reference, a failure with a character that the encoding of the database does not have.
async fn an_encoding_keeps_no_leased_work_from_being_recorded<D: TestDriver>(world: World<D>) {
    let see = &world.see;
    let name = format!("{}_latin1", world.database());
    see.run(&format!(
        "create database {name} encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0"
    ))
    .await;
    let url = world.server.url_for(&name);
    let once = world.another_at(&url, 2, |b| b);
    let migrator = Migrator::new(D::connect(&url, 1));
    migrator.up().await.unwrap();
    for (key, ack) in [
        ("answer", Ack::value("\u{65e5}").unwrap()),
        ("reference", Ack::reference_to("\u{65e5}", 1)),
    ] {
        let run = async || {
            let ack = ack.clone();
            let wanted = intent(key);
            let done = once.run_leased(&wanted, |lease| lease.succeed(ack.clone()));
            done.await
                .unwrap_or_else(|error| panic!("{key}: {error:?}"))
        };
        let (first, second) = (run().await, run().await);
        assert!(!first.replayed() && second.replayed(), "{key}");
        assert_eq!(first.ack(), second.ack(), "{key}");
        assert_eq!(first.ack(), &Ack::status(), "{key}");
    }
    let odd = Failure::permanent("no_\u{65e5}", "\u{65e5}").keep_for(Duration::ZERO);
    for leased in [true, false] {
        let wanted = intent(&format!("failure {leased}"));
        let mut runs = 0;
        for _ in 0..2 {
            let failed = match leased {
                true => {
                    once.run_leased::<(), _, _>(&wanted, |_| {
                        runs += 1;
                        async { Err(odd.clone().into()) }
                    })
                    .await
                }
                false => {
                    once.run::<(), _, _>(&wanted, |_| {
                        runs += 1;
                        async { Err(odd.clone().into()) }
                    })
                    .await
                }
            };
            assert!(
                matches!(failed, Err(Error::Refused(_))),
                "{leased}: {failed:?}"
            );
        }
        assert_eq!(runs, 1, "{leased}");
    }
    drop((migrator, once));
    see.run(&format!("drop database {name} with (force)")).await;
}

for_each_driver!(
    leased_work_is_recorded_though_its_answer_cannot_be_kept,
    an_encoding_keeps_no_leased_work_from_being_recorded,
);
