//! Sockets: connections are accepted, counted, limited, and let finish.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::headers;
use super::http2;
use super::io::{PeerPermit, Peers, WriteTimeout};
use super::proxy::Client;
use super::stalls::{OpenResponses, SentBody};
use super::tls::HTTP2;

/// How many requests one HTTP/2 connection may have at a time.
const MAX_STREAMS: u32 = 128;

/// How much anybody may ask of a listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    pub(crate) connections_per_peer: usize,
    pub(crate) header_bytes: usize,
    pub(crate) header_timeout: Duration,
    pub(crate) write_timeout: Duration,
}

/// The certificate that a listener shows, replaced at a reload; none: no TLS.
pub(crate) type Certificate = Arc<RwLock<Option<Arc<ServerConfig>>>>;

/// A listener, and how it ends.
pub(crate) struct Server {
    pub(crate) listener: TcpListener,
    pub(crate) limits: Limits,
    pub(crate) certificate: Certificate,
    /// When it is cancelled no connection is accepted any more, and those without work end.
    pub(crate) stop: CancellationToken,
    /// Has a task for each connection.
    pub(crate) connections: TaskTracker,
}

/// What a connection counts for, until it and the tunnel that came of it are over.
pub(crate) struct ConnectionGuard {
    _permit: Option<OwnedSemaphorePermit>,
    _peer: PeerPermit,
    pub(crate) stop: CancellationToken,
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
                    let guard = Arc::new(ConnectionGuard {
                        _permit: permit.ok(),
                        _peer: peer,
                        stop: self.stop.clone(),
                        connections: self.connections.clone(),
                    });
                    let certificate = self.certificate.read();
                    let certificate = certificate.unwrap_or_else(PoisonError::into_inner).clone();
                    let connection = open(
                        stream,
                        client,
                        certificate,
                        self.limits,
                        handler.clone(),
                        guard,
                    );
                    self.connections.spawn(connection);
                }
                Err(error) => {
                    // Most often too many open files: it passes when others have ended.
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// Encrypts where there is a certificate, and serves the protocol that both sides chose then.
async fn open<H, F>(
    stream: TcpStream,
    client: SocketAddr,
    certificate: Option<Arc<ServerConfig>>,
    limits: Limits,
    handler: Arc<H>,
    guard: Arc<ConnectionGuard>,
) where
    H: Fn(Request<Body>) -> F + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    // Small answers must not wait for an acknowledgement of the piece before.
    let _ = stream.set_nodelay(true);
    let stream = WriteTimeout::new(stream, limits.write_timeout);
    let Some(certificate) = certificate else {
        let client = Client::new(client, false);
        return serve(stream, client, false, limits, handler, guard).await;
    };
    let handshake = TlsAcceptor::from(certificate).accept(stream);
    let handshake = tokio::select! {
        handshake = timeout(limits.header_timeout, handshake) => handshake,
        () = guard.stop.cancelled() => return,
    };
    match handshake {
        Ok(Ok(stream)) => {
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
            let client = Client::new(client, true);
            serve(stream, client, is_http2, limits, handler, guard).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "a handshake failed"),
        Err(_) => tracing::debug!("a handshake took too long"),
    }
}

/// Counts a request as answered when it is dropped, also where its client has gone.
struct Answered(Arc<(AtomicUsize, AtomicUsize)>);

impl Drop for Answered {
    fn drop(&mut self) {
        self.0.1.fetch_add(1, Ordering::Relaxed);
    }
}

