//! Bodies in memory: read whole up to a limit, never cut off.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::budget::{Budget, PER_REQUEST, Reserved};
use crate::{Policy, Problem};

/// A whole body.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Whole {
    pub(crate) bytes: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Whole {
    /// Says in the head which trailers follow, and no length: HTTP/1.1 sends trailers only after a body in pieces, and only
    /// those that were announced.
    pub(crate) fn announce_trailers(&self, headers: &mut HeaderMap) {
        let Some(trailers) = self.trailers.as_ref().filter(|map| !map.is_empty()) else {
            return;
        };
        let names: Vec<&str> = trailers.keys().map(HeaderName::as_str).collect();
        if let Ok(names) = HeaderValue::try_from(names.join(", ")) {
            headers.insert(header::TRAILER, names);
            headers.remove(header::CONTENT_LENGTH);
        }
    }

    pub(crate) fn into_body(self) -> Body {
        match self.trailers.filter(|trailers| !trailers.is_empty()) {
            None => Body::from(self.bytes),
            Some(trailers) => Body::new(Continued {
                first: Some(self.bytes),
                rest: Body::empty(),
                trailers: Some(trailers),
            }),
        }
    }
}

/// A body that was read up to a limit.
pub(crate) enum Read {
    Whole(Whole),
    /// It is longer: what was read, with what is left behind it.
    Larger(Body),
    Broken(BoxError),
}

/// Reads a response body of at most `limit` bytes.
pub(crate) async fn read_up_to(limit: usize, body: Body) -> Read {
    if body.size_hint().lower() > limit as u64 {
        return Read::Larger(body);
    }
    let mut body = body;
    let mut gathered = Gathered::default();
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return Read::Broken(error.into()),
        };
        match frame.into_data() {
            Ok(data) => gathered.push(data),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
        if gathered.len() > limit {
            return Read::Larger(Body::new(Continued {
                first: Some(gathered.into_bytes()),
                rest: body,
                trailers: None,
            }));
        }
    }
    Read::Whole(Whole {
        bytes: gathered.into_bytes(),
        trailers,
    })
}

/// A whole body may take so many times as long as its next piece: a slow client is served, one that
/// drips is not.
pub(crate) const WHOLE_BODY: u32 = 10;

/// How much of a refused body is still taken off the wire, and for how long.
const LINGER: (usize, Duration) = (8 * 1024 * 1024, Duration::from_secs(2));

/// For how many at once: a server keeps some hundred KiB for each connection that it reads fast.
static LINGERING: Semaphore = Semaphore::const_new(32);

/// A request's body that may be refused before its end.
///
/// A server that hangs up on a client in the middle of its sending loses its own response: the
/// client's kernel drops what it had received before the reset. So what is left of a refused body is
/// read and forgotten for a while, beside the answer. In a flood of them only some are: a client whose connection is
/// reset knows nothing, and retries with its key.
pub(crate) struct Unread(pub(crate) Body);

impl Drop for Unread {
    fn drop(&mut self) {
        if self.0.is_end_stream() {
            return;
        }
        let (Ok(permit), Ok(runtime)) = (LINGERING.try_acquire(), Handle::try_current()) else {
            return;
        };
        let mut body = std::mem::take(&mut self.0);
        let (mut left, time) = LINGER;
        let forgetting = async move {
            let _permit = permit;
            while let Some(Ok(frame)) = body.frame().await {
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                if left == 0 {
                    break;
                }
            }
        };
        runtime.spawn(timeout(time, forgetting));
    }
}

/// A request's body within the route's limits, and the part of the budget that it takes.
pub(crate) async fn read_request(
    head: &Parts,
    body: &mut Unread,
    policy: &Policy,
    budget: &Budget,
) -> Result<(Whole, Arc<Reserved>), Problem> {
    let limit = policy.max_body;
    let announced = head
        .headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.unwrap_or(body.0.size_hint().lower()) > limit as u64 {
        return Err(too_large(limit));
    }
    let announced = announced.and_then(|n| usize::try_from(n).ok());
    let base = size_of_request(head);
    let mut reserved = budget
        .reserve(base.saturating_add(announced.unwrap_or(0)))
        .ok_or_else(overloaded)?;
    let reading = async {
        let mut gathered = Gathered::default();
        let mut trailers = None;
        while let Some(frame) = timeout(policy.body_timeout, body.0.frame())
            .await
            .map_err(|_| too_slow())?
        {
            let frame = frame.map_err(|_| {
                Problem::ours(
                    StatusCode::BAD_REQUEST,
                    "body_unreadable",
                    "the body broke off; send the whole request again with the same key",
                )
            })?;
            match frame.into_data() {
                Ok(data) => gathered.push(data),
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
            if gathered.len() > limit {
                return Err(too_large(limit));
            }
            let missing = (base + gathered.len()).saturating_sub(reserved.bytes());
            if missing > 0 {
                reserved.add(budget.reserve(missing).ok_or_else(overloaded)?);
            }
        }
        Ok((
            Whole {
                bytes: gathered.into_bytes(),
                trailers,
            },
            Arc::new(reserved),
        ))
    };
    let all = policy.body_timeout.saturating_mul(WHOLE_BODY);
    timeout(all, reading).await.map_err(|_| too_slow())?
}

/// What a request takes beside its body, for as long as its work lasts: a client that hangs up leaves the work behind, and
/// frees its connection for the next.
fn size_of_request(head: &Parts) -> usize {
    let headers = head.headers.iter();
    let headers = headers.map(|(name, value)| name.as_str().len() + value.len());
    let path = head
        .uri
        .path_and_query()
        .map_or(0, |path| path.as_str().len());
    PER_REQUEST.max(2 * (path + headers.sum::<usize>()))
}

fn too_slow() -> Problem {
    Problem::ours(
        StatusCode::REQUEST_TIMEOUT,
        "body_too_slow",
        "the body did not come in time; send the request again with the same key",
    )
}

fn too_large(limit: usize) -> Problem {
    Problem::ours(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        format!("the body is larger than the {limit} bytes that this route takes"),
    )
}

fn overloaded() -> Problem {
    Problem::ours(
        StatusCode::SERVICE_UNAVAILABLE,
        "overloaded",
        "too many requests are under way; send the same request with the same key again",
    )
    .retry_soon(1)
}

/// Chunks of a body; one alone is not copied.
#[derive(Default)]
struct Gathered {
    first: Bytes,
    rest: BytesMut,
}

impl Gathered {
    fn push(&mut self, data: Bytes) {
        if self.first.is_empty() && self.rest.is_empty() {
            self.first = data;
            return;
        }
        let first = std::mem::take(&mut self.first);
        self.rest.extend_from_slice(&first);
        self.rest.extend_from_slice(&data);
    }

    fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    fn into_bytes(self) -> Bytes {
        if self.rest.is_empty() {
            self.first
        } else {
            self.rest.freeze()
        }
    }
}

/// Bytes, then a body, then trailers.
struct Continued {
    first: Option<Bytes>,
    rest: Body,
    trailers: Option<HeaderMap>,
}

impl http_body::Body for Continued {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        match ready!(Pin::new(&mut self.rest).poll_frame(cx)) {
            Some(frame) => Poll::Ready(Some(frame)),
            None => Poll::Ready(self.trailers.take().map(|t| Ok(Frame::trailers(t)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.trailers.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, Bytes::len) as u64;
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(first + rest.lower());
        // A body of a known length is sent without trailers.
        if let (Some(upper), None) = (rest.upper(), &self.trailers) {
            hint.set_upper(first + upper);
        }
        hint
    }
}
