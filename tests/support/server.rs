/// A server of the test's own, or everybody's.
#[derive(Debug)]
pub enum Server<T: 'static> {
    /// It may be killed.
    Own(T),
    /// It may not.
    Shared(&'static T),
}

impl<T> std::ops::Deref for Server<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Own(server) => server,
            Self::Shared(server) => server,
        }
    }
}

/// A connection that waits as long as a busy machine needs. By itself the client gives up after half a second.
pub async fn connect_redis(url: &str) -> redis::aio::MultiplexedConnection {
    let limits = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    let client = redis::Client::open(url).unwrap();
    let connecting = client.get_multiplexed_async_connection_with_config(&limits);
    connecting.await.unwrap()
}
