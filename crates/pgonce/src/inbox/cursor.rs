//! How far a consumer is in an ordered source.

use std::time::Duration;

use super::handle::Inbox;
use super::message::Position;
use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::Result;

static LEASE_PARTITION: Sql = Sql::kept(
    "select epoch, \"position\", minor from pgonce._lease_partition($1, $2, $3, $4, $5::text::interval)",
);
static RENEW_PARTITION: Sql = Sql::kept(
    "select pgonce._renew_partition($1, $2, $3, $4::text::bigint, $5::text::interval)::text",
);
static RELEASE_PARTITION: Sql =
    Sql::kept("select pgonce._release_partition($1, $2, $3, $4::text::bigint)::text");

/// A partition of an ordered source that a worker holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionLease {
    pub(super) consumer: String,
    pub(super) source: String,
    pub(super) partition: String,
    pub(super) length: Duration,
    /// The fence of this holder: an older one can commit nothing.
    pub epoch: i64,
    /// Everything up to here is applied; `None`: nothing yet. Each commit sets it anew.
    pub position: Option<Position>,
}

impl<D: Driver> Inbox<D> {
    /// Takes a partition over from its holder. `None`: another worker has moved it within its lease;
    /// ask again later. What the worker before still has in hand cannot be committed any more.
    pub async fn take_partition(
        &self,
        consumer: &str,
        source: &str,
        partition: &str,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<PartitionLease>> {
        let args = Args::texts([consumer, source, partition, owner]).interval(lease);
        let Some(mut row) = self.call(&LEASE_PARTITION, args).await?.first() else {
            return Ok(None);
        };
        Ok(Some(PartitionLease {
            consumer: consumer.to_owned(),
            source: source.to_owned(),
            partition: partition.to_owned(),
            length: lease,
            epoch: row.get()?,
            position: match row.opt()? {
                Some(major) => Some(Position {
                    major,
                    minor: row.opt()?.unwrap_or_default(),
                }),
                None => None,
            },
        }))
    }

    /// Renews the lease of a partition while a batch of it is being applied. False: another worker has it.
    pub async fn renew_partition(&self, lease: &PartitionLease) -> Result<bool> {
        let args = Args::texts([&lease.consumer, &lease.source, &lease.partition])
            .int(lease.epoch)
            .interval(lease.length);
        let renewed = self.call(&RENEW_PARTITION, args).await?.first();
        let renewed: Option<String> = renewed.map(|mut row| row.get()).transpose()?;
        Ok(renewed.as_deref() == Some("true"))
    }

    /// Gives a partition back: the next worker need not wait for the lease.
    pub async fn leave_partition(&self, lease: &PartitionLease) -> Result<()> {
        let args = Args::texts([&lease.consumer, &lease.source, &lease.partition]).int(lease.epoch);
        self.call(&RELEASE_PARTITION, args).await.map(drop)
    }
}
