//! Random tests that can be repeated.

use std::env;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::{Rng, RngExt as _, SeedableRng as _, rngs::StdRng};

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// The seed of a random test. It is printed, which a failed test shows; `PGONCE_SEED` repeats it.
pub fn seed() -> u64 {
    let seed = env::var("PGONCE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random::<u64>);
    eprintln!("to repeat this run: PGONCE_SEED={seed}");
    seed
}

/// Random numbers from a [`seed`].
pub fn random() -> StdRng {
    StdRng::seed_from_u64(seed())
}

/// Lets a random moment of the next five milliseconds come: for what strikes at any moment. No
/// test waits for anything this way.
pub async fn random_moment(random: &mut impl Rng) {
    let pause = Duration::from_micros(random.random_range(0..5000));
    tokio::time::sleep(pause).await;
}

/// The time that work takes, where slow work is what is tested.
pub async fn slow_work(time: Duration) {
    tokio::time::sleep(time).await;
}

/// The pause of somebody who asks again: a client between two tries, a source that had nothing.
pub async fn poll_pause() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// A runner of random cases from a [`seed`].
pub fn runner(cases: u32) -> TestRunner {
    let seed = seed();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// A name that no other test has, in this process or in another: tests of one run share their brokers.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::SeqCst);
    format!("{prefix}{}x{number}", std::process::id())
}
