//! Redis in front of the database, killed, frozen, flushed and filled with lies: it costs time at most.

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::scope::Contract;
use pgonce::{AnswerKeys, Error, Intent, Once, OnceBuilder, ReplayCache};
use pgonce_testkit::Redis;
use pgonce_tests::{
    SCOPE, TestDriver, World, connect_redis, for_each_driver, intent, poll_pause, work,
};
use redis::AsyncTypedCommands as _;
use redis::aio::MultiplexedConnection;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::cached::{cached, hits, warm};

const HOUR: Duration = Duration::from_secs(3600);
const KEY: [u8; 32] = [7; 32];

/// A machine under load answers late: that is not what is tested here.
const PLENTY: Duration = Duration::from_secs(20);

struct Place<D: TestDriver> {
    world: World<D>,
    redis: Redis,
    /// Another client of it, who can do what we can.
    other: MultiplexedConnection,
}

impl<D: TestDriver> Place<D> {
    async fn new(world: World<D>) -> Self {
        let redis = Redis::start().await.unwrap();
        let other = connect_redis(&redis.url()).await;
        Self {
            world,
            redis,
            other,
        }
    }

    fn cache(&self) -> ReplayCache {
        let cache = ReplayCache::redis(&self.redis.url(), KEY).unwrap();
        cache.max_staleness(HOUR).timeout(PLENTY)
    }

    fn once(&self) -> Once<D> {
        cached(&self.world, self.cache())
    }

    /// An answer that is stored and cached, and the name of its value there.
    async fn known(&mut self, once: &Once<D>, key: &str) -> (Intent, String) {
        let before = self.other.keys("*").await.unwrap();
        let request = intent(key);
        assert!(!once.run(&request, work::<D>).await.unwrap().replayed());
        warm(once, &request).await;
        let mut names = self.other.keys("*").await.unwrap();
        names.retain(|name| !before.contains(name));
        assert_eq!(names.len(), 1, "one value for each");
        (request, names.remove(0))
    }

    /// Its value, byte by byte.
    async fn value(&mut self, name: &str) -> Vec<u8> {
        let mut get = redis::cmd("GET");
        get.arg(name).query_async(&mut self.other).await.unwrap()
    }

    /// A duplicate is what it always was.
    async fn replays(&self, once: &Once<D>, request: &Intent) {
        let done = once.run(request, work::<D>).await.unwrap();
        let answer: serde_json::Value = done.read().unwrap();
        assert!(done.replayed());
        assert_eq!(answer["ordered"], request.key());
        assert_eq!(self.world.see.effects(request).await, 1);
    }
}

async fn processes_share_answers_and_a_new_one_finds_them<D: TestDriver>(world: World<D>) {
    let mut place = Place::new(world).await;
    let first = place.once();
    let (request, _) = place.known(&first, "shared").await;
    drop(first);
    let restarted = place.once();
    let both = cached(&place.world, place.cache().and_in_process());
    // Nothing is known about the database at first; then only the value that is there is used.
    let other = intent("asks for the state");
    let _ = restarted.run(&other, work::<D>).await.unwrap();
    warm(&restarted, &other).await;
    let before = hits(&restarted);
    place.replays(&restarted, &request).await;
    assert_eq!(hits(&restarted), before + 1);

    warm(&both, &request).await;
    // The process has it now, whatever becomes of the server.
    place.redis.kill().await.unwrap();
    let before = hits(&both);
    place.replays(&both, &request).await;
    assert_eq!(hits(&both), before + 1);
}

