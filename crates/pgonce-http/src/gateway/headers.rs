//! Which headers cross the gateway, and which end at it.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HOST,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::proxy::Client;

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(crate) const ATTEMPT: HeaderName = HeaderName::from_static("pgonce-attempt");
pub(crate) const FENCE: HeaderName = HeaderName::from_static("pgonce-fence");

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");

/// Headers for one connection only, whether or not `Connection` names them.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Headers that `Connection` may name only to hide them from the upstream.
const END_TO_END: [HeaderName; 11] = [
    AUTHORIZATION,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    COOKIE,
    FORWARDED,
    HOST,
    IDEMPOTENCY_KEY,
    FORWARDED_FOR,
    FORWARDED_HOST,
    FORWARDED_PROTO,
    FORWARDED_PORT,
];

/// The headers that the upstream trusts: names of the file's routes (principals, tenants, keys,
/// versions) beside those that every upstream trusts. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trusted(Arc<[HeaderName]>);

impl Trusted {
    pub(crate) fn new(names: impl IntoIterator<Item = HeaderName>) -> Self {
        Self(names.into_iter().collect())
    }

    /// The same, and these.
    pub(crate) fn and(&self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        Self::new(self.0.iter().cloned().chain(names))
    }

    fn contains(&self, name: &HeaderName) -> bool {
        END_TO_END.contains(name) || self.0.contains(name) || is_ours(name)
    }

    /// Whether an upstream that reads `_` as `-` (CGI, WSGI) would take this for a trusted header.
    fn is_imitated_by(&self, name: &HeaderName) -> bool {
        name.as_str().contains('_')
            && HeaderName::try_from(name.as_str().replace('_', "-"))
                .is_ok_and(|dashed| self.contains(&dashed))
    }
}

/// Whether only the gateway may send it.
fn is_ours(name: &HeaderName) -> bool {
    name.as_str().starts_with("pgonce-")
}

/// Takes away what belongs to one connection only. Trusted headers are end-to-end whatever
/// `Connection` says.
fn strip_hop_by_hop(headers: &mut HeaderMap, trusted: &Trusted) {
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
        .filter_map(|name| name.parse().ok())
        .filter(|name| !trusted.contains(name))
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// The comma-separated words of a header, however often it was sent.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// The protocol that a request wants to change to. An offer of HTTP/2 without TLS may simply be
/// ignored, and many clients make it by default.
pub(crate) fn wanted_upgrade(headers: &HeaderMap) -> Option<&str> {
    tokens(headers, &CONNECTION).find(|word| word.eq_ignore_ascii_case("upgrade"))?;
    tokens(headers, &UPGRADE).find(|protocol| !protocol.eq_ignore_ascii_case("h2c"))
}

/// Whether a request wants to become a WebSocket.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    wanted_upgrade(headers).is_some_and(|wanted| wanted.eq_ignore_ascii_case("websocket"))
}

/// Makes a client's headers fit for the upstream: what is ours cannot be forged, what is the
/// connection's own stays here.
pub(crate) fn for_upstream(
    headers: &mut HeaderMap,
    client: Option<Client>,
    trust_forwarded: bool,
    trusted: &Trusted,
) {
    // A body that was sent in pieces may have had a length as well: the pieces are right.
    let in_pieces = headers.contains_key(TRANSFER_ENCODING);
    let takes_trailers = tokens(headers, &TE).any(|word| word.eq_ignore_ascii_case("trailers"));
    strip_hop_by_hop(headers, trusted);
    if in_pieces {
        headers.remove(CONTENT_LENGTH);
    }
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    // The gateway has said "100 Continue" itself.
    headers.remove(EXPECT);
    let forged = |name: &HeaderName| is_ours(name) || trusted.is_imitated_by(name);
    let forged: Vec<HeaderName> = headers
        .keys()
        .filter(|name| forged(name))
        .cloned()
        .collect();
    for name in &forged {
        headers.remove(name);
    }
    forwarded(headers, client, trust_forwarded);
}

