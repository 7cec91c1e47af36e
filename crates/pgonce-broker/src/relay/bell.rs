//! Being told that there is something to read, instead of looking all the time.

use std::sync::Arc;

use tokio::sync::watch;

/// Tells relays of the same process that something was committed: they look at once.
///
/// Ringing is a hint and nothing more. A relay finds every event without it, and a ring too many costs
/// it one cheap look. A program that publishes and relays may ring after its own commits; with the
/// feature `wal`, a `Tail` rings for everybody's.
///
/// ```
/// let bell = pgonce_broker::Bell::default();
/// // … `relay.woken_by(&bell)`, and after a commit:
/// bell.ring();
/// ```
#[derive(Debug, Clone)]
pub struct Bell(Arc<watch::Sender<Heard>>);

/// What was heard of it.
#[derive(Debug, Clone, Copy, Default)]
struct Heard {
    /// Whether every commit is told, so that looking without being told is hardly needed.
    manned: bool,
}

impl Default for Bell {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Heard::default())))
    }
}

impl Bell {
    /// Something may have been committed.
    pub fn ring(&self) {
        self.0.send_modify(|_| {});
    }

    /// Whether every commit is told now. Rings as well: what was committed before counts.
    #[cfg(feature = "wal")]
    pub(crate) fn man(&self, manned: bool) {
        self.0.send_modify(|heard| heard.manned = manned);
    }

    /// Whether every commit of the database is told now; until then relays look as if there were no bell.
    pub fn is_manned(&self) -> bool {
        self.0.borrow().manned
    }

    pub(super) fn ear(&self) -> Ear {
        Ear(self.clone(), self.0.subscribe())
    }
}

/// A relay's ear. It holds the bell, so that there is always something to listen to.
#[derive(Debug)]
pub(super) struct Ear(Bell, watch::Receiver<Heard>);

impl Ear {
    /// Waits until the bell rings; once for many rings.
    pub(super) async fn rings(&mut self) {
        if self.1.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub(super) fn is_manned(&self) -> bool {
        self.0.is_manned()
    }
}
