//! A cache in front of the database replays what is stored, and changes nothing else.

use std::time::{Duration, Instant};

use pgonce::scope::Contract;
use pgonce::{AnswerKeys, Claim, Error, Intent, Once, ReplayCache};
use pgonce_tests::{
    Cut, Cutter, SCOPE, TestDriver, World, for_each_driver, intent, poll_pause, work,
};
use serde_json::json;

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(300);

/// One that believes what it knows for long, and one that does not.
fn lasting() -> ReplayCache {
    ReplayCache::in_process().max_staleness(HOUR)
}

fn brief() -> ReplayCache {
    ReplayCache::in_process().max_staleness(MOMENT)
}

pub(crate) fn cached<D: TestDriver>(world: &World<D>, cache: ReplayCache) -> Once<D> {
    world.another("cached", 4, |builder| builder.cache(cache))
}

pub(crate) fn hits<D: TestDriver>(once: &Once<D>) -> u64 {
    once.cache_counts().unwrap().hits
}

/// Asks for an answer until the cache has it.
pub(crate) async fn warm<D: TestDriver>(once: &Once<D>, intent: &Intent) {
    let before = hits(once);
    while hits(once) == before {
        let answer = once.answer(intent).await.unwrap();
        assert_eq!(
            answer.unwrap().read::<serde_json::Value>().unwrap()["ordered"],
            intent.key()
        );
        poll_pause().await;
    }
}

async fn a_cached_answer_needs_no_database<D: TestDriver>(world: World<D>) {
    let once = cached(&world, lasting());
    let request = intent("cached");
    let first = once.run(&request, work::<D>).await.unwrap();
    warm(&once, &request).await;
    // Nobody can read a row now, and nothing waits for it.
    world
        .see
        .run("begin; lock table pgonce.intent in access exclusive mode")
        .await;
    let before = once.cache_counts().unwrap();
    let done = once.run(&request, work::<D>).await.unwrap();
    assert!(done.replayed() && done.ack() == first.ack());
    assert_eq!((done.attempts(), hits(&once)), (1, before.hits + 1));
    let done = once
        .run_leased::<(), _, _>(&request, async |_| panic!("cached"))
        .await;
    assert_eq!(done.unwrap().ack(), first.ack());
    for claimed in [
        once.claim(&request)
            .await
            .map(|claim| matches!(claim, Claim::Replay(_))),
        once.lease(&request, MINUTE)
            .await
            .map(|claim| matches!(claim, Claim::Replay(_))),
        once.answer(&request).await.map(|answer| answer.is_some()),
    ] {
        assert!(claimed.unwrap());
    }
    let counts = once.cache_counts().unwrap();
    assert_eq!(
        (counts.hits, counts.misses),
        (before.hits + 5, before.misses)
    );
    world.see.run("rollback").await;
    // They count as duplicates all the same.
    once.flush().await.unwrap();
    let replays = "select sum(replays) >= 6 from pgonce.suppressed";
    world.see.wait_until(replays).await;
    assert_eq!(world.see.effects(&request).await, 1);
}

async fn another_request_or_tenant_under_a_cached_key_is_decided_by_the_database<D: TestDriver>(
    world: World<D>,
) {
    let once = cached(&world, lasting());
    let request = intent("shared key");
    let _ = once.run(&request, work::<D>).await.unwrap();
    warm(&once, &request).await;
    let changed = Intent::new(SCOPE, "shared key", &json!({"item": "pen"})).unwrap();
    let conflict = once.run(&changed, work::<D>).await;
    assert!(matches!(conflict, Err(Error::Conflict(_))), "{conflict:?}");
    assert!(once.answer(&changed).await.unwrap().is_none());
    let theirs = request.clone().tenant("other").unwrap();
    let elsewhere = Intent::new("orders.cancel", "shared key", &json!({"item": "book"})).unwrap();
    for other in [theirs, elsewhere] {
        assert!(!once.run(&other, work::<D>).await.unwrap().replayed());
        assert_eq!(world.see.effects(&other).await, 1);
    }
    warm(&once, &request).await;
}

/// The claim, the work and its end: only a committed end is an answer.
async fn what_is_not_committed_is_never_replayed<D: TestDriver>(world: World<D>) {
    let cutter = Cutter::in_front_of(world.server.port()).await;
    let url = cutter.url_for(world.database());
    let once = world.another_at(&url, 4, |builder| builder.cache(lasting()));
    let known = intent("known");
    let _ = once.run(&known, work::<D>).await.unwrap();
    warm(&once, &known).await;
    for (cut, effects) in [(None, 0), (Some(Cut::Request), 0), (Some(Cut::Reply), 1)] {
        let request = intent(&format!("{cut:?}"));
        let Claim::Run(attempt) = once.claim(&request).await.unwrap() else {
            panic!("fresh")
        };
        let meanwhile = once.claim(&request).await.unwrap();
        assert!(matches!(meanwhile, Claim::Busy { .. }), "{meanwhile:?}");
        match cut {
            Some(cut) => {
                cutter.arm("commit\0", cut);
                let end = work::<D>(attempt).await;
                assert!(matches!(end, Err(Error::Uncertain(_))), "{end:?}");
            }
            None => attempt.abandon().await.unwrap(),
        }
        world.see.wait_until_clean().await;
        let done = once.run(&request, work::<D>).await.unwrap();
        assert_eq!(done.replayed(), effects == 1, "{cut:?}");
        assert_eq!(world.see.effects(&request).await, 1);
        warm(&once, &request).await;
    }
}