async fn a_lie_is_ignored_and_counted<D: TestDriver>(world: World<D>) {
    let mut place = Place::new(world).await;
    let once = place.once();
    let (mine, name) = place.known(&once, "mine").await;
    let (other, other_name) = place.known(&once, "other").await;
    let good = place.value(&name).await;
    let foreign = {
        let cache = ReplayCache::redis(&place.redis.url(), [8; 32]).unwrap();
        let foreign = cached(&place.world, cache.max_staleness(HOUR).timeout(PLENTY));
        let before = place.other.keys("*").await.unwrap();
        warm(&foreign, &mine).await;
        let mut names = place.other.keys("*").await.unwrap();
        names.retain(|name| !before.contains(name));
        place.value(&names.remove(0)).await
    };
    let at = |position: usize| {
        let mut value = good.clone();
        value[position] ^= 1;
        value
    };
    // What we write, before it is sealed.
    let see = &place.world.see;
    let print = mine.fingerprint().as_bytes().to_vec();
    let forged = json!({
        "state": see.text("select state from pgonce._replay_state()").await, "fingerprint": print,
        "from_ms": 0, "until_ms": i64::MAX, "renewable": false, "fence": 1, "attempts": 1,
        "answer": "{\"ordered\": \"a lie\"}", "reference": null,
    });
    let lies = [
        place.value(&other_name).await,
        foreign,
        forged.to_string().into_bytes(),
        [&[1], forged.to_string().as_bytes()].concat(),
        Vec::new(),
        vec![0; 1 << 20],
        good[..40].to_vec(),
        at(0),
        at(1),
        at(40),
        at(good.len() - 1),
    ];
    for lie in &lies {
        let refused = || once.cache_counts().unwrap().refused;
        let before = refused();
        // An answer that is still being read may overwrite the lie: then it is written again.
        while refused() == before {
            place.other.set(&name, lie).await.unwrap();
            place.replays(&once, &mine).await;
        }
        // It is put right, aside.
        warm(&once, &mine).await;
    }
    // Of another kind altogether.
    place.other.del(&name).await.unwrap();
    place.other.rpush(&name, "a list").await.unwrap();
    place.replays(&once, &mine).await;
    place.replays(&once, &other).await;
}

async fn values_reveal_nothing<D: TestDriver>(world: World<D>) {
    let mut place = Place::new(world).await;
    let keys = AnswerKeys::new("k", [1; 32]).unwrap();
    let sealed = |place: &Place<D>, keys| {
        let cache = place.cache();
        let once = |b: OnceBuilder<D>| b.encrypt_answers(keys).cache(cache);
        place.world.another("sealed", 3, once)
    };
    let onces = [
        ("secret 1", place.once()),
        ("secret 2", sealed(&place, keys)),
    ];
    for (key, once) in onces {
        let (_, name) = place.known(&once, key).await;
        let value = place.value(&name).await;
        let text = String::from_utf8_lossy(&value);
        for word in ["ordered", "secret", SCOPE, "answer"] {
            assert!(!text.contains(word) && !name.contains(word), "{word}");
        }
    }
    // One that has the key of the cache, and not that of the answers.
    let request = intent("secret 2");
    let wrong = sealed(&place, AnswerKeys::new("k", [2; 32]).unwrap());
    for _ in 0..3 {
        let error = wrong.run(&request, work::<D>).await.unwrap_err();
        assert_eq!(error.code(), "P4032");
    }
}

/// A value is as old as its state and its expiry say, whatever the server made of it.
async fn an_old_value_that_was_kept_is_not_believed<D: TestDriver>(world: World<D>) {
    let mut place = Place::new(world).await;
    let define = |keep| place.world.owner.define_scope(SCOPE, keep);
    define(&Contract::keep(Duration::from_secs(8)))
        .await
        .unwrap();
    let once = place.once();
    let (short, name) = place.known(&once, "short").await;
    let left = redis::cmd("PTTL")
        .arg(&name)
        .query_async::<i64>(&mut place.other)
        .await;
    assert!(
        (1..=8_000).contains(&left.unwrap()),
        "no longer than it is promised"
    );
    let value = place.value(&name).await;
    place
        .world
        .see
        .wait_until("select bool_and(expires_at <= pgonce.now()) from pgonce.intent")
        .await;
    place.other.set(&name, &value).await.unwrap();
    assert!(!once.run(&short, work::<D>).await.unwrap().replayed());

    let define = |keep| place.world.owner.define_scope(SCOPE, keep);
    define(&Contract::keep(HOUR)).await.unwrap();
    let (evicted, name) = place.known(&once, "evicted").await;
    let value = place.value(&name).await;
    place
        .world
        .see
        .run("delete from pgonce.intent where key = 'evicted'")
        .await;
    // As a process that knows of it: the state comes with the first answer that is read.
    let later = place.once();
    place.known(&later, "later").await;
    place.other.set(&name, &value).await.unwrap();
    let before = later.cache_counts().unwrap().outdated;
    assert!(!later.run(&evicted, work::<D>).await.unwrap().replayed());
    assert_eq!(later.cache_counts().unwrap().outdated, before + 1);
}

