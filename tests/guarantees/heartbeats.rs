//! A lease lives as long as its holder renews it, and the holder stops when it cannot.

use std::future::pending;
use std::time::Duration;

use futures_util::future::join;
use pgonce::scope::{Contract, Stale};
use pgonce::{Ack, Claim, Error};
use pgonce_tests::{
    Cutter, DropFlag, SCOPE, TestDriver, World, digest_of, for_each_driver, intent,
};

const SHORT: Duration = Duration::from_millis(500);

async fn held_work_keeps_a_short_lease_alive_far_beyond_its_length<D: TestDriver>(world: World<D>) {
    let request = intent("long work");
    // Long enough for a machine that stops for seconds now and then.
    let short = Duration::from_secs(3);
    let Claim::Run(mut lease) = world.once.lease(&request, short).await.unwrap() else {
        panic!("fresh")
    };
    let first = world.see.record(&request, "lease_until").await;
    let watch = async {
        // Four lengths on it is still held, and nobody else can have it.
        world.see.wait_until(&format!("select lease_until > '{first}'::timestamptz + interval '12 seconds' from pgonce.intent")).await;
        assert!(matches!(
            world.once.lease(&request, short).await.unwrap(),
            Claim::Busy { .. }
        ));
        "done"
    };
    assert_eq!(lease.renew_while(watch).await.unwrap(), "done");
    let done = lease.succeed(Ack::status()).await.unwrap();
    assert_eq!(done.attempts(), 1);
}

async fn work_that_was_taken_over_is_stopped<D: TestDriver>(world: World<D>) {
    let request = intent("stolen");
    let Claim::Run(mut lease) = world.once.lease(&request, SHORT).await.unwrap() else {
        panic!("fresh")
    };
    let stopped = DropFlag::default();
    let guard = stopped.guard();
    let (held, ()) = join(
        lease.renew_while(async move {
            let _guard = guard;
            pending::<()>().await;
        }),
        async {
            // In one transaction, so that no heartbeat comes in between.
            let thief = world.observer().await;
            let print = digest_of(&request);
            thief
                .run("begin; update pgonce.intent set lease_until = pgonce.now()")
                .await;
            let steal = format!(
                "select outcome from pgonce.claim('{SCOPE}', 'stolen', {print}, interval '1 hour')"
            );
            assert_eq!(thief.text(&steal).await, "takeover");
            thief.run("commit").await;
        },
    )
    .await;
    assert!(matches!(held, Err(Error::Fenced(_))), "{held:?}");
    assert!(stopped.is_up());
    assert_eq!(
        lease.succeed(Ack::status()).await.unwrap_err().code(),
        "P4012"
    );
}

async fn work_is_stopped_before_its_lease_ends_when_the_database_is_out_of_reach<D: TestDriver>(
    world: World<D>,
) {
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let once = world.another_at(&cutter.url_for(world.database()), 2, |b| b);
    let request = intent("cut off");
    let Claim::Run(mut lease) = once.lease(&request, SHORT).await.unwrap() else {
        panic!("fresh")
    };
    cutter.close();
    let stopped = DropFlag::default();
    let guard = stopped.guard();
    let held = lease
        .renew_while(async move {
            let _guard = guard;
            pending::<()>().await;
        })
        .await;
    assert!(matches!(held, Err(Error::Fenced(_))), "{held:?}");
    assert!(stopped.is_up());
    world
        .see
        .wait_until("select lease_until <= pgonce.now() from pgonce.intent")
        .await;
    let Claim::Run(next) = world.once.lease(&request, SHORT).await.unwrap() else {
        panic!("takeover")
    };
    assert!(next.fence() > lease.fence());
}

async fn a_lease_starts_when_its_lock_is_got_not_when_its_transaction_began<D: TestDriver>(
    world: World<D>,
) {
    // A claim that had to wait is not dead on grant.
    let late = world.observer().await;
    late.run("begin; select 1").await;
    late.wait_until("select clock_timestamp() > now() + interval '200 ms'")
        .await;
    late.run("select * from pgonce.claim('s', 'k', '\\x01', interval '100 ms')")
        .await;
    assert_eq!(
        late.text("select lease_until > now() + interval '250 ms' from pgonce.intent")
            .await,
        "t"
    );
    late.run("rollback").await;
}

