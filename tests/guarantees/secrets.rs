//! Keys, answers and payloads stay out of logs, errors and debug output.

use std::time::Duration;

use pgonce::{Ack, Claim, Error, Event, Failure, Intent, Message};
use pgonce_tests::{TestDriver, World, effect, for_each_driver};

const SECRET: &str = "s3cr3t";

async fn duplicates_leave_nothing_in_the_servers_log<D: TestDriver>(world: World<D>) {
    // Seen in the log by a name that only this test has.
    let tag = format!("{SECRET}-{}", std::process::id());
    let wanted =
        |key: &str| Intent::new("orders.create", format!("{tag}-{key}"), "request").unwrap();
    for pooled in [false, true] {
        let once = world.another(
            "secretive",
            4,
            |b| if pooled { b.behind_pooler() } else { b },
        );
        let key = format!("done-{pooled}");
        for _ in 0..2 {
            let command = wanted(&key);
            let done = once.run(&command, |mut tx| {
                let answer = format!("{tag}-answer");
                async move {
                    effect(&mut tx).await?;
                    tx.succeed(&answer).await
                }
            });
            assert_eq!(
                done.await.unwrap().into_answer().unwrap(),
                format!("{tag}-answer")
            );
        }
        let other = Intent::new("orders.create", format!("{tag}-{key}"), "another").unwrap();
        assert!(matches!(once.claim(&other).await, Err(Error::Conflict(_))));
        let held = wanted(&format!("held-{pooled}"));
        let Claim::Run(attempt) = once.claim(&held).await.unwrap() else {
            panic!("fresh")
        };
        let busy = once.claim(&held).await.unwrap();
        assert!(matches!(busy, Claim::Busy { .. }));
        attempt.abandon().await.unwrap();
        let Claim::Run(lease) = once.lease(&held, Duration::from_secs(60)).await.unwrap() else {
            panic!("fresh")
        };
        let _ = lease.succeed(&format!("{tag}-leased")).await.unwrap();
        assert!(matches!(once.claim(&held).await.unwrap(), Claim::Replay(_)));
    }
    let log = pgonce_testkit::shared(None).await.unwrap().log().unwrap();
    let leaked = log.lines().find(|line| line.contains(&tag));
    assert_eq!(leaked, None);
}

async fn a_lost_race_is_reported_and_logged_without_its_key<D: TestDriver>(world: World<D>) {
    let key = format!("{SECRET}-race-{}-{}", D::NAME, std::process::id());
    for pooled in [false, true] {
        // With the rights of an application the server does not name the row that was there already.
        let once = world.another(
            "secretive",
            2,
            |b| if pooled { b.behind_pooler() } else { b },
        );
        let key = format!("{key}-{pooled}");
        let wanted = Intent::new("orders.create", &key, "request")
            .unwrap()
            .known_first();
        let Claim::Run(late) = once.claim(&wanted).await.unwrap() else {
            panic!("fresh")
        };
        // From outside of the protocol: the lock does not keep it out.
        world
            .see
            .run(&format!(
                "insert into pgonce.intent select * from pgonce._success_row('orders.create', '{key}', '\\x01', \
                 null, null, null, '', null, null)"
            ))
            .await;
        let lost = late.succeed(&key).await.unwrap_err();
        assert!(matches!(lost, Error::LostRace(_)), "{lost}");
        let texts = format!("{lost} {lost:?}");
        assert!(!texts.contains(SECRET), "{texts}");
    }
    let log = pgonce_testkit::shared(None).await.unwrap().log().unwrap();
    let leaked = log.lines().find(|line| line.contains(&key));
    assert_eq!(leaked, None);
}

for_each_driver!(
    duplicates_leave_nothing_in_the_servers_log,
    a_lost_race_is_reported_and_logged_without_its_key,
);

#[test]
fn debug_output_holds_no_key_answer_or_payload() {
    let shown = format!(
        "{:?} {:?} {:?} {:?} {:?}",
        Intent::new("orders.create", SECRET, SECRET).unwrap(),
        Ack::value(SECRET).unwrap(),
        Failure::permanent("no", "not this one")
            .with_answer(SECRET)
            .unwrap(),
        Event::new("orders", "order.created")
            .payload(SECRET)
            .unwrap(),
        Message::new("evt-7", SECRET),
    );
    assert!(!shown.contains(SECRET), "{shown}");
}
