use std::{env, path::Path, process::Command};

use super::{Kind, Place, Program, Server, says};
use crate::{Result, port};

/// A private RabbitMQ node. Dropping it ends it and removes the folder.
///
/// It takes some seconds to start: share one ([`shared_rabbitmq`](crate::shared_rabbitmq)) between
/// tests that do not kill it.
///
/// ```no_run
/// # async fn example() -> pgonce_testkit::Result<()> {
/// let server = pgonce_testkit::RabbitMq::start().await?;
/// let url = server.url();
/// server.kill().await?;
/// server.restart().await?;
/// # drop(url);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RabbitMq {
    server: Server<Node>,
    // After the node, which asks it for names.
    _names: Server<Epmd>,
}

impl RabbitMq {
    /// Starts one; returns when it answers.
    pub async fn start() -> Result<Self> {
        Self::start_with("").await
    }

    /// Starts one with lines of your own at the end of its configuration file, such as `max_message_size = 1000`.
    pub async fn start_with(lines: &str) -> Result<Self> {
        let names = Server::start(Epmd, "").await?;
        let node = Node { epmd: names.port() };
        Ok(Self {
            server: Server::start(node, lines).await?,
            _names: names,
        })
    }

    /// Its address, for the user `guest` with the password `guest`.
    pub fn url(&self) -> String {
        format!("amqp://127.0.0.1:{}", self.port())
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
    /// Continue with [`RabbitMq::restart`].
    pub async fn kill(&self) -> Result<()> {
        self.server.kill().await
    }

    /// Starts the server again on the same port and data; one that still runs is killed first.
    /// Returns when it answers.
    pub async fn restart(&self) -> Result<()> {
        self.server.restart().await
    }
}

#[derive(Debug)]
struct Node {
    epmd: u16,
}

impl Kind for Node {
    const PROGRAM: Program = Program {
        name: "rabbitmq-server",
        variable: "PGONCE_RABBITMQ_BIN",
        cache: "rabbitmq",
        // Debian's on PATH insists on the system's own node and user.
        first: &["/usr/lib/rabbitmq/bin"],
    };
    const PORT_TAKEN: &'static [&'static str] = &["eaddrinuse", "already in use"];

    fn config(&self, place: &Place) -> String {
        format!(
            "listeners.tcp.1 = 127.0.0.1:{}\ncluster_name = {}\ndisk_free_limit.absolute = 1MB\n",
            place.port,
            place.name()
        )
    }

    fn arrange(&self, command: &mut Command, place: &Place) -> Result<()> {
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("RABBITMQ_") || text.starts_with("ERL_") {
                command.env_remove(&name);
            }
        }
        let inside = |name: &str| place.folder.join(name);
        command
            .env("ERL_EPMD_PORT", self.epmd.to_string())
            .env("RABBITMQ_NODENAME", format!("{}@localhost", place.name()))
            .env("RABBITMQ_DIST_PORT", port::free()?.to_string())
            .env("RABBITMQ_CONFIG_FILE", place.config_file())
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", inside("advanced.config"))
            .env("RABBITMQ_CONF_ENV_FILE", inside("environment"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", inside("plugins"))
            .env("RABBITMQ_GENERATED_CONFIG_DIR", inside("generated"))
            .env("RABBITMQ_PID_FILE", inside("pid"))
            .env("RABBITMQ_MNESIA_BASE", place.data())
            .env("RABBITMQ_LOG_BASE", &place.folder)
            .env("RABBITMQ_LOGS", "-")
            // Idle schedulers that spin would take the processors from the tests.
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "+sbwt none +sbwtdcpu none +sbwtdio none",
            )
            // Makes the start script give way to the node, so that its process is the node's.
            .env("RUNNING_UNDER_SYSTEMD", "true");
        Ok(())
    }

    /// Its greeting, which it sends once it takes clients, names the cluster.
    async fn answers(&self, place: &Place, _process: u32) -> bool {
        says(place.port, b"AMQP\0\0\x09\x01", &[place.name().as_bytes()]).await
    }
}

/// Erlang's name server. RabbitMQ would start one for the whole machine, which would outlive it.
#[derive(Debug)]
struct Epmd;

impl Kind for Epmd {
    const PROGRAM: Program = Program {
        name: "epmd",
        variable: "PGONCE_ERLANG_BIN",
        cache: "rabbitmq",
        first: &[],
    };
    const PORT_TAKEN: &'static [&'static str] = &["in use"];

    fn config(&self, _place: &Place) -> String {
        String::new()
    }

    fn arrange(&self, command: &mut Command, place: &Place) -> Result<()> {
        command.args(["-address", "127.0.0.1", "-port", &place.port.to_string()]);
        Ok(())
    }

    /// It answers a question for names with its own port first.
    async fn answers(&self, place: &Place, _process: u32) -> bool {
        let port = u32::from(place.port).to_be_bytes();
        says(place.port, &[0, 1, b'n'], &[&port]).await
    }
}
