//! Signatures of Standard Webhooks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use ring::signature::Ed25519KeyPair;

use crate::sinks::Refusal;

/// All keys that sign at the moment.
pub(super) struct Keys(Vec<Key>);

enum Key {
    /// `v1`: HMAC-SHA256 with a secret that both sides have.
    Shared(hmac::Key),
    /// `v1a`: ed25519, so that receivers only need the public key.
    Private(Ed25519KeyPair),
}

impl Keys {
    pub(super) fn read(secrets: &[String]) -> Result<Self, Refusal> {
        if secrets.is_empty() {
            return Err(Refusal::MissingOption {
                sink: "webhook",
                option: "secret",
                what: "receivers must be able to distinguish your events from forged ones; \
                       whsec_ and 24 to 64 random bytes in base64",
            });
        }
        let keys: Result<Vec<_>, _> = secrets.iter().map(|secret| Key::read(secret)).collect();
        keys.map(Self)
    }

    /// The header's value: one signature for each key.
    pub(super) fn sign(&self, id: &str, time: u64, body: &str) -> String {
        let content = format!("{id}.{time}.{body}");
        let signatures = self.0.iter().map(|key| match key {
            Key::Shared(key) => {
                let signature = hmac::sign(key, content.as_bytes());
                format!("v1,{}", STANDARD.encode(signature))
            }
            Key::Private(key) => {
                let signature = key.sign(content.as_bytes());
                format!("v1a,{}", STANDARD.encode(signature))
            }
        });
        signatures.collect::<Vec<_>>().join(" ")
    }
}

impl Key {
    fn read(secret: &str) -> Result<Self, Refusal> {
        // What was said is a secret, so it is not repeated.
        let wrong = || Refusal::BadOption {
            option: "secret".to_owned(),
            value: "…".to_owned(),
            expected: "whsec_ and 24 to 64 bytes in base64, or whsk_ and an ed25519 key in base64"
                .to_owned(),
        };
        let (prefix, text) = secret.split_once('_').ok_or_else(wrong)?;
        let bytes = STANDARD.decode(text).map_err(|_| wrong())?;
        match (prefix, bytes.len()) {
            ("whsec", 24..=64) => Ok(Self::Shared(hmac::Key::new(hmac::HMAC_SHA256, &bytes))),
            ("whsk", 32) => Ed25519KeyPair::from_seed_unchecked(&bytes)
                .map(Self::Private)
                .map_err(|_| wrong()),
            // The seed and, after it, the public key.
            ("whsk", 64) => {
                let (seed, public) = bytes.split_at(32);
                Ed25519KeyPair::from_seed_and_public_key(seed, public)
                    .map(Self::Private)
                    .map_err(|_| wrong())
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{ED25519, KeyPair as _, UnparsedPublicKey};

    fn keys(secrets: &[&str]) -> Result<Keys, Refusal> {
        let secrets: Vec<String> = secrets.iter().map(|text| (*text).to_owned()).collect();
        Keys::read(&secrets)
    }

    /// The example that the specification's own libraries are tested with.
    #[test]
    fn a_shared_secret_signs_as_the_specification_shows() {
        let keys = keys(&["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap();
        let signature = keys.sign(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            r#"{"test": 2432232314}"#,
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_private_key_signs_what_its_public_key_verifies() {
        let seed = [7; 32];
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
        let both = [&seed[..], pair.public_key().as_ref()].concat();
        for bytes in [&seed[..], &both] {
            let keys = keys(&[&format!("whsk_{}", STANDARD.encode(bytes))]).unwrap();
            let header = keys.sign("msg_1", 5, "{}");
            let signature = STANDARD
                .decode(header.strip_prefix("v1a,").unwrap())
                .unwrap();
            UnparsedPublicKey::new(&ED25519, pair.public_key())
                .verify(b"msg_1.5.{}", &signature)
                .unwrap();
        }
    }

    #[test]
    fn a_wrong_secret_is_refused_and_not_repeated() {
        let short = format!("whsec_{}", STANDARD.encode([1; 10]));
        let odd = format!("whsk_{}", STANDARD.encode([1; 64]));
        for secret in [
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_???",
            &short,
            &odd,
            "",
        ] {
            let refusal = keys(&[secret]).err().unwrap();
            let text = refusal.to_string();
            assert!(secret.is_empty() || !text.contains(secret), "{text}");
            assert_eq!(refusal.code(), "sink-bad-option");
        }
        assert_eq!(keys(&[]).err().unwrap().code(), "sink-missing-option");
    }
}
