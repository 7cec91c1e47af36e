//! A request that can be made again, and the answer to it.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use axum::BoxError;
use axum::body::Body;
use axum::response::Response;
use futures_util::FutureExt as _;
use http::request::Parts;
use http::{Extensions, Request, header, response};
use tower::ServiceExt as _;

use super::HttpService;
use crate::body::{self, Read, Whole};
use crate::budget::Reserved;
use crate::extract::AttemptInfo;

/// A request that can be made as often as needed.
pub(crate) struct Call<S> {
    services: Arc<Mutex<Services<S>>>,
    pub(crate) head: Parts,
    body: Whole,
    /// Held as long as the body is.
    reserved: Arc<Reserved>,
}

/// The service that said it is ready, and one for later tries. Locked only to take them out, so that
/// a service need not be `Sync`.
struct Services<S> {
    ready: Option<S>,
    spare: S,
}

impl<S> Clone for Call<S> {
    fn clone(&self) -> Self {
        Self {
            services: self.services.clone(),
            head: self.head.clone(),
            body: self.body.clone(),
            reserved: self.reserved.clone(),
        }
    }
}

/// What a service answered.
pub(crate) enum Answered {
    Whole(response::Parts, Whole),
    /// A stream, or larger than is kept.
    Unkept(response::Parts, Body),
    /// It panicked or broke off.
    Crashed(Crash),
}

/// How a service failed to answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Crash {
    #[error("it panicked: {0}")]
    Panic(String),
    #[error("it broke off: {0}")]
    Error(BoxError),
}

impl<S> Call<S> {
    pub(crate) fn new(service: S, head: Parts, body: Whole, reserved: Arc<Reserved>) -> Self
    where
        S: Clone,
    {
        Self {
            services: Arc::new(Mutex::new(Services {
                spare: service.clone(),
                ready: Some(service),
            })),
            head,
            body,
            reserved,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Services<S>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the service and reads its answer, up to `limit` bytes of it.
    pub(crate) async fn answer(
        self,
        info: Option<AttemptInfo>,
        limit: usize,
        extend: impl FnOnce(&mut Extensions),
    ) -> Answered
    where
        S: HttpService,
    {
        let (ready, spare) = {
            let mut services = self.lock();
            (services.ready.take(), services.spare.clone())
        };
        let Self {
            mut head,
            body,
            reserved,
            ..
        } = self;
        if let Some(info) = info {
            head.extensions.insert(info);
        }
        extend(&mut head.extensions);
        body.announce_trailers(&mut head.headers);
        let request = Request::from_parts(head, body.into_body());
        let calling = async move {
            let _reserved = reserved;
            let response = match ready {
                Some(mut ready) => ready.call(request).await,
                None => spare.oneshot(request).await,
            };
            let (head, body) = response.map_err(Into::into)?.map(Body::new).into_parts();
            if is_stream(&head) {
                return Ok(Answered::Unkept(head, body));
            }
            match body::read_up_to(limit, body).await {
                Read::Whole(body) => Ok(Answered::Whole(head, body)),
                Read::Larger(body) => Ok(Answered::Unkept(head, body)),
                Read::Broken(error) => Err(error),
            }
        };
        match AssertUnwindSafe(calling).catch_unwind().await {
            Ok(Ok(answered)) => answered,
            Ok(Err(error)) => Answered::Crashed(Crash::Error(error)),
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                Answered::Crashed(Crash::Panic(text.unwrap_or_default()))
            }
        }
    }
}

/// Whether a response is an endless stream.
fn is_stream(head: &response::Parts) -> bool {
    let kind = head.headers.get(header::CONTENT_TYPE);
    let kind = kind.map_or(&b""[..], |kind| kind.as_bytes());
    let streams: [&[u8]; 2] = [b"text/event-stream", b"multipart/x-mixed-replace"];
    head.status.is_informational() || streams.iter().any(|stream| kind.starts_with(stream))
}

impl Answered {
    /// The answer as it is, for those who keep nothing.
    pub(crate) fn into_response(self) -> Response {
        let mut response = match self {
            Self::Whole(mut head, body) => {
                body.announce_trailers(&mut head.headers);
                Response::from_parts(head, body.into_body())
            }
            Self::Unkept(head, body) => Response::from_parts(head, body),
            Self::Crashed(crash) => {
                axum::response::IntoResponse::into_response(super::decision::crashed(&crash))
            }
        };
        crate::disposition::strip_headers(response.headers_mut());
        response
    }
}
