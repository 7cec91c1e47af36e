use std::{path::Path, process::Command};

use super::{Kind, Layout, Program, Server, says};
use crate::{
    Result,
    run::{Address, Lend, Run},
};

/// A private Redis server that writes every change to its append-only file before it answers.
/// Dropping it ends it and removes the folder.
///
/// ```no_run
/// # async fn example() -> pgonce_testkit::Result<()> {
/// let server = pgonce_testkit::Redis::start().await?;
/// let url = server.url();
/// server.kill().await?;
/// server.restart().await?;
/// # drop(url);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Redis {
    server: Server<RedisServer>,
}

impl Redis {
    /// Starts one; returns when it answers.
    pub async fn start() -> Result<Self> {
        Self::start_with("").await
    }

    /// Starts one with lines of your own at the end of its configuration file, such as `appendfsync always`.
    pub async fn start_with(lines: &str) -> Result<Self> {
        let server = Server::start(RedisServer, lines).await?;
        Ok(Self { server })
    }

    /// Address of the server.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
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
    /// Continue with [`Redis::restart`].
    pub async fn kill(&self) -> Result<()> {
        self.server.kill().await
    }

    /// Starts the server again on the same port and data; one that still runs is killed first.
    /// Returns when it answers.
    pub async fn restart(&self) -> Result<()> {
        self.server.restart().await
    }
}

impl Lend for Redis {
    fn hand_over(self, run: &Run) -> Result<Address> {
        self.server.hand_over(run)
    }

    fn at(address: Address) -> Result<Self> {
        let server = Server::at(RedisServer, address);
        Ok(Self { server })
    }
}

#[derive(Debug)]
struct RedisServer;

impl Kind for RedisServer {
    const PROGRAM: Program = Program {
        name: "redis-server",
        variable: "PGONCE_REDIS_BIN",
        cache: "redis",
        first: &[],
    };
    const PORT_TAKEN: &'static [&'static str] = &["Address already in use"];

    /// A kill loses nothing that was handed to the operating system, and with `no` each change is
    /// written before its answer. With `everysec` a write may wait for a flush that is under way.
    fn config(&self, layout: &Layout) -> String {
        let (port, data) = (layout.port, layout.data());
        format!(
            "bind 127.0.0.1\nport {port}\ndir {}\ndaemonize no\nsave \"\"\n\
             appendonly yes\nappendfsync no\nlogfile \"\"\n",
            data.display()
        )
    }

    fn arrange(&self, command: &mut Command, layout: &Layout) -> Result<()> {
        command.arg(layout.config_file());
        Ok(())
    }

    async fn answers(&self, layout: &Layout, process: u32) -> bool {
        let ours = format!("process_id:{process}\r\n");
        says(
            layout.port,
            b"PING\r\nINFO server\r\n",
            &[b"+PONG", ours.as_bytes()],
        )
        .await
    }
}
