//! How far a consumer is in an ordered source.

use std::time::Duration;

use super::message::Position;
use super::{Inbox, unreadable};
use crate::Result;
use crate::driver::{Driver, Param};
use crate::lease::interval;

/// A partition of an ordered source that a worker holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionLease {
    pub(super) consumer: String,
    pub(super) source: String,
    pub(super) partition: String,
    pub(super) lease: Duration,
    /// The fence of this holder: an older one can commit nothing.
    pub epoch: i64,
    /// Everything up to here is applied; `None`: nothing yet. Anyone who commits sets it anew.
    pub position: Option<Position>,
}

impl<D: Driver> Inbox<D> {
    /// Takes a partition over from anyone who had it. `None`: another worker has moved it within its lease;
    /// ask again later. What the worker before still has in hand cannot be committed any more.
    pub async fn take_partition(
        &self,
        consumer: &str,
        source: &str,
        partition: &str,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<PartitionLease>> {
        let length = interval(lease);
        let params =
            [consumer, source, partition, owner, &length].map(|text| Param::Text(Some(text)));
        let rows = self.call(&self.statements.take_partition, &params).await?;
        let Some(row) = rows.into_iter().next() else {
            return Ok(None);
        };
        let mut cells = row.into_iter();
        let mut next = || cells.next().flatten().and_then(|n| n.parse::<i64>().ok());
        Ok(Some(PartitionLease {
            consumer: consumer.to_owned(),
            source: source.to_owned(),
            partition: partition.to_owned(),
            lease,
            epoch: next().ok_or_else(unreadable)?,
            position: next().map(|major| Position {
                major,
                minor: next().unwrap_or_default(),
            }),
        }))
    }

    /// Gives a partition back: the next worker need not wait for the lease.
    pub async fn leave_partition(&self, held: &PartitionLease) -> Result<()> {
        let epoch = held.epoch.to_string();
        let params = [&held.consumer, &held.source, &held.partition, &epoch]
            .map(|text| Param::Text(Some(text)));
        let leave = &self.statements.leave_partition;
        self.call(leave, &params).await.map(drop)
    }
}
