use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::ack::{Ack, Done};
use crate::error::Result;
use crate::intent::Intent;
use crate::seal::{self, AnswerKeys};

/// What an answer is found by: a digest of schema, tenant, scope and key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Name(pub(super) [u8; 32]);

impl Name {
    pub(super) fn of(schema: &str, intent: &Intent) -> Self {
        let mut digest = Sha256::new();
        for part in [
            "pgonce replay",
            schema,
            intent.tenant_name(),
            intent.scope(),
            intent.key(),
        ] {
            // With its length, so that no two lists of parts are the same bytes.
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        Self(digest.finalize().into())
    }
}

/// A stored answer, as the database has it: an encrypted one stays encrypted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The state of the database that it was read in.
    pub(super) state: String,
    pub(super) fingerprint: Vec<u8>,
    /// When it was read and until when it is used, by the database's clock, in milliseconds since 1970.
    pub(super) from_ms: i64,
    pub(super) until_ms: i64,
    /// Whether it can be used for longer once it was read again.
    pub(super) renewable: bool,
    pub(super) fence: i64,
    pub(super) attempts: u32,
    pub(super) answer: Option<String>,
    pub(super) reference: Option<(String, String)>,
}

/// What an entry needs beside its answer, in bytes.
const OVERHEAD: usize = 512;

impl Entry {
    pub(super) fn bytes(&self) -> usize {
        let reference = self.reference.as_ref();
        OVERHEAD
            + self.answer.as_ref().map_or(0, String::len)
            + reference.map_or(0, |(kind, id)| kind.len() + id.len())
    }

    /// Whether the last fifth of its time has begun.
    pub(super) fn is_due(&self, now_ms: i64) -> bool {
        self.renewable && now_ms > self.until_ms - (self.until_ms - self.from_ms) / 5
    }

    pub(super) fn done(&self, keys: Option<&AnswerKeys>, intent: &Intent) -> Result<Done> {
        let value = self.answer.as_deref().map(serde_json::from_str);
        let ack = Ack {
            value: seal::opened(keys, intent, value.transpose()?)?,
            reference: self.reference.clone(),
            keep: None,
        };
        Ok(Done::new(ack, true, self.attempts, self.fence))
    }
}
