//! A message as it comes in.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::fingerprint::Fingerprint;

/// A place in an ordered source. Sources that count with one number leave `minor` 0; a Redis stream's
/// `1700000000000-3` is `(1700000000000, 3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// The offset, the sequence, the milliseconds.
    pub major: i64,
    /// What comes after it, where there is such a thing.
    pub minor: i64,
}

impl From<i64> for Position {
    fn from(major: i64) -> Self {
        Self { major, minor: 0 }
    }
}

impl From<(i64, i64)> for Position {
    fn from((major, minor): (i64, i64)) -> Self {
        Self { major, minor }
    }
}

/// Where a message stands in an ordered source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PartitionPosition {
    /// The part of the source that has an order of its own. A source that begins to count anew (a topic
    /// that was created again) must give it another name.
    pub partition: String,
    /// How far into it.
    pub position: Position,
}

/// A message: what it is, apart from how often and by which delivery it came.
///
/// ```
/// use pgonce::inbox::Message;
///
/// let message = Message::new("evt-7", r#"{"amount": 5}"#).key("account-3").kind("paid");
/// assert_eq!(message.json()?["amount"], 5);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Message {
    /// The sender's name for it, the same however often it is delivered; what is deduplicated by.
    /// Empty where it came without: such a message is never applied.
    pub id: String,
    /// The name of the source that it came from, under which its id is remembered; set when it is received.
    pub source: String,
    /// Whose it is; empty where there are no tenants.
    pub tenant: String,
    /// What its order matters for: messages of one key are applied one after the other.
    pub key: Option<String>,
    /// Type of the message, such as `order.created`.
    pub kind: Option<String>,
    /// The bytes.
    pub payload: Arc<[u8]>,
    /// What came with it.
    pub headers: Map<String, Value>,
    /// Position of the message, in an ordered source.
    pub place: Option<PartitionPosition>,
    /// The source says, or suspects, that it was delivered before.
    pub redelivered: bool,
    /// When the message was sent, where the source knows: for the lag.
    pub sent_at: Option<SystemTime>,
    /// The bytes as they came, where the payload was inside them.
    came: Option<Arc<[u8]>>,
    /// What it is compared by, where that is not the bytes as they came.
    compared_by: Option<[u8; 32]>,
}

/// Id, key and payload stay out of logs.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("tenant", &self.tenant)
            .field("kind", &self.kind)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl Message {
    /// A message with an id and a payload and nothing else.
    pub fn new(id: impl Into<String>, payload: impl AsRef<[u8]>) -> Self {
        Self {
            id: id.into(),
            source: String::new(),
            tenant: String::new(),
            key: None,
            kind: None,
            payload: payload.as_ref().into(),
            headers: Map::new(),
            place: None,
            redelivered: false,
            sent_at: None,
            came: None,
            compared_by: None,
        }
    }

    /// Key of the message: what its order matters for.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Type of the message, such as `order.created`.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Tenant that the message belongs to.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// Something that came with it.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Position of the message in an ordered source.
    #[must_use]
    pub fn at(mut self, partition: impl Into<String>, position: impl Into<Position>) -> Self {
        self.place = Some(PartitionPosition {
            partition: partition.into(),
            position: position.into(),
        });
        self
    }

    /// The payload as JSON.
    pub fn json(&self) -> serde_json::Result<Value> {
        serde_json::from_slice(&self.payload)
    }

    /// Puts what was inside the payload in its place, such as the data of an envelope. What the message is
    /// compared and stored by stays what came.
    pub fn unwrap_payload(&mut self, inside: impl Into<Arc<[u8]>>) {
        let before = std::mem::replace(&mut self.payload, inside.into());
        self.came.get_or_insert(before);
    }

    /// The bytes as they came.
    pub fn raw_payload(&self) -> &Arc<[u8]> {
        self.came.as_ref().unwrap_or(&self.payload)
    }

    /// Compares it by a fingerprint instead of its bytes, so that a sender may change what does not count when it sends a
    /// message again.
    ///
    /// ```
    /// use pgonce::{Fingerprint, inbox::Message};
    ///
    /// let without_time = Fingerprint::canon().exclude(["/sent_at"]);
    /// let mut first = Message::new("evt-7", r#"{"amount": 5, "sent_at": "10:00"}"#);
    /// let mut again = Message::new("evt-7", r#"{"amount": 5, "sent_at": "10:01"}"#);
    /// for message in [&mut first, &mut again] {
    ///     let fingerprint = without_time.of(&message.json()?)?;
    ///     message.compare_by(&fingerprint);
    /// }
    /// assert_eq!(first.hash(), again.hash());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compare_by(&mut self, fingerprint: &Fingerprint) {
        let digest = fingerprint.as_bytes();
        let hash = <[u8; 32]>::try_from(digest);
        self.compared_by = Some(hash.unwrap_or_else(|_| Sha256::digest(digest).into()));
    }

    /// The SHA-256 of the bytes as they came, by which another payload under the same id is noticed; or what
    /// [`compare_by`](Self::compare_by) set.
    pub fn hash(&self) -> [u8; 32] {
        let bytes = || Sha256::digest(self.raw_payload()).into();
        self.compared_by.unwrap_or_else(bytes)
    }
}
