//! How a sender signs.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use ring::signature::{ED25519, UnparsedPublicKey};

/// How a signature is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Digits 0 to f.
    Hex,
    /// Base64 with padding.
    Base64,
}

/// How a sender signs its webhooks: HMAC-SHA-256 or ed25519, with one key or, while it changes, several.
///
/// ```
/// use pgonce_broker::webhooks::{Encoding, Scheme};
///
/// // Standard Webhooks
/// let standard = Scheme::standard(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])?;
/// // `X-Hub-Signature-256: sha256=…` over the body; the id in a header
/// let hub = Scheme::hmac(["secret"], "x-hub-signature-256", Encoding::Hex)
///     .prefixed("sha256=").id_header("x-github-delivery");
/// // `Stripe-Signature: t=…,v1=…` over `t.body`; the id in the payload
/// let provider = Scheme::hmac(["whsec_x"], "stripe-signature", Encoding::Hex)
///     .fields("t", "v1").id_pointer("/id");
/// # Ok::<(), pgonce_broker::webhooks::SchemeError>(())
/// ```
#[derive(Clone)]
pub struct Scheme {
    keys: Vec<hmac::Key>,
    /// Public keys of ed25519. They check `v1a` only: who knows one could make an HMAC with it.
    public: Vec<Vec<u8>>,
    kind: Kind,
    tolerance: Duration,
}

#[derive(Debug, Clone)]
enum Kind {
    Standard,
    Hmac {
        header: String,
        encoding: Encoding,
        prefix: String,
        /// `t=…,v1=…`: the names of time and signature in the header.
        fields: Option<(String, String)>,
        /// Where the time is, when it is in a header of its own; it is signed as `time.body`.
        time_header: Option<String>,
        id: Id,
    },
}

#[derive(Debug, Clone)]
enum Id {
    Header(String),
    Pointer(String),
}

/// Why a request is not what it claims to be, or a scheme cannot be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemeError {
    /// A code to branch on: `secret`, `signature_missing`, `signature_wrong`, `timestamp_missing`,
    /// `timestamp_outside_window`.
    pub code: &'static str,
    /// Why, for people.
    pub reason: String,
}

impl fmt::Display for SchemeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.reason, self.code)
    }
}

impl std::error::Error for SchemeError {}

fn error(code: &'static str, reason: impl Into<String>) -> SchemeError {
    let reason = reason.into();
    SchemeError { code, reason }
}

impl fmt::Debug for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheme")
            .field("kind", &self.kind)
            .field("tolerance", &self.tolerance)
            .field("keys", &(self.keys.len() + self.public.len()))
            .finish()
    }
}

