//! A bound on the memory that requests take together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many bytes of requests may be held at once; a request beyond that gets 503. Each takes as much as its body, and 16 KiB
/// beside it (or twice the size of its headers, where that is more), until its work has ended, whether or not its client still waits.
/// Layers that share one budget are bounded together.
///
/// ```
/// let budget = pgonce_http::Budget::bytes(64 * 1024 * 1024);
/// assert_eq!(budget.free(), 64 * 1024 * 1024);
/// ```
///
/// One of less than 16 KiB takes no request at all, and one of 16 KiB only those without a body and with a small head.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Semaphore>);

/// What every request takes at least, beside its body.
pub(crate) const PER_REQUEST: usize = 16 * 1024;

impl Budget {
    /// So many bytes.
    pub fn bytes(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))))
    }

    /// How many bytes are free now.
    pub fn free(&self) -> usize {
        self.0.available_permits()
    }

    pub(crate) fn reserve(&self, bytes: usize) -> Option<Reserved> {
        let bytes = u32::try_from(bytes).ok()?;
        let permit = self.0.clone().try_acquire_many_owned(bytes).ok()?;
        Some(Reserved(permit))
    }
}

impl Default for Budget {
    /// 128 MiB.
    fn default() -> Self {
        Self::bytes(128 * 1024 * 1024)
    }
}

/// Bytes of a budget; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reserved(OwnedSemaphorePermit);

impl Reserved {
    pub(crate) fn bytes(&self) -> usize {
        self.0.num_permits()
    }

    pub(crate) fn add(&mut self, more: Reserved) {
        self.0.merge(more.0);
    }
}
