//! How a connection to NATS begins, for its sink and its source.

use std::path::Path;
use std::time::Duration;

use async_nats::{ConnectOptions, Event};
use tokio::sync::watch;

/// A connection to be made, under a name that NATS shows to its operators, and a count of how often it
/// was lost: whatever was under way then will not be answered. A file of credentials that cannot be
/// read is described in words.
pub(crate) async fn options(
    name: &str,
    within: Duration,
    credentials: Option<&Path>,
) -> Result<(ConnectOptions, watch::Receiver<u64>), String> {
    let (lost, losses) = watch::channel(0);
    let options = ConnectOptions::new()
        .name(name)
        .connection_timeout(within)
        .event_callback(move |event| {
            if event == Event::Disconnected {
                lost.send_modify(|times| *times += 1);
            }
            async {}
        });
    let Some(file) = credentials else {
        return Ok((options, losses));
    };
    match options.credentials_file(file).await {
        Ok(options) => Ok((options, losses)),
        Err(error) => Err(format!("{} cannot be read: {error}", file.display())),
    }
}
