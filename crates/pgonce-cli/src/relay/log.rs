//! Where the relay's log goes: stderr, a line at a time. stdout is a sink.

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;

use super::config::{Log, LogFormat, LogLevel};

/// Starts logging as the configuration says.
pub(crate) fn start(log: Log) {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let builder = fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false);
    // Only a second start in one process could fail, and the first one's log is as good.
    let _ = match log.format {
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .try_init(),
        LogFormat::Text => builder.try_init(),
    };
}
