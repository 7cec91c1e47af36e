use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{Error, Result, error::Attempt, postgres::url};

/// Chunks on their way in one direction; more than this slows the sender down,
/// as a full network would.
const ON_THE_WAY: usize = 4_096;
const CHUNK: usize = 64 * 1024;

/// A proxy on a loopback port that delays everything by a fixed time in each
/// direction, counts round trips, and can cut all connections.
///
/// It delays like a long wire: bytes that follow each other arrive as far apart
/// as they were sent. It works with threads, because an async timer's step of a
/// millisecond is too coarse for a delay of one.
///
/// ```no_run
/// # fn example() -> pgonce_testkit::Result<()> {
/// use std::time::Duration;
/// use pgonce_testkit::DelayProxy;
///
/// let proxy = DelayProxy::start("127.0.0.1:5432", Duration::from_millis(1))?;
/// let url = proxy.url_for("orders");
/// let before = proxy.round_trips();
/// // … run a command through `url` …
/// let used = proxy.round_trips() - before;
/// # drop((url, used));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DelayProxy {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    target: SocketAddr,
    delay: Duration,
    round_trips: AtomicU64,
    bytes_to_server: AtomicU64,
    bytes_to_client: AtomicU64,
    links: Mutex<Vec<Arc<Link>>>,
    closed: AtomicBool,
}

/// One client's connection.
#[derive(Debug)]
struct Link {
    client: TcpStream,
    server: TcpStream,
    /// Whether the client has been given something since it last spoke.
    answered: AtomicBool,
    directions_left: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Towards {
    Server,
    Client,
}

impl DelayProxy {
    /// Starts a proxy in front of `target`; `delay` is added in each direction.
    pub fn start(target: impl ToSocketAddrs, delay: Duration) -> Result<Self> {
        let target = target
            .to_socket_addrs()
            .attempt(|| "resolve the proxy's target".to_owned())?
            .next()
            .ok_or_else(|| Error::Io {
                what: "resolve the proxy's target".to_owned(),
                source: std::io::ErrorKind::NotFound.into(),
            })?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .attempt(|| "listen on a loopback port".to_owned())?;
        let address = listener
            .local_addr()
            .attempt(|| "learn the proxy's port".to_owned())?;
        let state = Arc::new(State {
            target,
            delay,
            round_trips: AtomicU64::new(0),
            bytes_to_server: AtomicU64::new(0),
            bytes_to_client: AtomicU64::new(0),
            links: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&state);
        spawn("delay-accept", move || accepting.accept(&listener))?;
        Ok(Self { address, state })
    }

    /// Where the proxy listens.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The address of a database of the PostgreSQL server behind the proxy.
    pub fn url_for(&self, database: &str) -> String {
        url(self.address.port(), database)
    }

    /// How often a client has spoken after it had received something (or for the
    /// first time), over all connections so far; connecting counts as well, so
    /// compare two readings. What a client sends without waiting in between is
    /// one trip, provided that the delay is longer than the client's pauses.
    pub fn round_trips(&self) -> u64 {
        self.state.round_trips.load(SeqCst)
    }

    /// Bytes that clients have sent so far.
    pub fn bytes_to_server(&self) -> u64 {
        self.state.bytes_to_server.load(SeqCst)
    }

    /// Bytes that the server has sent so far.
    pub fn bytes_to_client(&self) -> u64 {
        self.state.bytes_to_client.load(SeqCst)
    }

    /// Cuts all connections at once, with what is on its way in them. New ones
    /// are let through.
    pub fn cut_all(&self) {
        self.state.cut_all();
    }
}

impl Drop for DelayProxy {
    fn drop(&mut self) {
        self.state.closed.store(true, SeqCst);
        self.state.cut_all();
        // Wakes the accepting thread, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.closed.load(SeqCst) {
                return;
            }
            // A target that cannot be reached: the client sees a closed door.
            let Some(link) = client.ok().and_then(|client| self.link(client)) else {
                continue;
            };
            for towards in [Towards::Server, Towards::Client] {
                let begun = self.carry(&link, towards);
                if begun.is_err() {
                    link.cut();
                }
            }
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            links.retain(|link| link.directions_left.load(SeqCst) > 0);
            links.push(link);
        }
    }

    fn link(&self, client: TcpStream) -> Option<Arc<Link>> {
        let server = TcpStream::connect(self.target).ok()?;
        client.set_nodelay(true).ok()?;
        server.set_nodelay(true).ok()?;
        Some(Arc::new(Link {
            client,
            server,
            answered: AtomicBool::new(true),
            directions_left: AtomicU64::new(2),
        }))
    }

    fn cut_all(&self) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        for link in links.drain(..) {
            link.cut();
        }
    }

    /// One direction is a delay line: one thread stamps what comes in, another
    /// lets it out when its time has come.
    fn carry(self: &Arc<Self>, link: &Arc<Link>, towards: Towards) -> Result<()> {
        let (line_in, line_out) = sync_channel(ON_THE_WAY);
        let (state, ours) = (Arc::clone(self), Arc::clone(link));
        spawn("delay-in", move || {
            state.read_from(&ours, towards, &line_in)
        })?;
        let (state, ours) = (Arc::clone(self), Arc::clone(link));
        spawn("delay-out", move || {
            state.let_out(&ours, towards, &line_out);
            ours.directions_left.fetch_sub(1, SeqCst);
        })
    }

    fn read_from(&self, link: &Link, towards: Towards, line: &SyncSender<(Instant, Vec<u8>)>) {
        let mut source = match towards {
            Towards::Server => &link.client,
            Towards::Client => &link.server,
        };
        let mut buffer = vec![0; CHUNK];
        loop {
            // The end, orderly or not, travels as an empty chunk.
            let length = source.read(&mut buffer).unwrap_or(0);
            let due = Instant::now() + self.delay;
            let bytes = u64::try_from(length).unwrap_or(u64::MAX);
            if towards == Towards::Client {
                self.bytes_to_client.fetch_add(bytes, SeqCst);
            } else {
                self.bytes_to_server.fetch_add(bytes, SeqCst);
                if length > 0 && link.answered.swap(false, SeqCst) {
                    self.round_trips.fetch_add(1, SeqCst);
                }
            }
            if line.send((due, buffer[..length].to_vec())).is_err() || length == 0 {
                return;
            }
        }
    }

    fn let_out(&self, link: &Link, towards: Towards, line: &Receiver<(Instant, Vec<u8>)>) {
        let mut sink = match towards {
            Towards::Server => &link.server,
            Towards::Client => &link.client,
        };
        while let Ok((due, chunk)) = line.recv() {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if towards == Towards::Client && !chunk.is_empty() {
                link.answered.store(true, SeqCst);
            }
            if chunk.is_empty() || sink.write_all(&chunk).is_err() {
                break;
            }
        }
        let _ = sink.shutdown(Shutdown::Write);
    }
}

impl Link {
    fn cut(&self) {
        // Fails only where the connection has gone already.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
        .attempt(|| "start a proxy thread".to_owned())
}
