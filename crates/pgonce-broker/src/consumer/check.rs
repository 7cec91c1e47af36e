//! Messages that can never be applied are found before the database is asked.

use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pgonce::inbox::Message;
use pgonce::unstable::json;
use pgonce::{FingerprintBuilder, MAX_NAME_BYTES};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::panics::panic_text;

/// Reads names out of a message.
pub(crate) type Read = dyn Fn(&mut Message) -> Result<(), String> + Send + Sync;

pub(super) struct Checks {
    pub(super) max_bytes: usize,
    pub(super) json: bool,
    pub(super) kinds: Option<HashSet<String>>,
    pub(super) read: Option<Box<Read>>,
    pub(super) compare_by: Option<FingerprintBuilder>,
    /// The only tenant whose messages the database takes from this consumer.
    pub(super) tenant: Option<String>,
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            max_bytes: 1024 * 1024,
            json: false,
            kinds: None,
            read: None,
            compare_by: None,
            tenant: None,
        }
    }
}

/// Why a message is poison: a code to branch on, and words for people.
pub(crate) type Flaw = (&'static str, String);

impl Checks {
    /// Names the message, and says what is wrong with it, if anything.
    pub(super) fn check(&self, message: &mut Message) -> Result<(), Flaw> {
        let checked = self.check_itself(message);
        // Also of one that is flawed: under another tenant it could not even be kept.
        match &self.tenant {
            Some(own) => checked.and(check_tenant(message, own)),
            None => checked,
        }
    }

    fn check_itself(&self, message: &mut Message) -> Result<(), Flaw> {
        let size = message.payload.len();
        if size > self.max_bytes {
            let limit = self.max_bytes;
            return Err(("oversize", format!("it has {size} bytes; at most {limit}")));
        }
        if self.json
            && let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(&message.payload)
        {
            return Err(("not_json", format!("it is not JSON: {error}")));
        }
        if let Some(read) = &self.read {
            let came = message.payload.clone();
            read_by(read, message)?;
            // A reader that put another payload in place by hand: what came still counts.
            if !Arc::ptr_eq(&came, &message.payload)
                && Arc::ptr_eq(message.raw_payload(), &message.payload)
            {
                let inside = std::mem::replace(&mut message.payload, came);
                message.unwrap_payload(inside);
            }
        }
        if let Some(counts) = &self.compare_by
            && let Ok(came) = serde_json::from_slice::<Value>(message.raw_payload())
            && let Ok(fingerprint) = counts.of(&came)
        {
            message.compare_by(&fingerprint);
        }
        check_names(message)?;
        match (&self.kinds, message.kind.as_deref()) {
            (Some(_), None) => Err(("unknown_type", "it came without a type".to_owned())),
            (Some(known), Some(kind)) if !known.contains(kind) => {
                Err(("unknown_type", format!("nobody knows its type {kind:?}")))
            }
            _ => Ok(()),
        }
    }
}

/// Has a message read. A panic is an error too: one message shall not end what all others come through.
pub(crate) fn read_by(read: &Read, message: &mut Message) -> Result<(), Flaw> {
    catch_unwind(AssertUnwindSafe(|| read(message)))
        .unwrap_or_else(|panic| Err(format!("the reader panicked: {}", panic_text(&*panic))))
        .map_err(|why| ("unreadable", why))
}

/// Whether the message is of the tenant that the consumer's role is bound to, as one without a tenant is. Another one can
/// only be kept under the own tenant, and must not take an id or hold back a key there.
fn check_tenant(message: &mut Message, own: &str) -> Result<(), Flaw> {
    let named = std::mem::replace(&mut message.tenant, own.to_owned());
    if named.is_empty() || named == own {
        return Ok(());
    }
    message.id = format!("of-tenant:{named}:{}", message.id);
    message.key = None;
    let why = format!("it is of the tenant {named:?}, and the consumer's role is bound to another");
    Err(("foreign_tenant", why))
}

/// Whether the database can hold the message under its names.
pub(crate) fn check_names(message: &Message) -> Result<(), Flaw> {
    if message.id.is_empty() {
        return Err(("id_missing", "it came without an id".to_owned()));
    }
    for (what, text) in [
        ("id", Some(&message.id)),
        ("tenant", Some(&message.tenant)),
        ("key", message.key.as_ref()),
        ("type", message.kind.as_ref()),
    ] {
        if let Some(text) = text
            && (text.len() > MAX_NAME_BYTES || text.contains('\0'))
        {
            let why = format!("its {what} has {} bytes, or U+0000 in it", text.len());
            return Err(("bad_name", why));
        }
    }
    Ok(())
}

/// Reads a message that is a CloudEvent in JSON: its id, type, subject (the key) and tenant, and its `data` as
/// the payload. For [`Consumer::read_with`](crate::Consumer::read_with); our own sinks write such messages.
///
/// ```
/// use pgonce::inbox::Message;
///
/// let mut message = Message::new("", r#"{"specversion": "1.0", "id": "evt-7", "source": "/shop",
///     "type": "order.paid", "subject": "order-7", "data": {"amount": 5}}"#);
/// pgonce_broker::cloud_event(&mut message)?;
/// assert_eq!((message.id.as_str(), message.key.as_deref()), ("evt-7", Some("order-7")));
/// assert_eq!(message.json().unwrap()["amount"], 5);
/// # Ok::<(), String>(())
/// ```
pub fn cloud_event(message: &mut Message) -> Result<(), String> {
    // Its data stays as it is written: a `Value` would round its numbers.
    let came = Arc::clone(&message.payload);
    let parts: Result<BTreeMap<String, &RawValue>, _> = serde_json::from_slice(&came);
    let mut parts = parts.map_err(|_| "it is no CloudEvent: not a JSON object")?;
    let data = parts.remove("data").map_or("null", RawValue::get);
    // A number is no name, however it is read below.
    let text = |part: &RawValue| serde_json::from_str::<String>(part.get()).ok();
    if parts
        .get("specversion")
        .and_then(|part| text(part))
        .as_deref()
        != Some("1.0")
    {
        return Err("it is no CloudEvent of version 1.0".to_owned());
    }
    let mut text = |name: &str| parts.remove(name).and_then(text);
    message.id = text("id").ok_or("it is no CloudEvent: the id is missing")?;
    message.kind = text("type").or(message.kind.take());
    message.key = text("subject").or(message.key.take());
    message.tenant = text("tenant").unwrap_or(std::mem::take(&mut message.tenant));
    message.unwrap_payload(data.as_bytes());
    let headers = parts.into_iter();
    message
        .headers
        .extend(headers.map(|(name, part)| (name, json::header(part))));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_of_an_event_is_what_was_written_and_no_attribute_keeps_it_from_being_read() {
        let text = r#"{"specversion": "1.0", "id": "e", "far": 1e400, "data": {"n": 12345678901234567.89, "m": 1e400}}"#;
        let mut message = Message::new("", text);
        cloud_event(&mut message).unwrap();
        assert_eq!(
            &*message.payload,
            br#"{"n": 12345678901234567.89, "m": 1e400}"#
        );
        assert_eq!(message.headers["far"], "1e400");
    }
}
