//! CloudEvents' attributes, where a broker carries them beside the payload.

#![cfg_attr(
    not(all(feature = "nats", feature = "rabbitmq", feature = "redis")),
    allow(dead_code, reason = "each source uses its part")
)]

use pgonce::inbox::Message;

/// The text of an attribute. What is no UTF-8 is written out byte by byte, so that no two ids or tenants become one.
pub(super) fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("\u{fffd}{}", bytes.escape_ascii()),
    }
}

/// Puts an attribute where it belongs. The broker's own id, if it had one, stays.
pub(super) fn put(message: &mut Message, attribute: &str, value: &str) {
    match attribute {
        "id" if message.id.is_empty() => message.id = value.to_owned(),
        "type" => message.kind = Some(value.to_owned()),
        "subject" => message.key = Some(value.to_owned()),
        "tenant" => message.tenant = value.to_owned(),
        _ => {}
    }
}

/// Takes percent-encoding away, as CloudEvents' binding for HTTP has it. What is none stays as it is.
pub(super) fn decoded(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{decoded, text};

    #[test]
    fn names_that_differ_in_bytes_that_are_no_text_stay_two() {
        assert_eq!(text("Müller".as_bytes()), "Müller");
        let names = [
            &b"M\xfcller"[..],
            b"M\xf6ller",
            b"M\\xfcller",
            "M\u{fffd}ller".as_bytes(),
        ];
        let read: std::collections::BTreeSet<_> = names.iter().map(|name| text(name)).collect();
        assert_eq!(read.len(), names.len(), "{read:?}");
    }

    #[test]
    fn what_a_sink_encoded_is_read_back_and_other_text_is_left_alone() {
        for (value, expected) in [
            ("a%20b%C3%BC%25", "a bü%"),
            ("50% off", "50% off"),
            ("%", "%"),
            ("%FF", "%FF"),
            ("plain", "plain"),
        ] {
            assert_eq!(decoded(value), expected);
        }
    }
}
