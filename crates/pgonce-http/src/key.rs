//! The key: from the header to the name that is stored.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use sfv::{BareItem, Item, Parser};

use crate::{Policy, Problem};

/// What the digest behind a stored key takes, `#` included.
const TAG_BYTES: usize = 33;

/// The key that a request carries. The quoted form (a structured-field string) and the raw form
/// are the same key.
pub(crate) fn read(headers: &HeaderMap, policy: &Policy) -> Result<Option<Arc<str>>, Problem> {
    let name = &policy.header;
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(unusable(format!(
            "the header {name} was sent more than once; send one key"
        )));
    }
    let text = value.to_str().map_err(|_| {
        unusable(format!(
            "the header {name} holds other than visible ASCII characters; send a UUID, say"
        ))
    })?;
    let text = text.trim_matches([' ', '\t']);
    let key = if text.starts_with('"') {
        quoted(text, policy)?
    } else {
        raw(text, policy)?
    };
    if key.is_empty() {
        return Err(missing(policy));
    }
    if key.len() > policy.max_key_bytes {
        return Err(unusable(format!(
            "the key has {} bytes; at most {}",
            key.len(),
            policy.max_key_bytes
        )));
    }
    if policy.lint_keys
        && let Err(complaint) = pgonce::key::lint(&key)
    {
        return Err(unusable(complaint.to_string()));
    }
    Ok(Some(key.into()))
}

fn quoted(text: &str, policy: &Policy) -> Result<String, Problem> {
    // Parameters say nothing here, and unknown ones are to be ignored.
    match Parser::new(text).parse::<Item>() {
        Ok(Item {
            bare_item: BareItem::String(key),
            ..
        }) => Ok(key.as_str().to_owned()),
        _ => Err(unusable(format!(
            "the header {} begins with a quote but is not a structured-field string; \
             send \"key\", with any quote or backslash in it escaped",
            policy.header
        ))),
    }
}

fn raw(text: &str, policy: &Policy) -> Result<String, Problem> {
    // Two lines of one header arrive as one with a comma where something on the way joins them.
    match text
        .chars()
        .find(|c| matches!(c, '"' | ',' | '\\') || !c.is_ascii_graphic())
    {
        None => Ok(text.to_owned()),
        Some(c) => Err(unusable(format!(
            "the key in the header {} holds {c:?}; send one key, in quotes if it holds such characters",
            policy.header
        ))),
    }
}

pub(crate) fn missing(policy: &Policy) -> Problem {
    Problem::ours(
        StatusCode::BAD_REQUEST,
        "P4001",
        format!(
            "the header {} is missing or empty; make one key per request and send it with every attempt",
            policy.header
        ),
    )
}

fn unusable(detail: String) -> Problem {
    Problem::ours(StatusCode::BAD_REQUEST, "22023", detail)
}

/// The key under which the intent is stored: the client's, readable, then a digest that keeps the
/// same key of two principals or two operations apart.
pub(crate) fn stored(key: &str, operation: &str, principal: Option<&str>) -> String {
    let digest = match principal {
        None => pgonce::key::derived("pgonce-http", &["nobody", operation, key]),
        Some(principal) => {
            pgonce::key::derived("pgonce-http", &["somebody", principal, operation, key])
        }
    };
    // What does not fit is left out: the digest covers the whole key.
    let room = pgonce::MAX_NAME_BYTES - TAG_BYTES;
    let shown = &key[..key.floor_char_boundary(room)];
    format!("{shown}#{}", &digest[..TAG_BYTES - 1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn of(values: &[&[u8]]) -> Result<Option<Arc<str>>, (u16, String)> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("idempotency-key", HeaderValue::from_bytes(value).unwrap());
        }
        read(&headers, &Policy::new("s", crate::Caller::None))
            .map_err(|p| (p.status().as_u16(), p.code().to_owned()))
    }

    #[test]
    fn the_quoted_and_the_raw_form_are_one_key() {
        for form in ["abc-1", "\"abc-1\"", "  abc-1 ", "\"abc-1\";a=1"] {
            assert_eq!(
                of(&[form.as_bytes()]).unwrap().as_deref(),
                Some("abc-1"),
                "{form}"
            );
        }
        assert_eq!(
            of(&[br#""a \"b\" \\ ,c""#]).unwrap().as_deref(),
            Some(r#"a "b" \ ,c"#)
        );
        assert_eq!(of(&[b"a:b;c=d/e"]).unwrap().as_deref(), Some("a:b;c=d/e"));
        assert_eq!(of(&[]), Ok(None));
    }

    #[test]
    fn a_key_that_could_mean_two_things_is_refused() {
        for bad in [
            "\"abc",
            "\"a\" b",
            "a,b",
            "a b",
            "abc\"",
            "a\\b",
            "\"a\", \"b\"",
        ] {
            assert_eq!(of(&[bad.as_bytes()]), Err((400, "22023".into())), "{bad}");
        }
        assert_eq!(of(&[b"a", b"a"]), Err((400, "22023".into())));
        assert_eq!(of(&["ä".as_bytes()]), Err((400, "22023".into())));
        assert_eq!(of(&[&[b'k'; 256]]), Err((400, "22023".into())));
        assert!(of(&[&[b'k'; 255]]).is_ok());
        for empty in ["", "  ", "\"\""] {
            assert_eq!(
                of(&[empty.as_bytes()]),
                Err((400, "P4001".into())),
                "{empty:?}"
            );
        }
    }

    #[test]
    fn a_stored_key_fits_shows_the_clients_and_keeps_callers_apart() {
        let long = "k".repeat(255);
        let one = stored("k1", "POST /a", Some("ada"));
        assert!(one.starts_with("k1#"));
        assert_eq!(stored(&long, "POST /a", None).len(), 255);
        let all = [
            one,
            stored("k1", "POST /a", Some("bob")),
            stored("k1", "POST /b", Some("ada")),
            stored("k1", "POST /a", None),
            stored(&long, "POST /a", None),
            stored(&format!("{}l", &long[..254]), "POST /a", None),
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn a_stored_key_never_changes_between_releases() {
        // Keys outlive releases: a change here makes every retry in flight a new request.
        let known = "k1#fd61ec214f6d260dade5382c10dce71d";
        assert_eq!(stored("k1", "POST /orders", Some("ada")), known);
    }
}
