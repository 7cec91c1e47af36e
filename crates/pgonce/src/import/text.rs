//! The text of a JSON value, as `p_row ->> 'column'` gives it in SQL, in one spelling: by it keys and rows are compared.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Deeper values are compared as they are written.
const MAX_DEPTH: usize = 64;

/// A number of more digits keeps its exponent.
const MAX_DIGITS: i64 = 1000;

/// A JSON object in the order of its names, its values as they are written: a number may have more digits than
/// a float.
pub(super) struct Object<'a>(pub(super) BTreeMap<String, &'a RawValue>);

impl<'de> serde::Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(
                self,
                mut map: M,
            ) -> std::result::Result<Object<'de>, M::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
                    if members.insert(name, value).is_some() {
                        return Err(serde::de::Error::custom("a name is there twice"));
                    }
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// The text of a value that is valid JSON. A string is the same as it would be in a CSV file, and 17.0 the same as 17; text that looks like a
/// number is left alone, since version 1.10 is not 1.1.
pub(super) fn text(json: &str) -> Cow<'_, str> {
    if json.starts_with('"') {
        return serde_json::from_str(json).map_or(json.into(), Cow::Owned);
    }
    nested(json, 0)
}

fn nested(json: &str, depth: usize) -> Cow<'_, str> {
    let one = |value: &RawValue| nested(value.get(), depth + 1).into_owned();
    match json.as_bytes().first() {
        Some(b'{' | b'[') if depth == MAX_DEPTH => json.into(),
        Some(b'{') => {
            let Ok(Object(members)) = serde_json::from_str(json) else {
                return json.into();
            };
            let members: BTreeMap<_, _> = members.iter().map(|(n, v)| (n, one(v))).collect();
            let members = members
                .iter()
                .map(|(name, value)| format!("{}:{value}", string(name)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(",")).into()
        }
        Some(b'[') => {
            let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(json) else {
                return json.into();
            };
            let items: Vec<_> = items.into_iter().map(one).collect();
            format!("[{}]", items.join(",")).into()
        }
        Some(b'"') => serde_json::from_str::<String>(json).map_or(json.into(), |s| string(&s)),
        Some(b'-' | b'0'..=b'9') => number(json).map_or(json.into(), Cow::Owned),
        _ => json.into(),
    }
}

fn string(text: &str) -> Cow<'static, str> {
    serde_json::Value::from(text).to_string().into()
}

/// The number without needless digits; `None` where its exponent is out of all bounds.
fn number(json: &str) -> Option<String> {
    let (sign, rest) = match json.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", json),
    };
    let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let digits = all.trim_end_matches('0');
    let dropped = i64::try_from(all.len() - digits.len()).ok()?;
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some("0".to_owned());
    }
    let fraction = i64::try_from(fraction.len()).ok()?;
    let exponent: i64 = exponent.parse().ok()?;
    let exponent = exponent.checked_sub(fraction)?.checked_add(dropped)?;
    let point = exponent.checked_add(i64::try_from(digits.len()).ok()?)?;
    Some(if exponent.abs() > MAX_DIGITS {
        format!("{sign}{digits}e{exponent}")
    } else if exponent >= 0 {
        format!(
            "{sign}{digits}{}",
            "0".repeat(usize::try_from(exponent).ok()?)
        )
    } else if let Ok(point @ 1..) = usize::try_from(point) {
        format!("{sign}{}.{}", &digits[..point], &digits[point..])
    } else {
        let zeros = "0".repeat(usize::try_from(-point).ok()?);
        format!("{sign}0.{zeros}{digits}")
    })
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn one_value_has_one_text_however_it_is_written() {
        for (spellings, expected) in [
            (&[r#""INV\/2026\/7""#, r#""INV/2026/7""#][..], "INV/2026/7"),
            (&[r#""caf\u00e9""#, "\"caf\u{e9}\""], "caf\u{e9}"),
            (&["17", "17.0", "1.7e1", "170E-1", "0.17e+2"], "17"),
            (&["-0.05", "-5e-2", "-0.50e-1"], "-0.05"),
            (&["0", "-0", "0.000", "0e99999999999999999999"], "0"),
            (&["1200", "1.2e3", "12E2"], "1200"),
            (
                &["123456789012345678901234567890.50"],
                "123456789012345678901234567890.5",
            ),
            (&["1e5000", "10e4999", "0.1e5001"], "1e5000"),
            (&["true"], "true"),
            (&[r#""1.10""#], "1.10"),
            (
                &[
                    r#"{"b": [1.0, "\u0061"], "a": null}"#,
                    r#"{"a":null,"b":[1,"a"]}"#,
                ],
                r#"{"a":null,"b":[1,"a"]}"#,
            ),
        ] {
            for spelling in spellings {
                assert_eq!(text(spelling), expected, "{spelling}");
            }
        }
        for odd in ["1e99999999999999999999", r#"{"a":1,"a":2}"#] {
            assert_eq!(text(odd), odd);
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(text(&deep), deep);
    }
}
