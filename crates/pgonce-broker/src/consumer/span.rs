//! The span of a message in a consumer's hands: it goes on with the trace that the message carries.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use pgonce::driver::Driver;
use pgonce::inbox::{Message, StoreAs, StoreResult};
use pgonce::unstable::{digest, link, set_parent};
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use super::lane::Item;
use super::{Handler, Shared};

/// Maximum number of messages that the span of a batch is linked to.
const MAX_LINKS: usize = 100;

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Fate {
    Applied,
    Duplicate,
    Conflict,
    Stored,
    Retried,
    Poison,
}

const FATES: [(Fate, &str); 6] = [
    (Fate::Applied, "applied"),
    (Fate::Duplicate, "duplicate"),
    (Fate::Conflict, "conflict"),
    (Fate::Stored, "stored"),
    (Fate::Retried, "retried"),
    (Fate::Poison, "poison"),
];

/// The span of one message, from the beginning of its lane to its end.
pub(super) struct MessageSpan {
    span: Span,
    /// Recorded once it is certain.
    fate: AtomicU8,
}

impl MessageSpan {
    /// Nobody works on the message yet.
    pub(super) fn none() -> Self {
        Self::of(Span::none())
    }

    /// A consumer begins to work on a message.
    pub(super) fn begin(consumer: &str, message: &Message) -> Self {
        let span = tracing::info_span!(
            parent: None,
            "pgonce.consume",
            otel.name = %format_args!("process {consumer}"),
            otel.kind = "consumer",
            messaging.system = "pgonce",
            "messaging.operation.type" = "process",
            messaging.consumer.group.name = consumer,
            messaging.destination.name = message.source,
            pgonce.message_digest = Empty,
            pgonce.outcome = Empty,
            otel.status_code = Empty,
        );
        if !span.is_disabled() {
            span.record("pgonce.message_digest", digest(&message.id));
            let (parent, state) = trace_of(message);
            set_parent(&span, parent, state);
        }
        Self::of(span)
    }

    fn of(span: Span) -> Self {
        let fate = AtomicU8::new(Fate::Applied as u8);
        Self { span, fate }
    }

    /// Something done for the message.
    pub(super) fn within<F: Future>(&self, work: F) -> tracing::instrument::Instrumented<F> {
        work.instrument(self.span.clone())
    }

    /// Notes what will have become of the message once its transaction has committed.
    pub(super) fn note(&self, fate: Fate) {
        self.fate.store(fate as u8, Relaxed);
    }

    /// It was applied before, and is not applied again: says so, and no to the question whether it is new.
    pub(super) fn is_duplicate(&self) -> bool {
        self.note(Fate::Duplicate);
        false
    }

    pub(super) fn note_stored(&self, what: &StoreAs, stored: StoreResult) {
        self.note(match (stored, what) {
            (StoreResult::Duplicate, _) => Fate::Duplicate,
            (StoreResult::Conflict, _) => Fate::Conflict,
            (StoreResult::New, StoreAs::Received) => Fate::Stored,
            (StoreResult::New, StoreAs::Retry { .. }) => Fate::Retried,
            (StoreResult::New, StoreAs::Poison { .. }) => Fate::Poison,
        });
    }

    /// It is settled.
    pub(super) fn settle(&self) {
        let (fate, name) = FATES[usize::from(self.fate.load(Relaxed))];
        self.span.record("pgonce.outcome", name);
        if matches!(fate, Fate::Conflict | Fate::Retried | Fate::Poison) {
            self.span.record("otel.status_code", "error");
        }
    }
}

/// The handler's work on many messages at once: in a trace of its own, linked to theirs.
pub(super) fn of_batch<D: Driver, H: Handler<D>>(shared: &Shared<D, H>, items: &[&Item]) -> Span {
    if !shared.handler.applies_batches() {
        return Span::none();
    }
    let consumer = shared.name.as_str();
    let span = tracing::info_span!(
        parent: None,
        "pgonce.consume.batch",
        otel.name = %format_args!("process {consumer}"),
        otel.kind = "consumer",
        messaging.system = "pgonce",
        "messaging.operation.type" = "process",
        messaging.consumer.group.name = consumer,
        messaging.batch.message_count = items.len() as i64,
    );
    if !span.is_disabled() {
        for item in items.iter().take(MAX_LINKS) {
            let (parent, state) = trace_of(&item.message);
            link(&span, parent, state);
        }
    }
    span
}

fn trace_of(message: &Message) -> (Option<&str>, Option<&str>) {
    let header = |name: &str| message.headers.get(name).and_then(|value| value.as_str());
    (header("traceparent"), header("tracestate"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fate_has_its_name() {
        for (at, (fate, _)) in FATES.iter().enumerate() {
            assert_eq!(*fate as usize, at);
        }
    }
}