/// Makes a client's trailers fit for the upstream: what is ours, what the upstream trusts and what is the connection's own has its
/// place in the head, where it was checked.
pub(crate) fn trailers_for_upstream(trailers: &mut HeaderMap, trusted: &Trusted) {
    let refused = |name: &HeaderName| {
        trusted.contains(name)
            || trusted.is_imitated_by(name)
            || HOP_BY_HOP.contains(name)
            || [EXPECT, TRAILER].contains(name)
    };
    let refused: Vec<HeaderName> = trailers
        .keys()
        .filter(|name| refused(name))
        .cloned()
        .collect();
    for name in &refused {
        trailers.remove(name);
    }
}

/// Says for whom the gateway asks. What the client says about itself is believed only where the
/// gateway is configured to stand behind a proxy that writes these headers.
fn forwarded(headers: &mut HeaderMap, client: Option<Client>, trust: bool) {
    if !trust {
        for name in [
            FORWARDED,
            FORWARDED_FOR,
            FORWARDED_HOST,
            FORWARDED_PROTO,
            FORWARDED_PORT,
        ] {
            headers.remove(name);
        }
    }
    if let Some(client) = client {
        let ip = client.address.ip().to_canonical();
        let chain: Vec<&str> = tokens(headers, &FORWARDED_FOR)
            .filter(|hop| !hop.is_empty())
            .collect();
        let chain = chain
            .into_iter()
            .map(str::to_owned)
            .chain([ip.to_string()])
            .collect::<Vec<_>>()
            .join(", ");
        if let Ok(chain) = HeaderValue::try_from(chain) {
            headers.insert(FORWARDED_FOR, chain);
        }
        if headers.contains_key(FORWARDED) {
            let hop = match ip {
                IpAddr::V4(ip) => format!("for={ip}"),
                IpAddr::V6(ip) => format!("for=\"[{ip}]\""),
            };
            if let Ok(hop) = HeaderValue::try_from(hop) {
                headers.append(FORWARDED, hop);
            }
        }
    }
    if let Some(host) = headers.get(HOST).cloned() {
        headers.entry(FORWARDED_HOST).or_insert(host);
    }
    headers
        .entry(FORWARDED_PROTO)
        .or_insert(HeaderValue::from_static(match client {
            Some(client) if client.encrypted => "https",
            _ => "http",
        }));
}

