//! A cache in front of the database, in memory and in Redis, that somebody flushes, fills with lies and mixes up.

use std::time::Duration;

use pgonce::retry::Policy;
use pgonce::{Isolation, Once, ReplayCache};
use pgonce_testkit::Redis;
use redis::AsyncTypedCommands as _;
use redis::aio::MultiplexedConnection;
use tokio::task::AbortHandle;

use super::Result;
use super::driver_ext::DriverExt;

/// Between two acts of the liar.
const PAUSE: Duration = Duration::from_millis(5);

/// Clients with a cache, and who lies to them.
#[derive(Debug)]
pub(super) struct CacheFixture<D: DriverExt> {
    /// One that has only Redis, and one that has both.
    clients: [Once<D>; 2],
    _redis: Redis,
    liar: AbortHandle,
}

impl<D: DriverExt> CacheFixture<D> {
    pub(super) async fn start(driver: D, isolation: Isolation) -> Result<Self> {
        let redis = Redis::start().await?;
        let cache = ReplayCache::redis(&redis.url(), [7; 32])?.timeout(Duration::from_millis(50));
        let client = |cache| {
            let builder = Once::builder(driver.clone()).isolation(isolation);
            builder.retry(Policy::none()).cache(cache).build()
        };
        // By itself it gives up after half a second, and the machine is busy.
        let limits = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let connection = redis::Client::open(redis.url())?;
        let connecting = connection.get_multiplexed_async_connection_with_config(&limits);
        let connection = connecting.await?;
        Ok(Self {
            clients: [
                client(cache.clone())?,
                client(cache.and_in_process().max_entries(8))?,
            ],
            liar: tokio::spawn(lie(connection)).abort_handle(),
            _redis: redis,
        })
    }

    pub(super) fn once(&self) -> Once<D> {
        self.clients[rand::random_range(0..2)].clone()
    }
}

impl<D: DriverExt> Drop for CacheFixture<D> {
    fn drop(&mut self) {
        self.liar.abort();
    }
}

/// Does to the values what anybody can who reaches the server. Ends with the server.
async fn lie(mut redis: MultiplexedConnection) -> redis::RedisResult<()> {
    loop {
        tokio::time::sleep(PAUSE).await;
        let names = redis.keys("*").await?;
        let Some(one) = names.first() else { continue };
        let other = &names[rand::random_range(0..names.len())];
        match rand::random_range(0..20) {
            0 => redis.flushall().await?,
            1..10 => redis.set(one, "{\"answer\": \"a lie\"}").await?,
            _ => {
                let mut copy = redis::cmd("COPY");
                copy.arg(one)
                    .arg(other)
                    .arg("REPLACE")
                    .exec_async(&mut redis)
                    .await?;
            }
        }
    }
}
