//! A proxy that cuts a connection at one message, before or after the server has seen it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Which way the message or its reply is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The server never gets the message.
    Request,
    /// The server acts on what was sent up to the message; its replies are lost.
    Reply,
    /// As [`Cut::Reply`]; instead of its replies comes what a server says that crashes.
    Crash,
}

/// A proxy in front of a server. Lives as long as the test's runtime.
#[derive(Debug)]
pub struct Cutter {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// What to look for in what a client sends, in small letters.
    armed: Mutex<Option<(Vec<u8>, Cut)>>,
    closed: watch::Sender<bool>,
    /// How often it fell silent, and whether it is.
    silent: watch::Sender<(u32, bool)>,
}

impl Cutter {
    /// Starts one.
    pub async fn in_front_of(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state = Arc::new(State {
            armed: Mutex::default(),
            closed: watch::Sender::new(false),
            silent: watch::Sender::new((0, false)),
        });
        let cutter = Self {
            port: listener.local_addr().unwrap().port(),
            state: state.clone(),
        };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *state.closed.borrow() {
                    continue;
                }
                let state = state.clone();
                tokio::spawn(async move {
                    let mut silent = state.silent.subscribe();
                    drop(silent.wait_for(|(_, is)| !is).await);
                    if let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await {
                        carry(&state, client, server).await;
                    }
                });
            }
        });
        cutter
    }

    /// The address of a database behind it.
    pub fn url_for(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Cuts the first connection on which a client sends this text (in any case), once.
    pub fn arm(&self, text: &str, cut: Cut) {
        *self.state.armed.lock().unwrap() = Some((text.to_lowercase().into_bytes(), cut));
    }

    /// Whether it waits for its text still.
    pub fn is_armed(&self) -> bool {
        self.state.armed.lock().unwrap().is_some()
    }

    /// Cuts everything and lets nobody in any more.
    pub fn close(&self) {
        self.state.closed.send_replace(true);
    }

    /// Nothing comes through any more, and nobody is informed: connections stay open.
    pub fn fall_silent(&self) {
        self.state.silent.send_modify(|(times, is)| {
            *times += 1;
            *is = true;
        });
    }

    /// New connections come through again. The old ones stay silent.
    pub fn speak(&self) {
        self.state.silent.send_modify(|(_, is)| *is = false);
    }
}

impl State {
    fn takes(&self, chunk: &[u8]) -> Option<Cut> {
        let chunk = chunk.to_ascii_lowercase();
        let mut armed = self.armed.lock().unwrap();
        let found = armed
            .as_ref()
            .is_some_and(|(text, _)| chunk.windows(text.len()).any(|part| part == text));
        if found {
            armed.take().map(|(_, cut)| cut)
        } else {
            None
        }
    }
}

/// Both sockets are closed when this ends.
async fn carry(state: &State, client: TcpStream, server: TcpStream) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (mut closed, mut silent) = (state.closed.subscribe(), state.silent.subscribe());
    let times = silent.borrow_and_update().0;
    let mut is_silent = false;
    let cut = tokio::select! {
        cut = requests(state, &mut from_client, &mut to_server) => cut,
        _ = tokio::io::copy(&mut from_server, &mut to_client) => None,
        _ = closed.wait_for(|closed| *closed) => None,
        () = falls_silent(&mut silent, times) => {
            is_silent = true;
            None
        }
    };
    if is_silent {
        std::future::pending::<()>().await;
    }
    if let Some((Cut::Reply | Cut::Crash, owed)) = cut {
        // Bounded: a message split over two reads is counted wrongly.
        let _ = timeout(TIMEOUT, until_ready(&mut from_server, owed)).await;
    }
    if let Some((Cut::Crash, _)) = cut {
        const FIELDS: &[u8] = b"SPANIC\0VPANIC\0C58030\0Mcould not write to the log\0\0";
        let length = u32::try_from(FIELDS.len() + 4).unwrap().to_be_bytes();
        let _ = to_client
            .write_all(&[b"E", &length[..], FIELDS].concat())
            .await;
    }
}

/// Ends when the proxy has fallen silent more often than so many times.
async fn falls_silent(silent: &mut watch::Receiver<(u32, bool)>, times: u32) {
    drop(silent.wait_for(|(count, _)| *count > times).await);
}

/// Passes on what the client sends, up to a cut; answers also how many replies that chunk is owed.
async fn requests(
    state: &State,
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
) -> Option<(Cut, usize)> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = from.read(&mut buffer).await.unwrap_or(0);
        let chunk = &buffer[..length];
        let cut = state.takes(chunk).map(|cut| (cut, replies_owed(chunk)));
        let lost = matches!(cut, Some((Cut::Request, _)));
        if length == 0 || lost || to.write_all(chunk).await.is_err() || cut.is_some() {
            return cut;
        }
    }
}

/// Every Query and every Sync in a run of whole messages is answered by one ReadyForQuery.
fn replies_owed(mut chunk: &[u8]) -> usize {
    let mut owed = 0;
    while let [kind, a, b, c, d, ..] = *chunk {
        owed += usize::from(kind == b'Q' || kind == b'S');
        let length = u32::from_be_bytes([a, b, c, d]) as usize + 1;
        chunk = chunk.get(length..).unwrap_or_default();
    }
    owed
}

/// Swallows the server's answers up to the last ReadyForQuery that is owed.
async fn until_ready(from: &mut OwnedReadHalf, owed: usize) {
    const READY: &[u8] = b"Z\0\0\0\x05";
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while seen
        .windows(READY.len())
        .filter(|part| *part == READY)
        .count()
        < owed
    {
        match from.read(&mut buffer).await {
            Ok(length) if length > 0 => seen.extend_from_slice(&buffer[..length]),
            _ => return,
        }
    }
}
