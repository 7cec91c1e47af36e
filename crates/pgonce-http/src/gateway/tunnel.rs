//! WebSockets on routes that pass: once both sides have agreed, bytes go both ways until one has enough.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::sleep;

use super::server::ConnectionGuard;

/// What is kept of a request that asks for a tunnel.
pub(crate) struct Tunnel {
    client: OnUpgrade,
    guard: Arc<ConnectionGuard>,
}

impl Tunnel {
    /// The client's half, and the headers that ask the upstream for the other one.
    pub(crate) fn wanted(request: &mut Request<Body>) -> Option<Self> {
        let guard = request.extensions().get::<Arc<ConnectionGuard>>()?.clone();
        let client = request.extensions_mut().remove::<OnUpgrade>()?;
        Some(Self { client, guard })
    }

    /// Headers for one connection only, which ask for it to become a tunnel.
    pub(crate) fn ask(headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }

    /// Opens it, where the upstream agreed; it lasts until a side closes it, nothing moves for
    /// `idle`, or the gateway stops.
    pub(crate) fn open(self, answer: &mut Response<Body>, idle: Duration) {
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return;
        }
        let upstream = hyper::upgrade::on(&mut *answer);
        Self::ask(answer.headers_mut());
        let Self { client, guard } = self;
        let connections = guard.connections.clone();
        connections.spawn(async move {
            let both = async {
                let (client, upstream) =
                    tokio::try_join!(client, upstream).map_err(io::Error::other)?;
                carry(TokioIo::new(client), TokioIo::new(upstream), idle).await
            };
            tokio::select! {
                ended = both => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a tunnel broke");
                    }
                }
                () = guard.stop.cancelled() => {}
            }
        });
    }
}

/// Carries bytes both ways.
async fn carry(
    client: impl AsyncRead + AsyncWrite,
    upstream: impl AsyncRead + AsyncWrite,
    idle: Duration,
) -> io::Result<()> {
    let (from_client, to_client) = tokio::io::split(client);
    let (from_upstream, to_upstream) = tokio::io::split(upstream);
    let moved = AtomicBool::new(true);
    let silence = async {
        while moved.swap(false, Ordering::Relaxed) {
            sleep(idle).await;
        }
    };
    let both = async {
        tokio::try_join!(
            copy(from_client, to_upstream, &moved),
            copy(from_upstream, to_client, &moved)
        )
    };
    tokio::select! {
        ended = both => ended.map(|_| ()),
        () = silence => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    moved: &AtomicBool,
) -> io::Result<()> {
    let mut piece = vec![0; 8 * 1024];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        moved.store(true, Ordering::Relaxed);
        to.write_all(&piece[..length]).await?;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_go_both_ways_until_nothing_moves() {
        let (mut client, near) = duplex(64);
        let (far, mut service) = duplex(64);
        let idle = Duration::from_secs(60);
        let talk = async {
            client.write_all(b"ping").await.unwrap();
            let mut echoed = [0; 4];
            service.read_exact(&mut echoed).await.unwrap();
            service.write_all(b"pong").await.unwrap();
            client.read_exact(&mut echoed).await.unwrap();
            assert_eq!(&echoed, b"pong");
        };
        let (ended, ()) = tokio::join!(carry(near, far, idle), talk);
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn it_ends_when_both_sides_have_closed() {
        let (client, near) = duplex(64);
        let (far, service) = duplex(64);
        drop((client, service));
        carry(near, far, Duration::from_secs(60)).await.unwrap();
    }
}
