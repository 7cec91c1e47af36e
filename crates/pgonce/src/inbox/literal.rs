//! Values as PostgreSQL writes them, where a parameter holds many.

use serde_json::{Map, Value};

/// Texts as an array literal.
pub(crate) fn texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut literal = String::from("{");
    for text in texts {
        if literal.len() > 1 {
            literal.push(',');
        }
        literal.push('"');
        for c in text.chars() {
            if matches!(c, '"' | '\\') {
                literal.push('\\');
            }
            literal.push(c);
        }
        literal.push('"');
    }
    literal.push('}');
    literal
}

/// Numbers as an array literal.
pub(super) fn numbers(numbers: impl Iterator<Item = Option<i64>>) -> String {
    let texts: Vec<_> = numbers
        .map(|number| number.map_or("null".to_owned(), |number| number.to_string()))
        .collect();
    format!("{{{}}}", texts.join(","))
}

/// Digests as a literal of bytea[].
pub(super) fn digests(digests: impl ExactSizeIterator<Item = [u8; 32]>) -> String {
    let mut literal = String::with_capacity(2 + 70 * digests.len());
    literal.push('{');
    for digest in digests {
        if literal.len() > 1 {
            literal.push(',');
        }
        literal.push_str("\"\\\\x");
        // Not by `write!`, which takes longer than making the digest did.
        for byte in digest {
            literal.push(hex_digit(byte >> 4));
            literal.push(hex_digit(byte & 15));
        }
        literal.push('"');
    }
    literal.push('}');
    literal
}

fn hex_digit(half: u8) -> char {
    char::from(b"0123456789abcdef"[usize::from(half & 15)])
}

/// What `encode(…, 'hex')` wrote.
pub(super) fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks_exact(2);
    pairs
        .map(|pair| u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok())
        .collect()
}

/// PostgreSQL's texts have no U+0000.
pub(super) fn plain(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Headers whose texts PostgreSQL can hold.
pub(super) fn headers(headers: &Map<String, Value>) -> String {
    fn clean(value: &Value) -> Value {
        match value {
            Value::String(text) => plain(text).into(),
            Value::Array(values) => values.iter().map(clean).collect(),
            Value::Object(fields) => Value::Object(object(fields)),
            other => other.clone(),
        }
    }
    fn object(fields: &Map<String, Value>) -> Map<String, Value> {
        let fields = fields.iter();
        fields.map(|(n, v)| (plain(n), clean(v))).collect()
    }
    Value::Object(object(headers)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_cannot_leave_their_quotes() {
        assert_eq!(
            texts(["a", "b\"},{", "c\\", ""]),
            r#"{"a","b\"},{","c\\",""}"#
        );
        assert_eq!(texts([]), "{}");
    }

    #[test]
    fn bytes_come_back_from_hex_and_nonsense_does_not() {
        assert_eq!(from_hex("00ff10"), Some(vec![0, 255, 16]));
        assert_eq!(from_hex(""), Some(vec![]));
        for bad in ["0", "0g", "é"] {
            assert_eq!(from_hex(bad), None, "{bad}");
        }
        let literal = digests([[0xab; 32]].into_iter());
        assert_eq!(literal, format!(r#"{{"\\x{}"}}"#, "ab".repeat(32)));
    }

    #[test]
    fn headers_lose_what_postgres_cannot_hold_and_nothing_else() {
        let Value::Object(given) = json!({"a\0b": ["x\0", {"c": "\\u0000"}], "n": 1}) else {
            unreachable!()
        };
        assert_eq!(
            serde_json::from_str::<Value>(&headers(&given)).unwrap(),
            json!({"a\u{fffd}b": ["x\u{fffd}", {"c": "\\u0000"}], "n": 1})
        );
    }
}