/// Makes an upstream's headers fit for the client.
pub(crate) fn for_client(headers: &mut HeaderMap) {
    let in_pieces = headers.contains_key(TRANSFER_ENCODING);
    strip_hop_by_hop(headers, &Trusted::default());
    if in_pieces {
        headers.remove(CONTENT_LENGTH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        lines.iter().map(pair).collect()
    }

    fn sent(lines: &[(&'static str, &'static str)], trust: bool) -> HeaderMap {
        let mut headers = headers(lines);
        let trusted = ["x-user-id", "x-tenant"].map(HeaderName::from_static);
        for_upstream(
            &mut headers,
            Some(Client::new("192.0.2.7:1234".parse().unwrap(), false)),
            trust,
            &Trusted::new(trusted),
        );
        headers
    }

    fn text(headers: &HeaderMap, name: &str) -> String {
        let values = headers
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap());
        values.collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn a_trailer_is_nothing_that_the_upstream_trusts() {
        let mut trailers = headers(&[
            ("x-sum", "7"),
            ("pgonce-fence", "99"),
            ("x-user-id", "bob"),
            ("x_user_id", "bob"),
            ("x-forwarded-for", "203.0.113.9"),
            ("idempotency-key", "other"),
            ("cookie", "a=b"),
            ("connection", "x-sum"),
            ("transfer-encoding", "chunked"),
            ("trailer", "x-sum"),
        ]);
        let trusted = Trusted::new([HeaderName::from_static("x-user-id")]);
        trailers_for_upstream(&mut trailers, &trusted);
        assert_eq!(trailers, headers(&[("x-sum", "7")]));
    }

    #[test]
    fn what_belongs_to_one_connection_ends_here() {
        let sent = sent(
            &[
                ("connection", "keep-alive, X-Secret"),
                ("connection", "te"),
                ("x-secret", "1"),
                ("keep-alive", "timeout=5"),
                ("te", "trailers"),
                ("proxy-authorization", "Basic x"),
                ("transfer-encoding", "chunked"),
                ("content-length", "5"),
                ("expect", "100-continue"),
                ("accept", "*/*"),
            ],
            false,
        );
        let mut left: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(
            left,
            [
                "accept",
                "connection",
                "te",
                "x-forwarded-for",
                "x-forwarded-proto"
            ]
        );
        assert_eq!(
            (text(&sent, "te"), text(&sent, "connection")),
            ("trailers".into(), "te".into())
        );
    }

    #[test]
    fn nobody_can_make_the_principal_or_the_key_vanish_or_forge_a_fence() {
        let sent = sent(
            &[
                (
                    "connection",
                    "x-user-id, idempotency-key, host, authorization",
                ),
                ("x-user-id", "ada"),
                ("idempotency-key", "k"),
                ("host", "shop"),
                ("authorization", "Bearer t"),
                ("pgonce-fence", "99"),
                ("pgonce-attempt", "1"),
            ],
            false,
        );
        for name in ["x-user-id", "idempotency-key", "host", "authorization"] {
            assert!(sent.contains_key(name), "{name}");
        }
        assert!(!sent.contains_key(FENCE) && !sent.contains_key(ATTEMPT));
    }

    /// WSGI and CGI read `X_User_Id` and `X-User-Id` as one name.
    #[test]
    fn no_spelling_of_a_trusted_header_passes_beside_it() {
        let lines = [
            ("connection", "X-Tenant, X-Forwarded-For, x-other"),
            ("x-tenant", "acme"),
            ("x_user_id", "bob"),
            ("x_user-id", "bob"),
            ("idempotency_key", "other"),
            ("x_forwarded_for", "203.0.113.9"),
            ("pgonce_fence", "99"),
            ("pgonce-disposition", "keep"),
            ("x_other", "passes"),
            ("x-other", "named"),
        ];
        for trust in [false, true] {
            let sent = sent(&lines, trust);
            let mut left: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
            left.sort_unstable();
            let passed = [
                "x-forwarded-for",
                "x-forwarded-proto",
                "x-tenant",
                "x_other",
            ];
            assert_eq!(left, passed);
            assert_eq!(text(&sent, "x-forwarded-for"), "192.0.2.7");
        }
    }

    #[test]
    fn what_a_client_says_about_itself_is_believed_only_where_configured() {
        let lines = [
            ("host", "shop.example"),
            ("x-forwarded-for", "203.0.113.9"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=203.0.113.9"),
        ];
        let strict = sent(&lines, false);
        assert_eq!(text(&strict, "x-forwarded-for"), "192.0.2.7");
        assert_eq!(text(&strict, "x-forwarded-host"), "shop.example");
        assert_eq!(text(&strict, "x-forwarded-proto"), "http");
        assert!(!strict.contains_key(FORWARDED));
        let trusting = sent(&lines, true);
        assert_eq!(
            text(&trusting, "x-forwarded-for"),
            "203.0.113.9, 10.0.0.1, 192.0.2.7"
        );
        assert_eq!(text(&trusting, "x-forwarded-host"), "evil.example");
        assert_eq!(text(&trusting, "x-forwarded-proto"), "https");
        assert_eq!(
            text(&trusting, "forwarded"),
            "for=203.0.113.9 | for=192.0.2.7"
        );
    }

    #[test]
    fn an_offer_of_http2_is_no_request_to_upgrade() {
        let wants = |lines: &[_]| wanted_upgrade(&headers(lines)).map(str::to_owned);
        assert_eq!(
            wants(&[
                ("connection", "Upgrade, HTTP2-Settings"),
                ("upgrade", "h2c")
            ]),
            None
        );
        assert_eq!(wants(&[("upgrade", "websocket")]), None);
        let websocket = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
        ];
        assert_eq!(wants(&websocket).as_deref(), Some("websocket"));
    }
}
