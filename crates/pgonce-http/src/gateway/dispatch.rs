//! One request from the router to its line in the log.

use std::time::Instant;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use tower::ServiceExt as _;

use super::log::Line;
use super::proxy::refuse_protocol;
use super::router::Router;

/// The routes, and whether each request is logged.
pub(crate) struct Dispatcher {
    pub(crate) router: Router,
    pub(crate) log: bool,
}

impl Dispatcher {
    pub(crate) async fn answer(&self, request: Request<Body>) -> Response {
        let start = Instant::now();
        let found = match refuse_protocol(&request) {
            Some(refused) => Err(Box::new(refused)),
            None => self.router.find(request.method(), request.uri().path()),
        };
        let line = self
            .log
            .then(|| Line::begin(found.as_ref().ok().copied(), &request));
        let answer = match found {
            Ok(entry) => {
                let Ok(answer) = entry.service.clone().oneshot(request).await;
                answer
            }
            Err(refused) => *refused,
        };
        if let Some(line) = line {
            line.end(&answer, start.elapsed());
        }
        answer
    }
}
