//! Sockets: connections are accepted, counted, limited, and let finish.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::io::{Peers, WriteTimeout};
use super::proxy::Client;

/// How much anybody may ask of a listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    pub(crate) connections_per_peer: usize,
    pub(crate) header_bytes: usize,
    pub(crate) header_timeout: Duration,
    pub(crate) write_timeout: Duration,
}

/// A listener, and how it ends.
pub(crate) struct Server {
    pub(crate) listener: TcpListener,
    pub(crate) limits: Limits,
    /// When it is cancelled no connection is accepted any more, and those without work end.
    pub(crate) stop: CancellationToken,
    /// Has a task for each connection.
    pub(crate) connections: TaskTracker,
}

impl Server {
    /// Accepts connections until stopped; then the listener is closed, and the connections
    /// that have work go on in [`Server::connections`].
    pub(crate) async fn accept<H, F>(self, handler: H)
    where
        H: Fn(Request<Body>) -> F + Send + Sync + 'static,
        F: Future<Output = Response> + Send + 'static,
    {
        let (handler, free) = (
            Arc::new(handler),
            Arc::new(Semaphore::new(self.limits.connections)),
        );
        let peers = Peers::default();
        loop {
            // A client that connects when all permits are taken waits in the kernel's queue, at no cost here.
            let next = async {
                let permit = free.clone().acquire_owned().await;
                (permit, self.listener.accept().await)
            };
            let (permit, accepted) = tokio::select! {
                () = self.stop.cancelled() => return,
                next = next => next,
            };
            match accepted {
                Ok((stream, client)) => {
                    let Some(peer) = peers.enter(client.ip(), self.limits.connections_per_peer)
                    else {
                        tracing::warn!(peer = %client.ip(), "a peer has too many connections; one was closed");
                        continue;
                    };
                    let (handler, stop, limits) = (handler.clone(), self.stop.clone(), self.limits);
                    self.connections.spawn(async move {
                        serve(stream, client, limits, &*handler, stop).await;
                        drop((permit, peer));
                    });
                }
                Err(error) => {
                    // Most often too many open files: it passes when others have ended.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

async fn serve<H, F>(
    stream: TcpStream,
    client: SocketAddr,
    limits: Limits,
    handler: &H,
    stop: CancellationToken,
) where
    H: Fn(Request<Body>) -> F,
    F: Future<Output = Response>,
{
    // Small answers must not wait for an acknowledgement of the piece before.
    let _ = stream.set_nodelay(true);
    let stream = WriteTimeout::new(stream, limits.write_timeout);
    let asked = AtomicBool::new(false);
    let service = service_fn(|request: Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        let mut request = request.map(inbound);
        request.extensions_mut().insert(Client(client));
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.header_bytes)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            if !asked.load(Ordering::Relaxed) {
                // Nothing was ever asked on it: there is nothing to finish.
                return;
            }
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

fn inbound(body: Incoming) -> Body {
    if body.is_end_stream() {
        Body::empty()
    } else {
        Body::new(body)
    }
}
