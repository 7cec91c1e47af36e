//! One address for whichever server is the primary, as a virtual address or a pooler gives it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Passes connections on to the server that it points at. Ends with its value.
pub(crate) struct Address {
    port: u16,
    target: Arc<AtomicU16>,
    _tasks: JoinSet<()>,
}

impl Address {
    /// Of the server that has this port at present.
    pub(crate) async fn of(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = Arc::new(AtomicU16::new(target));
        let current = target.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut links = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let port = current.load(SeqCst);
                links.spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await {
                        // Whichever side ends, both do.
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                });
                while links.try_join_next().is_some() {}
            }
        });
        Self {
            port,
            target,
            _tasks: tasks,
        }
    }

    /// New connections go there from now on.
    pub(crate) fn point_at(&self, port: u16) {
        self.target.store(port, SeqCst);
    }

    /// The address of a database.
    pub(crate) fn url_for(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}
