//! Keys that encrypt one thing only, so that no nonce is ever used twice with a key.

use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{aead, hkdf};

pub(crate) const SALT_BYTES: usize = 32;

/// Encrypts with a key of its own, derived from `key` and a random salt. `None` where the system gives no random
/// numbers.
pub(crate) fn seal(
    key: &[u8; 32],
    purpose: &[u8],
    bound_to: &[u8],
    mut data: Vec<u8>,
) -> Option<([u8; SALT_BYTES], Vec<u8>)> {
    let mut salt = [0; SALT_BYTES];
    SystemRandom::new().fill(&mut salt).ok()?;
    derived(key, &salt, purpose)?
        .seal_in_place_append_tag(nonce(), aead::Aad::from(bound_to), &mut data)
        .ok()?;
    Some((salt, data))
}

/// What was encrypted; `None` where any of this is another than then.
pub(crate) fn open<'a>(
    key: &[u8; 32],
    purpose: &[u8],
    bound_to: &[u8],
    salt: &[u8],
    data: &'a mut [u8],
) -> Option<&'a [u8]> {
    let opened =
        derived(key, salt, purpose)?.open_in_place(nonce(), aead::Aad::from(bound_to), data);
    opened.ok().map(|plain| &*plain)
}

fn derived(key: &[u8; 32], salt: &[u8], purpose: &[u8]) -> Option<aead::LessSafeKey> {
    let derived = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(key);
    let purpose = [purpose];
    let derived = derived.expand(&purpose, &aead::AES_256_GCM).ok()?;
    Some(aead::LessSafeKey::new(derived.into()))
}

fn nonce() -> aead::Nonce {
    aead::Nonce::assume_unique_for_key([0; aead::NONCE_LEN])
}
