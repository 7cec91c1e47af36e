use std::{env, fs, path::PathBuf, time::Duration};

use crate::{
    Error, Postgres, Result,
    error::Attempt,
    folder,
    kept::{EndBy, Kept},
    port,
    postgres::url,
    process,
    unprivileged::Unprivileged,
    wait::{Deadline, connect},
};

const TIMEOUT: Duration = Duration::from_secs(30);
const PORT_ATTEMPTS: u32 = 10;

/// A private pgbouncer in front of a [`Postgres`]. Dropping it ends it.
///
/// Every role of the server may log in through it, without a password.
///
/// ```no_run
/// # async fn example(server: &pgonce_testkit::Postgres) -> pgonce_testkit::Result<()> {
/// use pgonce_testkit::PgBouncer;
///
/// let pooler = PgBouncer::in_front_of(server).pool_mode_transaction().start().await?;
/// let url = pooler.url_for("postgres");
/// # drop(url);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _kept: Kept,
}

impl PgBouncer {
    /// Choose how to pool, then start. Without a word, a server connection
    /// belongs to a client for a transaction.
    pub fn in_front_of(server: &Postgres) -> PgBouncerBuilder {
        PgBouncerBuilder {
            server_port: server.port(),
            settings: Vec::new(),
        }
        .pool_mode_transaction()
    }

    /// The address of a database of the server, through the pooler.
    pub fn url_for(&self, database: &str) -> String {
        url(self.port, database)
    }

    /// The pooler's loopback port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Prepares a [`PgBouncer`].
#[derive(Clone, Debug)]
#[must_use = "nothing runs before `start`"]
pub struct PgBouncerBuilder {
    server_port: u16,
    settings: Vec<(String, String)>,
}

impl PgBouncerBuilder {
    /// A server connection belongs to a client for one transaction.
    pub fn pool_mode_transaction(self) -> Self {
        self.setting("pool_mode", "transaction")
    }

    /// A server connection belongs to a client as long as that is connected.
    pub fn pool_mode_session(self) -> Self {
        self.setting("pool_mode", "session")
    }

    /// A line of `pgbouncer.ini`; the last word on a name wins.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let name = name.into();
        // pgbouncer takes the first line of a name, not the last.
        self.settings.retain(|(known, _)| *known != name);
        self.settings.push((name, value.into()));
        self
    }

    /// Starts pgbouncer; returns when it passes queries on.
    pub async fn start(self) -> Result<PgBouncer> {
        let program = find()?;
        let user = Unprivileged::find()?;
        let folder = folder::create(user)?;
        let mut kept = Kept::in_folder(&folder, EndBy::Term)?;
        let log = folder.join("pgbouncer.log");
        let config = folder.join("pgbouncer.ini");
        let mut attempt = 1;
        loop {
            let port = port::free()?;
            fs::write(&config, self.config(port))
                .attempt(|| format!("write {}", config.display()))?;
            user.give(&config)?;
            let seen = process::log_length(&log);
            let running = kept.run(user.command(&program, &folder).arg(&config), &log)?;
            let mut deadline = Deadline::new("pgbouncer to answer", TIMEOUT);
            while !running.has_ended() {
                if answers(&url(port, "postgres")).await && !running.has_ended() {
                    return Ok(PgBouncer { port, _kept: kept });
                }
                deadline.pause().await?;
            }
            kept.let_go()?;
            let said = process::log_since(&log, seen);
            if attempt == PORT_ATTEMPTS || !said.contains("in use") {
                return Err(Error::Program {
                    program: "pgbouncer",
                    what: "ended while starting".to_owned(),
                    log: said,
                });
            }
            attempt += 1;
        }
    }

    fn config(&self, port: u16) -> String {
        let mut lines = vec![
            "[databases]".to_owned(),
            format!(
                "* = host=127.0.0.1 port={} auth_user=postgres",
                self.server_port
            ),
            "[pgbouncer]".to_owned(),
        ];
        let port = port.to_string();
        let ours = [
            ("listen_addr", "127.0.0.1"),
            ("listen_port", &port),
            ("unix_socket_dir", ""),
            ("auth_type", "trust"),
            ("max_client_conn", "500"),
            ("default_pool_size", "20"),
            // Drivers send it on their own account; nobody's promise rests on it.
            ("ignore_startup_parameters", "extra_float_digits"),
        ];
        let chosen = self.settings.iter();
        let unsaid = ours
            .into_iter()
            .filter(|(name, _)| !self.settings.iter().any(|(said, _)| said == name));
        lines.extend(chosen.map(|(name, value)| format!("{name} = {value}")));
        lines.extend(unsaid.map(|(name, value)| format!("{name} = {value}")));
        lines.join("\n") + "\n"
    }
}

async fn answers(url: &str) -> bool {
    let Ok(client) = connect(url).await else {
        return false;
    };
    client.simple_query("select 1").await.is_ok()
}

/// Debian puts it into a folder that is not on every user's PATH.
fn find() -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let homebrew = ["/opt/homebrew/bin", "/opt/homebrew/opt/pgbouncer/bin"];
    env::split_paths(&path)
        .chain(usual.into_iter().chain(homebrew).map(PathBuf::from))
        .map(|folder| folder.join("pgbouncer"))
        .find(|program| program.is_file())
        .ok_or(Error::NoPgBouncer)
}
