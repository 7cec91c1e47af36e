//! What is said when something happened.

use std::borrow::Cow;
use std::fmt;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::{Map, Value};
use tracing::Span;
use uuid::Uuid;

use crate::error::{Error, ErrorDetail, Result};
use crate::trace::context_of;

/// Maximum length of an event's headers, as JSON.
const MAX_HEADERS: usize = 65_536;

/// Something that happened, delivered to subscriptions once the transaction commits.
///
/// ```
/// use pgonce::Event;
///
/// let event = Event::new("orders", "order.created")
///     .subject("order-7")
///     .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
///     .payload(&serde_json::json!({"item": "book"}))?;
/// # assert_eq!(event.topic(), "orders");
/// # Ok::<(), pgonce::Error>(())
/// ```
#[derive(Clone, PartialEq)]
#[must_use = "an event is nothing until it is published"]
pub struct Event {
    pub(super) topic: String,
    pub(super) kind: String,
    pub(super) subject: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) payload: Option<String>,
    pub(super) headers: Map<String, Value>,
    pub(super) message_id: Option<Uuid>,
    pub(super) deliver_at: Option<SystemTime>,
}

/// The payload stays out of logs.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("topic", &self.topic)
            .field("kind", &self.kind)
            .field("message_id", &self.message_id)
            .finish_non_exhaustive()
    }
}

impl Event {
    /// An event of a type, such as `order.created`, for a topic, such as `orders`.
    pub fn new(topic: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            topic: topic.into(),
            kind: kind.into(),
            subject: None,
            tenant: None,
            payload: None,
            headers: Map::new(),
            message_id: None,
            deliver_at: None,
        }
    }

    /// What its order matters for: events of one subject are delivered one after the other.
    /// Without one an event is its own subject.
    pub fn subject(mut self, subject: impl ToString) -> Self {
        self.subject = Some(subject.to_string());
        self
    }

    /// The tenant of the event. Default: the tenant of its transaction.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// What happened, as JSON; at most a mebibyte.
    pub fn payload<T: Serialize + ?Sized>(mut self, payload: &T) -> Result<Self> {
        self.payload = Some(serde_json::to_string(payload)?);
        Ok(self)
    }

    /// Something to go with it: `traceparent` and `tracestate` carry the trace on; with the feature `otel` they are set
    /// where they are missing. Every sink can carry a name of 1 to 20 lower case letters and digits; any other, and those
    /// of CloudEvents' own attributes, are refused when the event is published (`22023`).
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// An id of your own. Without one it is derived from the intent, the same for every recorded attempt; or
    /// random outside an intent.
    pub fn message_id(mut self, id: Uuid) -> Self {
        self.message_id = Some(id);
        self
    }

    /// Not before this time. Later events of its subject do not wait for it.
    pub fn deliver_at(mut self, time: SystemTime) -> Self {
        self.deliver_at = Some(time);
        self
    }

    /// Topic of the event.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// What happened.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The headers as JSON, with the place of a span in its trace where the event names none itself and it fits.
    pub(super) fn headers_in(&self, span: &Span) -> Result<Cow<'static, str>> {
        let own = match self.headers.is_empty() {
            true => Cow::Borrowed("{}"),
            false => Cow::Owned(serde_json::to_string(&self.headers)?),
        };
        if self.headers.contains_key("traceparent") {
            return Ok(own);
        }
        let Some(context) = context_of(span) else {
            return Ok(own);
        };
        let mut headers = self.headers.clone();
        headers.insert("traceparent".to_owned(), context.traceparent.into());
        if !context.tracestate.is_empty() {
            let state = headers.entry("tracestate");
            state.or_insert_with(|| context.tracestate.into());
        }
        let traced = serde_json::to_string(&headers)?;
        Ok(match traced.len() > MAX_HEADERS {
            true => own,
            false => traced.into(),
        })
    }

    /// The checks of `pgonce.publish`, in the same words.
    pub(super) fn check(&self, tenant: &str, headers: &str) -> Result<()> {
        let fits = |name: &str| (1..=255).contains(&name.len());
        let mut code = "22023";
        let (message, hint) = if !fits(&self.topic) {
            let bytes = self.topic.len();
            (
                format!("an event needs a topic of 1 to 255 bytes, not {bytes}"),
                "Say where it goes, such as 'orders'.",
            )
        } else if !fits(&self.kind) {
            let bytes = self.kind.len();
            (
                format!("an event needs a type of 1 to 255 bytes, not {bytes}"),
                "Say what happened, such as 'order.created'.",
            )
        } else if let Some(subject) = self.subject.as_deref().filter(|name| !fits(name)) {
            let bytes = subject.len();
            (
                format!("the subject of an event has {bytes} bytes; 1 to 255 are allowed"),
                "Name what its order matters for, such as 'order-7'; leave it out where none does.",
            )
        } else if tenant.len() > 255 {
            let bytes = tenant.len();
            (
                format!("the tenant of an event has {bytes} bytes; at most 255"),
                "Leave it out, or pass the empty text, where there are no tenants.",
            )
        } else if headers.len() > MAX_HEADERS {
            code = "P4042";
            let bytes = headers.len();
            (
                format!("the headers of an event have {bytes} bytes; at most 65536"),
                "Keep what is large in the payload.",
            )
        } else if let Some(name) = self.headers.keys().find(|name| !is_header_name(name)) {
            let name: String = name.chars().take(100).collect();
            (
                format!(
                    "the header \"{name}\" cannot be sent: a name has 1 to 20 lower case letters and digits"
                ),
                "Headers become attributes of a CloudEvent: write \"traceparent\" or \"orderid\", and none of its own \
                 names: specversion, id, source, type, subject, time, topic, tenant, data, datacontenttype.",
            )
        } else if let Some(bytes) = self
            .payload
            .as_ref()
            .map(String::len)
            .filter(|n| *n > 1 << 20)
        {
            code = "P4041";
            (
                format!("the payload has {bytes} bytes; at most 1048576"),
                "Keep what is large in a store of its own, and put a reference to it into the event.",
            )
        } else {
            return Ok(());
        };
        Err(Error::Invalid(ErrorDetail::new(code, message, hint)))
    }
}

/// The rule of `pgonce._is_header_name`.
fn is_header_name(name: &str) -> bool {
    const OWN: [&str; 10] = [
        "specversion",
        "id",
        "source",
        "type",
        "subject",
        "time",
        "topic",
        "tenant",
        "data",
        "datacontenttype",
    ];
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=20).contains(&name.len()) && name.bytes().all(allowed) && !OWN.contains(&name)
}
