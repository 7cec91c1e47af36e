//! Keys: making them, deriving them, and finding bad ones.
//!
//! A key names one request of one caller. It is made **once**, when the request arises, stored or
//! derivable from what is stored, and is the same on every retry.

#[cfg(test)]
mod fuzz;
mod lint;
mod moment;

use std::fmt::Write;

use sha2::{Digest, Sha256};
use uuid::Uuid;

pub use lint::lint;
#[doc(hidden)]
pub use lint::{Complaint, Fault};

/// A key for a new request: a UUIDv7, which sorts by time and so is kind to indexes.
///
/// Call it where the request arises, and keep what it answers for the retries. Called again for
/// every try, it defeats the purpose, and nothing can notice that.
///
/// ```
/// let key = pgonce::key::fresh();
/// assert!(pgonce::key::lint(&key).is_ok());
/// assert_ne!(key, pgonce::key::fresh());
/// ```
pub fn fresh() -> String {
    Uuid::now_v7().to_string()
}

/// A key from the facts that make the request what it is: the same facts give the same key, in any
/// process, language and release.
///
/// It is the SHA-256, in hex, over the namespace and the parts, each preceded by its length as
/// eight bytes, most significant first. So no two different lists give the same bytes.
///
/// ```
/// use pgonce::key::derived;
///
/// let key = derived("invoice", &["acme", "2026-01"]);
/// assert_eq!(key, derived("invoice", &["acme", "2026-01"]));
/// assert_ne!(key, derived("invoice", &["acme2026", "-01"]));
/// assert_eq!(key.len(), 64);
/// ```
pub fn derived(namespace: &str, parts: &[&str]) -> String {
    let digest = Sha256::digest(joined(std::iter::once(&namespace).chain(parts)));
    digest
        .iter()
        .fold(String::with_capacity(64), |mut hex, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}

/// A resource's id from its natural name: a UUIDv5, the same on every attempt, so that a second
/// insert meets the primary key.
///
/// It is the UUIDv5 of the parts (joined as in [`derived`]) in the namespace that is itself the
/// UUIDv5 of `urn:pgonce:<namespace>` in the URL namespace. Who knows the parts can compute the
/// id, so it is no secret; and a resource that is renamed keeps the id of its first name.
///
/// ```
/// use pgonce::key::resource_id;
///
/// let id = resource_id("order", &["shop-7", "2026-000123"]);
/// assert_eq!(id, resource_id("order", &["shop-7", "2026-000123"]));
/// assert_eq!(id.get_version_num(), 5);
/// ```
pub fn resource_id(namespace: &str, parts: &[&str]) -> Uuid {
    let space = Uuid::new_v5(
        &Uuid::NAMESPACE_URL,
        format!("urn:pgonce:{namespace}").as_bytes(),
    );
    Uuid::new_v5(&space, &joined(parts))
}

/// One run of bytes for a list of texts, different for every different list.
fn joined<'a>(parts: impl IntoIterator<Item = &'a &'a str>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_derived_key_and_id_never_change_between_releases() {
        // Keys outlive releases: a change here makes every retry in flight a new request.
        assert_eq!(
            derived("invoice", &["acme", "2026-01"]),
            "5f6ef02eb9b30129a3c66bbf24b9a62fe9b275853051deab9e58d510a9489151"
        );
        assert_eq!(
            resource_id("order", &["shop-7", "2026-000123"]).to_string(),
            "87b42f86-4283-5971-a4dc-c7b1c4dcb368"
        );
    }

    #[test]
    fn the_namespace_is_not_a_part() {
        assert_ne!(derived("a", &["b"]), derived("ab", &[]));
        assert_ne!(derived("", &["a"]), derived("a", &[]));
        assert_ne!(resource_id("a", &["b"]), resource_id("b", &["a"]));
    }

    proptest! {
        /// However a text is cut into parts, another cut is another key.
        #[test]
        fn regrouped_parts_never_meet(text in "\\PC{1,24}", one: u32, two: u32) {
            // Bit n of `at`: cut before the letter n.
            let cut = |at: u32| {
                let mut parts = vec![String::new()];
                for (place, letter) in text.chars().enumerate() {
                    if at >> place & 1 == 1 {
                        parts.push(String::new());
                    }
                    parts.last_mut().unwrap().push(letter);
                }
                parts
            };
            let (one, two) = (cut(one), cut(two));
            let a: Vec<&str> = one.iter().map(String::as_str).collect();
            let b: Vec<&str> = two.iter().map(String::as_str).collect();
            prop_assert_eq!(a == b, derived("n", &a) == derived("n", &b));
            prop_assert_eq!(a == b, resource_id("n", &a) == resource_id("n", &b));
        }

        #[test]
        fn a_derived_key_passes_the_lint(namespace in ".*", parts in proptest::collection::vec(".*", 0..5)) {
            let parts: Vec<&str> = parts.iter().map(|s| &**s).collect();
            prop_assert!(lint(&derived(&namespace, &parts)).is_ok());
            prop_assert!(lint(&resource_id(&namespace, &parts).to_string()).is_ok());
        }
    }
}
