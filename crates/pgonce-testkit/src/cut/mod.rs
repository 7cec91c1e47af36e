mod link;
mod pump;
mod state;

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs},
    sync::Arc,
    thread::{self, JoinHandle},
};

use tokio::{runtime, sync::oneshot};

use self::state::State;
use crate::{
    Error, Result,
    error::Attempt,
    plan::{Fault, Trial},
    postgres::url,
    wire::Message,
};

/// A proxy on a loopback port that understands PostgreSQL's protocol, numbers every message of
/// every connection, and cuts, swallows or holds back the one that a fault names.
///
/// Run a path through it once without a fault: [`transcript`](Self::transcript) lists the
/// messages. Then run the path again for each of them, with a fault there:
/// [`FaultPlan::every`](crate::FaultPlan::every) makes that list.
///
/// It speaks plain TCP: a client that asks for TLS gets the reply that there is none. It works on a
/// thread of its own, so that clients may live on any runtime, or on none.
///
/// ```no_run
/// # async fn example(server: &pgonce_testkit::Postgres) -> Result<(), Box<dyn std::error::Error>> {
/// use pgonce_testkit::CuttingProxy;
///
/// let proxy = CuttingProxy::start(("127.0.0.1", server.port()))?;
/// let (client, connection) =
///     tokio_postgres::connect(&proxy.url_for("orders"), tokio_postgres::NoTls).await?;
/// tokio::spawn(connection);
/// // The third message to the server: done, but the client gets no reply.
/// proxy.arm("c0:s2:drop-reply".parse()?);
/// client.batch_execute("begin").await?;
/// client.batch_execute("insert into note values ('kept')").await?;
/// assert!(client.batch_execute("commit").await.is_err());
/// assert!(proxy.fired().is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CuttingProxy {
    address: SocketAddr,
    state: Arc<State>,
    // Dropped first: it ends the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A fault that happened, and the message at which it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    /// The fault.
    pub fault: Fault,
    /// The message.
    pub message: Message,
}

impl CuttingProxy {
    /// Starts a proxy in front of `target`, with no fault.
    pub fn start(target: impl ToSocketAddrs) -> Result<Self> {
        let target = target
            .to_socket_addrs()
            .attempt(|| "resolve the proxy's target".to_owned())?
            .next()
            .ok_or_else(|| Error::Io {
                what: "resolve the proxy's target".to_owned(),
                source: std::io::ErrorKind::NotFound.into(),
            })?;
        let listening = || "listen on a loopback port".to_owned();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).attempt(listening)?;
        listener.set_nonblocking(true).attempt(listening)?;
        let address = listener.local_addr().attempt(listening)?;

        let state = Arc::new(State::new(target));
        let (stop, stopped) = oneshot::channel();
        let accepting = Arc::clone(&state);
        let starting = || "start the proxy's thread".to_owned();
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .attempt(starting)?;
        let thread = thread::Builder::new()
            .name("cutting-proxy".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    tokio::select! {
                        _ = stopped => {}
                        () = link::accept(listener, accepting) => {}
                    }
                });
                // What is still connected is cut when the runtime goes.
            })
            .attempt(starting)?;
        Ok(Self {
            address,
            state,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where the proxy listens.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The address of a database of the PostgreSQL server behind the proxy.
    pub fn url_for(&self, database: &str) -> String {
        url(self.address.port(), database)
    }

    /// Adds a fault. It happens once, when its message comes by. Several may be armed.
    pub fn arm(&self, fault: Fault) {
        self.state.arm(fault);
    }

    /// Adds all faults of a trial.
    pub fn arm_trial(&self, trial: &Trial) {
        trial.faults.iter().for_each(|fault| self.arm(*fault));
    }

    /// Takes back all faults that have not happened, and releases what is held.
    pub fn disarm(&self) {
        self.state.disarm();
        self.release();
    }

    /// The first fault that happened, if one did.
    pub fn fired(&self) -> Option<Fired> {
        self.state.fired().into_iter().next()
    }

    /// All faults that happened, in order.
    pub fn all_fired(&self) -> Vec<Fired> {
        self.state.fired()
    }

    /// The messages that came by so far, in the order in which they did; those of the start-up
    /// are left out, and so are those beyond the first hundred thousand.
    ///
    /// A message that a fault kept from its receiver is listed as well: it came by.
    pub fn transcript(&self) -> Vec<Message> {
        self.state.transcript()
    }

    /// Waits until a message is held, and returns which.
    pub async fn held(&self) -> Fired {
        self.state.held().await
    }

    /// Lets all messages go that are held.
    pub fn release(&self) {
        self.state.release();
    }

    /// Waits until a message is held, lets `second` do its work, then releases the message.
    ///
    /// If `second` waits for a lock that the held client has, neither goes on: release it then,
    /// for instance when [`wait_until_lock_waited`](crate::wait_until_lock_waited) sees it.
    pub async fn while_held<F: Future>(&self, second: impl FnOnce(Fired) -> F) -> F::Output {
        let fired = self.held().await;
        let _release = Releasing(self);
        second(fired).await
    }

    /// Cuts all connections. New ones are let through, and keep counting.
    pub fn cut_all(&self) {
        self.state.cut_all();
    }

    /// Whether the server can be reached. While it cannot, all connections are cut, and new ones are closed at once. They count
    /// all the same.
    pub fn set_reachable(&self, reachable: bool) {
        self.state.set_reachable(reachable);
    }

    /// How many connections were closed at once because the server could not be reached.
    pub fn refused(&self) -> u64 {
        self.state.refused()
    }

    /// Cuts all connections, forgets faults and transcript, and counts connections from 0 again:
    /// as good as a new proxy.
    pub fn start_over(&self) {
        self.state.start_over();
        self.release();
    }

    /// The process ids of the server's sessions that clients have through this proxy now.
    pub fn backends(&self) -> Vec<i32> {
        self.state.backends()
    }

    /// Those that clients have had at any time: the server may still be busy for one whose
    /// connection was cut.
    pub(crate) fn sessions(&self) -> Vec<i32> {
        self.state.sessions()
    }
}

struct Releasing<'a>(&'a CuttingProxy);

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Drop for CuttingProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to wait for; a panic in it has been shown already.
            let _ = thread.join();
        }
    }
}
