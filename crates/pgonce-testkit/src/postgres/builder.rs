use std::{fs, path::Path, path::PathBuf, process::Command, time::Duration};

use tokio::sync::Mutex;

use super::{Databases, Postgres, cluster};
use crate::{
    Binaries, Error, Result,
    error::Attempt,
    folder,
    kept::{EndBy, Kept},
    port, process,
    unprivileged::Unprivileged,
};

const INIT_TIMEOUT: Duration = Duration::from_secs(120);
const PORT_ATTEMPTS: u32 = 10;

/// What every server gets unless the caller says otherwise.
///
/// `fsync` is off although servers are crashed here: what fsync guards against
/// is losing what the *operating system* has not yet written. Killing
/// processes, however brutally, loses nothing that they had handed to the
/// system, and a commit still hands its WAL over before it answers
/// (`synchronous_commit` stays on). So crashes stay honest and tests fast.
///
/// Dynamic shared memory is kept in files below the data folder, because a
/// killed server cannot clean up `/dev/shm`, while the folder always goes.
///
/// PL/pgSQL is loaded before the first session: a fifth less processor time for each of the many short ones.
const SETTINGS: [(&str, &str); 14] = [
    ("fsync", "off"),
    ("wal_level", "replica"),
    ("max_connections", "200"),
    ("max_prepared_transactions", "10"),
    ("shared_buffers", "128MB"),
    ("dynamic_shared_memory_type", "mmap"),
    ("jit", "off"),
    ("shared_preload_libraries", "plpgsql"),
    ("logging_collector", "off"),
    ("log_lock_waits", "on"),
    ("log_line_prefix", "%m [%p] %a@%d "),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    ("listen_addresses", "127.0.0.1"),
];

/// Prepares a [`Postgres`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing runs before `start`"]
pub struct PostgresBuilder {
    binaries: Option<Binaries>,
    settings: Vec<(String, String)>,
    data: Option<PathBuf>,
}

impl PostgresBuilder {
    /// The installation to run; without this, [`Binaries::find`] decides.
    pub fn binaries(mut self, binaries: Binaries) -> Self {
        self.binaries = Some(binaries);
        self
    }