async fn another_request_under_a_shared_key_is_a_conflict<D: TestDriver>(world: World<D>) {
    let mut place = Place::new(world).await;
    let once = place.once();
    place.known(&once, "shared").await;
    let changed = Intent::new(SCOPE, "shared", &json!({"item": "pen"})).unwrap();
    let conflict = once.run(&changed, work::<D>).await;
    assert!(matches!(conflict, Err(Error::Conflict(_))), "{conflict:?}");
    let theirs = intent("shared").tenant("theirs").unwrap();
    assert!(!once.run(&theirs, work::<D>).await.unwrap().replayed());
}

async fn a_server_that_was_flushed_or_killed_is_used_again<D: TestDriver>(world: World<D>) {
    let mut place = Place::new(world).await;
    let once = place.once();
    let (request, _) = place.known(&once, "kept").await;
    place.other.flushall().await.unwrap();
    place.replays(&once, &request).await;
    warm(&once, &request).await;
    for _ in 0..2 {
        place.redis.kill().await.unwrap();
        while !once.cache_counts().unwrap().breaker_open {
            place.replays(&once, &request).await;
        }
        place.redis.restart().await.unwrap();
        warm(&once, &request).await;
        assert!(!once.cache_counts().unwrap().breaker_open);
    }
    place.replays(&once, &request).await;
}

for_each_driver!(
    processes_share_answers_and_a_new_one_finds_them,
    a_lie_is_ignored_and_counted,
    values_reveal_nothing,
    an_old_value_that_was_kept_is_not_believed,
    another_request_under_a_shared_key_is_a_conflict,
    a_server_that_was_flushed_or_killed_is_used_again,
);

/// Continues a process when the test is over, however that ends.
struct Frozen(Pid);

impl Drop for Frozen {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).unwrap();
    }
}

/// It accepts connections, and says nothing.
#[tokio::test]
async fn a_frozen_server_costs_its_budget_a_few_times_and_then_nothing() {
    let mut place = Place::new(World::<TokioPostgres>::new().await).await;
    let budget = Duration::from_millis(200);
    let once = cached(&place.world, place.cache().timeout(budget));
    let (request, _) = place.known(&once, "frozen").await;
    let mut info = redis::cmd("INFO");
    let info = info.arg("server").query_async::<String>(&mut place.other);
    let info = info.await.unwrap();
    let pid = info
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"));
    let pid = Pid::from_raw(pid.unwrap().parse().unwrap()).unwrap();
    let before = once.cache_counts().unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let frozen = Frozen(pid);
    // Not by errors: what fills the cache in the background has its own.
    let mut waited = 0;
    while !once.cache_counts().unwrap().breaker_open {
        place.replays(&once, &request).await;
        waited += 1;
    }
    assert!(waited <= 5, "{waited} requests waited");
    for _ in 0..20 {
        place.replays(&once, &request).await;
    }
    let after = once.cache_counts().unwrap();
    assert_eq!(after.hits, before.hits, "the database answered");
    drop(frozen);
    warm(&once, &request).await;
    assert!(!once.cache_counts().unwrap().breaker_open);
    poll_pause().await;
}
