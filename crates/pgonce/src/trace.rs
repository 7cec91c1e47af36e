//! Spans: what a command, an event or a message passes through, for programs that subscribe to the crate `tracing`.
//!
//! A span has names that are bounded and known to operators: scopes, topics, outcomes, codes of errors, and digests of keys.
//! Keys, payloads, headers, answers and texts of failures are in none. Without a subscriber a span costs a branch.
//!
//! Over processes a trace goes on by W3C's `traceparent`, which needs the feature `otel`; without it the functions about
//! it do nothing.

use futures_util::FutureExt as _;
use sha2::{Digest as _, Sha256};
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::ack::Done;
use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::intent::Intent;

/// A span around a call of the database. Its outcome is recorded at its end.
macro_rules! database_span {
    ($name:literal $(, $($field:tt)+)?) => {
        tracing::info_span!(
            $name,
            $($($field)+,)?
            otel.kind = "client",
            db.system.name = "postgresql",
            pgonce.outcome = tracing::field::Empty,
            "error.type" = tracing::field::Empty,
            otel.status_code = tracing::field::Empty,
        )
    };
}
pub(crate) use database_span;

/// Where a trace is, as W3C Trace Context writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// Version, trace id, span id and flags.
    pub traceparent: String,
    /// What the tracing systems on the way said; empty where they said nothing.
    pub tracestate: String,
}

