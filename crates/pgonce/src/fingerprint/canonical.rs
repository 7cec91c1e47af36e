//! Canonical JSON: RFC 8785, except that integers of 64 bits keep all their digits.

use serde_json::{Error, Number, Value, ser};

/// Canonical text of a value. SQL has the same as `pgonce._canonical_json`.
pub(super) fn text(value: &Value) -> Result<Vec<u8>, Error> {
    let mut text = Vec::with_capacity(128);
    write(value, &mut text)?;
    Ok(text)
}

fn write(value: &Value, text: &mut Vec<u8>) -> Result<(), Error> {
    match value {
        Value::Object(map) => {
            let mut members: Vec<_> = map.iter().collect();
            members.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            text.push(b'{');
            for (n, (name, value)) in members.into_iter().enumerate() {
                if n > 0 {
                    text.push(b',');
                }
                ser::to_writer(&mut *text, name)?;
                text.push(b':');
                write(value, text)?;
            }
            text.push(b'}');
        }
        Value::Array(items) => {
            text.push(b'[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    text.push(b',');
                }
                write(item, text)?;
            }
            text.push(b']');
        }
        Value::Number(number) => write_number(number, text)?,
        // serde_json escapes strings exactly as RFC 8785 asks.
        Value::String(_) | Value::Bool(_) | Value::Null => ser::to_writer(text, value)?,
    }
    Ok(())
}

fn write_number(number: &Number, text: &mut Vec<u8>) -> Result<(), Error> {
    if let Some(integer) = number.as_u64() {
        ser::to_writer(text, &integer)
    } else if let Some(integer) = number.as_i64() {
        ser::to_writer(text, &integer)
    } else {
        // None only for a number beyond every double, which `arbitrary_precision` lets through.
        let double = number.as_f64().filter(|double| double.is_finite());
        let double = double.ok_or_else(|| {
            <Error as serde::ser::Error>::custom(format_args!("{number} is beyond a double"))
        })?;
        text.extend_from_slice(ryu_js::Buffer::new().format_finite(double).as_bytes());
        Ok(())
    }
}
