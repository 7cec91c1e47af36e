//! Path patterns of routes, and which of two is the narrower.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// A path as a route names it: `/orders`, `/orders/{id}` or `/files/{*rest}`.
///
/// Compared with a request's path segment by segment, after `%41` has been read as `A`: another
/// spelling of a path is no way around its policy. `{name}` stands for one segment that is not
/// empty, `{*name}` at the end for all the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    written: String,
    segments: Vec<Segment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Exact(String),
    Param,
    Rest,
}

impl Pattern {
    /// Whether it matches one of the [`loose_readings`] of a path.
    pub(crate) fn matches_loosely(&self, reading: &[String]) -> bool {
        let mut found = reading.iter();
        for segment in &self.segments {
            match segment {
                Segment::Exact(name) if name.is_empty() => {}
                Segment::Exact(name) if found.next() == Some(&name.to_lowercase()) => {}
                Segment::Param if found.next().is_some() => {}
                Segment::Rest => return true,
                Segment::Exact(_) | Segment::Param => return false,
            }
        }
        found.next().is_none()
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        let Some(path) = path.strip_prefix('/') else {
            return false;
        };
        let mut found = path.split('/');
        for segment in &self.segments {
            let Some(found) = found.next() else {
                return false;
            };
            match segment {
                Segment::Exact(name) if *decoded(found) == *name.as_bytes() => {}
                Segment::Param if !found.is_empty() => {}
                Segment::Rest => return true,
                Segment::Exact(_) | Segment::Param => return false,
            }
        }
        found.next().is_none()
    }

    /// Whether some path matches both.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (mut ours, mut theirs) = (self.segments.iter(), other.segments.iter());
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) | (Some(Segment::Rest), Some(_)) | (Some(_), Some(Segment::Rest)) => {
                    return true;
                }
                (None, _) | (_, None) => return false,
                (Some(one), Some(other)) if one.meets(other) => {}
                _ => return false,
            }
        }
    }

    /// Whether every path of the other is also one of ours, and not the other way round.
    pub(crate) fn is_wider_than(&self, other: &Self) -> bool {
        self.contains(other) && !other.contains(self)
    }

    fn contains(&self, other: &Self) -> bool {
        let (mut wide, mut narrow) = (self.segments.iter(), other.segments.iter());
        loop {
            match (wide.next(), narrow.next()) {
                (None, None) | (Some(Segment::Rest), Some(_)) => return true,
                (Some(Segment::Exact(wide)), Some(Segment::Exact(narrow))) if wide == narrow => {}
                (Some(Segment::Param), Some(Segment::Param)) => {}
                (Some(Segment::Param), Some(Segment::Exact(narrow))) if !narrow.is_empty() => {}
                _ => return false,
            }
        }
    }

    /// Sorts the narrower of two patterns, one of which contains the other, to the front.
    pub(crate) fn width(&self) -> Vec<u8> {
        let width = |segment: &Segment| match segment {
            Segment::Exact(_) => 0,
            Segment::Param => 1,
            Segment::Rest => 2,
        };
        self.segments.iter().map(width).collect()
    }
}

impl Segment {
    /// Whether some segment of a path is both.
    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(one), Self::Exact(other)) => one == other,
            (Self::Exact(name), Self::Param) | (Self::Param, Self::Exact(name)) => !name.is_empty(),
            _ => true,
        }
    }
}

/// The segments of a path as services read it that ignore case, a trailing slash and repeated slashes. `%2F` is a slash to
/// some of them and a part of a segment to others; a semicolon, as it is or as `%3B`, begins parameters that are no part of
/// a segment, or is a character like others. So a path may have several readings.
pub(crate) fn loose_readings(path: &str) -> Vec<Vec<String>> {
    let Some(path) = path.strip_prefix('/') else {
        return Vec::new();
    };
    let is_slash = |byte: &u8| *byte == b'/';
    let mut spellings = vec![path.to_owned()];
    if path.contains(';') {
        let names = path
            .split('/')
            .map(|found| without_parameters(found.as_bytes()));
        let names: Vec<_> = names.map(String::from_utf8_lossy).collect();
        spellings.push(names.join("/"));
    }
    let mut readings: Vec<Vec<String>> = Vec::new();
    for spelling in &spellings {
        let one_by_one = spelling.split('/').map(decoded);
        let whole = decoded(spelling);
        let at_once = whole.split(is_slash).map(Cow::Borrowed);
        for segments in [one_by_one.collect::<Vec<_>>(), at_once.collect()] {
            for cut in [false, true] {
                let names = segments.iter().map(|found| match cut {
                    true => without_parameters(found),
                    false => found,
                });
                let names = names.filter(|name| !name.is_empty());
                let names = names.map(|name| String::from_utf8_lossy(name).to_lowercase());
                let reading = names.collect();
                if !readings.contains(&reading) {
                    readings.push(reading);
                }
            }
        }
    }
    readings
}

