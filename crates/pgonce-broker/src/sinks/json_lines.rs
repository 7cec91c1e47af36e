//! Events as lines of JSON.

use pgonce::outbox::Message;
use tokio::io::{AsyncWrite, AsyncWriteExt as _, Stdout};
use tokio::sync::Mutex;

use crate::{Delivery, Sink};

/// Writes each event as one line: a CloudEvent in JSON. Acknowledged when it is written and flushed.
///
/// After a failed write the other end may have got part of a line, and gets the whole line again.
#[derive(Debug)]
pub struct JsonLines<W> {
    source: String,
    out: Mutex<W>,
}

impl JsonLines<Stdout> {
    /// To standard output. `source` is the CloudEvents attribute: who speaks, as a URI.
    pub fn stdout(source: impl Into<String>) -> Self {
        Self::new(source, tokio::io::stdout())
    }
}

impl<W: AsyncWrite + Unpin + Send + 'static> JsonLines<W> {
    /// To anything that takes bytes.
    pub fn new(source: impl Into<String>, out: W) -> Self {
        Self {
            source: source.into(),
            out: Mutex::new(out),
        }
    }

    async fn write(&self, batch: &[Message]) -> std::io::Result<()> {
        let mut lines = Vec::new();
        for message in batch {
            lines.extend(message.cloud_event(&self.source).into_bytes());
            lines.push(b'\n');
        }
        let mut out = self.out.lock().await;
        out.write_all(&lines).await?;
        out.flush().await
    }
}

impl<W: AsyncWrite + Unpin + Send + 'static> Sink for JsonLines<W> {
    async fn send(&self, message: &Message) -> Delivery {
        let deliveries = self.send_batch(std::slice::from_ref(message), 1).await;
        deliveries.into_iter().next().unwrap_or(Delivery::Untried)
    }

    /// All in one piece: there is nothing to wait for in between.
    async fn send_batch(&self, batch: &[Message], _in_flight: usize) -> Vec<Delivery> {
        match self.write(batch).await {
            Ok(()) => vec![Delivery::Acknowledged; batch.len()],
            Err(error) => {
                let reason = error.to_string();
                vec![Delivery::Unavailable { reason }; batch.len()]
            }
        }
    }
}
