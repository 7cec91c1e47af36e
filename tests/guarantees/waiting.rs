//! A duplicate does what the contract says while the first is at work: it is rejected, waits for
//! the answer without asking again and again, or is accepted.

use std::time::Duration;

use futures_util::future::{join, join_all, try_join};
use pgonce::retry::Policy;
use pgonce::scope::{Busy, Contract};
use pgonce::{Ack, Claim, Error};
use pgonce_testkit::DelayProxy;
use pgonce_tests::{SCOPE, TestDriver, World, effect, for_each_driver, intent, work};
use tokio::time::Instant;

const HOUR: Duration = Duration::from_secs(3600);
const LONG: Duration = Duration::from_secs(30);

fn waits(at_most: Duration) -> Contract {
    Contract::keep(HOUR).busy(Busy::Wait).wait_timeout(at_most)
}

async fn a_waiter_sleeps_on_the_lock_and_is_woken_by_the_end_of_the_owner<D: TestDriver>(
    world: World<D>,
) {
    world.owner.define_scope(SCOPE, &waits(LONG)).await.unwrap();
    let proxy = DelayProxy::start(("127.0.0.1", world.server.port()), Duration::ZERO).unwrap();
    for succeeds in [true, false] {
        let request = intent(&format!("awaited {succeeds}"));
        let Claim::Run(mut owner) = world.once.claim(&request).await.unwrap() else {
            panic!("fresh")
        };
        effect(&mut owner).await.unwrap();
        let url = format!(
            "{}?application_name=waiter{succeeds}",
            proxy.url_for(world.database())
        );
        let waiter = world.another_at(&url, 2, |b| b);
        let (done, ()) = join(waiter.run(&request, work::<D>), async {
            world
                .see
                .wait_until_asleep(&format!("waiter{succeeds}"))
                .await;
            let talk = async |times| {
                let before = proxy.bytes_to_server();
                for _ in 0..times {
                    world.see.number("select 1").await;
                }
                proxy.bytes_to_server() - before
            };
            // Another connection of it may still be on its way back to the pool.
            while talk(20).await > 0 {}
            // Asleep it says nothing, however long the others talk.
            assert_eq!(talk(200).await, 0);
            if succeeds {
                let _ = owner.succeed(Ack::value("owner's").unwrap()).await.unwrap();
            } else {
                owner.abandon().await.unwrap();
            }
        })
        .await;
        let done = done.unwrap();
        assert_eq!(done.replayed(), succeeds);
        assert_eq!(world.see.effects(&request).await, 1);
        if succeeds {
            assert_eq!(done.read::<String>().unwrap(), "owner's");
        }
    }
    world.see.wait_until_clean().await;
}

async fn a_wait_is_bounded_and_ends_with_busy<D: TestDriver>(world: World<D>) {
    let bound = Duration::from_millis(300);
    world
        .owner
        .define_scope(SCOPE, &waits(bound))
        .await
        .unwrap();
    for leased in [false, true] {
        let request = intent(&format!("endless {leased}"));
        let (attempt, lease) = if leased {
            (None, Some(world.once.lease(&request, HOUR).await.unwrap()))
        } else {
            (Some(world.once.claim(&request).await.unwrap()), None)
        };
        let started = Instant::now();
        let end = world.run(&request).await;
        assert!(
            matches!(
                end,
                Err(Error::Busy {
                    accepted: false,
                    ..
                })
            ),
            "{end:?}"
        );
        assert!(
            started.elapsed() >= bound && started.elapsed() < bound * 20,
            "{:?}",
            started.elapsed()
        );
        drop((attempt, lease));
    }
}

async fn a_waiter_gets_the_answer_of_leased_work_too<D: TestDriver>(world: World<D>) {
    world.owner.define_scope(SCOPE, &waits(LONG)).await.unwrap();
    let request = intent("leased");
    let Claim::Run(lease) = world.once.lease(&request, HOUR).await.unwrap() else {
        panic!("fresh")
    };
    let waiter = world.another("waiter", 2, |b| b);
    let (done, ()) = join(waiter.run(&request, work::<D>), async {
        world
            .see
            .wait_until(
                "select count(*) > 0 from pg_stat_activity where datname = current_database() and application_name = 'waiter' \
            and query like '%wait%' and state = 'idle'",
            )
            .await;
        let _ = lease.succeed(Ack::value("leased").unwrap()).await.unwrap();
    })
    .await;
    assert_eq!(done.unwrap().read::<String>().unwrap(), "leased");
}

