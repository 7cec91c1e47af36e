//! A connection to RabbitMQ, for its sink and its source.

use std::io;
use std::sync::{Mutex, PoisonError};

use lapin::tcp::AMQPUriTcpExt as _;
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties, Error};

/// Connects under a name that RabbitMQ shows to its operators. An invalid address is reported as
/// [`io::ErrorKind::InvalidInput`].
///
/// The socket is connected here, and not by lapin: where the broker refuses it, as one does that is down or
/// starting, lapin's thread may be quicker to note the refusal than its caller to wait for an answer, and then
/// that caller waits for ever. A thread that is given an open socket has nothing to be refused.
pub(crate) async fn connect(url: &str, name: &str) -> Result<Connection, Error> {
    let uri: AMQPUri = url
        .parse()
        .map_err(|why: String| io::Error::new(io::ErrorKind::InvalidInput, why))?;
    let runtime = lapin::runtime::default_runtime()?;
    let socket = Mutex::new(Some(uri.connect_async(&runtime).await?));
    let hand_over = async move |_, _| {
        let mut socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
        // Asked for once: lapin reconnects only when asked to.
        let open = socket.take();
        open.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected).into())
    };
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    Connection::connector(uri, runtime, hand_over, properties).await
}
