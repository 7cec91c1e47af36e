//! An event's CloudEvents attributes as headers, and its payload as a body.

use pgonce::outbox::Message;
use serde_json::Value;

/// What an event carries, in CloudEvents' binary mode: each attribute under `prefix`; the trace also
/// under its own names, where tracing libraries look for it.
pub(super) fn headers(message: &Message, source: &str, prefix: &str) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    for (name, value) in message.attributes(source) {
        let value = match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        if name == "traceparent" || name == "tracestate" {
            headers.push((name.clone(), value.clone()));
        }
        match name.as_str() {
            // It has a place of its own in every protocol.
            "datacontenttype" => {}
            _ => headers.push((format!("{prefix}{name}"), value)),
        }
    }
    headers
}

/// The payload, byte by byte as it was published.
pub(super) fn body(message: &Message) -> Vec<u8> {
    message.payload.clone().unwrap_or_default().into_bytes()
}

/// For protocols whose headers are ASCII lines: everything else percent-encoded, as CloudEvents'
/// binding for HTTP has it.
pub(super) fn ascii(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'"' | b'%' => text.push_str(&format!("%{byte:02X}")),
            0x21..=0x7e => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_value_can_end_its_header() {
        assert_eq!(
            super::ascii("a b\r\nX: 1 %\"ü"),
            "a%20b%0D%0AX:%201%20%25%22%C3%BC"
        );
    }
}
