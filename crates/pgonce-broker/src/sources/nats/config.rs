//! How to read a stream of NATS.

use std::path::PathBuf;
use std::time::Duration;

use crate::sources::TIMEOUT;

/// How to read a stream.
#[derive(Clone)]
#[non_exhaustive]
pub struct NatsConfig {
    /// Such as `nats://user:password@host:4222`.
    pub url: String,
    /// The stream, which must be there.
    pub stream: String,
    /// The durable consumer, shared by all who give the same name; made where it is missing. `None`: the
    /// stream is read in its order, by one at a time, and the place is kept in the database.
    pub durable: Option<String>,
    /// Only messages of these subjects, with NATS' wildcards. Default: all. What an existing
    /// durable consumer selects is its own.
    pub subject: Option<String>,
    /// For a durable consumer that is made: when a message that was not settled is delivered again. Longer
    /// than a batch takes. Default: 30 seconds.
    pub ack_wait: Duration,
    /// What its messages are remembered under. Default: `nats:` and the stream's name.
    pub name: String,
    /// How long an answer may take.
    pub timeout: Duration,
    /// A file with credentials, as `nsc` writes it.
    pub credentials: Option<PathBuf>,
}

impl NatsConfig {
    /// A stream, through the durable consumer of this name.
    pub fn durable(
        url: impl Into<String>,
        stream: impl Into<String>,
        durable: impl Into<String>,
    ) -> Self {
        Self {
            durable: Some(durable.into()),
            ..Self::ordered(url, stream)
        }
    }

    /// A stream in its order.
    pub fn ordered(url: impl Into<String>, stream: impl Into<String>) -> Self {
        let stream = stream.into();
        Self {
            url: url.into(),
            name: format!("nats:{stream}"),
            stream,
            durable: None,
            subject: None,
            ack_wait: Duration::from_secs(30),
            timeout: TIMEOUT,
            credentials: None,
        }
    }
}

/// Without the address, which may hold a password.
impl std::fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsConfig")
            .field("stream", &self.stream)
            .field("durable", &self.durable)
            .field("subject", &self.subject)
            .field("ack_wait", &self.ack_wait)
            .field("name", &self.name)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
