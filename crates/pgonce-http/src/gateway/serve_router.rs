//! A router on a listener, with the limits of a gateway.

use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::IntoResponse as _;
use http_body::Body as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::body::{StallTimeout, Stalled};
use super::proxy::Client;
use super::server::{Certificate, Limits, Server};
use crate::body::WHOLE_BODY;

/// How long a client of [`serve_router`] may send nothing more of its body, and of its request's head.
const STALL_LIMIT: Duration = Duration::from_secs(30);

/// Serves a router with the limits of a gateway until `stop`, and ends when every request in progress is answered. Its handlers know
/// where requests come from by axum's `ConnectInfo<SocketAddr>`. No peer gets more than half of the connections, and a body that
/// stands still or drips ends with an error.
pub async fn serve_router(
    listener: TcpListener,
    router: axum::Router,
    max_connections: usize,
    stop: CancellationToken,
) {
    let server = Server {
        listener,
        limits: Limits {
            connections: max_connections,
            connections_per_peer: (max_connections / 2).max(1),
            header_bytes: 32 * 1024,
            header_timeout: STALL_LIMIT,
            write_timeout: STALL_LIMIT,
        },
        certificate: Certificate::default(),
        stop,
        connections: TaskTracker::new(),
    };
    let connections = server.connections.clone();
    server
        .accept(move |request| {
            let router = router.clone();
            let mut request = request.map(|body| match body.is_end_stream() {
                true => body,
                false => {
                    let body = StallTimeout::new(body, STALL_LIMIT, Stalled::Client);
                    Body::new(body.ending_after(STALL_LIMIT * WHOLE_BODY))
                }
            });
            if let Some(client) = request.extensions().get::<Client>().copied() {
                let peer = ConnectInfo(client.address);
                request.extensions_mut().insert(peer);
            }
            async move { router.oneshot(request).await.into_response() }
        })
        .await;
    connections.close();
    connections.wait().await;
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;

    /// A router with room for four connections, and its address.
    async fn small_router() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = axum::Router::new()
            .route(
                "/login",
                axum::routing::post(async |_: axum::body::Bytes| "in"),
            )
            .route("/healthz", axum::routing::get(async || "alive"));
        tokio::spawn(serve_router(listener, router, 4, CancellationToken::new()));
        address
    }

    const HALF: &[u8] = b"POST /login HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n1";

    #[tokio::test]
    async fn one_peer_never_gets_all_connections_of_a_router() {
        let address = small_router().await;
        let mut open = Vec::new();
        for _ in 0..8 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // Some are closed at once.
            let _ = stream.write_all(HALF).await;
            open.push(stream);
        }
        let other = tokio::net::TcpSocket::new_v4().unwrap();
        other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut other = other.connect(address).await.unwrap();
        let asked = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        other.write_all(asked).await.unwrap();
        let mut reply = String::new();
        let reading = other.read_to_string(&mut reply);
        timeout(STALL_LIMIT, reading).await.unwrap().unwrap();
        assert!(reply.ends_with("alive"), "{reply}");
        drop(open);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stands_still_frees_its_connection_of_a_router() {
        let mut stream = TcpStream::connect(small_router().await).await.unwrap();
        stream.write_all(HALF).await.unwrap();
        let mut reply = Vec::new();
        let ended = timeout(10 * STALL_LIMIT, stream.read_to_end(&mut reply)).await;
        assert!(ended.is_ok(), "it is still open");
    }
}
