//! An event as a relay reads it.

use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::call::{Row, unreadable};
use crate::error::Result;
use crate::json;

/// A position in the log; opaque.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Cursor(pub(super) String);

impl Cursor {
    /// Whether it is inside a stretch of the log that is read in pages: there is more to read, be it nothing that the
    /// subscription wants.
    pub fn has_more(&self) -> bool {
        !self.0.ends_with(",,)")
    }
}

/// What to do with an event that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Deliver it.
    Send,
    /// The event's subject is parked: settle it as held.
    Hold,
    /// It is not due yet: settle it as waiting.
    Wait,
}

/// An event on its way to a sink.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Message {
    /// Number of the event's lane, 0 to 15.
    pub lane: u8,
    /// Number of the event in the log.
    pub seq: i64,
    /// What to do with it.
    pub act: Act,
    /// The same however often it is delivered: what the other side deduplicates by.
    pub id: Uuid,
    /// Whose it is; empty where there are no tenants.
    pub tenant: String,
    /// Topic of the event.
    pub topic: String,
    /// What happened.
    pub kind: String,
    /// What its order matters for.
    pub subject: String,
    /// What goes with it: a JSON object.
    pub headers: Value,
    /// What happened, as JSON text; `None` where nothing was said.
    pub payload: Option<String>,
    /// When the event was published, as RFC 3339.
    pub time: String,
}

impl Message {
    /// What CloudEvents 1.0 says about the event beside its data: for sinks that send these as headers.
    /// `source` says who speaks, as a URI: the name of the service, say. Headers whose names CloudEvents
    /// allows become extension attributes.
    pub fn attributes(&self, source: &str) -> Map<String, Value> {
        let mut attributes = Map::new();
        for (name, value) in [
            ("specversion", "1.0"),
            ("id", &self.id.to_string()),
            ("source", source),
            ("type", &self.kind),
            ("subject", &self.subject),
            ("time", &self.time),
            ("topic", &self.topic),
        ] {
            attributes.insert(name.to_owned(), value.into());
        }
        if !self.tenant.is_empty() {
            attributes.insert("tenant".to_owned(), self.tenant.as_str().into());
        }
        if self.payload.is_some() {
            attributes.insert("datacontenttype".to_owned(), "application/json".into());
        }
        for (name, value) in self.headers.as_object().into_iter().flatten() {
            let allowed = name.len() <= 20
                && !name.is_empty()
                && name
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            if !allowed || name == "data" || attributes.contains_key(name) {
                continue;
            }
            let value = match value {
                Value::Bool(_) | Value::String(_) => value.clone(),
                Value::Number(n) if n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => {
                    value.clone()
                }
                other => other.to_string().into(),
            };
            attributes.insert(name.clone(), value);
        }
        attributes
    }

    /// The event in the JSON format of CloudEvents 1.0: its [attributes](Message::attributes) and its
    /// data. The same bytes however often it is made, and by whatever version: its receiver may compare them. Where a
    /// [`Value`] would round a number of the data, that is written letter by letter as it was published.
    ///
    /// ```
    /// # fn example(message: &pgonce::outbox::Message) {
    /// let envelope: String = message.cloud_event("/orders");
    /// assert!(envelope.starts_with('{'));
    /// # }
    /// ```
    pub fn cloud_event(&self, source: &str) -> String {
        let mut attributes = self.attributes(source);
        let Some(payload) = &self.payload else {
            return Value::from(attributes).to_string();
        };
        if let Some(data) = json::read_if_exact(payload) {
            attributes.insert("data".to_owned(), data);
            return Value::from(attributes).to_string();
        }
        let mut envelope = Value::from(attributes).to_string();
        // In front of the brace that ends the attributes, of which there are always some.
        envelope.truncate(envelope.len() - 1);
        envelope += ",\"data\":";
        envelope += payload;
        envelope.push('}');
        envelope
    }

