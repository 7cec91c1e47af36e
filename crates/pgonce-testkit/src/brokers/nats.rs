use std::{path::Path, process::Command};

use super::{Kind, Layout, Program, Server, says};
use crate::{
    Result,
    run::{Address, Lend, Run},
};

/// A private NATS server with JetStream, which keeps its streams in the server's folder. Dropping it
/// ends it and removes the folder.
///
/// ```no_run
/// # async fn example() -> pgonce_testkit::Result<()> {
/// let server = pgonce_testkit::Nats::start().await?;
/// let url = server.url();
/// server.kill().await?;
/// server.restart().await?;
/// # drop(url);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Nats {
    server: Server<NatsServer>,
}

impl Nats {
    /// Starts one; returns when it answers.
    pub async fn start() -> Result<Self> {
        Self::start_with("").await
    }

    /// Starts one with lines of your own at the end of its configuration file, such as `max_payload: 1000`.
    pub async fn start_with(lines: &str) -> Result<Self> {
        let server = Server::start(NatsServer, lines).await?;
        Ok(Self { server })
    }

    /// Address of the server.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port())
    }

    /// The loopback port; it stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// The folder with everything of this server.
    pub fn folder(&self) -> &Path {
        self.server.folder()
    }

    /// Everything that the server has logged so far.
    pub fn log(&self) -> Result<String> {
        self.server.log()
    }

    /// Kills the server with SIGKILL in the middle of whatever it does; returns when it is gone.
    /// Continue with [`Nats::restart`].
    pub async fn kill(&self) -> Result<()> {
        self.server.kill().await
    }

    /// Starts the server again on the same port and data; one that still runs is killed first.
    /// Returns when it answers.
    pub async fn restart(&self) -> Result<()> {
        self.server.restart().await
    }
}

impl Lend for Nats {
    fn hand_over(self, run: &Run) -> Result<Address> {
        self.server.hand_over(run)
    }

    fn at(address: Address) -> Result<Self> {
        let server = Server::at(NatsServer, address);
        Ok(Self { server })
    }
}

#[derive(Debug)]
struct NatsServer;

impl Kind for NatsServer {
    const PROGRAM: Program = Program {
        name: "nats-server",
        variable: "PGONCE_NATS_BIN",
        cache: "nats",
        first: &[],
    };
    const PORT_TAKEN: &'static [&'static str] = &["address already in use"];

    fn config(&self, layout: &Layout) -> String {
        let (name, port, data) = (layout.name(), layout.port, layout.data());
        format!(
            "server_name: {name}\nlisten: \"127.0.0.1:{port}\"\n\
             jetstream {{ store_dir: {data:?}, max_mem: 256MB, max_file: 4GB }}\n"
        )
    }

    fn arrange(&self, command: &mut Command, layout: &Layout) -> Result<()> {
        command.arg("--config").arg(layout.config_file());
        Ok(())
    }

    /// Asked about JetStream, which starts after the listener and answers in JSON.
    async fn answers(&self, layout: &Layout, _process: u32) -> bool {
        let name = format!("\"server_name\":\"{}\"", layout.name());
        let words =
            b"CONNECT {\"verbose\":false}\r\nSUB ready 1\r\nPUB $JS.API.INFO ready 0\r\n\r\n";
        says(
            layout.port,
            words,
            &[name.as_bytes(), b"MSG ready 1", b"\"streams\":"],
        )
        .await
    }
}
