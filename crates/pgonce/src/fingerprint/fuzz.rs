//! Requests of any shape: one canonical text, which is its own canonical text, and one fingerprint.

use pgonce_testkit::fuzz;
use serde_json::Value;

use super::{Fingerprint, canonical};

const REQUESTS: [&str; 6] = [
    "{\"item\": \"book\", \"n\": 2, \"price\": 12.50}",
    "[1, -1, 0.1, -0.0, 1e21, 1e-7, 5e-324, 1.7976931348623157e308, 18446744073709551615, -9223372036854775808]",
    "{\"\u{e9}\": 1, \"e\u{301}\": 2, \"\u{1f600}\": 3, \"\u{ffff}\": 4, \"\": null}",
    "{\"a\": {\"b\": [{\"c\": [[[[\"deep\"]]]]}]}, \"z~/\": true}",
    "\"\\u0000\\b\\f\\n\\r\\t\\\"\\\\\\/\\u007f\\u2028\"",
    "[[[[[[[[[[]]]]]]]]]]",
];

#[test]
fn fuzz_a_canonical_text_is_its_own_canonical_text() {
    fuzz(&REQUESTS, 4000, |input| {
        let Ok(value) = serde_json::from_slice::<Value>(input) else {
            return;
        };
        let text = canonical::text(&value).unwrap();
        let again: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(canonical::text(&again).unwrap(), text);
        let print = Fingerprint::of(&value).unwrap();
        assert_eq!(print, Fingerprint::of_bytes(&text));
        assert_eq!(print, Fingerprint::of(&again).unwrap());
    });
}

#[test]
fn fuzz_a_pointer_names_a_field_or_is_refused_with_a_code() {
    let value: Value = serde_json::from_str(REQUESTS[3]).unwrap();
    fuzz(
        &["/a/b/0/c", "/z~0~1", "/a", "/a/b/18446744073709551616", ""],
        2000,
        |input| {
            let pointer = String::from_utf8_lossy(input).into_owned();
            let [include, exclude] = [
                Fingerprint::canon().include([pointer.clone()]),
                Fingerprint::canon().exclude([pointer.clone(), pointer.clone()]),
            ];
            for builder in [include, exclude] {
                match builder.of(&value) {
                    Ok(print) => assert_eq!(print, builder.of(&value).unwrap()),
                    Err(error) => assert_eq!(error.code(), "22023", "{error:?}"),
                }
            }
        },
    );
}