async fn serve<S, H, F>(
    stream: S,
    client: Client,
    is_http2: bool,
    limits: Limits,
    handler: Arc<H>,
    guard: Arc<ConnectionGuard>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Fn(Request<Body>) -> F + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let stop = guard.stop.clone();
    // Requests that were begun, and those that are answered.
    let counts: Arc<(AtomicUsize, AtomicUsize)> = Arc::default();
    let counted = counts.clone();
    let open = OpenResponses::default();
    let tracked = open.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        counted.0.fetch_add(1, Ordering::Relaxed);
        let (handler, counted, open) = (handler.clone(), counted.clone(), tracked.clone());
        let mut request = request.map(inbound);
        request.extensions_mut().insert(client);
        if headers::is_websocket(request.headers()) {
            request.extensions_mut().insert(guard.clone());
        }
        async move {
            let _answered = Answered(counted);
            let answer = match http2::as_http1(&mut request) {
                Ok(()) => handler(request).await,
                Err(refused) => *refused,
            };
            Ok::<_, Infallible>(answer.map(|body| match is_http2 {
                true => open.track(body),
                false => SentBody::untracked(body),
            }))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.header_bytes);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(Some(limits.header_timeout))
        .keep_alive_timeout(limits.write_timeout);
    let builder = match is_http2 {
        true => builder.http2_only(),
        false => builder.http1_only(),
    };
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let (mut begun, mut stopping) = (0, false);
    // HTTP/1 has limits of its own for both.
    let mut idle = every(limits.header_timeout);
    let mut stalled = every(limits.write_timeout / 2);
    let ended = loop {
        tokio::select! {
            ended = connection.as_mut() => break ended,
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
                if counts.0.load(Ordering::Relaxed) == 0 {
                    // Nothing was ever asked on it: there is nothing to finish.
                    return;
                }
            }
            _ = idle.tick(), if is_http2 => {
                let (now, answered) = (&counts.0, &counts.1);
                let now = now.load(Ordering::Relaxed);
                if now == begun && now == answered.load(Ordering::Relaxed) {
                    connection.as_mut().graceful_shutdown();
                }
                begun = now;
            }
            _ = stalled.tick(), if is_http2 => {
                let (stalled, responses) = open.stalled(limits.write_timeout);
                if stalled > 0 {
                    // A proxy sends the requests of many over one connection: new ones go to another, and the others on
                    // this one are answered before it is cut.
                    connection.as_mut().graceful_shutdown();
                    let is_all = counts.0.load(Ordering::Relaxed) == counts.1.load(Ordering::Relaxed);
                    if stalled == responses && is_all {
                        tracing::debug!("a client took nothing of its response in time");
                        return;
                    }
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

/// Ticks that begin after one period.
fn every(period: Duration) -> Interval {
    let period = period.max(Duration::from_millis(1));
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn inbound(body: Incoming) -> Body {
    if body.is_end_stream() {
        Body::empty()
    } else {
        Body::new(body)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, stream];
        frame.extend_from_slice(payload);
        frame
    }

    /// A client of HTTP/2 that sends one request, answers every PING, and opens its window by one byte for each byte
    /// that it gets, `again` times. Gives what it got of the body.
    async fn client(mut wire: DuplexStream, window: u8, mut again: usize) -> usize {
        wire.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await
            .unwrap();
        wire.write_all(&frame(4, 0, 0, &[0, 4, 0, 0, 0, window]))
            .await
            .unwrap();
        // GET http://x/
        wire.write_all(&frame(1, 5, 1, &[0x82, 0x86, 0x84, 0x41, 1, b'x']))
            .await
            .unwrap();
        let mut got = 0;
        let mut head = [0; 9];
        while wire.read_exact(&mut head).await.is_ok() {
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            let mut payload = vec![0; length];
            wire.read_exact(&mut payload).await.unwrap();
            let reply = match (head[3], head[4] & 1) {
                (4, 0) => frame(4, 1, 0, &[]),
                (6, 0) => frame(6, 1, 0, &payload),
                (0, end) => {
                    got += length;
                    if end == 1 {
                        return got;
                    }
                    if again == 0 {
                        continue;
                    }
                    again -= 1;
                    sleep(LIMIT * 2 / 3).await;
                    frame(8, 0, 1, &[0, 0, 0, 1])
                }
                _ => continue,
            };
            if wire.write_all(&reply).await.is_err() {
                break;
            }
        }
        got
    }

    /// Serves one connection with a body of three bytes to its end; gives how long it took.
    async fn served(window: u8, again: usize, body: fn() -> Body) -> (usize, Duration) {
        let (near, far) = duplex(64 * 1024);
        let client = tokio::spawn(client(near, window, again));
        let took = served_by(far, move |_| async move { Response::new(body()) }).await;
        (client.await.unwrap(), took)
    }

    async fn served_by<F>(
        far: DuplexStream,
        handler: impl Fn(Request<Body>) -> F + Send + Sync + 'static,
    ) -> Duration
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let guard = Arc::new(ConnectionGuard {
            _permit: None,
            _peer: Peers::default().enter([192, 0, 2, 1].into(), 1).unwrap(),
            stop: CancellationToken::new(),
            connections: TaskTracker::new(),
        });
        let limits = Limits {
            connections: 1,
            connections_per_peer: 1,
            header_bytes: 16 * 1024,
            header_timeout: LIMIT / 3,
            write_timeout: LIMIT,
        };
        let peer = Client::new(([192, 0, 2, 1], 9).into(), false);
        let begun = Instant::now();
        let serving = serve(far, peer, true, limits, Arc::new(handler), guard);
        timeout(LIMIT * 20, serving)
            .await
            .expect("it is held for ever");
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_of_http2_that_takes_nothing_of_its_response_is_cut() {
        for window in [0, 1] {
            let (got, took) = served(window, 0, || Body::from("abc")).await;
            assert_eq!(got, usize::from(window));
            assert!(took >= LIMIT && took <= LIMIT * 2, "{took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_stands_still_cuts_no_other_one_of_its_connection() {
        let (mut near, far) = duplex(64 * 1024);
        let client = tokio::spawn(async move {
            let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
            let requests = [1, 3].map(|id| frame(1, 5, id, &[0x82, 0x86, 0x84, 0x41, 1, b'x']));
            let begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
            let sent = [&begin[..], &settings, &requests.concat()].concat();
            near.write_all(&sent).await.unwrap();
            let (mut answered, mut head) = (Vec::new(), [0; 9]);
            while near.read_exact(&mut head).await.is_ok() {
                let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
                near.read_exact(&mut payload).await.unwrap();
                match (head[3], head[4] & 1) {
                    (1, _) => answered.push(head[8]),
                    (kind @ (4 | 6), 0) => {
                        let reply = if kind == 6 { &payload[..] } else { &[] };
                        near.write_all(&frame(kind, 1, 0, reply)).await.unwrap();
                    }
                    _ => {}
                }
            }
            answered
        });
        let first = std::sync::atomic::AtomicBool::new(true);
        let took = served_by(far, move |_| {
            let is_first = first.swap(false, Ordering::Relaxed);
            async move {
                if is_first {
                    return Response::new(Body::from("abc"));
                }
                sleep(LIMIT * 3).await;
                Response::new(Body::empty())
            }
        })
        .await;
        assert_eq!(client.await.unwrap(), [1, 3]);
        assert!(took >= LIMIT * 3 && took <= LIMIT * 5, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_of_http2_may_be_slow_and_a_service_slower() {
        let (got, took) = served(1, 2, || Body::from("abc")).await;
        assert_eq!(got, 3);
        assert!(took > LIMIT, "{took:?}");
        let slow = || {
            let late = async {
                sleep(LIMIT * 5).await;
                Ok::<_, axum::Error>("abc")
            };
            Body::from_stream(futures_util::stream::once(late))
        };
        assert_eq!(served(9, 0, slow).await.0, 3);
    }
}