    /// A line of `postgresql.conf`. The last word on a name wins, also over
    /// this crate's own choices, which favour speed and a readable log.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Keeps the data in this folder, which outlives the server: a later start finds it again. It is
    /// made where it is missing; one server at a time can use it. Without this the data is temporary.
    ///
    /// ```
    /// # use pgonce_testkit::Postgres;
    /// let server = Postgres::builder().data_folder("/tmp/shop").setting("fsync", "on");
    /// # drop(server);
    /// ```
    pub fn data_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.data = Some(folder.into());
        self
    }

    /// Makes a new cluster and starts it; returns when it answers queries.
    pub async fn start(self) -> Result<Postgres> {
        let binaries = match &self.binaries {
            Some(binaries) => binaries.clone(),
            None => Binaries::find()?,
        };
        let user = Unprivileged::find()?;
        let folder = folder::create(user)?;
        let mut kept = Kept::in_folder(&folder, EndBy::Quit)?;
        let binaries = folder::reachable(&binaries, user, &folder)?;
        let layout = Layout { folder, user };
        let is_new = match &self.data {
            Some(data) => layout.link(data)?,
            None => true,
        };
        if is_new {
            layout.init(&binaries, &mut kept).await?;
        }

        let mut attempt = 1;
        loop {
            let port = port::free()?;
            layout.configure(port, &self.settings)?;
            let server = Postgres {
                binaries: binaries.clone(),
                port,
                layout: layout.clone(),
                databases: Databases::new(port),
                kept: Mutex::new(Some(kept)),
            };
            let started = server.launch(&mut *server.owned("start it").await?).await;
            match started {
                Ok(()) => return Ok(server),
                Err(error) if attempt < PORT_ATTEMPTS && port_was_taken(&error) => {
                    kept = server.into_kept()?;
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

pub(super) fn port_was_taken(error: &Error) -> bool {
    matches!(error, Error::Program { log, .. } if log.contains("Address already in use"))
}

/// Where a server's things are, and whose they are.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) folder: PathBuf,
    pub(super) user: Unprivileged,
}

impl Layout {
    pub(super) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.folder.join("postgres.log")
    }

    pub(super) fn command(&self, binaries: &Binaries, program: &str) -> Command {
        let program = binaries.folder().join(program);
        let mut command = self.user.command(&program, &self.folder);
        command.arg("-D").arg(self.data());
        command
    }

    /// Puts a link to a folder where the data is expected: the guardian removes the link, not what it
    /// leads to. Says whether a cluster is still to be made there.
    fn link(&self, data: &Path) -> Result<bool> {
        let what = || format!("prepare {}", data.display());
        if !data.exists() {
            fs::create_dir_all(data).attempt(what)?;
            self.user.give(data)?;
        }
        let data = data.canonicalize().attempt(what)?;
        if !self.user.can_enter(&data) {
            return Err(Error::WrongState {
                request: "keep data there",
                state: "not open to the user that the server runs as; choose another folder",
            });
        }
        std::os::unix::fs::symlink(&data, self.data()).attempt(what)?;
        Ok(!data.join("PG_VERSION").exists())
    }

    /// Makes a cluster: by initdb, or where an earlier test of the run did that, as a copy of what came of it.
    async fn init(&self, binaries: &Binaries, kept: &mut Kept) -> Result<()> {
        let data = self.data();
        // Data that somebody keeps is somebody's own from the start.
        let earlier = cluster::kept(binaries).filter(|_| !data.is_symlink());
        if let Some(earlier) = earlier.as_deref().filter(|earlier| earlier.is_dir()) {
            folder::copy(earlier, &data)?;
            cluster::rename(&data)?;
            return self.prepare(binaries, kept, cluster::RESET, &["-f"]).await;
        }
        let options = [
            "--username=postgres",
            "--auth=trust",
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
        ];
        self.prepare(binaries, kept, "initdb", &options).await?;
        let conf = data.join("postgresql.conf");
        fs::read_to_string(&conf)
            .and_then(|text| fs::write(&conf, format!("{text}\ninclude 'pgonce.conf'\n")))
            .attempt(|| format!("extend {}", conf.display()))?;
        match earlier {
            Some(place) => cluster::keep(&data, &place),
            None => Ok(()),
        }
    }

    /// Runs a program over the data before the server is first started.
    async fn prepare(
        &self,
        binaries: &Binaries,
        kept: &mut Kept,
        program: &'static str,
        options: &[&str],
    ) -> Result<()> {
        let log = self.folder.join(format!("{program}.log"));
        let running = kept.run(self.command(binaries, program).args(options), &log)?;
        running.ended(program, INIT_TIMEOUT).await?;
        if !running.succeeded() {
            return Err(Error::Program {
                program,
                what: format!("of PostgreSQL {} failed", binaries.version()),
                log: process::log_since(&log, 0),
            });
        }
        kept.let_go()
    }

    /// In a file rather than on the command line, so that `alter system`
    /// has the last word.
    fn configure(&self, port: u16, chosen: &[(String, String)]) -> Result<()> {
        let folder = self.folder.display().to_string();
        let port = port.to_string();
        let ours = [
            ("port", port.as_str()),
            ("unix_socket_directories", &folder),
        ];
        let chosen = chosen.iter().map(|(name, value)| (&**name, &**value));
        let text: String = SETTINGS
            .into_iter()
            .chain(chosen)
            .chain(ours)
            .map(|(name, value)| format!("{name} = '{}'\n", quoted(value)))
            .collect();
        let file = self.data().join("pgonce.conf");
        fs::write(&file, text).attempt(|| format!("write {}", file.display()))?;
        self.user.give(&file)
    }
}

fn quoted(value: &str) -> String {
    value.replace('\\', "\\\\").replace('\'', "''")
}
