//! A relay or a consumer that runs in a task, and is stopped, killed or waited for.

use std::future::Future;
use std::time::Duration;

use pgonce::Result;
use pgonce::driver::Driver;
use pgonce_broker::{Consumer, Handler, Relay, Sink, Source};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long a test waits for something that must happen.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// What runs until it is stopped.
pub trait Run {
    /// Runs until `stop` is cancelled.
    fn run(self, stop: CancellationToken) -> impl Future<Output = Result<()>> + Send + 'static;
}

impl<D: Driver, S: Sink> Run for Relay<D, S> {
    fn run(self, stop: CancellationToken) -> impl Future<Output = Result<()>> + Send + 'static {
        Relay::run(self, stop)
    }
}

impl<D: Driver, S: Source, H: Handler<D>> Run for Consumer<D, S, H> {
    fn run(self, stop: CancellationToken) -> impl Future<Output = Result<()>> + Send + 'static {
        Consumer::run(self, stop)
    }
}

/// A relay or a consumer that runs.
#[derive(Debug)]
pub struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<()>>,
}

impl Running {
    /// Starts it in a task of its own.
    pub fn start(runs: impl Run) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(runs.run(stop.clone()));
        Self { stop, task }
    }

    /// Asks it to stop and waits until it has.
    pub async fn stop(self) -> Result<()> {
        self.stop.cancel();
        self.task.await.unwrap()
    }

    /// As if its process were killed: nothing is finished, nothing given back.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// Waits until it ends by itself.
    pub async fn ended(self) -> Result<()> {
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .unwrap()
            .unwrap()
    }
}
