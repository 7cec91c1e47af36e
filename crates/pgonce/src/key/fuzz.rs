//! Names of any shape: keys, scopes and tenants are accepted, or refused with a code, and a complaint never repeats a key.

use pgonce_testkit::fuzz;

use super::{derived, lint, resource_id};
use crate::Intent;
use crate::intent::MAX_NAME_BYTES;

const KEYS: [&str; 7] = [
    "0190f5a2-7c3e-7000-8000-000000000001",
    "order-7",
    "2026-01-31T23:59:60.123456789+14:00",
    "retry-3",
    "ada@example.com",
    "1700000000000",
    "fe80::1%eth0",
];

#[test]
fn fuzz_a_key_is_accepted_or_refused_with_a_code() {
    fuzz(&KEYS, 4000, |input| {
        let text = String::from_utf8_lossy(input);
        match lint(&text) {
            Ok(()) => assert!(!text.trim().is_empty() && text.len() <= MAX_NAME_BYTES),
            Err(complaint) => {
                let words = complaint.to_string();
                // Short ones are in every text by chance.
                assert!(text.len() < 12 || !words.contains(&*text), "{words}");
            }
        }
        match Intent::new(&*text, &*text, "body").and_then(|intent| intent.tenant(&*text)) {
            Ok(_) => {
                assert!(!text.is_empty() && text.len() <= MAX_NAME_BYTES && !text.contains('\0'))
            }
            Err(error) => assert!(!error.code().is_empty(), "{error:?}"),
        }
        // Where the parts are cut counts.
        let middle = text.floor_char_boundary(text.len() / 2);
        let (one, other) = text.split_at(middle);
        let key = derived("fuzz", &[one, other]);
        assert!(key.len() == 64 && lint(&key).is_ok());
        if !one.is_empty() {
            assert_ne!(key, derived("fuzz", &["", &text]));
            assert_ne!(
                resource_id("fuzz", &[one, other]),
                resource_id("fuzz", &["", &text])
            );
        }
    });
}
