//! Bodies on their way through: how long they may stand still, and how far they have come.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::headers::{Trusted, trailers_for_upstream};

type Piece = Option<Result<Frame<Bytes>, axum::Error>>;

/// Whose silence ended a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stalled {
    Client,
    Upstream,
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "the client sent no more of its body in time",
            Self::Upstream => "the upstream sent no more of its body in time",
        })
    }
}

impl std::error::Error for Stalled {}

impl Stalled {
    /// The stall that an error goes back to, if any.
    pub(crate) fn behind(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(stalled) = error.downcast_ref() {
                return Some(*stalled);
            }
            cause = error.source();
        }
        None
    }
}

/// A body that ends with an error where it stands still for too long: a cut that both sides
/// notice, never a body that looks whole.
pub(crate) struct StallTimeout {
    inner: Body,
    timeout: Duration,
    whose: Stalled,
    /// Made only when there is something to wait for.
    sleep: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    /// When all of it must have come.
    end: Option<Pin<Box<Sleep>>>,
}

impl StallTimeout {
    pub(crate) fn new(inner: Body, timeout: Duration, whose: Stalled) -> Self {
        Self {
            inner,
            timeout,
            whose,
            sleep: None,
            waiting: false,
            end: None,
        }
    }

    /// The same, and it ends with the error also where it has not come whole after `time`.
    pub(crate) fn ending_after(mut self, time: Duration) -> Self {
        self.end = Some(Box::pin(sleep(time)));
        self
    }
}

impl http_body::Body for StallTimeout {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Piece> {
        let this = &mut *self;
        if let Some(end) = &mut this.end
            && end.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Some(Err(axum::Error::new(this.whose))));
        }
        if let Poll::Ready(piece) = Pin::new(&mut this.inner).poll_frame(cx) {
            this.waiting = false;
            return Poll::Ready(piece);
        }
        let until = Instant::now() + this.timeout;
        let sleep = this
            .sleep
            .get_or_insert_with(|| Box::pin(sleep_until(until)));
        if !this.waiting {
            sleep.as_mut().reset(until);
            this.waiting = true;
        }
        ready!(sleep.as_mut().poll(cx));
        Poll::Ready(Some(Err(axum::Error::new(this.whose))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A client's body with the trailers that the upstream may have.
pub(crate) struct FilterTrailers<B> {
    inner: B,
    trusted: Trusted,
}

impl<B> FilterTrailers<B> {
    pub(crate) fn new(inner: B, trusted: Trusted) -> Self {
        Self { inner, trusted }
    }
}

impl<B> http_body::Body for FilterTrailers<B>
where
    B: http_body::Body<Data = Bytes, Error = axum::Error> + Unpin,
{
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Piece> {
        let frame = match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            ended => return Poll::Ready(ended),
        };
        Poll::Ready(match frame.into_trailers() {
            Ok(mut trailers) => {
                trailers_for_upstream(&mut trailers, &self.trusted);
                (!trailers.is_empty()).then(|| Ok(Frame::trailers(trailers)))
            }
            Err(data) => Some(Ok(data)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A request's body that says when it last moved, so that a long upload is not taken for a
/// silent upstream.
pub(crate) struct ProgressBody {
    inner: Body,
    moved: Progress,
}

/// When a body last moved.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    start: Instant,
    after_millis: Arc<AtomicU64>,
}

impl ProgressBody {
    pub(crate) fn new(inner: Body) -> (Self, Progress) {
        let moved = Progress {
            start: Instant::now(),
            after_millis: Arc::default(),
        };
        (
            Self {
                inner,
                moved: moved.clone(),
            },
            moved,
        )
    }
}

impl Progress {
    pub(crate) fn last(&self) -> Instant {
        self.start + Duration::from_millis(self.after_millis.load(Ordering::Relaxed))
    }
}

impl http_body::Body for ProgressBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Piece> {
        let piece = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        let elapsed = u64::try_from(self.moved.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved.after_millis.store(elapsed, Ordering::Relaxed);
        Poll::Ready(piece)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, StreamBody};
    use tokio::sync::mpsc;
    use tokio::time::advance;

    use super::*;

    /// A body that gets what is sent here.
    fn fed() -> (mpsc::UnboundedSender<&'static str>, Body) {
        let (feed, mut fed) = mpsc::unbounded_channel::<&'static str>();
        let pieces = futures_util::stream::poll_fn(move |cx| {
            fed.poll_recv(cx)
                .map(|piece| piece.map(|text| Ok::<_, axum::Error>(Frame::data(Bytes::from(text)))))
        });
        (feed, Body::new(StreamBody::new(pieces)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_may_be_slow_but_not_silent() {
        let (feed, body) = fed();
        let mut body = StallTimeout::new(body, Duration::from_secs(30), Stalled::Client);
        for _ in 0..5 {
            let next = tokio::join!(body.frame(), async {
                advance(Duration::from_secs(20)).await;
                feed.send("more").unwrap();
            })
            .0;
            assert_eq!(next.unwrap().unwrap().into_data().unwrap(), "more");
        }
        let before = Instant::now();
        let error = body.frame().await.unwrap().unwrap_err();
        assert_eq!(Stalled::behind(&error), Some(Stalled::Client));
        assert_eq!(before.elapsed(), Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_drips_ends_in_time() {
        let (feed, body) = fed();
        let body = StallTimeout::new(body, Duration::from_secs(30), Stalled::Client);
        let mut body = body.ending_after(Duration::from_secs(90));
        let before = Instant::now();
        let read = async { while body.frame().await.unwrap().is_ok() {} };
        let drip = async {
            loop {
                feed.send("x").unwrap();
                sleep(Duration::from_secs(20)).await;
            }
        };
        tokio::select! {
            () = read => {}
            () = drip => {}
        }
        assert_eq!(before.elapsed(), Duration::from_secs(90));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_body_is_no_silence() {
        let (feed, body) = fed();
        let mut body = StallTimeout::new(body, Duration::from_secs(30), Stalled::Upstream);
        drop(feed);
        assert!(body.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_says_when_it_last_moved() {
        let (feed, body) = fed();
        let (mut body, moved) = ProgressBody::new(body);
        let start = Instant::now();
        assert_eq!(moved.last(), start);
        advance(Duration::from_secs(7)).await;
        feed.send("more").unwrap();
        body.frame().await.unwrap().unwrap();
        assert_eq!(moved.last() - start, Duration::from_secs(7));
    }
}