/// Replays until the bound, and not after it; then the key is free.
async fn evicted<D: TestDriver>(world: &World<D>, once: &Once<D>, request: &Intent, act: &str) {
    let effects = world.see.effects(request).await;
    warm(once, request).await;
    world.see.run(act).await;
    let acted = Instant::now();
    loop {
        let begun = acted.elapsed();
        let done = once.run(request, work::<D>).await.unwrap();
        if !done.replayed() {
            break;
        }
        assert!(begun < MOMENT, "{act}: replayed {begun:?} later");
        poll_pause().await;
    }
    assert_eq!(world.see.effects(request).await, effects + 1, "{act}");
}

async fn an_eviction_reaches_every_cache_in_time<D: TestDriver>(world: World<D>) {
    let once = cached(&world, brief());
    let request = intent("evicted");
    let _ = once.run(&request, work::<D>).await.unwrap();
    let evict = format!(
        "select pgonce.intervene('evict', '{SCOPE}', 'evicted', 'ticket 7', p_force => true)"
    );
    for act in [
        &*evict,
        "delete from pgonce.intent",
        "truncate pgonce.intent",
        // Seconds after its retention, by the clock of the database.
        "select pgonce._move_clock(interval '8 days')",
    ] {
        evicted(&world, &once, &request, act).await;
    }
}

/// What removes nothing that a cache could replay costs no cache anything.
async fn only_the_removal_of_an_answer_changes_the_state<D: TestDriver>(world: World<D>) {
    let once = cached(&world, lasting());
    let state = async || {
        world
            .see
            .text("select state from pgonce._replay_state()")
            .await
    };
    let before = state().await;
    let _ = once.run(&intent("a"), work::<D>).await.unwrap();
    let Claim::Run(lease) = once.lease(&intent("b"), MINUTE).await.unwrap() else {
        panic!("fresh")
    };
    lease.forget().await.unwrap();
    world
        .see
        .run("select pgonce._move_clock(interval '100 days'); select pgonce.purge()")
        .await;
    assert_eq!(world.see.records(&intent("a")).await, 0);
    assert_eq!(state().await, before);
    let mut seen = vec![before];
    for act in [
        "delete from pgonce.intent",
        "delete from pgonce.intent",
        "truncate pgonce.intent",
    ] {
        for key in ["c", "d"] {
            let _ = world.run(&intent(key)).await.unwrap();
        }
        world.see.run(act).await;
        seen.push(state().await);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 4);
}

/// The contract's promise ends before the cache's own time does.
async fn an_answer_is_never_replayed_beyond_its_expiry<D: TestDriver>(world: World<D>) {
    let contract = Contract::keep(Duration::from_secs(8));
    world.owner.define_scope(SCOPE, &contract).await.unwrap();
    let once = cached(&world, lasting());
    let request = intent("short");
    let _ = once.run(&request, work::<D>).await.unwrap();
    warm(&once, &request).await;
    // It is not renewed, and the clock was asked for once only.
    let left = "select (expires_at <= pgonce.now())::text from pgonce.intent where key = 'short'";
    loop {
        let over = world.see.text(left).await == "true";
        let done = once.run(&request, work::<D>).await.unwrap();
        assert!(!(over && done.replayed()), "replayed after its expiry");
        if !done.replayed() {
            break;
        }
        poll_pause().await;
    }
}

async fn an_answer_that_is_in_use_is_read_again_before_its_time_is_over<D: TestDriver>(
    world: World<D>,
) {
    let once = cached(&world, lasting().ttl(MINUTE));
    let request = intent("hot");
    let _ = once.run(&request, work::<D>).await.unwrap();
    warm(&once, &request).await;
    let filled = once.cache_counts().unwrap().filled;
    // Most of the minute is over: the clock is read with the next question, which a fill asks too.
    world
        .see
        .run("select pgonce._move_clock(interval '47 seconds')")
        .await;
    let other = intent("other");
    let _ = once.run(&other, work::<D>).await.unwrap();
    warm(&once, &other).await;
    loop {
        let before = hits(&once);
        assert!(once.answer(&request).await.unwrap().is_some());
        if hits(&once) > before && once.cache_counts().unwrap().filled > filled + 1 {
            break;
        }
        poll_pause().await;
    }
}

async fn encrypted_answers_are_replayed_and_open_only_with_their_key<D: TestDriver>(
    world: World<D>,
) {
    let keys = |byte| AnswerKeys::new("k", [byte; 32]).unwrap();
    let sealed = |byte| {
        let cache = lasting();
        world.another("sealed", 3, |b| b.encrypt_answers(keys(byte)).cache(cache))
    };
    let once = sealed(1);
    let request = intent("sealed");
    let _ = once.run(&request, work::<D>).await.unwrap();
    warm(&once, &request).await;
    let other = sealed(2);
    for _ in 0..3 {
        let error = other.run(&request, work::<D>).await.unwrap_err();
        assert_eq!(error.code(), "P4032");
    }
}

for_each_driver!(
    a_cached_answer_needs_no_database,
    another_request_or_tenant_under_a_cached_key_is_decided_by_the_database,
    what_is_not_committed_is_never_replayed,
    an_eviction_reaches_every_cache_in_time,
    only_the_removal_of_an_answer_changes_the_state,
    an_answer_is_never_replayed_beyond_its_expiry,
    an_answer_that_is_in_use_is_read_again_before_its_time_is_over,
    encrypted_answers_are_replayed_and_open_only_with_their_key,
);
