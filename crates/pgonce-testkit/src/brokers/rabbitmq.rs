use std::{env, fs, path::Path, process::Command, time::Duration};

use super::{Kind, Layout, Program, Server, says};
use crate::{
    Result, port,
    run::{Address, Lend, Run},
    wait::Deadline,
};

/// It is due several times a second, and later where much else is to be written.
const WRITTEN_TIMEOUT: Duration = Duration::from_secs(60);

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
    _names: Option<Server<Epmd>>,
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
            _names: Some(names),
        })
    }

    /// Address of the server, for the user `guest` with the password `guest`.
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

    /// Waits until everything that was declared under this name, a part of no other, would survive a kill.
    ///
    /// A node that is killed soon after it said that a queue is declared may come back without the queue, and so
    /// without the messages in it. Seen with 3.10.8: the queue was in the transaction log of Mnesia, its database, when it
    /// died, and was not recovered from there; why is not known. What had got from the log into the tables' own files
    /// stayed. A test that kills the node waits for this first.
    pub async fn written_down(&self, name: &str) -> Result<()> {
        let (data, what) = (self.server.data(), format!("{name:?} to be written down"));
        let mut deadline = Deadline::new(what, WRITTEN_TIMEOUT);
        while written(&data, name.as_bytes()) != Written::InTables {
            deadline.pause().await?;
        }
        Ok(())
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

impl Lend for RabbitMq {
    fn hand_over(self, run: &Run) -> Result<Address> {
        if let Some(names) = self._names {
            names.hand_over(run)?;
        }
        self.server.hand_over(run)
    }

    fn at(address: Address) -> Result<Self> {
        let node = Node { epmd: 0 };
        Ok(Self {
            server: Server::at(node, address),
            _names: None,
        })
    }
}

/// How far something has got; where it is in several places, the last of these counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Written {
    Nowhere,
    InTables,
    InLog,
}

/// Where the files of the database hold these bytes. (Files come and go while it is looked.)
fn written(folder: &Path, bytes: &[u8]) -> Written {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let each = entries.map(|entry| entry.path()).map(|path| {
        if path.is_dir() {
            // Messages, and the queues' own names for their folders.
            return match path.ends_with("msg_stores") {
                true => Written::Nowhere,
                false => written(&path, bytes),
            };
        }
        let held = fs::read(&path).unwrap_or_default();
        match held.windows(bytes.len()).any(|window| window == bytes) {
            true if path.extension().is_some_and(|ending| ending == "LOG") => Written::InLog,
            true => Written::InTables,
            false => Written::Nowhere,
        }
    });
    each.max().unwrap_or(Written::Nowhere)
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

    fn config(&self, layout: &Layout) -> String {
        format!(
            "listeners.tcp.1 = 127.0.0.1:{}\ncluster_name = {}\ndisk_free_limit.absolute = 1MB\n",
            layout.port,
            layout.name()
        )
    }

    fn arrange(&self, command: &mut Command, layout: &Layout) -> Result<()> {
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("RABBITMQ_") || text.starts_with("ERL_") {
                command.env_remove(&name);
            }
        }
        let inside = |name: &str| layout.folder.join(name);
        command
            .env("ERL_EPMD_PORT", self.epmd.to_string())
            .env("RABBITMQ_NODENAME", format!("{}@localhost", layout.name()))
            .env("RABBITMQ_DIST_PORT", port::free()?.to_string())
            .env("RABBITMQ_CONFIG_FILE", layout.config_file())
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", inside("advanced.config"))
            .env("RABBITMQ_CONF_ENV_FILE", inside("environment"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", inside("plugins"))
            .env("RABBITMQ_GENERATED_CONFIG_DIR", inside("generated"))
            .env("RABBITMQ_PID_FILE", inside("pid"))
            .env("RABBITMQ_MNESIA_BASE", layout.data())
            .env("RABBITMQ_LOG_BASE", &layout.folder)
            .env("RABBITMQ_LOGS", "-")
            // Idle schedulers that spin would take the processors from the tests; and the transaction log goes into
            // the tables' files each 200 milliseconds, not each three minutes, so that it can be waited for.
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "+sbwt none +sbwtdcpu none +sbwtdio none -mnesia dump_log_time_threshold 200",
            )
            // Makes the start script give way to the node, so that its process is the node's.
            .env("RUNNING_UNDER_SYSTEMD", "true");
        Ok(())
    }

    /// Its greeting, which it sends once it takes clients, names the cluster.
    async fn answers(&self, layout: &Layout, _process: u32) -> bool {
        says(
            layout.port,
            b"AMQP\0\0\x09\x01",
            &[layout.name().as_bytes()],
        )
        .await
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

    fn config(&self, _place: &Layout) -> String {
        String::new()
    }

    fn arrange(&self, command: &mut Command, layout: &Layout) -> Result<()> {
        command.args(["-address", "127.0.0.1", "-port", &layout.port.to_string()]);
        Ok(())
    }

    /// It answers a question for names with its own port first.
    async fn answers(&self, layout: &Layout, _process: u32) -> bool {
        let port = u32::from(layout.port).to_be_bytes();
        says(layout.port, &[0, 1, b'n'], &[&port]).await
    }
}
