//! The vectors of conformance/, which every client passes: numbers, derived keys and resource ids.

use pgonce::{Fingerprint, key};
use serde_json::Value;

use crate::conformance::{list, text};
use crate::tidy::{read, root};

fn vectors(file: &str) -> Value {
    serde_json::from_str(&read(&root().join("conformance/vectors").join(file))).unwrap()
}

/// A double as C writes it in hexadecimal: exact, and by no rule of ours.
fn from_hex(text: &str) -> f64 {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (1 << 63, rest),
        None => (0, text),
    };
    let (mantissa, exponent) = text.strip_prefix("0x").unwrap().split_once('p').unwrap();
    let (whole, fraction) = mantissa.split_once('.').unwrap();
    let fraction = u64::from_str_radix(&format!("{fraction:0<13}"), 16).unwrap();
    let exponent: i64 = exponent.parse().unwrap();
    // Numbers below the smallest normal one, and zero, have a leading zero and no exponent of their own.
    let biased = if whole == "0" { 0 } else { exponent + 1023 };
    f64::from_bits(sign | (u64::try_from(biased).unwrap() << 52) | fraction)
}

#[test]
fn a_double_counts_as_ecmascript_writes_it() {
    let vectors = vectors("numbers.json");
    assert!(list(&vectors).len() > 20);
    for vector in list(&vectors) {
        let (hex, written) = (vector[0].as_str().unwrap(), vector[1].as_str().unwrap());
        let print = Fingerprint::of(&from_hex(hex)).unwrap();
        assert_eq!(print, Fingerprint::of_bytes(written.as_bytes()), "{hex}");
    }
}

#[test]
fn keys_are_good_or_bad_as_for_every_client() {
    let vectors = vectors("lint.json");
    let keys = |keys: &Value| -> Vec<String> {
        let keys = list(keys).iter();
        keys.map(|key| key.as_str().unwrap().to_owned()).collect()
    };
    let good = keys(&vectors["good"]);
    for key in &good {
        assert_eq!(key::lint(key), Ok(()), "{key:?}");
    }
    let bad = vectors["bad"].as_object().unwrap();
    for (fault, found) in bad {
        for key in keys(found) {
            let complaint = key::lint(&key).expect_err(&key);
            assert_eq!(complaint.kind().to_string(), *fault, "{key:?}");
        }
    }
    assert!(good.len() > 30 && bad.len() == 8);
}

#[test]
fn derived_keys_and_resource_ids_are_those_of_every_client() {
    let vectors = vectors("keys.json");
    let parts = |vector: &Value| -> Vec<String> {
        let parts = list(&vector["parts"]).iter();
        parts
            .map(|part| part.as_str().unwrap().to_owned())
            .collect()
    };
    for vector in list(&vectors["derived"]) {
        let parts = parts(vector);
        let parts: Vec<_> = parts.iter().map(String::as_str).collect();
        let derived = key::derived(text(vector, "namespace"), &parts);
        assert_eq!(derived, text(vector, "key"), "{vector}");
    }
    for vector in list(&vectors["resource"]) {
        let parts = parts(vector);
        let parts: Vec<_> = parts.iter().map(String::as_str).collect();
        let id = key::resource_id(text(vector, "namespace"), &parts);
        assert_eq!(id.to_string(), text(vector, "id"), "{vector}");
    }
    assert!(list(&vectors["derived"]).len() > 5 && list(&vectors["resource"]).len() > 1);
}
