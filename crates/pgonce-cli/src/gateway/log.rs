//! Where the gateway's log goes: stderr, a line at a time.

use pgonce_http::gateway::{Log, LogFormat};
use tracing_subscriber::filter::LevelFilter;

/// Starts logging as the configuration says.
pub(super) fn start(log: &Log) {
    let level = LevelFilter::from_level(log.level());
    crate::relay::log::start_at(level, log.format() == LogFormat::Json);
}
