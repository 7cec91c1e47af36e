//! Wake-up signals: a relay that is notified of commits need not poll all the time.

use std::sync::Arc;

use tokio::sync::watch;

/// Notifies relays of the same process that something was committed: they read at once.
///
/// A notification is a hint and nothing more. A relay finds every event without it, and one too many costs
/// it one cheap query. A program that publishes and relays may notify after its own commits; with the
/// feature `wal`, a `WalListener` notifies for every commit of the database.
///
/// ```
/// let signal = pgonce_broker::WakeSignal::default();
/// // … `relay.wake_on(&signal)`, and after a commit:
/// signal.notify();
/// ```
#[derive(Debug, Clone)]
pub struct WakeSignal(Arc<watch::Sender<WakeState>>);

#[derive(Debug, Clone, Copy, Default)]
struct WakeState {
    /// Whether every commit is notified, so that polling is hardly needed.
    live: bool,
}

impl Default for WakeSignal {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(WakeState::default())))
    }
}

impl WakeSignal {
    /// Says that something may have been committed.
    pub fn notify(&self) {
        self.0.send_modify(|_| {});
    }

    /// Sets whether every commit is notified now. Notifies as well: what was committed before counts.
    #[cfg(feature = "wal")]
    pub(crate) fn set_live(&self, live: bool) {
        self.0.send_modify(|state| state.live = live);
    }

    /// Whether every commit of the database is notified now; until then relays poll as without a signal.
    pub fn is_live(&self) -> bool {
        self.0.borrow().live
    }

    pub(super) fn subscribe(&self) -> WakeReceiver {
        WakeReceiver {
            _signal: self.clone(),
            notifications: self.0.subscribe(),
        }
    }
}

/// A relay's end of a signal. It holds the signal, so that there is always something to wait for.
#[derive(Debug)]
pub(super) struct WakeReceiver {
    _signal: WakeSignal,
    notifications: watch::Receiver<WakeState>,
}

impl WakeReceiver {
    /// Waits for a notification; once for many.
    pub(super) async fn notified(&mut self) {
        if self.notifications.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
