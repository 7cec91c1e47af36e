//! Values as people write them: lengths of time, sizes, names of headers, methods.

use std::cmp::Ordering;
use std::fmt;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use toml::Spanned;

/// A length of time such as "30s".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Length(pub(crate) Duration);

/// A number of bytes such as "1 MiB".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) usize);

/// The name of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header(pub(crate) HeaderName);

impl PartialOrd for Header {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Header {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.as_str().cmp(other.0.as_str())
    }
}

/// The value of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) HeaderValue);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Word {
            expected: "the value of a header",
            read: |text: &str| {
                let value = HeaderValue::from_str(text);
                value.map(Self).map_err(|_| "cannot be sent".to_owned())
            },
        })
    }
}

/// A method such as "POST".
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verb(pub(crate) Method);

/// A status such as 503.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) StatusCode);

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u16::deserialize(deserializer)?;
        let status = StatusCode::from_u16(number).ok();
        let status = status.filter(|status| (200..600).contains(&status.as_u16()));
        status
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("{number} is no status, expected 200 to 599")))
    }
}

/// The caller: none, or the one that a header names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Principal {
    #[default]
    None,
    Header(HeaderName),
}

/// How a request's body is compared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Print {
    #[default]
    ByContentType,
    Bytes,
    Json,
    Multipart,
    Only(Vec<String>),
    Except(Vec<String>),
}

/// A text that is read by a function.
struct Word<F> {
    expected: &'static str,
    read: F,
}

impl<T, F: FnOnce(&str) -> Result<T, String>> Visitor<'_> for Word<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        let expected = self.expected;
        (self.read)(text).map_err(|why| E::custom(format!("{text:?} {why}, expected {expected}")))
    }
}

/// 1000 years.
const MAX_LENGTH: Duration = Duration::from_secs(1000 * 8766 * 3600);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Word {
            expected: "a length of time such as \"250ms\", \"30s\", \"15m\", \"1h 30m\" or \"7d\"",
            read: |text: &str| {
                let read = humantime::parse_duration(text);
                // What is longer cannot be added to a clock.
                read.map(|length| Self(length.min(MAX_LENGTH)))
                    .map_err(|why| format!("is no length of time ({why})"))
            },
        })
    }
}

/// A limit of no time would end everything before it begins.
pub(crate) fn some_time<'de, D: Deserializer<'de>>(from: D) -> Result<Length, D::Error> {
    let length = Length::deserialize(from)?;
    match length.0.is_zero() {
        true => Err(D::Error::custom(
            "a limit of no time, expected more than \"0s\"",
        )),
        false => Ok(length),
    }
}

/// A limit of no bytes would refuse everything.
pub(crate) fn some_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
    Ok(some_bytes_at(from)?.into_inner())
}

/// The same, with its place in the file.
pub(crate) fn some_bytes_at<'de, D: Deserializer<'de>>(from: D) -> Result<Spanned<Size>, D::Error> {
    let size = Spanned::<Size>::deserialize(from)?;
    match size.get_ref().0 {
        0 => Err(D::Error::custom(
            "a limit of no bytes, expected more than \"0 B\"",
        )),
        _ => Ok(size),
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Word {
            expected: "a size such as \"64 KiB\", \"1 MiB\" or \"500 kB\"",
            read: |text: &str| {
                let read = text
                    .parse::<bytesize::ByteSize>()
                    .map_err(|_| "is no size".to_owned())?;
                let read = usize::try_from(read.as_u64());
                read.map(Self)
                    .map_err(|_| "is more than this machine can count".to_owned())
            },
        })
    }
}

fn header(text: &str) -> Result<HeaderName, String> {
    text.parse()
        .map_err(|_| "is no name of a header".to_owned())
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Word {
            expected: "the name of a header such as \"X-User-Id\"",
            read: |text: &str| header(text).map(Self),
        })
    }
}

impl<'de> Deserialize<'de> for Verb {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Word {
            expected: "a method in capitals such as \"POST\"",
            read: |text: &str| {
                // Methods differ by case: "post" would be a method that no client sends.
                let read = Method::from_bytes(text.as_bytes()).ok();
                let read = read.filter(|_| !text.bytes().any(|b| b.is_ascii_lowercase()));
                read.map(Self).ok_or_else(|| "is no method".to_owned())
            },
        })
    }
}

impl<'de> Deserialize<'de> for Principal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PrincipalVisitor)
    }
}

struct PrincipalVisitor;

impl<'de> Visitor<'de> for PrincipalVisitor {
    type Value = Principal;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"none\", or { header = \"…\" } with the header that carries the authenticated principal")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Principal, E> {
        match text {
            "none" => Ok(Principal::None),
            other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
        }
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Principal, M::Error> {
        let mut named = None;
        while let Some(field) = map.next_key::<String>()? {
            if field != "header" {
                return Err(M::Error::unknown_field(&field, &["header"]));
            }
            named = Some(map.next_value::<Header>()?.0);
        }
        named
            .map(Principal::Header)
            .ok_or_else(|| M::Error::missing_field("header"))
    }
}

impl<'de> Deserialize<'de> for Print {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PrintVisitor)
    }
}

struct PrintVisitor;

impl<'de> Visitor<'de> for PrintVisitor {
    type Value = Print;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "\"by-content-type\", \"bytes\", \"json\" or \"multipart\", or members of a JSON document as pointers: \
             { only = [\"/customer/id\"] } or { except = [\"/sent_at\"] }",
        )
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Print, E> {
        Ok(match text {
            "by-content-type" => Print::ByContentType,
            "bytes" => Print::Bytes,
            "json" => Print::Json,
            "multipart" => Print::Multipart,
            other => return Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
        })
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Print, M::Error> {
        let Some(field) = map.next_key::<String>()? else {
            return Err(M::Error::missing_field("only"));
        };
        let print = match field.as_str() {
            "only" => Print::Only(pointers(map.next_value()?)?),
            "except" => Print::Except(pointers(map.next_value()?)?),
            other => return Err(M::Error::unknown_field(other, &["only", "except"])),
        };
        match map.next_key::<String>()? {
            None => Ok(print),
            Some(_) => Err(M::Error::custom("there is `only` or `except`, not both")),
        }
    }
}

fn pointers<E: Error>(pointers: Vec<String>) -> Result<Vec<String>, E> {
    if pointers.is_empty() {
        return Err(E::custom(
            "no member is named, expected such as [\"/customer/id\"]",
        ));
    }
    match pointers.iter().find(|pointer| !pointer.starts_with('/')) {
        None => Ok(pointers),
        Some(wrong) => Err(E::custom(format!(
            "{wrong:?} is no JSON pointer, expected such as \"/customer/id\""
        ))),
    }
}