impl Scheme {
    /// Standard Webhooks: the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`. Secrets are written
    /// `whsec_` and base64 (HMAC, `v1`), public keys `whpk_` and base64 (ed25519, `v1a`).
    pub fn standard<'s>(secrets: impl IntoIterator<Item = &'s str>) -> Result<Self, SchemeError> {
        let (mut keys, mut public) = (Vec::new(), Vec::new());
        for secret in secrets {
            let of_public = secret.strip_prefix("whpk_");
            let text = of_public.or_else(|| secret.strip_prefix("whsec_"));
            let bytes = STANDARD.decode(text.unwrap_or(secret)).unwrap_or_default();
            match (of_public, bytes.len()) {
                (Some(_), 32) => public.push(bytes),
                (None, 1..) => keys.push(hmac::Key::new(hmac::HMAC_SHA256, &bytes)),
                _ => {
                    let why = "a key of Standard Webhooks is whsec_ and base64, or whpk_ and 32 bytes in base64";
                    return Err(error("secret", why));
                }
            }
        }
        if keys.is_empty() && public.is_empty() {
            return Err(error("secret", "no secret was given"));
        }
        Ok(Self {
            keys,
            public,
            kind: Kind::Standard,
            tolerance: Duration::from_secs(300),
        })
    }

    /// HMAC-SHA-256 of the body, in a header of this name; the message id is in the header `webhook-id` by default.
    /// Secrets are used as they are written.
    pub fn hmac<'s>(
        secrets: impl IntoIterator<Item = &'s str>,
        header: &str,
        encoding: Encoding,
    ) -> Self {
        let key = |secret: &str| hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        Self {
            keys: secrets.into_iter().map(key).collect(),
            public: Vec::new(),
            kind: Kind::Hmac {
                header: header.to_ascii_lowercase(),
                encoding,
                prefix: String::new(),
                fields: None,
                time_header: None,
                id: Id::Header("webhook-id".to_owned()),
            },
            tolerance: Duration::from_secs(300),
        }
    }

    /// The signature comes after this text, such as `sha256=`.
    #[must_use]
    pub fn prefixed(mut self, text: &str) -> Self {
        if let Kind::Hmac { prefix, .. } = &mut self.kind {
            *prefix = text.to_owned();
        }
        self
    }

    /// The header holds several fields, such as `t=1700000000,v1=…`; signed are time, a dot and the body.
    #[must_use]
    pub fn fields(mut self, time: &str, signature: &str) -> Self {
        if let Kind::Hmac { fields, .. } = &mut self.kind {
            *fields = Some((time.to_owned(), signature.to_owned()));
        }
        self
    }

    /// The time, in seconds since 1970, is in a header of its own; signed are time, a dot and the body.
    #[must_use]
    pub fn time_header(mut self, name: &str) -> Self {
        if let Kind::Hmac { time_header, .. } = &mut self.kind {
            *time_header = Some(name.to_ascii_lowercase());
        }
        self
    }

    /// The message id is in this header, which the signature does not cover: who has one request can send it again under another
    /// id. Where the body has an id, [`Scheme::id_pointer`] is safe.
    #[must_use]
    pub fn id_header(mut self, name: &str) -> Self {
        if let Kind::Hmac { id, .. } = &mut self.kind {
            *id = Id::Header(name.to_ascii_lowercase());
        }
        self
    }

    /// The message id is in the payload, at this JSON pointer, such as `/id`.
    #[must_use]
    pub fn id_pointer(mut self, pointer: &str) -> Self {
        if let Kind::Hmac { id, .. } = &mut self.kind {
            *id = Id::Pointer(pointer.to_owned());
        }
        self
    }

    /// How far the time of a message may be from ours, both ways. Default: five minutes. Copies of
    /// a message are known for longer than this and than the sender's retries: see the consumer's contract.
    #[must_use]
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Checks who speaks, and answers the message's id: empty where it has none.
    pub(super) fn verify(&self, headers: &HeaderMap, body: &[u8]) -> Result<String, SchemeError> {
        self.verify_at(headers, body, SystemTime::now())
    }

    pub(super) fn verify_at(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Result<String, SchemeError> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let missing = |what: &str| error("signature_missing", format!("header {what} is missing"));
        match &self.kind {
            Kind::Standard => {
                let id = text("webhook-id").unwrap_or_default();
                let time = text("webhook-timestamp");
                let time = time.ok_or_else(|| missing("webhook-timestamp"))?;
                let signed = text("webhook-signature");
                let signed = signed.ok_or_else(|| missing("webhook-signature"))?;
                self.check_time(time, now)?;
                let content = [id.as_bytes(), b".", time.as_bytes(), b".", body].concat();
                let signatures = |version| {
                    let all = signed.split(' ');
                    all.filter_map(move |one| one.strip_prefix(version))
                };
                if !signatures("v1a,").any(|one| self.is_by_public_key(one, &content)) {
                    self.check(signatures("v1,"), Encoding::Base64, &content)?;
                }
                Ok(id.to_owned())
            }
            Kind::Hmac {
                header,
                encoding,
                prefix,
                fields,
                time_header,
                id,
            } => {
                let value = text(header).ok_or_else(|| missing(header))?;
                let mut time = time_header.as_deref().and_then(text);
                let mut signatures = vec![value];
                if let Some((time_name, name)) = fields {
                    let parts = value
                        .split(',')
                        .filter_map(|part| part.trim().split_once('='));
                    let parts: Vec<_> = parts.collect();
                    let named = |wanted: &str| {
                        let parts = parts.iter().filter(move |(n, _)| *n == wanted);
                        parts.map(|(_, value)| *value).collect::<Vec<_>>()
                    };
                    time = named(time_name).first().copied();
                    signatures = named(name);
                }
                let signatures = signatures
                    .iter()
                    .filter_map(|s| s.strip_prefix(prefix.as_str()));
                let content = if fields.is_some() || time_header.is_some() {
                    let why = || error("timestamp_missing", "it does not say when it was sent");
                    let time = time.ok_or_else(why)?;
                    self.check_time(time, now)?;
                    [time.as_bytes(), b".", body].concat()
                } else {
                    body.to_vec()
                };
                self.check(signatures, *encoding, &content)?;
                Ok(match id {
                    Id::Header(name) => text(name).unwrap_or_default().to_owned(),
                    Id::Pointer(pointer) => {
                        let payload = serde_json::from_slice::<serde_json::Value>(body);
                        let id = payload.ok().and_then(|p| p.pointer(pointer).cloned());
                        match id {
                            Some(serde_json::Value::String(id)) => id,
                            Some(serde_json::Value::Number(id)) => id.to_string(),
                            _ => String::new(),
                        }
                    }
                })
            }
        }
    }

    fn check_time(&self, time: &str, now: SystemTime) -> Result<(), SchemeError> {
        let seconds = time.parse::<u64>();
        let why = |_| error("timestamp_missing", "its time is no number of seconds");
        let sent = UNIX_EPOCH.checked_add(Duration::from_secs(seconds.map_err(why)?));
        let sent = sent.ok_or_else(|| error("timestamp_outside_window", "its time is no time"))?;
        let apart = now
            .duration_since(sent)
            .or_else(|_| sent.duration_since(now));
        if apart.unwrap_or(Duration::MAX) > self.tolerance {
            let why = "it was sent too long ago, or in the future";
            return Err(error("timestamp_outside_window", why));
        }
        Ok(())
    }

    fn is_by_public_key(&self, signature: &str, content: &[u8]) -> bool {
        let signature = STANDARD.decode(signature).unwrap_or_default();
        let mut keys = self.public.iter();
        keys.any(|key| {
            let key = UnparsedPublicKey::new(&ED25519, key);
            key.verify(content, &signature).is_ok()
        })
    }

    /// Whether one of the signatures is by one of the secrets. Compared in constant time.
    fn check<'s>(
        &self,
        signatures: impl Iterator<Item = &'s str>,
        encoding: Encoding,
        content: &[u8],
    ) -> Result<(), SchemeError> {
        for signature in signatures {
            let bytes = match encoding {
                Encoding::Base64 => STANDARD.decode(signature).ok(),
                Encoding::Hex => from_hex(signature),
            };
            let Some(bytes) = bytes else { continue };
            if self
                .keys
                .iter()
                .any(|key| hmac::verify(key, content, &bytes).is_ok())
            {
                return Ok(());
            }
        }
        Err(error("signature_wrong", "no signature fits"))
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks_exact(2);
    pairs
        .map(|pair| u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors that every client passes.
    #[test]
    fn a_webhook_is_verified_as_by_every_client() {
        let vectors = include_str!("../../../../conformance/vectors/webhooks.json");
        let vectors: Vec<serde_json::Value> = serde_json::from_str(vectors).unwrap();
        assert!(vectors.len() > 10);
        for vector in vectors {
            let secrets = vector["secrets"].as_array().unwrap();
            let mut headers = HeaderMap::new();
            for (name, value) in vector["headers"].as_object().unwrap() {
                let name = http::HeaderName::try_from(name).unwrap();
                headers.insert(name, value.as_str().unwrap().parse().unwrap());
            }
            let now = UNIX_EPOCH + Duration::from_secs(vector["now"].as_u64().unwrap());
            let verified = Scheme::standard(secrets.iter().map(|secret| secret.as_str().unwrap()))
                .and_then(|scheme| {
                    scheme.verify_at(&headers, vector["body"].as_str().unwrap().as_bytes(), now)
                });
            match vector["error"].as_str() {
                Some(code) => assert_eq!(verified.unwrap_err().code, code, "{}", vector["name"]),
                None => assert_eq!(verified.unwrap(), vector["id"], "{}", vector["name"]),
            }
        }
    }
}
