//! Which headers describe an answer, and which belong to one exchange only.

use http::HeaderName;

/// On answers that come from the store.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Until when the stored answer is kept.
pub(crate) const EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");

/// Headers that describe an answer, and so are replayed by default.
const USUAL: [&str; 24] = [
    "accept-patch",
    "accept-post",
    "accept-ranges",
    "allow",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-location",
    "content-range",
    "content-type",
    "deprecation",
    "etag",
    "expires",
    "grpc-encoding",
    "grpc-message",
    "grpc-status",
    "grpc-status-details-bin",
    "last-modified",
    "link",
    "location",
    "preference-applied",
    "sunset",
    "vary",
];

/// Headers that are about one connection, one moment or one browser, and so are never replayed.
const NEVER: [&str; 20] = [
    "age",
    "alt-svc",
    "clear-site-data",
    "connection",
    "content-length",
    "date",
    "idempotency-expires",
    "idempotent-replayed",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-connection",
    "set-cookie",
    "set-cookie2",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "www-authenticate",
];

pub(crate) fn usual() -> Vec<HeaderName> {
    USUAL.map(HeaderName::from_static).to_vec()
}

pub(crate) fn is_never_kept(name: &HeaderName) -> bool {
    let name = name.as_str();
    NEVER.contains(&name)
        || ["ratelimit", "x-ratelimit", "x-rate-limit"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}
