//! The digest of the canonical request: guards a key against a second meaning.
//!
//! `pgonce.fingerprint` in SQL gives the same digests; docs/src/reference/fingerprints.md has the layout
//! and the vectors that hold both to it.

mod canonical;
#[cfg(test)]
mod fuzz;
mod strict;

use std::fmt;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorDetail, Result};

/// Digest of a request: a key that comes back with another digest is a conflict.
///
/// [`Fingerprint::of`] is the SHA-256 of the request's canonical JSON (RFC 8785, except that integers of
/// 64 bits are exact). Two spellings of one request give one fingerprint, in Rust and in SQL
/// (`pgonce.fingerprint`):
///
/// ```
/// use pgonce::Fingerprint;
/// use serde_json::json;
///
/// let one = Fingerprint::of(&json!({"item": "book", "price": 12.50}))?;
/// let two = Fingerprint::of(&json!({"price": 12.5, "item": "book"}))?;
/// assert_eq!(one, two);
/// assert_eq!(one, Fingerprint::of_bytes(br#"{"item":"book","price":12.5}"#));
/// # Ok::<(), pgonce::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Fingerprint(Vec<u8>);

impl Fingerprint {
    /// Fingerprint of a whole request.
    ///
    /// Fails if the request contains NaN, an infinity or an integer of more than 64 bits: JSON cannot
    /// carry them, and a replacement would let two requests look alike.
    pub fn of<T: Serialize + ?Sized>(request: &T) -> Result<Self> {
        FingerprintBuilder::new().of(request)
    }

    /// Chooses the operation, the API version and the fields that count.
    pub fn canon() -> FingerprintBuilder {
        FingerprintBuilder::new()
    }

    /// The fingerprint of raw bytes, for requests that are not JSON.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).to_vec())
    }

    /// A digest that you made yourself, of 1 to 64 bytes; checked when the intent is made.
    pub fn custom(digest: impl Into<Vec<u8>>) -> Self {
        Self(digest.into())
    }

    /// The digest.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(")?;
        for byte in self.0.iter().take(6) {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("…)")
    }
}

/// How a request becomes a fingerprint. Made by [`Fingerprint::canon`].
///
/// ```
/// use pgonce::Fingerprint;
/// use serde_json::json;
///
/// let canon = Fingerprint::canon().operation("POST /orders").version("2026-01").exclude(["/sent_at"]);
/// let first = canon.of(&json!({"item": "book", "sent_at": "10:00"}))?;
/// let retry = canon.of(&json!({"item": "book", "sent_at": "10:01"}))?;
/// assert_eq!(first, retry);
/// # Ok::<(), pgonce::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct FingerprintBuilder {
    operation: String,
    version: String,
    include: Option<Vec<String>>,
    exclude: Vec<String>,
}

impl FingerprintBuilder {
    fn new() -> Self {
        Self::default()
    }

    /// The operation, such as `POST /orders`.
    #[must_use]
    pub fn operation(mut self, operation: impl Into<String>) -> Self {
        self.operation = operation.into();
        self
    }

    /// The version of the API that gives the request its meaning.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Only these fields count, as JSON pointers (`/customer/id`). A field that is absent counts
    /// as absent, not as null; a request that has none of them is refused.
    #[must_use]
    pub fn include<S: Into<String>>(mut self, pointers: impl IntoIterator<Item = S>) -> Self {
        self.include = Some(pointers.into_iter().map(Into::into).collect());
        self
    }

    /// These fields do not count, as JSON pointers.
    #[must_use]
    pub fn exclude<S: Into<String>>(mut self, pointers: impl IntoIterator<Item = S>) -> Self {
        self.exclude = pointers.into_iter().map(Into::into).collect();
        self
    }

    /// The fingerprint of `request`.
    pub fn of<T: Serialize + ?Sized>(&self, request: &T) -> Result<Fingerprint> {
        let mut value = request.serialize(strict::Strict(serde_json::value::Serializer))?;
        let pointers = self.include.iter().flatten().chain(&self.exclude);
        for pointer in pointers {
            if !pointer.starts_with('/') {
                return Err(invalid(format!("{pointer:?} is not a JSON pointer")));
            }
        }
        // From the back: what is removed from an array must not move what is to be removed next.
        let mut exclude: Vec<&str> = self.exclude.iter().map(String::as_str).collect();
        exclude.sort_by_cached_key(|pointer| std::cmp::Reverse(steps(pointer)));
        exclude.dedup();
        for pointer in exclude {
            remove(&mut value, pointer);
        }
        if let Some(include) = &self.include {
            // Pairs, not an object of picked values: no field can pose as another.
            let picked: Vec<Value> = include
                .iter()
                .filter_map(|pointer| {
                    value
                        .pointer(pointer)
                        .map(|v| serde_json::json!([pointer, v]))
                })
                .collect();
            if picked.is_empty() {
                let none = "the request has none of the fields that its fingerprint includes";
                return Err(invalid(none.to_owned()));
            }
            value = picked.into();
        }
        let mut digest = Sha256::new();
        // Without both, plain SHA-256 of the JSON, which every language has at hand. The two layouts
        // cannot meet: no JSON text starts with a zero byte.
        if !(self.operation.is_empty() && self.version.is_empty()) {
            for part in [self.operation.as_bytes(), self.version.as_bytes()] {
                // The length first: ("ab", "c") and ("a", "bc") must not meet.
                digest.update((part.len() as u64).to_be_bytes());
                digest.update(part);
            }
        }
        digest.update(canonical::text(&value)?);
        Ok(Fingerprint(digest.finalize().to_vec()))
    }
}

