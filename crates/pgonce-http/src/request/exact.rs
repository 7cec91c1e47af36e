//! JSON whose canonical form says all that the text says.
//!
//! RFC 8785 knows only doubles, and a parser keeps one of two members of the same name. Where the
//! text says more than that, two different requests would look alike: such a text is not
//! taken for JSON, and counts byte by byte.

use serde_json::Value;

/// Decimal numbers of up to so many digits are all different as doubles.
const DIGITS: usize = 15;

/// The largest power of ten that is far from where doubles end.
const EXPONENT: usize = 290;

pub(super) fn json(text: &[u8]) -> Option<Value> {
    let members_written = scan(text)?;
    let value: Value = serde_json::from_slice(text).ok()?;
    (members(&value) == members_written).then_some(value)
}

fn members(value: &Value) -> usize {
    match value {
        Value::Object(map) => map.len() + map.values().map(members).sum::<usize>(),
        Value::Array(items) => items.iter().map(members).sum(),
        _ => 0,
    }
}

/// How many members are written, if every number is exact.
fn scan(text: &[u8]) -> Option<usize> {
    let mut members = 0;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => at = end_of_string(text, at),
            b':' => {
                members += 1;
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let rest = &text[at..];
                let length = rest
                    .iter()
                    .position(|b| !matches!(b, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9'))
                    .unwrap_or(rest.len());
                if !is_exact(&rest[..length]) {
                    return None;
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    Some(members)
}

fn end_of_string(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

fn is_exact(number: &[u8]) -> bool {
    let power = number.iter().position(|b| matches!(b, b'e' | b'E'));
    let (mantissa, exponent) = match power {
        Some(at) => (&number[..at], &number[at + 1..]),
        None => (number, &[][..]),
    };
    let digits: Vec<u8> = mantissa
        .iter()
        .copied()
        .filter(u8::is_ascii_digit)
        .collect();
    let first = digits
        .iter()
        .position(|d| *d != b'0')
        .unwrap_or(digits.len());
    let last = digits
        .iter()
        .rposition(|d| *d != b'0')
        .map_or(first, |at| at + 1);
    let exponent = exponent
        .strip_prefix(b"+")
        .or(exponent.strip_prefix(b"-"))
        .unwrap_or(exponent);
    let exponent = match std::str::from_utf8(exponent) {
        Ok("") => 0,
        Ok(text) => text.parse().unwrap_or(usize::MAX),
        Err(_) => usize::MAX,
    };
    last - first <= DIGITS && exponent.saturating_add(digits.len()) <= EXPONENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_says_more_than_its_canonical_form_is_not_json() {
        for inexact in [
            "9007199254740993",
            "[1234567890123456.78]",
            "{\"a\":0.1000000000000000055}",
            "1e400",
            "1e-400",
            "{\"a\":1,\"a\":2}",
            "{\"a\":{\"b\":1,\"b\":1}}",
            "{",
            "",
        ] {
            assert_eq!(json(inexact.as_bytes()), None, "{inexact}");
        }
    }

    #[test]
    fn usual_texts_are_json() {
        for exact in [
            "null",
            "{\"a\":\":1,\\\"9007199254740993\",\"b\":[1.50,-2e3,0,100000000000000000000]}",
            "123456789012345",
            "{\"a\":{\"b\":{}},\"c\":[{\"d\":0.001}]}",
        ] {
            let value: Value = serde_json::from_str(exact).unwrap();
            assert_eq!(json(exact.as_bytes()), Some(value), "{exact}");
        }
    }
}
