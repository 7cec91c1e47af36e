//! The services that the layer can call.

use axum::BoxError;
use axum::body::Body;
use bytes::Bytes;
use http::Request;
use tower::Service;

/// A cloneable service from a request to a response whose body is made of bytes. An alias: whatever
/// meets its bounds has it.
pub(crate) trait HttpService:
    Service<
        Request<Body>,
        Response = http::Response<Self::ResponseBody>,
        Error: Into<BoxError>,
        Future: Send,
    > + Clone
    + Send
    + 'static
{
    type ResponseBody: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static;
}

impl<S, R> HttpService for S
where
    S: Service<Request<Body>, Response = http::Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type ResponseBody = R;
}
