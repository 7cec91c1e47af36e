//! Relays that are notified of commits by the write-ahead log, where `wal_level = logical`.
//!
//! A [`WalListener`] listens to PostgreSQL's logical replication of the log and notifies a [`WakeSignal`] for every
//! commit that published. That is all it does: events are read from the log as always, through windows
//! of snapshots, and the cursors stay the truth. So its slot can be *temporary*: it ends with the
//! connection, is confirmed as soon as it is received, and holds back no more of the write-ahead log than
//! the oldest open transaction needs. Whatever happens to it, nothing can be skipped; until it is back
//! relays look for themselves.

mod connection;
mod error;
mod listen;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::sleep;

pub use error::WalListenerError;

use crate::WakeSignal;
use crate::relay::jittered;
use listen::Listener;

/// The pauses before it is tried again, the first and the maximum.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// For how long a silent server is believed in.
const SILENCE: Duration = Duration::from_secs(20);

/// Where the database is, and how to get there.
#[derive(Clone)]
pub(crate) struct Target {
    address: tokio_postgres::Config,
    tls: Option<Arc<rustls::ClientConfig>>,
    publication: String,
}

impl Target {
    fn connect_timeout(&self) -> Duration {
        let timeout = self.address.get_connect_timeout();
        timeout.copied().unwrap_or(Duration::from_secs(10))
    }
}

/// Listens to the write-ahead log until it is dropped.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct WalListener {
    signal: WakeSignal,
    task: AbortHandle,
}

impl WalListener {
    /// Listens to the database at this address, where pgonce is in this schema. The connection is
    /// encrypted where `tls` is given. One `WalListener` is enough for all relays of a process.
    ///
    /// What has to be put right by an operator is an error at once: `wal_level`, the right to replicate, a
    /// missing publication. Everything else is tried again and again, and logged.
    pub async fn start(
        address: tokio_postgres::Config,
        tls: Option<Arc<rustls::ClientConfig>>,
        schema: &str,
    ) -> Result<Self, WalListenerError> {
        let target = Target {
            address,
            tls,
            publication: format!("{schema}_outbox"),
        };
        let first = match Listener::open(&target).await {
            Err(error) if error.lasts() => return Err(error),
            tried => tried,
        };
        let signal = WakeSignal::default();
        let task = tokio::spawn(keep_listening(target, signal.clone(), first)).abort_handle();
        Ok(Self { signal, task })
    }

    /// The signal that it notifies, for [`Relay::wake_on`](crate::Relay::wake_on).
    pub fn signal(&self) -> &WakeSignal {
        &self.signal
    }
}

impl Drop for WalListener {
    fn drop(&mut self) {
        self.task.abort();
        self.signal.set_live(false);
    }
}

async fn keep_listening(
    target: Target,
    signal: WakeSignal,
    first: Result<Listener, WalListenerError>,
) {
    let mut opened = first;
    let mut pause = PAUSES.0;
    loop {
        let error = match opened {
            Ok(listener) => listener.listen(&signal).await,
            Err(error) => error,
        };
        // Only who has listened has anything to lose.
        if signal.is_live() {
            pause = PAUSES.0;
        }
        signal.set_live(false);
        tracing::warn!(%error, hint = error.hint(), ?pause, "the write-ahead log is not followed: relays poll");
        sleep(jittered(pause)).await;
        pause = (pause * 2).min(PAUSES.1);
        opened = Listener::open(&target).await;
    }
}