async fn a_duplicate_is_rejected_at_once_or_accepted_as_the_contract_says<D: TestDriver>(
    world: World<D>,
) {
    // By one Once: another believes the contract that it has asked for a moment longer.
    for (busy, accepts) in [(Busy::Reject, false), (Busy::Accept, true)] {
        world
            .owner
            .define_scope(SCOPE, &Contract::keep(HOUR).busy(busy))
            .await
            .unwrap();
        let request = intent(&format!("{busy:?}"));
        let Claim::Run(owner) = world.owner.claim(&request).await.unwrap() else {
            panic!("fresh")
        };
        let Err(Error::Busy {
            retry_after,
            accepted,
        }) = world.owner.run(&request, work::<D>).await
        else {
            panic!("busy")
        };
        assert_eq!(accepted, accepts);
        assert!(retry_after > Duration::ZERO && retry_after <= Duration::from_secs(1));
        owner.abandon().await.unwrap();
    }
}

async fn a_crowd_of_waiters_never_empties_the_pool<D: TestDriver>(world: World<D>) {
    world.owner.define_scope(SCOPE, &waits(LONG)).await.unwrap();
    let once = world.another("crowded", 6, |b| b);
    let request = intent("popular");
    let Claim::Run(owner) = once.claim(&request).await.unwrap() else {
        panic!("fresh")
    };
    let (answers, ()) = join(
        join_all((0..40).map(|_| once.run(&request, work::<D>))),
        async {
            world.see.wait_until_asleep("crowded").await;
            for n in 0..5 {
                let _ = once
                    .run(&intent(&format!("other {n}")), work::<D>)
                    .await
                    .unwrap();
            }
            let _ = owner.succeed(Ack::value("popular").unwrap()).await.unwrap();
        },
    )
    .await;
    for answer in answers {
        assert_eq!(answer.unwrap().read::<String>().unwrap(), "popular");
    }
}

async fn a_waiter_outlives_the_statement_timeout_of_its_session<D: TestDriver>(world: World<D>) {
    world.owner.define_scope(SCOPE, &waits(LONG)).await.unwrap();
    let request = intent("awaited for long");
    let Claim::Run(owner) = world.once.claim(&request).await.unwrap() else {
        panic!("fresh")
    };
    let database = world.see.text("select current_database()").await;
    let short = format!("alter database \"{database}\" set statement_timeout = '3s'");
    world.see.run(&short).await;
    // A timeout of its session is no try that failed.
    let waiter = world.another("waiter", 2, |b| b.retry(Policy::none()));
    let (done, _) = try_join(waiter.run(&request, work::<D>), async {
        // It sleeps a second time: the first statement ran out of time.
        let asleep = "from pg_stat_activity where datname = current_database() \
                      and application_name = 'waiter' and wait_event_type = 'Lock'";
        let see = &world.see;
        see.wait_until(&format!("select exists (select {asleep})"))
            .await;
        let first = see
            .text(&format!(
                "select coalesce(max(query_start), now())::text {asleep}"
            ))
            .await;
        see.wait_until(&format!(
            "select exists (select {asleep} and query_start > '{first}')"
        ))
        .await;
        owner.succeed("owner's").await
    })
    .await
    .unwrap();
    assert_eq!(done.read::<String>().unwrap(), "owner's");
}

for_each_driver!(
    a_waiter_outlives_the_statement_timeout_of_its_session,
    a_waiter_sleeps_on_the_lock_and_is_woken_by_the_end_of_the_owner,
    a_wait_is_bounded_and_ends_with_busy,
    a_waiter_gets_the_answer_of_leased_work_too,
    a_duplicate_is_rejected_at_once_or_accepted_as_the_contract_says,
    a_crowd_of_waiters_never_empties_the_pool,
);
