//! Answers that are encrypted are in no row, come back as they were, and open nowhere else.

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{AnswerKeys, Claim, Error, Failure, Intent, Once};
use pgonce_tests::{TestDriver, World, effect, for_each_driver, intent};

const SECRET: &str = "4242 4242";

fn keys(id: &str, byte: u8) -> AnswerKeys {
    AnswerKeys::new(id, [byte; 32]).unwrap()
}

fn once<D: TestDriver>(world: &World<D>, keys: AnswerKeys) -> Once<D> {
    world.another("sealed", 3, |builder| builder.encrypt_answers(keys))
}

async fn charge<D: TestDriver>(once: &Once<D>, intent: &Intent) -> pgonce::Result<String> {
    let run = once.run(intent, |mut tx| async move {
        effect(&mut tx).await?;
        tx.succeed(SECRET).await
    });
    run.await?.read()
}

async fn an_answer_is_stored_encrypted_on_every_path_and_replayed_as_it_was<D: TestDriver>(
    world: World<D>,
) {
    let once = once(&world, keys("k1", 1));
    let atomic = intent("atomic");
    for _ in 0..2 {
        assert_eq!(charge(&once, &atomic).await.unwrap(), SECRET);
    }
    let answer = once.answer(&atomic).await.unwrap().unwrap();
    assert_eq!(answer.read::<String>().unwrap(), SECRET);

    let leased = intent("leased");
    let minute = Duration::from_secs(60);
    let Claim::Run(lease) = once.lease(&leased, minute).await.unwrap() else {
        panic!("fresh")
    };
    let _ = lease.succeed(SECRET).await.unwrap();
    let Claim::Replay(done) = once.lease(&leased, minute).await.unwrap() else {
        panic!("replay")
    };
    assert_eq!(done.read::<String>().unwrap(), SECRET);

    let statement = "insert into effects (tenant, scope, key, note) select '', 'orders.create', $1, '4242 4242' returning note";
    for request in [intent("one statement"), intent("first").known_first()] {
        for _ in 0..2 {
            let done = D::execute(&once, &request, statement, request.key());
            let answer = done.await.unwrap().into_ack();
            assert_eq!(answer.json().unwrap()["note"], SECRET);
        }
    }

    for (key, is_leased) in [("refused", false), ("refused, leased", true)] {
        let refused = intent(key);
        for _ in 0..2 {
            let failure = Failure::permanent("no", "declined").with_answer(SECRET);
            let failure = failure.unwrap();
            let error = match is_leased {
                true => {
                    once.run_leased::<(), _, _>(&refused, async |_| Err(failure.clone().into()))
                        .await
                }
                false => {
                    once.run::<(), _, _>(&refused, async |_| Err(failure.clone().into()))
                        .await
                }
            };
            let Err(Error::Refused(failure)) = error else {
                panic!("refused")
            };
            assert_eq!(failure.answer().unwrap(), SECRET);
        }
    }
    assert!(!world.see.dump().await.contains(SECRET));
    assert_eq!(world.see.effects(&atomic).await, 1);
}

async fn an_answer_that_does_not_open_is_refused_and_nothing_runs_again<D: TestDriver>(
    world: World<D>,
) {
    let (mine, other) = (intent("mine"), intent("other"));
    for intent in [&mine, &other] {
        let sealed = once(&world, keys("k1", 1));
        charge(&sealed, intent).await.unwrap();
    }
    let rotated = keys("k2", 2).and_old("k1", [1; 32]).unwrap();
    assert_eq!(charge(&once(&world, rotated), &mine).await.unwrap(), SECRET);
    for wrong in [keys("k2", 2), keys("k1", 9)] {
        let error = charge(&once(&world, wrong), &mine).await.unwrap_err();
        assert_eq!(error.code(), "P4032", "{error}");
    }
    let error = charge(&world.once, &mine).await.unwrap_err();
    assert_eq!(error.code(), "P4032", "{error}");
    // A row's answer in another row, by somebody who can write to the table.
    world
        .see
        .run(
            "alter table pgonce.intent disable trigger user; \
             update pgonce.intent set answer = (select answer from pgonce.intent where key = 'other') where key = 'mine'",
        )
        .await;
    let error = charge(&once(&world, keys("k1", 1)), &mine)
        .await
        .unwrap_err();
    assert_eq!(error.code(), "P4032", "{error}");
    for intent in [&mine, &other] {
        assert_eq!(world.see.effects(intent).await, 1);
    }
}

for_each_driver!(
    an_answer_is_stored_encrypted_on_every_path_and_replayed_as_it_was,
    an_answer_that_does_not_open_is_refused_and_nothing_runs_again,
);

#[tokio::test]
async fn a_joined_answer_is_encrypted_too() {
    let world = World::<TokioPostgres>::new().await;
    let once = once(&world, keys("k1", 1).scopes(["orders.create"]));
    let mut client = once.driver().pool().get().await.unwrap();
    for replayed in [false, true] {
        let tx = client.transaction().await.unwrap();
        match once.join(tx, &intent("joined")).await.unwrap() {
            Claim::Run(joined) if !replayed => {
                let (_, tx) = joined.succeed(SECRET).await.unwrap();
                tx.commit().await.unwrap();
            }
            Claim::Replay(done) if replayed => {
                assert_eq!(done.read::<String>().unwrap(), SECRET);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(!world.see.dump().await.contains(SECRET));
    let elsewhere = Intent::new("others", "plain", "request").unwrap();
    assert_eq!(charge(&once, &elsewhere).await.unwrap(), SECRET);
    assert!(
        world.see.dump().await.contains(SECRET),
        "its scope is not encrypted"
    );
}
