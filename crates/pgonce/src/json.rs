//! JSON that somebody else wrote: PostgreSQL holds numbers and depths that no [`Value`] has.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A value is taken apart this many levels deep. What is below stays text.
const DEPTH: usize = 64;

/// Reads JSON. A part that no [`Value`] holds, such as a number beyond the range of `f64` or what is nested too deeply, becomes
/// its own text, so that it spoils nothing beside it.
///
/// ```
/// let value = pgonce::unstable::json::read(r#"{"far": 1e400, "near": 1}"#)?;
/// assert_eq!(value, serde_json::json!({"far": "1e400", "near": 1}));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn read(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(text).or_else(|_| Ok(apart(serde_json::from_str(text)?, DEPTH)))
}

/// Reads a row that PostgreSQL's `row_to_json` wrote, as [`read`] does. What is no object is no row.
pub fn read_row(text: &str) -> Option<Map<String, Value>> {
    match read(text) {
        Ok(Value::Object(row)) => Some(row),
        _ => None,
    }
}

fn apart(part: &RawValue, depth: usize) -> Value {
    let text = part.get();
    if let Ok(value) = serde_json::from_str(text) {
        return value;
    }
    parts(text, depth, apart).unwrap_or_else(|| text.into())
}

/// [`read`] for what is shown or written again: numbers whose digits no `f64` holds become their text too.
///
/// ```
/// let value = pgonce::unstable::json::read_exact(r#"[1.10, 12345678901234567.25]"#)?;
/// assert_eq!(value, serde_json::json!([1.1, "12345678901234567.25"]));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn read_exact(text: &str) -> serde_json::Result<Value> {
    Ok(exact(serde_json::from_str(text)?, DEPTH))
}

fn exact(part: &RawValue, depth: usize) -> Value {
    parts(part.get(), depth, exact).unwrap_or_else(|| header(part))
}

/// An object or a list, its parts read by `read`.
fn parts(text: &str, depth: usize, read: fn(&RawValue, usize) -> Value) -> Option<Value> {
    match text.as_bytes().first() {
        Some(b'{') if depth > 0 => Some(object(text, |part| read(part, depth - 1)).into()),
        Some(b'[') if depth > 0 => {
            let list: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
            Some(list.into_iter().map(|part| read(part, depth - 1)).collect())
        }
        _ => None,
    }
}

/// Reads the headers of an event or a message, each as [`header`] does. What is no object has none.
pub fn headers(text: &str) -> Map<String, Value> {
    object(text, header)
}

/// [`read`] for one header: a number whose digits no `f64` holds becomes its text too.
pub fn header(part: &RawValue) -> Value {
    match part.get() {
        number if is_rounded(number) => number.into(),
        _ => apart(part, DEPTH),
    }
}

fn object(text: &str, read: impl Fn(&RawValue) -> Value) -> Map<String, Value> {
    let parts: BTreeMap<String, &RawValue> = serde_json::from_str(text).unwrap_or_default();
    let parts = parts.into_iter();
    parts.map(|(name, part)| (name, read(part))).collect()
}

/// Reads JSON where a [`Value`] holds all of it: each number, digit by digit, at every depth.
pub(crate) fn read_if_exact(text: &str) -> Option<Value> {
    let value = serde_json::from_str(text).ok()?;
    (!has_rounded(text)).then_some(value)
}

/// Whether a number of this JSON [is rounded](is_rounded).
fn has_rounded(mut text: &str) -> bool {
    let no_number = |c: char| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E');
    loop {
        let (outside, string) = text.split_once('"').unwrap_or((text, ""));
        if outside.split(no_number).any(is_rounded) {
            return true;
        }
        let mut escaped = false;
        let end = string.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        match end {
            Some(end) => text = &string[end + 1..],
            None => return false,
        }
    }
}

