//! Where the log of a program that runs on goes: stderr, a line at a time. stdout is a sink. And its traces.

use tracing::Subscriber;
use tracing_subscriber::filter::{LevelFilter, Targets, filter_fn};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::config::{Log, LogFormat, LogLevel};

/// Starts logging as the configuration says.
pub(crate) fn start(log: Log) {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    start_at(level, log.format == LogFormat::Json);
}

/// Starts logging at this level, and exporting traces where the environment says where to.
pub(crate) fn start_at(level: LevelFilter, as_json: bool) {
    #[cfg(feature = "otlp")]
    match crate::otlp::start() {
        Ok(Some(tracer)) => {
            use tracing_subscriber::Registry;
            let registry = tracing_subscriber::registry().with(spans::<Registry>(tracer));
            // As below.
            let _ = registry.with(lines(level, as_json)).try_init();
        }
        Ok(None) => start_lines(level, as_json),
        Err(wrong) => {
            start_lines(level, as_json);
            tracing::error!(wrong, "no traces are exported");
        }
    }
    #[cfg(not(feature = "otlp"))]
    start_lines(level, as_json);
}

fn start_lines(level: LevelFilter, as_json: bool) {
    let registry = tracing_subscriber::registry();
    // Only a second start in one process could fail, and the first one's log is as good.
    let _ = registry.with(lines(level, as_json)).try_init();
}

/// Events as lines. Libraries get no further than warnings: a broker's client writes addresses with their passwords at
/// `debug`.
fn lines<S>(level: LevelFilter, as_json: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let ours = Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("pgonce", level);
    let events =
        filter_fn(move |meta| meta.is_event() && ours.would_enable(meta.target(), meta.level()))
            .with_max_level_hint(level);
    let layer = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    match as_json {
        true => layer
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .with_filter(events)
            .boxed(),
        false => layer.with_filter(events).boxed(),
    }
}

/// Spans of ours for OpenTelemetry. No events: what is logged quotes errors, which is for those who may read the log.
#[cfg(feature = "otlp")]
fn spans<S>(tracer: opentelemetry_sdk::trace::SdkTracer) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let ours = filter_fn(|meta| {
        meta.is_span()
            && meta.target().starts_with("pgonce")
            && *meta.level() <= tracing::Level::INFO
    });
    tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_context_activation(false)
        .with_filter(ours.with_max_level_hint(LevelFilter::INFO))
}
