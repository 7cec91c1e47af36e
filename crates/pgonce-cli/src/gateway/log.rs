//! Where the gateway's log goes: stderr, a line at a time.

use pgonce_http::gateway::{Log, LogFormat};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;

/// Starts logging as the configuration says.
pub(super) fn start(log: &Log) {
    let builder = fmt()
        .with_max_level(LevelFilter::from_level(log.level()))
        .with_writer(std::io::stderr)
        .with_ansi(false);
    // Only a second start in one process could fail, and the first one's log is as good.
    let _ = match log.format() {
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .try_init(),
        LogFormat::Text => builder.try_init(),
    };
}