/// Whether this is a number that an `f64` would change.
fn is_rounded(text: &str) -> bool {
    let is_number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    let is_whole = text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok();
    let held = text.parse().map(|held: f64| format!("{held:e}"));
    is_number && !is_whole && held.is_ok_and(|held| decimal(&held) != decimal(text))
}

/// The sign of a number, its digits without noughts around them, and the power of ten of the last.
fn decimal(number: &str) -> Option<(bool, String, i64)> {
    let (digits, power) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{}{fraction}", whole.trim_start_matches('-'));
    let digits = all.trim_end_matches('0');
    let behind =
        i64::try_from(fraction.len()).ok()? - i64::try_from(all.len() - digits.len()).ok()?;
    let power = power.parse::<i64>().ok()?.checked_sub(behind)?;
    let digits = digits.trim_start_matches('0').to_owned();
    let power = if digits.is_empty() { 0 } else { power };
    Some((number.starts_with('-'), digits, power))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_no_value_holds_is_its_text_and_spoils_nothing_beside_it() {
        let far = r#"{"a": [1, {"n": -1e400, "m": 2}], "b": "x"}"#;
        let read_far = json!({"a": [1, {"n": "-1e400", "m": 2}], "b": "x"});
        assert_eq!(read(far).unwrap(), read_far);
        assert_eq!(read(" 1e400 ").unwrap(), "1e400");
        assert!(read("{").is_err() && read("").is_err());

        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        let mut value = &read(&deep).unwrap();
        while let Some(inner) = value.get(0) {
            value = inner;
        }
        let inner = deep.len() - 2 * DEPTH;
        assert_eq!(value.as_str().map(str::len), Some(inner));
    }

    #[test]
    fn headers_say_the_digits_that_were_written() {
        let text = r#"{"a": 12345678901234567.89, "b": 1.10, "c": 12345678901234567890, "d": -1e400,
            "e": 0.00000000000000000001, "f": "1e400", "g": {"n": 1e400}}"#;
        assert_eq!(
            Value::from(headers(text)),
            json!({"a": "12345678901234567.89", "b": 1.1, "c": 12_345_678_901_234_567_890_u64, "d": "-1e400",
                "e": 1e-20, "f": "1e400", "g": {"n": "1e400"}})
        );
        assert!(headers("[1]").is_empty() && headers("").is_empty());
    }

    #[test]
    fn a_number_that_a_float_gives_back_is_not_rounded() {
        for same in [
            "0",
            "-0.0",
            "1.10",
            "0.30000000000000004",
            "100000000000000000000",
            "1E+20",
            "18446744073709551615",
            "-9223372036854775808",
            "0.00000000000000000001",
            "1.7976931348623157e308",
            "9007199254740993",
        ] {
            assert!(!is_rounded(same), "{same}");
            assert_eq!(read_exact(same).unwrap(), read(same).unwrap(), "{same}");
        }
        for other in [
            "12345678901234567.89",
            "18446744073709551617",
            "1e400",
            "-1e400",
            "1e-400",
            "0.300000000000000041",
            "1e99999999999999999999",
        ] {
            assert!(is_rounded(other), "{other}");
            assert_eq!(read_exact(other).unwrap(), other);
        }
    }

    #[test]
    fn a_value_is_read_where_it_holds_every_number_however_deep() {
        for text in [
            r#"{"a": [1.50, "12345678901234567.89", "\\"], "b\"1e400": {}}"#,
            "[]",
            "7",
        ] {
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(read_if_exact(text), Some(value));
        }
        let deep = |inner: &str| format!("{}{inner}{}", "[".repeat(100), "]".repeat(100));
        assert!(read_if_exact(&deep("1.5")).is_some());
        let changed = [
            r#"["\\", 1e400]"#,
            r#"{"a\"": 12345678901234567.89}"#,
            "",
            "{",
            r#"""#,
        ];
        for text in changed.into_iter().chain([&*deep("12345678901234567.89")]) {
            assert_eq!(read_if_exact(text), None, "{text}");
        }
    }
}
