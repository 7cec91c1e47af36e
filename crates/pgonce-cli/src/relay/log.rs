//! Where the relay's log goes: stderr, a line at a time. stdout is a sink.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
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

/// Starts logging at this level. Libraries get no further than warnings: a broker's client writes addresses with their
/// passwords at `debug`.
pub(crate) fn start_at(level: LevelFilter, as_json: bool) {
    let ours = Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("pgonce", level);
    let builder = fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false);
    // Only a second start in one process could fail, and the first one's log is as good.
    let _ = match as_json {
        true => builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .finish()
            .with(ours)
            .try_init(),
        false => builder.finish().with(ours).try_init(),
    };
}
