//! Says to systemd how it goes, where systemd asks: `Type=notify`.

#[cfg(unix)]
pub(super) fn say(state: &str) {
    use std::os::unix::net::UnixDatagram;
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else {
        return;
    };
    let sent = UnixDatagram::unbound().and_then(|socket| match path.strip_prefix('@') {
        #[cfg(target_os = "linux")]
        Some(name) => {
            use std::os::linux::net::SocketAddrExt as _;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.send_to_addr(state.as_bytes(), &address)
        }
        _ => socket.send_to(state.as_bytes(), &path),
    });
    if let Err(error) = sent {
        tracing::debug!(%error, "systemd was not reached");
    }
}

#[cfg(not(unix))]
pub(super) fn say(_: &str) {}
