//! Responses over HTTP/2 that their client does not take. It opens a window for each, so that a response can stand still
//! for ever on a connection that is alive, where no write to the socket waits.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use bytes::Buf;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::Instant;

/// The responses of one connection that are on their way.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenResponses(Arc<Mutex<Vec<Weak<Sending>>>>);

/// How far a response has come. Held by its body, and by each piece of it until that is sent.
#[derive(Debug)]
struct Sending(Mutex<State>);

#[derive(Debug)]
struct State {
    moved: Instant,
    /// Pieces that the connection has and has not sent.
    pieces: usize,
    /// Whether there is nothing to send yet.
    waits_for_service: bool,
}

impl OpenResponses {
    pub(crate) fn track(&self, body: Body) -> SentBody {
        if body.is_end_stream() {
            return SentBody::untracked(body);
        }
        let sending = Arc::new(Sending(Mutex::new(State {
            moved: Instant::now(),
            pieces: 0,
            waits_for_service: false,
        })));
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|sending| sending.strong_count() > 0);
        open.push(Arc::downgrade(&sending));
        SentBody {
            inner: body,
            sending: Some(sending),
        }
    }

    /// Of how many the client has taken nothing for so long, and how many there are.
    pub(crate) fn stalled(&self, limit: Duration) -> (usize, usize) {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open: Vec<_> = open.iter().filter_map(Weak::upgrade).collect();
        let stalled = open.iter().filter(|sending| sending.is_stalled(limit));
        (stalled.count(), open.len())
    }
}

impl Sending {
    fn is_stalled(&self, limit: Duration) -> bool {
        let state = self.lock();
        let waits_for_client = state.pieces > 0 || !state.waits_for_service;
        waits_for_client && state.moved.elapsed() >= limit
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body of a response.
pub(crate) struct SentBody {
    inner: Body,
    sending: Option<Arc<Sending>>,
}

impl SentBody {
    /// One whose client is watched by its socket.
    pub(crate) fn untracked(inner: Body) -> Self {
        Self {
            inner,
            sending: None,
        }
    }
}

impl http_body::Body for SentBody {
    type Data = SentData;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<SentData>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        if let Some(sending) = &self.sending {
            let mut state = sending.lock();
            state.moved = Instant::now();
            state.waits_for_service = polled.is_pending();
        }
        let data = |bytes| {
            if let Some(sending) = &self.sending {
                sending.lock().pieces += 1;
            }
            SentData {
                bytes,
                sending: self.sending.clone(),
            }
        };
        let frame = ready!(polled);
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A piece of a body.
pub(crate) struct SentData {
    bytes: Bytes,
    sending: Option<Arc<Sending>>,
}

impl Buf for SentData {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(sending) = self.sending.as_ref().filter(|_| count > 0) {
            sending.lock().moved = Instant::now();
        }
    }
}

impl Drop for SentData {
    fn drop(&mut self) {
        if let Some(sending) = &self.sending {
            let mut state = sending.lock();
            state.pieces -= 1;
            state.moved = Instant::now();
        }
    }
}
