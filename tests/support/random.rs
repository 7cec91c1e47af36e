//! Random tests that can be repeated.

use std::env;

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// A runner of random cases; its seed is printed, and `PGONCE_SEED` repeats one.
pub fn runner(cases: u32) -> TestRunner {
    let seed = env::var("PGONCE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random::<u64>);
    eprintln!("to repeat this run: PGONCE_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}