fn invalid(message: String) -> Error {
    let hint = "Name fields that every request has, each with a slash before it: /customer/id.";
    Error::Invalid(ErrorDetail::new("22023", message, hint))
}

/// The steps of a pointer, in the order of an array's items.
fn steps(pointer: &str) -> Vec<(u64, String)> {
    let steps = pointer.split('/').skip(1);
    steps
        .map(|step| (step.parse().unwrap_or_default(), step.to_owned()))
        .collect()
}

/// Removes what a JSON pointer names, if it is there.
fn remove(value: &mut Value, pointer: &str) {
    let Some((parent, last)) = pointer.rsplit_once('/') else {
        return;
    };
    let name = last.replace("~1", "/").replace("~0", "~");
    match value.pointer_mut(parent) {
        Some(Value::Object(map)) => {
            map.remove(&name);
        }
        Some(Value::Array(items)) => {
            let index = name.parse::<usize>().ok();
            // As RFC 6901 has it: no sign and no leading zero.
            if let Some(index) = index.filter(|i| *i < items.len() && i.to_string() == name) {
                items.remove(index);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn another_operation_or_version_is_another_fingerprint() {
        let body = json!({"a": 1});
        let plain = Fingerprint::of(&body).unwrap();
        let op = Fingerprint::canon().operation("x").of(&body).unwrap();
        let version = Fingerprint::canon().version("x").of(&body).unwrap();
        assert_ne!(plain, op);
        assert_ne!(op, version);
    }

    #[test]
    fn the_digest_of_a_known_request_never_changes() {
        // Stored fingerprints outlive releases: a change here breaks every retry in flight.
        let print = Fingerprint::canon()
            .operation("orders.create")
            .version("1")
            .of(&json!({"item": "book", "n": 2}))
            .unwrap();
        let hex: String = print
            .as_bytes()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let mut by_hand = Sha256::new();
        by_hand.update(13_u64.to_be_bytes());
        by_hand.update(b"orders.create");
        by_hand.update(1_u64.to_be_bytes());
        by_hand.update(b"1");
        by_hand.update(br#"{"item":"book","n":2}"#);
        let expected: String = by_hand
            .finalize()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(hex, expected);
    }

    #[test]
    fn only_included_fields_count_and_absent_is_not_null() {
        let canon = Fingerprint::canon().include(["/id", "/note"]);
        let one = canon.of(&json!({"id": 1, "x": 1})).unwrap();
        assert_eq!(one, canon.of(&json!({"id": 1, "x": 2})).unwrap());
        assert_ne!(one, canon.of(&json!({"id": 1, "note": null})).unwrap());
    }

    #[test]
    fn an_excluded_field_may_be_deep_or_missing() {
        let canon = Fingerprint::canon().exclude(["/meta/at", "/none/there"]);
        let one = canon.of(&json!({"meta": {"at": 1, "b": 2}})).unwrap();
        assert_eq!(one, canon.of(&json!({"meta": {"at": 9, "b": 2}})).unwrap());
    }

    #[test]
    fn a_pointer_without_a_slash_or_a_request_without_the_fields_is_refused() {
        let body = json!({"id": 1});
        for builder in [
            Fingerprint::canon().include(["id"]),
            Fingerprint::canon().exclude(["id"]),
            Fingerprint::canon().include(["/other"]),
        ] {
            assert_eq!(builder.of(&body).unwrap_err().code(), "22023");
        }
    }

    #[test]
    fn items_are_excluded_where_they_stood_before() {
        let canon = Fingerprint::canon().exclude(["/a/0", "/a/1", "/a/10"]);
        let of = |items: &[i32]| canon.of(&json!({"a": items})).unwrap();
        assert_eq!(of(&[1, 2, 3]), of(&[7, 8, 3]));
        assert_ne!(of(&[1, 2, 3]), of(&[1, 2, 4]));
        assert_eq!(of(&[0, 0, 3]), Fingerprint::of(&json!({"a": [3]})).unwrap());
        // One item, however often it is named; and no other way to write its number.
        let canon = Fingerprint::canon().exclude(["/a/0", "/a/0", "/a/01", "/a/+1"]);
        let left = canon.of(&json!({"a": [1, 2, 3]})).unwrap();
        assert_eq!(left, Fingerprint::of(&json!({"a": [2, 3]})).unwrap());
    }
}
