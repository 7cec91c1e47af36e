//! The partition of a lane, where copies are known by position.

use pgonce::Error;
use pgonce::driver::Driver;

use super::Handler;
use super::batch_error::{BatchError, of_database};
use super::lane::{Item, Lane};
use crate::bounded::{MAX_CALL, bounded, reply_limit};

impl<D: Driver, H: Handler<D>> Lane<'_, D, H> {
    /// Renews the partition's lease while a batch is being applied, however long that takes. Ends when another worker has
    /// the partition: then the batch is for nothing.
    pub(super) async fn renew_lease(&self) -> BatchError {
        let Some(held) = &self.held else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(self.shared.limits.lease / 3).await;
            let renewing = self.shared.inbox.renew_partition(held);
            match bounded(reply_limit(self.shared.limits.lease / 3), renewing).await {
                Ok(true) => {}
                Ok(false) => {
                    return BatchError::Fenced(Error::work("another worker has the partition"));
                }
                Err(error) => {
                    tracing::warn!(%error, "the lease of a partition could not be renewed")
                }
            }
        }
    }

    /// Leaves out what the cursor is past.
    pub(super) async fn not_yet_applied<'p>(
        &mut self,
        piece: &'p [Item],
    ) -> Result<Vec<&'p Item>, BatchError> {
        let Some(partition) = &self.partition else {
            return Ok(piece.iter().collect());
        };
        if self.held.is_none() {
            let shared = self.shared;
            let (name, source, lease) = (&shared.name, &shared.source, shared.limits.lease);
            let taken = shared
                .inbox
                .take_partition(name, source, partition, &shared.owner, lease);
            self.held = bounded(MAX_CALL, taken).await.map_err(of_database)?;
        }
        let Some(held) = &self.held else {
            return Err(BatchError::Fenced(Error::work(
                "another worker has the partition",
            )));
        };
        // A failover has taken the database back. The source goes back only where the partition is taken anew, outside of a lane:
        // here what comes next would be applied in front of what is missing.
        if held.position < self.reached {
            self.held = None;
            return Err(BatchError::Fenced(Error::work(
                "the database is behind what was applied",
            )));
        }
        self.reached = held.position;
        let is_new = |item: &&Item| {
            let place = item.message.place.as_ref();
            let is_new = place.is_some_and(|place| Some(place.position) > held.position);
            is_new || item.span.is_duplicate()
        };
        Ok(piece.iter().filter(is_new).collect())
    }
}
