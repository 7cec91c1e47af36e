//! Which headers describe an answer, and which belong to one exchange only.

use http::HeaderName;

/// On answers that come from the store.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Until when the stored answer is kept.
pub(crate) const EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");

/// The disposition of a response, from the service.
pub(crate) const DISPOSITION: HeaderName = HeaderName::from_static("pgonce-disposition");

/// Seconds to keep a response, from the service.
pub(crate) const KEEP_FOR: HeaderName = HeaderName::from_static("pgonce-keep-for");

/// Headers that describe an answer, and so are replayed by default.
const USUAL: [&str; 38] = [
    "accept-patch",
    "accept-post",
    "accept-ranges",
    "access-control-allow-credentials",
    "access-control-allow-origin",
    "access-control-expose-headers",
    "allow",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-location",
    "content-range",
    "content-security-policy",
    "content-security-policy-report-only",
    "content-type",
    "cross-origin-embedder-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
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
    "permissions-policy",
    "preference-applied",
    "referrer-policy",
    "strict-transport-security",
    "sunset",
    "vary",
    "x-content-type-options",
    "x-frame-options",
    "x-xss-protection",
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The lists that the middleware of every client is held to.
    #[test]
    fn every_client_replays_the_same_headers() {
        let text = include_str!("../../../conformance/vectors/headers.json");
        let vectors: serde_json::Value = serde_json::from_str(text).unwrap();
        let named =
            |list: &str| -> Vec<String> { serde_json::from_value(vectors[list].clone()).unwrap() };
        assert_eq!(named("replayed"), USUAL);
        assert_eq!(named("never"), NEVER);
        for beginning in named("never_beginning_with") {
            let name = HeaderName::try_from(format!("{beginning}-reset")).unwrap();
            assert!(is_never_kept(&name), "{name}");
        }
    }
}
