//! Requests that came over HTTP/2, as the services behind the gateway know them: HTTP/1.1.

use axum::body::Body;
use axum::response::Response;
use http::header::{COOKIE, HOST};
use http::{HeaderValue, Request, Version};

use super::proxy::host_invalid;

/// Gives a request the `Host` of its authority, and one `Cookie` (RFC 9113, sections 8.3.1 and 8.2.3).
pub(crate) fn as_http1(request: &mut Request<Body>) -> Result<(), Box<Response>> {
    if request.version() != Version::HTTP_2 {
        return Ok(());
    }
    let authority = request.uri().authority().map(ToString::to_string);
    let headers = request.headers_mut();
    if let Some(authority) = authority {
        let differs =
            |host: &HeaderValue| !host.as_bytes().eq_ignore_ascii_case(authority.as_bytes());
        let value = HeaderValue::try_from(&authority).map_err(|_| host_invalid())?;
        // Two names for one target: two servers on the way could read two different hosts.
        if headers.get_all(HOST).iter().any(differs) {
            return Err(Box::new(host_invalid()));
        }
        headers.insert(HOST, value);
    } else if !headers.contains_key(HOST) {
        return Err(Box::new(host_invalid()));
    }
    let cookies: Vec<_> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
    *request.version_mut() = Version::HTTP_11;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, headers: &[(&str, &str)]) -> Request<Body> {
        let mut request = Request::post(uri).version(Version::HTTP_2);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    #[test]
    fn the_authority_is_the_host_and_crumbs_are_one_cookie() {
        let crumbs = [("cookie", "a=1"), ("cookie", "b=2")];
        let mut asked = request("https://shop.example/orders", &crumbs);
        as_http1(&mut asked).unwrap();
        assert_eq!(asked.headers()[HOST], "shop.example");
        let cookies: Vec<_> = asked.headers().get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; b=2"]);
    }

    #[test]
    fn two_hosts_or_none_are_refused() {
        for (uri, headers) in [
            ("https://shop.example/", &[("host", "evil.example")][..]),
            ("/", &[]),
        ] {
            let refused = as_http1(&mut request(uri, headers)).unwrap_err();
            assert_eq!(refused.status(), 400, "{uri}");
        }
        let same = &[("host", "Shop.example")];
        assert!(as_http1(&mut request("https://shop.example/", same)).is_ok());
    }
}
