//! The network in front of a region, which can be cut.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What the network does with what others want of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    /// It passes everything.
    Open,
    /// Connections break, and new ones are refused.
    Cut,
    /// Nothing arrives, either way, and nobody is informed.
    Silent,
    /// What is asked arrives, and no reply comes back.
    OneWay,
}

/// Passes connections on to a server, for as long as the network lets it. Ends with its value.
#[derive(Debug)]
pub(super) struct Link {
    port: u16,
    network: watch::Sender<Network>,
    _tasks: JoinSet<()>,
}

impl Link {
    /// To the server that has this port.
    pub(super) async fn to(target: Arc<std::sync::atomic::AtomicU16>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (network, state) = watch::channel(Network::Open);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut links = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let state = state.clone();
                if *state.borrow() == Network::Cut {
                    continue;
                }
                let target = target.load(std::sync::atomic::Ordering::SeqCst);
                links.spawn(async move {
                    if let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await {
                        pass(client, server, state).await;
                    }
                });
                while links.try_join_next().is_some() {}
            }
        });
        Self {
            port,
            network,
            _tasks: tasks,
        }
    }

    pub(super) fn set(&self, network: Network) {
        self.network.send_replace(network);
    }

    pub(super) fn url_for(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

/// Both ways, until one side ends or the network is cut.
async fn pass(client: TcpStream, server: TcpStream, mut state: watch::Receiver<Network>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let there = pump(from_client, to_server, state.clone(), Network::OneWay);
    let back = pump(from_server, to_client, state.clone(), Network::Open);
    tokio::select! {
        () = there => {}
        () = back => {}
        _ = state.wait_for(|network| *network == Network::Cut) => {}
    }
}

/// One way, held back unless the network is open, or this one way is.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<Network>,
    also: Network,
) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let passes = |network: &Network| *network == Network::Open || *network == also;
        if state.wait_for(passes).await.is_err() || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
