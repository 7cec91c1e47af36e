//! What a relay asks the database on Citus, where events travel as jobs.

use std::future::Future;

use super::lanes::Outbox;
use crate::call::{Args, Sql};
use crate::driver::Driver;
use crate::error::Result;
use crate::queue::{Finished, Job, Worker};

static QUEUE: Sql = Sql::kept("select pgonce._subscription_queue($1)");

impl<D: Driver> Outbox<D> {
    /// Whether Citus distributes the tables: then events travel as jobs, and there are no lanes.
    pub fn is_distributed(&self) -> bool {
        self.caller().schema.is_distributed()
    }

    /// On Citus: the queue of a subscription. An error says why it has no relays: it does not exist (`42704`) or was evicted
    /// (`P4031`).
    pub async fn queue(&self, subscription: &str) -> Result<String> {
        let rows = self.caller().call(&QUEUE, Args::texts([subscription]));
        rows.await?.one()?.text()
    }

    /// On Citus: a worker for the events in a [`queue`](Self::queue), under a name for people.
    pub fn worker<H, F>(&self, queue: &str, owner: &str, handler: H) -> Worker<D, H>
    where
        H: Fn(Job<D>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Finished>> + Send + 'static,
    {
        let mut worker = self.once().worker([queue], handler);
        worker.owner = owner.to_owned();
        worker
    }
}
