//! Jobs that carry events: how the outbox works on Citus.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::job::{End, Finished, Job};
use crate::call::{Args, Sql, unreadable};
use crate::driver::Driver;
use crate::error::Result;
use crate::json;
use crate::outbox::{Act, Message, Outcome};

static SETTLE: Sql = Sql::kept(
    "select pgonce._settle_event($1::text::bigint, $2::text::bigint, $3, $4, $5::text::interval, $6)",
);

/// An event as `pgonce._publish_tenant_event` writes it.
#[derive(Deserialize)]
struct Envelope<'a> {
    message_id: Uuid,
    topic: String,
    #[serde(rename = "type")]
    kind: String,
    subject: String,
    #[serde(borrow)]
    headers: &'a RawValue,
    /// As it is written: digits that no float holds stay. Missing where nothing was said, which is not JSON's null.
    #[serde(borrow, default, deserialize_with = "given")]
    payload: Option<&'a RawValue>,
    created_at: String,
}

fn given<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

fn message(tenant: &str, payload: &str) -> Result<Message> {
    let event: Envelope<'_> = serde_json::from_str(payload).map_err(|_| unreadable())?;
    Ok(Message {
        lane: 0,
        seq: 0,
        act: Act::Send,
        id: event.message_id,
        tenant: tenant.to_owned(),
        topic: event.topic,
        kind: event.kind,
        subject: event.subject,
        headers: json::headers(event.headers.get()).into(),
        payload: event.payload.map(|payload| payload.get().to_owned()),
        time: event.created_at,
    })
}

impl<D: Driver> Job<D> {
    /// The event that this job carries. It has no lane and no number: number those that you send together.
    #[doc(hidden)]
    pub fn event(&self) -> Result<Message> {
        let payload = self.claimed.payload.as_deref().ok_or_else(unreadable)?;
        message(&self.claimed.tenant, payload)
    }

    /// Ends the job with what came of its event. That it was sent, the worker records, together with others.
    #[doc(hidden)]
    pub async fn settle_event(&self, outcome: &Outcome) -> Result<Finished> {
        let nothing = String::new();
        let (what, reason, after) = match outcome {
            Outcome::Sent => return Ok(Finished(End::Pending(None))),
            Outcome::Dead { reason } => ("dead", reason, Duration::ZERO),
            Outcome::Retry { reason, after } => ("retry", reason, *after),
            Outcome::Defer { reason } => ("defer", reason, Duration::ZERO),
            Outcome::Hold | Outcome::Wait => ("defer", &nothing, Duration::ZERO),
        };
        let reason = reason.replace('\0', "");
        let args = Args::new()
            .int(self.claimed.id)
            .int(self.claimed.fence)
            .text(what)
            .text(&*reason)
            .interval(after)
            .text(&*self.claimed.tenant);
        self.once.caller().write(&SETTLE, args).await?;
        Ok(Finished(End::Committed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &str = r#"{"type": "t", "topic": "o", "headers": {"a": 1}, "subject": "s", "created_at": "2026-01-01T00:00:00.000000Z",
        "message_id": "00000000-0000-0000-0000-000000000009""#;

    #[test]
    fn a_payload_is_sent_as_it_was_stored() {
        for payload in [
            "null",
            "12345678901234567890.10",
            r#"{"b": 1, "a": "\u00fc"}"#,
        ] {
            let read = message("acme", &format!(r#"{EVENT}, "payload": {payload}}}"#)).unwrap();
            assert_eq!(read.payload.as_deref(), Some(payload));
            assert_eq!(
                (&*read.tenant, &*read.kind, read.id),
                ("acme", "t", Uuid::from_u128(9))
            );
        }
        assert_eq!(message("", &format!("{EVENT}}}")).unwrap().payload, None);
    }

    #[test]
    fn what_is_no_event_is_an_error_and_no_panic() {
        for payload in ["", "7", "{}", r#"{"message_id": 7}"#] {
            assert!(message("", payload).is_err());
        }
    }
}
