use std::{
    net::TcpListener as Listener,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use super::{
    pump::{Cut, Pump},
    state::State,
};
use crate::wire::{self, Direction, Opening};

/// One client's connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) era: u64,
    pub(super) number: u64,
    pub(super) exchange: Exchange,
    cut: Notify,
    backend: AtomicI32,
}

/// How far client and server are in their talk.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    /// The session was ready for a query: messages count from here.
    pub(super) ready: AtomicBool,
    /// How many times the client has asked for something that ends with the server being idle.
    pub(super) asked: AtomicU64,
    /// How many times the server has been idle again.
    pub(super) idle: AtomicU64,
    /// If not 0: the server's words are swallowed until it was idle this many times.
    pub(super) swallow_until: AtomicU64,
}

impl Link {
    pub(super) fn new(era: u64, number: u64) -> Self {
        Self {
            era,
            number,
            exchange: Exchange::default(),
            cut: Notify::new(),
            backend: AtomicI32::new(0),
        }
    }

    pub(super) fn cut(&self) {
        self.cut.notify_one();
    }

    pub(super) fn backend(&self) -> Option<i32> {
        Some(self.backend.load(SeqCst)).filter(|pid| *pid != 0)
    }

    pub(super) fn set_backend(&self, pid: i32) {
        self.backend.store(pid, SeqCst);
    }
}

pub(super) async fn accept(listener: Listener, state: Arc<State>) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    loop {
        match listener.accept().await {
            // Not counted: the faults are for connections that could be used.
            Ok(_) if !state.is_reachable() => state.refuse(),
            Ok((client, _)) => {
                let link = state.accepted();
                let state = Arc::clone(&state);
                tokio::spawn(async move {
                    serve(&state, &link, client).await;
                    state.ended(&link);
                });
            }
            // Out of file descriptors, most likely: others will end.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve(state: &State, link: &Link, mut client: TcpStream) {
    // A target that cannot be reached: the client sees a closed door.
    let Ok(mut server) = TcpStream::connect(state.target).await else {
        return;
    };
    if !state.is_reachable() {
        return;
    }
    // Without it, small messages would wait for each other; it fails only on a dead socket.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ended = tokio::select! {
        biased;
        () = link.cut.notified() => Err(Cut::Close),
        ended = talk(state, link, &mut client, &mut server) => ended,
    };
    if let Err(Cut::Reset) = ended {
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

async fn talk(
    state: &State,
    link: &Link,
    client: &mut TcpStream,
    server: &mut TcpStream,
) -> Result<(), Cut> {
    let (opening, more) = open(client, server).await?;
    if opening == Opening::Cancel {
        copy_bidirectional(client, server).await?;
        return Ok(());
    }
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let up = Pump::new(
        state,
        link,
        Direction::ToServer,
        from_client,
        to_server,
        more,
    );
    let down = Pump::new(
        state,
        link,
        Direction::ToClient,
        from_server,
        to_client,
        Vec::new(),
    );
    tokio::try_join!(up.run(), down.run())?;
    Ok(())
}

/// Passes the client's request for a session, or for a cancellation, to the server. Gives what the
/// client has sent behind it.
async fn open(client: &mut TcpStream, server: &mut TcpStream) -> Result<(Opening, Vec<u8>), Cut> {
    let mut received = Vec::new();
    loop {
        while let Some((opening, length)) = wire::opening(&received)? {
            if opening != Opening::Encryption {
                server.write_all(&received[..length]).await?;
                received.drain(..length);
                return Ok((opening, received));
            }
            received.drain(..length);
            client.write_all(b"N").await?;
        }
        if client.read_buf(&mut received).await? == 0 {
            return Err(Cut::Close);
        }
    }
}