async fn what_becomes_of_a_vanished_holder_is_what_the_contract_says<D: TestDriver>(
    world: World<D>,
) {
    for stale in [Stale::Takeover, Stale::Hold, Stale::Refuse] {
        world
            .owner
            .define_scope(SCOPE, &Contract::keep(SHORT * 10_000).stale(stale))
            .await
            .unwrap();
        let request = intent(&format!("{stale:?}"));
        let Claim::Run(lease) = world.once.lease(&request, SHORT).await.unwrap() else {
            panic!("fresh")
        };
        drop(lease);
        world
            .see
            .run("update pgonce.intent set lease_until = pgonce.now() where status = 'processing'")
            .await;
        for _ in 0..2 {
            let claim = world.once.lease(&request, SHORT * 1000).await.unwrap();
            match (stale, claim) {
                (Stale::Takeover, Claim::Run(lease)) => lease.release().await.unwrap(),
                (Stale::Hold, Claim::Busy { .. }) => {}
                (Stale::Refuse, Claim::Refused(failure)) => assert_eq!(failure.code(), "abandoned"),
                (_, other) => panic!("{stale:?}: {other:?}"),
            }
        }
    }
}

async fn a_refusal_after_a_vanished_holder_is_final<D: TestDriver>(world: World<D>) {
    world
        .owner
        .define_scope(SCOPE, &Contract::keep(SHORT * 10_000).stale(Stale::Refuse))
        .await
        .unwrap();
    for leased in [false, true] {
        let request = intent(&format!("abandoned {leased}"));
        let Claim::Run(zombie) = world.once.lease(&request, SHORT).await.unwrap() else {
            panic!("fresh")
        };
        world
            .see
            .run("update pgonce.intent set lease_until = pgonce.now() where status = 'processing'")
            .await;
        if leased {
            assert!(matches!(
                world.once.lease(&request, SHORT).await.unwrap(),
                Claim::Refused(_)
            ));
        } else {
            assert_eq!(world.run(&request).await.unwrap_err().code(), "P4030");
        }
        assert!(
            zombie.succeed(Ack::status()).await.is_err(),
            "leased {leased}"
        );
        assert_eq!(world.run(&request).await.unwrap_err().code(), "P4030");
        assert_eq!(world.see.record(&request, "status").await, "failed_final");
    }
}

async fn a_write_under_a_lease_has_the_isolation_that_was_chosen<D: TestDriver>(world: World<D>) {
    let once = world.another("strict", 2, |b| {
        b.isolation(pgonce::Isolation::Serializable)
    });
    let Claim::Run(lease) = once.lease(&intent("k"), SHORT * 100).await.unwrap() else {
        panic!("fresh")
    };
    let mut attempt = lease.begin().await.unwrap();
    let level = D::fetch(
        attempt.conn(),
        "select current_setting('transaction_isolation')",
    )
    .await
    .unwrap();
    assert_eq!(level.as_deref(), Some("serializable"));
    let _ = attempt.succeed(Ack::status()).await.unwrap();
}

async fn leased_work_runs_once_and_replays<D: TestDriver>(world: World<D>) {
    let request = intent("leased run");
    let mut answers = Vec::new();
    for _ in 0..3 {
        let run = world.once.run_leased(&request, async |mut lease| {
            let receipt = lease.renew_while(async { "receipt" }).await?;
            let mut attempt = lease.begin().await?;
            pgonce_tests::effect(&mut attempt).await?;
            attempt.succeed(Ack::value(receipt)?).await
        });
        answers.push(run.await.unwrap());
    }
    assert_eq!(
        answers
            .iter()
            .map(|done| done.replayed())
            .collect::<Vec<_>>(),
        [false, true, true]
    );
    assert_eq!(answers[2].read::<String>().unwrap(), "receipt");
    assert_eq!(world.see.effects(&request).await, 1);
}

for_each_driver!(
    held_work_keeps_a_short_lease_alive_far_beyond_its_length,
    work_that_was_taken_over_is_stopped,
    work_is_stopped_before_its_lease_ends_when_the_database_is_out_of_reach,
    a_lease_starts_when_its_lock_is_got_not_when_its_transaction_began,
    what_becomes_of_a_vanished_holder_is_what_the_contract_says,
    a_refusal_after_a_vanished_holder_is_final,
    a_write_under_a_lease_has_the_isolation_that_was_chosen,
    leased_work_runs_once_and_replays,
);
