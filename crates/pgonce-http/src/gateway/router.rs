//! Which route a request takes.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use tower::util::BoxCloneSyncService;

use super::config::Matching;
use super::errors;
use super::pattern::{Pattern, has_dot_segments, loose_readings};

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

    /// The narrowest route that matches, or what to answer where there is none. Of two that a path takes in two readings it is the
    /// one that happens once.
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
        let found = match self.matching {
            Matching::Exact => vec![self.narrowest(method, |pattern| pattern.matches(path))],
            Matching::Loose => loose_readings(path)
                .iter()
                .map(|read| self.narrowest(method, |pattern| pattern.matches_loosely(read)))
                .collect(),
        };
        let mut entries: Vec<usize> = found.iter().flatten().copied().collect();
        entries.sort_unstable();
        entries.dedup();
        let is_once = |at: &usize| self.entries[*at].once.is_some();
        let once: Vec<usize> = entries.iter().copied().filter(is_once).collect();
        match (once.as_slice(), entries.as_slice()) {
            // Protected, whichever of two readings is the service's.
            ([at], _) | ([], [at, ..]) => return Ok(&self.entries[*at]),
            ([], []) => {}
            // Under the same key it would be two requests.
            _ => {
                let detail = "the path means two routes, by how %2F and semicolons are read; send it without them";
                return Err(Box::new(errors::answer(
                    StatusCode::BAD_REQUEST,
                    "path_invalid",
                    detail,
                )));
            }
        }
        let allowed = found.into_iter().filter_map(Result::err);
        let allowed = allowed.max_by_key(Vec::len).unwrap_or_default();
        if allowed.is_empty() {
            let detail = "no route of the gateway matches this path";
            return Err(Box::new(errors::answer(
                StatusCode::NOT_FOUND,
                "route_missing",
                detail,
            )));
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

    /// The narrowest entry that matches a path in one reading and takes the method; else the methods of those that match.
    fn narrowest(
        &self,
        method: &Method,
        matches: impl Fn(&Pattern) -> bool,
    ) -> Result<usize, Vec<&str>> {
        let mut allowed = Vec::new();
        for (at, entry) in self.entries.iter().enumerate() {
            if !matches(&entry.pattern) {
                continue;
            }
            if entry.methods.is_empty() || entry.methods.contains(method) {
                return Ok(at);
            }
            allowed.extend(entry.methods.iter().map(Method::as_str));
        }
        Err(allowed)
    }
}
