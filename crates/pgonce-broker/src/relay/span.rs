//! The spans of events on their way to a sink: each goes on with the trace that its event carries. The event itself stays as it
//! was published, with the context of its publisher: sent again it must be the same, byte by byte.

use pgonce::Result;
use pgonce::outbox::{Act, Message, Outcome};
use pgonce::unstable::set_parent;
use tracing::Span;
use tracing::field::Empty;

use super::deliver::Ended;

/// Spans of those events of a batch that carry a trace, by their numbers.
pub(super) struct Sending(Vec<(i64, Span)>);

impl Sending {
    pub(super) fn begin(subscription: &str, batch: &[Message]) -> Self {
        let sent = batch.iter().filter(|message| message.act == Act::Send);
        Self(
            sent.filter_map(|message| Some((message.seq, span(subscription, message)?)))
                .collect(),
        )
    }

    /// Says what came of each. Without an end they are sent again, by this relay or another.
    pub(super) fn end(self, ended: &Result<Ended>) {
        let Ok(Ended::Settled(outcomes)) = ended else {
            return;
        };
        for (seq, span) in self.0 {
            // They are in the order of their numbers.
            let Ok(at) = outcomes.binary_search_by_key(&seq, |(number, _)| *number) else {
                continue;
            };
            let outcome = match outcomes[at].1 {
                Outcome::Sent => "sent",
                Outcome::Retry { .. } => "retry",
                Outcome::Defer { .. } => "deferred",
                Outcome::Dead { .. } => "dead",
                Outcome::Hold => "held",
                Outcome::Wait => "waits",
            };
            span.record("pgonce.outcome", outcome);
            if !matches!(outcome, "sent" | "held" | "waits") {
                span.record("otel.status_code", "error");
            }
        }
    }
}

fn span(subscription: &str, message: &Message) -> Option<Span> {
    let header = |name: &str| message.headers.get(name).and_then(|value| value.as_str());
    let parent = header("traceparent")?;
    let span = tracing::info_span!(
        parent: None,
        "pgonce.relay",
        otel.name = %format_args!("send {}", message.topic),
        otel.kind = "client",
        messaging.system = "pgonce",
        "messaging.operation.type" = "send",
        messaging.destination.name = message.topic,
        pgonce.subscription = subscription,
        pgonce.event_type = message.kind,
        pgonce.outcome = Empty,
        otel.status_code = Empty,
    );
    if span.is_disabled() {
        return None;
    }
    set_parent(&span, Some(parent), header("tracestate"));
    Some(span)
}