/// What names a key where the key itself must not be: the first bytes of its SHA-256, as `pgonce find` finds it by.
pub fn digest(key: &str) -> String {
    let digest = Sha256::digest(key.as_bytes());
    digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A whole command. Futures are wrapped, not awaited in async functions: those would hold each of them twice.
pub(crate) fn command<T: ?Sized>(
    intent: &Intent,
    mode: &'static str,
    running: impl Future<Output = Result<Done<T>>>,
) -> impl Future<Output = Result<Done<T>>> {
    let span = tracing::info_span!(
        "pgonce.command",
        pgonce.scope = intent.scope(),
        pgonce.mode = mode,
        pgonce.key_digest = Empty,
        pgonce.outcome = Empty,
        pgonce.replayed = Empty,
        pgonce.attempts = Empty,
        "error.type" = Empty,
        otel.status_code = Empty,
    );
    if !span.is_disabled() {
        span.record("pgonce.key_digest", digest(intent.key()));
    }
    let inside = running.instrument(span.clone());
    inside.inspect(move |ran| match ran {
        _ if span.is_disabled() => {}
        Ok(done) => {
            let outcome = if done.replayed() { "replayed" } else { "done" };
            span.record("pgonce.outcome", outcome);
            span.record("pgonce.replayed", done.replayed());
            span.record("pgonce.attempts", i64::from(done.attempts()));
        }
        Err(error) => {
            if let Error::Refused(failure) = error {
                span.record("pgonce.replayed", failure.replayed());
            }
            failed(&span, error);
        }
    })
}

/// A claim.
pub(crate) fn claim<R>(
    intent: &Intent,
    claiming: impl Future<Output = Result<Claim<R>>>,
) -> impl Future<Output = Result<Claim<R>>> {
    let outcome = |claim: &Claim<R>| match claim {
        Claim::Run(_) => "claimed",
        Claim::Replay(_) => "replayed",
        Claim::Refused(_) => "refused",
        Claim::Busy { .. } => "busy",
    };
    let span = database_span!("pgonce.claim", pgonce.scope = intent.scope());
    step(span, claiming, outcome)
}

/// The work of the user under a claim.
pub(crate) fn effect(attempts: u32) -> Span {
    tracing::info_span!("pgonce.effect", pgonce.attempts = i64::from(attempts))
}

/// A step inside a span, which gets its outcome.
pub(crate) fn step<T>(
    span: Span,
    running: impl Future<Output = Result<T>>,
    outcome: impl FnOnce(&T) -> &'static str,
) -> impl Future<Output = Result<T>> {
    let inside = running.instrument(span.clone());
    inside.inspect(move |ran| match ran {
        Ok(value) => {
            span.record("pgonce.outcome", outcome(value));
        }
        Err(error) => failed(&span, error),
    })
}

/// Says in a span how something failed: in a word and a code, never in a text.
pub(crate) fn failed(span: &Span, error: &Error) {
    let (outcome, is_fault) = match error {
        Error::Invalid(_) => ("invalid", false),
        Error::Conflict(_) => ("conflict", false),
        Error::Busy { .. } => ("busy", false),
        Error::Refused(_) => ("refused", false),
        Error::Failed(_) => ("failed", true),
        Error::Gone(_) => ("gone", false),
        Error::WrongRegion(_) => ("wrong_region", false),
        Error::Fenced(_) => ("fenced", false),
        Error::LostRace(_) => ("lost_race", false),
        Error::Uncertain(_) => ("uncertain", true),
        Error::Disconnected(_) => ("unavailable", true),
        Error::Cancelled => ("cancelled", false),
        _ => ("error", true),
    };
    span.record("pgonce.outcome", outcome);
    // The code of a failure is the work's own.
    if !matches!(error, Error::Failed(_) | Error::Refused(_) | Error::Work(_)) {
        span.record("error.type", error.code());
    }
    if is_fault {
        span.record("otel.status_code", "error");
    }
}

/// Where a span is in its trace; `None` where no OpenTelemetry subscribes to it.
pub fn context_of(span: &Span) -> Option<TraceContext> {
    #[cfg(feature = "otel")]
    {
        otel::context_of(span)
    }
    #[cfg(not(feature = "otel"))]
    {
        let _ = span;
        None
    }
}

/// Makes a span that was not entered yet a child of one in another process. What is no trace context changes nothing.
pub fn set_parent(span: &Span, traceparent: Option<&str>, tracestate: Option<&str>) {
    #[cfg(feature = "otel")]
    otel::set_parent(span, traceparent, tracestate);
    #[cfg(not(feature = "otel"))]
    let _ = (span, traceparent, tracestate);
}

/// Links a span to one in another process: for work on many messages at once.
pub fn link(span: &Span, traceparent: Option<&str>, tracestate: Option<&str>) {
    #[cfg(feature = "otel")]
    otel::link(span, traceparent, tracestate);
    #[cfg(not(feature = "otel"))]
    let _ = (span, traceparent, tracestate);
}

#[cfg(feature = "otel")]
mod otel {
    use opentelemetry::Context;
    use opentelemetry::trace::{
        SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    };
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    use super::TraceContext;

    /// What W3C lets every participant cut a `tracestate` at.
    const MAX_STATE: usize = 512;

    pub(super) fn context_of(span: &Span) -> Option<TraceContext> {
        let context = span.context();
        let span = context.span();
        let context = span.span_context();
        context.is_valid().then(|| TraceContext {
            traceparent: format!(
                "00-{}-{}-{:02x}",
                context.trace_id(),
                context.span_id(),
                context.trace_flags() & TraceFlags::SAMPLED
            ),
            tracestate: context.trace_state().header(),
        })
    }

    pub(super) fn set_parent(span: &Span, parent: Option<&str>, state: Option<&str>) {
        if !span.is_disabled()
            && let Some(parent) = read(parent, state)
        {
            // It fails where no OpenTelemetry subscribes.
            let _ = span.set_parent(Context::new().with_remote_span_context(parent));
        }
    }

    pub(super) fn link(span: &Span, parent: Option<&str>, state: Option<&str>) {
        if !span.is_disabled()
            && let Some(other) = read(parent, state)
        {
            span.add_link(other);
        }
    }

    /// Reads a `traceparent` of any version that begins as version 00 does.
    fn read(parent: Option<&str>, state: Option<&str>) -> Option<SpanContext> {
        let mut parts = parent?.trim().split('-');
        let mut hex = |length: usize| {
            let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            let part = parts.next()?;
            (part.len() == length && part.bytes().all(is_hex)).then_some(part)
        };
        let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
        // Printable ASCII, as W3C says: it becomes a header of events, and PostgreSQL takes no NUL.
        let fits =
            |text: &&str| text.len() <= MAX_STATE && text.bytes().all(|b| matches!(b, b' '..=b'~'));
        let state = state.filter(fits);
        let state = state.and_then(|state| state.parse::<TraceState>().ok());
        let context = SpanContext::new(
            TraceId::from_hex(trace).ok()?,
            SpanId::from_hex(span).ok()?,
            flags,
            true,
            state.unwrap_or_default(),
        );
        context.is_valid().then_some(context)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";

        #[test]
        fn a_trace_context_is_read_as_w3c_writes_it() {
            let read = |text: &str| super::read(Some(text), Some("a=1"));
            let context = read(&format!("00-{TRACE}-01")).unwrap();
            assert!(context.is_sampled() && context.is_remote());
            assert_eq!(
                format!("{}-{}", context.trace_id(), context.span_id()),
                TRACE
            );
            assert_eq!(context.trace_state().header(), "a=1");
            assert!(!read(&format!("00-{TRACE}-00")).unwrap().is_sampled());
            assert!(read(&format!("cc-{TRACE}-01-what-comes-later")).is_some());
            for wrong in [
                "",
                "00",
                &format!("ff-{TRACE}-01"),
                &format!("00-{TRACE}-01-more"),
                &format!("00-{TRACE}"),
                &format!("00-{TRACE}-1"),
                &format!("00-{}-01", TRACE.to_uppercase()),
                &format!("00-+{}-01", &TRACE[1..]),
                &format!("00-{}-01", TRACE.replace(|c: char| c != '-', "0")),
            ] {
                assert!(read(wrong).is_none(), "{wrong}");
            }
            let long = "a=".to_owned() + &"x".repeat(MAX_STATE);
            let parent = format!("00-{TRACE}-01");
            for wrong in [long.as_str(), "a=\0", "a=\u{7f}", "a=ü"] {
                let context = super::read(Some(&parent), Some(wrong)).unwrap();
                assert_eq!(context.trace_state().header(), "");
            }
        }

        #[test]
        fn without_a_subscriber_a_span_has_no_place_in_any_trace() {
            let span = tracing::info_span!("nobody");
            set_parent(&span, Some(&format!("00-{TRACE}-01")), None);
            assert_eq!(context_of(&span), None);
        }
    }
}