    /// Reads a row of `pgonce._read_lanes`: an event, or the cursor of a lane.
    pub(super) fn read(mut row: Row) -> Result<Read> {
        let lane = row.get()?;
        let cursor = row.opt_text();
        let Some(seq) = row.opt()? else {
            let cursor = cursor.ok_or_else(unreadable)?;
            return Ok(Read::Cursor(lane, Cursor(cursor)));
        };
        Ok(Read::Message(Self {
            lane,
            seq,
            act: match row.text()?.as_str() {
                "send" => Act::Send,
                "hold" => Act::Hold,
                "wait" => Act::Wait,
                _ => return Err(unreadable()),
            },
            id: row.get()?,
            tenant: row.text()?,
            topic: row.text()?,
            kind: row.text()?,
            subject: row.text()?,
            headers: json::headers(&row.text()?).into(),
            payload: row.opt_text(),
            time: row.text()?,
        }))
    }
}

/// One row that was read.
pub(super) enum Read {
    Message(Message),
    Cursor(u8, Cursor),
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message() -> Message {
        Message {
            lane: 1,
            seq: 7,
            act: Act::Send,
            id: Uuid::from_u128(9),
            tenant: "acme".into(),
            topic: "orders".into(),
            kind: "order.created".into(),
            subject: "order-7".into(),
            headers: json!({"traceparent": "00-1", "X-Odd": "no", "id": "mine", "data": 1, "n": 5, "deep": {"a": 1}}),
            payload: Some(r#"{"item":"book"}"#.into()),
            time: "2026-01-01T00:00:00.000000Z".into(),
        }
    }

    #[test]
    fn an_envelope_has_what_cloudevents_requires_and_no_header_can_bend_it() {
        let envelope: Value = serde_json::from_str(&message().cloud_event("/shop")).unwrap();
        assert_eq!(
            envelope,
            json!({
                "specversion": "1.0", "id": Uuid::from_u128(9).to_string(), "source": "/shop",
                "type": "order.created", "subject": "order-7", "time": "2026-01-01T00:00:00.000000Z",
                "topic": "orders", "tenant": "acme", "traceparent": "00-1", "n": 5, "deep": "{\"a\":1}",
                "datacontenttype": "application/json", "data": {"item": "book"},
            })
        );
    }

    /// Who receives an event again, from a relay of another version, takes other bytes for another event.
    #[test]
    fn an_envelope_is_the_same_byte_by_byte_in_every_version() {
        let message = Message {
            headers: json::headers(r#"{"b": 1.50, "a": "x", "big": 12345678901234567890}"#).into(),
            payload: Some(
                r#"{"b": [1, 2.50, 0.30000000000000004, 100000000000000000000, -1], "a": {"é": "\"1e400", "B": null}}"#.into(),
            ),
            ..message()
        };
        assert_eq!(
            message.cloud_event("/shop"),
            r#"{"a":"x","b":"1.5","big":"12345678901234567890","data":{"a":{"B":null,"é":"\"1e400"},"b":[1,2.5,0.30000000000000004,1e+20,-1]},"#
                .to_owned()
                + r#""datacontenttype":"application/json","id":"00000000-0000-0000-0000-000000000009","source":"/shop","specversion":"1.0","#
                + r#""subject":"order-7","tenant":"acme","time":"2026-01-01T00:00:00.000000Z","topic":"orders","type":"order.created"}"#
        );
    }

    #[test]
    fn an_event_without_a_payload_has_no_data() {
        let message = Message {
            payload: None,
            ..message()
        };
        let envelope: Value = serde_json::from_str(&message.cloud_event("/shop")).unwrap();
        assert!(envelope.get("data").is_none() && envelope.get("datacontenttype").is_none());
    }

    #[test]
    fn data_says_the_digits_that_were_published() {
        let message = Message {
            payload: Some(r#"{"amount": 12345678901234567.89, "far": 1e400}"#.into()),
            ..message()
        };
        let envelope = message.cloud_event("/shop");
        let end = r#","data":{"amount": 12345678901234567.89, "far": 1e400}}"#;
        assert!(envelope.ends_with(end), "{envelope}");
    }

    #[test]
    fn a_row_that_cannot_be_read_is_an_error_and_no_panic() {
        assert!(Message::read(vec![].into()).is_err());
        assert!(Message::read(vec![Some("1".into()), None, Some("x".into())].into()).is_err());
    }
}