/// A segment without its parameters.
fn without_parameters(segment: &[u8]) -> &[u8] {
    let mut parts = segment.split(|byte| *byte == b';');
    parts.next().unwrap_or_default()
}

/// Whether a path has a segment `.` or `..`, in any spelling that services read as one: another segment than the
/// gateway's would then choose what runs.
pub(crate) fn has_dot_segments(path: &str) -> bool {
    let path = decoded(path);
    let mut segments = path.split(|byte| matches!(byte, b'/' | b'\\'));
    segments.any(|segment| {
        // Some services take what follows a semicolon off first.
        matches!(without_parameters(segment), b"." | b"..")
    })
}

/// The bytes that a segment stands for; what is no escape stands for itself.
fn decoded(segment: &str) -> Cow<'_, [u8]> {
    if !segment.contains('%') {
        return Cow::Borrowed(segment.as_bytes());
    }
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escape = (first == b'%').then(|| after.get(..2)).flatten();
        let byte = escape
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    Cow::Owned(bytes)
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(written: &str) -> Result<Self, String> {
        let Some(path) = written.strip_prefix('/') else {
            return Err(format!("the path {written:?} does not begin with a slash"));
        };
        if let Some(wrong) = written.find(['?', '#', '%', ' ']) {
            let wrong = &written[wrong..=wrong];
            return Err(format!(
                "{wrong:?} cannot be part of a path pattern; write the path plainly, without query and escapes"
            ));
        }
        let parts: Vec<&str> = path.split('/').collect();
        let mut segments = Vec::with_capacity(parts.len());
        for (place, part) in parts.iter().enumerate() {
            let name = part.strip_prefix('{').and_then(|p| p.strip_suffix('}'));
            segments.push(match name {
                Some(name) if name.starts_with('*') && place + 1 < parts.len() => {
                    return Err(format!("{part:?} stands for all the rest, so it must be the end of the path"));
                }
                Some(name) if is_name(name.trim_start_matches('*')) => {
                    if name.starts_with('*') { Segment::Rest } else { Segment::Param }
                }
                None if !part.contains(['{', '}']) => Segment::Exact((*part).to_owned()),
                _ => {
                    return Err(format!(
                        "{part:?} is neither a plain segment nor {{name}} nor {{*name}}; a parameter is a whole segment, named by letters, digits and _"
                    ));
                }
            });
        }
        Ok(Self {
            written: written.to_owned(),
            segments,
        })
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl Pattern {
    /// As the configuration has it.
    pub(crate) fn written(&self) -> &str {
        &self.written
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(written: &str) -> Pattern {
        written.parse().unwrap()
    }

    fn matches_loosely(pattern: &Pattern, path: &str) -> bool {
        let readings = loose_readings(path);
        readings.iter().any(|read| pattern.matches_loosely(read))
    }

    #[test]
    fn a_path_matches_by_whole_segments() {
        for (written, path, matches) in [
            ("/", "/", true),
            ("/", "/orders", false),
            ("/orders", "/orders", true),
            ("/orders", "/orders/", false),
            ("/orders", "/ordersx", false),
            ("/orders", "*", false),
            ("/orders", "/%6Frders", true),
            ("/orders", "/%6", false),
            ("/a%", "/a%25", false),
            ("/orders/{id}", "/orders/7", true),
            ("/orders/{id}", "/orders/", false),
            ("/orders/{id}", "/orders/7/items", false),
            ("/orders/{id}/items", "/orders/a%2Fb/items", true),
            ("/{*rest}", "/", true),
            ("/{*rest}", "/a/b//c", true),
            ("/files/{*rest}", "/files", false),
            ("/files/{*rest}", "/files/", true),
        ] {
            let Ok(pattern) = written.parse::<Pattern>() else {
                assert!(!matches, "{written} was refused");
                continue;
            };
            assert_eq!(pattern.matches(path), matches, "{written} against {path}");
        }
    }

    #[test]
    fn a_loose_match_ignores_case_and_slashes() {
        for (written, path, matches) in [
            ("/orders", "/orders/", true),
            ("/orders", "/Orders", true),
            ("/orders", "//orders", true),
            ("/Orders", "/%4frders//", true),
            ("/orders", "/order", false),
            ("/orders", "/orders/7", false),
            ("/orders/{id}", "/ORDERS/7/", true),
            ("/", "/", true),
            ("/{*rest}", "/", true),
            ("/files/{*rest}", "/FILES/a/b", true),
            ("/orders", "*", false),
            ("/{*rest}", "*", false),
            ("/files/{*rest}", "/files", true),
            ("/orders/", "/orders", true),
            ("/orders/{id}", "/orders//", false),
            ("/invoices/{id}/pay", "/invoices/2024%2F17/pay", true),
            ("/invoices/{id}/pay", "/Invoices%2F17//Pay", true),
            ("/invoices/{id}/pay", "/invoices/17", false),
            ("/orders", "/orders;v=1", true),
            ("/orders", "/Orders;v=1;jsessionid=7/", true),
            ("/orders", "/orders%3Bv=1", true),
            ("/orders", "/;v=1/orders", true),
            ("/orders;v=1", "/orders;v=1", true),
            ("/orders/{id}/pay", "/orders;a/7;b/pay;c", true),
            ("/orders/{id}/pay", "/orders;a%2F7;b/7/pay", true),
            ("/orders/{id}/pay", "/orders%2F7;b/pay", true),
            ("/orders", "/orde;rs", false),
        ] {
            assert_eq!(
                matches_loosely(&pattern(written), path),
                matches,
                "{written} against {path}"
            );
        }
    }

    #[test]
    fn a_loose_match_is_never_narrower_than_an_exact_one() {
        let parts = [
            "", "/", "/a", "/A", "/%61", "/a%2Fb", "/%2F", "/%", "/\u{3a3}", "/a;b", "/;", "/a%3B",
        ];
        let mut paths = vec!["/a/b/c".to_owned(), "*".to_owned()];
        for a in parts {
            for b in parts {
                paths.extend(parts.map(|c| format!("{a}{b}{c}")));
            }
        }
        let mut matched = 0;
        for written in [
            "/", "/a", "/a/", "//a", "/{x}", "/{x}/a", "/a/{x}/", "/a/{*x}", "/{*x}",
        ] {
            let pattern = pattern(written);
            for path in &paths {
                if pattern.matches(path) {
                    matched += 1;
                    assert!(matches_loosely(&pattern, path), "{written} against {path}");
                }
            }
        }
        assert!(matched > 100);
    }

    #[test]
    fn a_dot_segment_is_one_in_every_spelling() {
        for (path, has) in [
            ("/x/../orders", true),
            ("/./orders", true),
            ("/orders/..", true),
            ("/x/%2e%2E/orders", true),
            ("/x/.%2e/orders", true),
            ("/x%2F..%2Forders", true),
            ("/x/..;a=b/orders", true),
            ("/x/..%5Corders", true),
            ("/orders/...", false),
            ("/.well-known/x", false),
            ("/a..b/.c/d.", false),
            ("/", false),
            ("*", false),
        ] {
            assert_eq!(has_dot_segments(path), has, "{path}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for written in [
            "",
            "orders",
            "/{*rest}/more",
            "/a{id}",
            "/{}",
            "/{*}",
            "/{a b}",
            "/a?b",
            "/%41",
            "/{a-b}",
        ] {
            assert!(written.parse::<Pattern>().is_err(), "{written}");
        }
    }

    #[test]
    fn one_of_two_patterns_is_wider_or_they_cross_or_never_meet() {
        // (one, other, they meet, one is wider, the other is wider)
        for (one, other, meet, wider, narrower) in [
            ("/{*rest}", "/orders", true, true, false),
            ("/{*rest}", "/", true, true, false),
            ("/orders/{id}", "/orders/new", true, true, false),
            ("/orders/{id}", "/orders/{other}", true, false, false),
            ("/a/{x}/c", "/a/b/{y}", true, false, false),
            ("/a/{*rest}", "/{x}/b", true, false, false),
            ("/orders/{id}", "/orders/", false, false, false),
            ("/orders", "/invoices", false, false, false),
            ("/orders/{id}", "/orders/{*rest}", true, false, true),
            ("/{x}", "/{*rest}", true, false, true),
            ("/a/b", "/a", false, false, false),
        ] {
            let (a, b) = (pattern(one), pattern(other));
            assert_eq!(
                (a.overlaps(&b), b.overlaps(&a)),
                (meet, meet),
                "{one} and {other}"
            );
            assert_eq!(a.is_wider_than(&b), wider, "{one} over {other}");
            assert_eq!(b.is_wider_than(&a), narrower, "{other} over {one}");
            if wider {
                assert!(b.width() < a.width(), "{other} is sorted before {one}");
            }
        }
    }
}
