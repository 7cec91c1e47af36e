//! A client's connection: counted by peer, and closed where the client takes nothing any more.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Open connections by the address of their peer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peers(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One connection of a peer; counted until it is dropped.
#[derive(Debug)]
pub(crate) struct PeerPermit(Peers, IpAddr);

impl Peers {
    /// A permit, unless the peer has `limit` of them.
    pub(crate) fn enter(&self, peer: IpAddr, limit: usize) -> Option<PeerPermit> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(peer).or_default();
        if *count >= limit {
            return None;
        }
        *count += 1;
        Some(PeerPermit(self.clone(), peer))
    }
}

impl Drop for PeerPermit {
    fn drop(&mut self) {
        let mut open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.1);
            }
        }
    }
}

/// A stream whose writes fail where the other side takes nothing for too long.
pub(crate) struct WriteTimeout<S> {
    inner: S,
    limit: Duration,
    /// Made only when a write has to wait.
    sleep: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

impl<S> WriteTimeout<S> {
    pub(crate) fn new(inner: S, limit: Duration) -> Self {
        Self {
            inner,
            limit,
            sleep: None,
            waiting: false,
        }
    }

    /// The result of a write, or an error once it has waited too long.
    fn within<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = false;
            return written;
        }
        let until = Instant::now() + self.limit;
        let sleep = self
            .sleep
            .get_or_insert_with(|| Box::pin(sleep_until(until)));
        if !self.waiting {
            sleep.as_mut().reset(until);
            self.waiting = true;
        }
        ready!(sleep.as_mut().poll(cx));
        let why = "the client took nothing of its response in time";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.within(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.within(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.within(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.within(shut, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_may_take_its_response_slowly_but_not_never() {
        let (client, server) = duplex(1);
        let (mut reader, _writer) = tokio::io::split(client);
        let mut server = WriteTimeout::new(server, Duration::from_secs(30));
        let slow = async {
            for _ in 0..3 {
                advance(Duration::from_secs(20)).await;
                reader.read_u8().await.unwrap();
            }
        };
        tokio::join!(async { server.write_all(b"abcd").await.unwrap() }, slow);
        let before = Instant::now();
        let error = server.write_all(b"ef").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(before.elapsed(), Duration::from_secs(30));
    }

    #[test]
    fn a_peer_has_so_many_connections_and_others_theirs() {
        let peers = Peers::default();
        let (one, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let held: Vec<_> = (0..2).map(|_| peers.enter(one, 2).unwrap()).collect();
        assert!(peers.enter(one, 2).is_none());
        assert!(peers.enter(other, 2).is_some());
        drop(held);
        assert!(peers.enter(one, 2).is_some());
        assert!(peers.0.lock().unwrap().is_empty());
    }
}
