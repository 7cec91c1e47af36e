//! Which route a request takes.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use tower::util::BoxCloneSyncService;

use super::config::Matching;
use super::errors;
use super::pattern::{Pattern, has_dot_segments};

/// A service of one route.
pub(crate) type RouteService = BoxCloneSyncService<Request<Body>, Response, Infallible>;

/// A route that is ready to be taken.
pub(crate) struct Entry {
    pub(crate) pattern: Pattern,
    /// The methods that it answers to; none of them means all.
    pub(crate) methods: Vec<Method>,
    /// How it happens once, if it does.
    pub(crate) once: Option<ProtectedRoute>,
    pub(crate) service: RouteService,
}

/// What is said about a route that happens once.
pub(crate) struct ProtectedRoute {
    pub(crate) scope: String,
    pub(crate) key_header: HeaderName,
}

/// The routes, the narrower before the wider, and how paths are compared.
pub(crate) struct Router {
    entries: Vec<Entry>,
    matching: Matching,
}

impl Router {
    pub(crate) fn new(mut entries: Vec<Entry>, matching: Matching) -> Self {
        entries.sort_by_key(|entry| entry.pattern.width());
        Self { entries, matching }
    }

    /// The narrowest route that matches, or what to answer where there is none.
    pub(crate) fn find(&self, method: &Method, path: &str) -> Result<&Entry, Box<Response>> {
        // A service that removes such segments runs another handler than the one whose route matches.
        if has_dot_segments(path) {
            let detail = "the path has a segment . or ..; send it without them";
            return Err(Box::new(errors::answer(
                StatusCode::BAD_REQUEST,
                "path_invalid",
                detail,
            )));
        }
        let matches = |entry: &&Entry| match self.matching {
            Matching::Exact => entry.pattern.matches(path),
            Matching::Loose => entry.pattern.matches_loosely(path),
        };
        let mut there = self.entries.iter().filter(matches).peekable();
        if there.peek().is_none() {
            let detail = "no route of the gateway matches this path";
            return Err(Box::new(errors::answer(
                StatusCode::NOT_FOUND,
                "route_missing",
                detail,
            )));
        }
        let mut allowed: Vec<&str> = Vec::new();
        for entry in there {
            if entry.methods.is_empty() || entry.methods.contains(method) {
                return Ok(entry);
            }
            allowed.extend(entry.methods.iter().map(Method::as_str));
        }
        let allowed = allowed.join(", ");
        let detail =
            format!("no route of the gateway matches this path with {method}, only with {allowed}");
        let mut response = errors::answer(StatusCode::METHOD_NOT_ALLOWED, "method_missing", detail);
        if let Ok(allowed) = HeaderValue::try_from(allowed) {
            response.headers_mut().insert(header::ALLOW, allowed);
        }
        Err(Box::new(response))
    }
}
