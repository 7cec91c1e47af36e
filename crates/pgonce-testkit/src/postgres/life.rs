use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    sync::{MappedMutexGuard, Mutex, MutexGuard},
    time::sleep,
};

use super::{Databases, Layout, Postgres, builder::port_was_taken};
use crate::{
    Binaries, Error, Result,
    error::Attempt,
    kept::Kept,
    process::{self, children_of},
    run::{Address, Lend, Run},
    unprivileged::Unprivileged,
    wait::{Deadline, connect},
};

const TIMEOUT: Duration = Duration::from_secs(60);
const PORT_TIMEOUT: Duration = Duration::from_secs(10);

impl Postgres {
    /// Kills the server and all its sessions with SIGKILL in the middle of
    /// whatever they do, and returns when all of them are gone. What was
    /// committed survives; continue with [`Postgres::start_again`].
    pub async fn crash(&self) -> Result<()> {
        let mut kept = self.owned("crash it").await?;
        let postmaster = kept.running().ok_or_else(|| not_running("crash"))?;
        // Stopped first, so that it neither starts a session behind our back
        // nor helps its sessions to an orderly end.
        postmaster.signal(Signal::STOP)?;
        let mut deadline = Deadline::new("the server to hold still", TIMEOUT);
        while process::is_stopping(postmaster.pid()) {
            deadline.pause().await?;
        }
        let sessions = children_of(postmaster.id())?;
        postmaster.signal(Signal::KILL)?;
        for pid in &sessions {
            // One that has ended meanwhile is as good as killed.
            let _ = kill_process(*pid, Signal::KILL);
        }
        postmaster.ended("the crashed server", TIMEOUT).await?;
        let mut deadline = Deadline::new("the crashed server's sessions to end", TIMEOUT);
        while sessions.iter().any(|pid| process::is_active(*pid)) {
            deadline.pause().await?;
        }
        self.put_pid_file_aside()?;
        kept.let_go()
    }

    /// Ends the server orderly (a fast shutdown: sessions are ended, open
    /// transactions rolled back, a last checkpoint written).
    pub async fn stop(&self) -> Result<()> {
        let mut kept = self.owned("stop it").await?;
        let postmaster = kept.running().ok_or_else(|| not_running("stop"))?;
        postmaster.signal(Signal::INT)?;
        postmaster.ended("postgres", TIMEOUT).await?;
        kept.let_go()
    }

    /// Starts a server that was stopped or has crashed, on the same port and
    /// data; returns when it answers queries.
    pub async fn start_again(&self) -> Result<()> {
        let mut kept = self.owned("start it").await?;
        if kept.running().is_some() {
            return Err(Error::WrongState {
                request: "start the server",
                state: "running already; stop() or crash() it first, or call restart()",
            });
        }
        let deadline = Instant::now() + PORT_TIMEOUT;
        loop {
            match self.launch(&mut kept).await {
                // The callers know the port by now, so it has to be this one.
                Err(error) if port_was_taken(&error) && Instant::now() < deadline => {
                    sleep(Duration::from_millis(50)).await;
                }
                other => return other,
            }
        }
    }

    /// [`Postgres::stop`], then [`Postgres::start_again`].
    pub async fn restart(&self) -> Result<()> {
        self.stop().await?;
        self.start_again().await
    }

    /// Kills one session with SIGKILL. PostgreSQL then ends all its sessions
    /// and recovers by itself: continue with [`Postgres::wait_ready`].
    /// `pid` is that session's `pg_backend_pid()`.
    pub async fn kill_backend(&self, pid: i32) -> Result<()> {
        let mut kept = self.owned("kill a session").await?;
        let postmaster = kept
            .running()
            .ok_or_else(|| not_running("kill a session"))?;
        // Root could hit anybody's process with a wrong number.
        let backend = Some(pid)
            .filter(|pid| *pid > 1)
            .and_then(Pid::from_raw)
            .ok_or(Error::NotABackend { pid })?;
        if !children_of(postmaster.id())?.contains(&backend) {
            return Err(Error::NotABackend { pid });
        }
        kill_process(backend, Signal::KILL).attempt(|| format!("kill process {pid}"))?;
        // Gone means that the server has noticed: from here on no new session
        // is let in before the recovery is over.
        let mut deadline = Deadline::new("the server to notice the kill", TIMEOUT);
        while process::exists(backend) {
            deadline.pause().await?;
        }
        Ok(())
    }

    /// Ends one session the polite way (`pg_terminate_backend`): its client
    /// gets an error, the server goes on.
    pub async fn terminate_backend(&self, pid: i32) -> Result<()> {
        let client = connect(&self.url()).await?;
        let row = client
            .query_one("select pg_catalog.pg_terminate_backend($1)", &[&pid])
            .await?;
        match row.get(0) {
            true => Ok(()),
            false => Err(Error::NotABackend { pid }),
        }
    }

    /// Whether the server answers a query at this moment.
    pub async fn is_ready(&self) -> bool {
        self.answers().await.is_ok()
    }

    /// Waits until the server answers queries, after a crash recovery say.
    pub async fn wait_ready(&self) -> Result<()> {
        let mut deadline = Deadline::new("PostgreSQL to answer", TIMEOUT);
        while !self.is_ready().await {
            deadline.pause().await?;
        }
        Ok(())
    }

    async fn answers(&self) -> Result<()> {
        let client = connect(&self.url()).await?;
        client.simple_query("select 1").await?;
        Ok(())
    }

    /// Only who started a server may stop it, and not one that a test run shares.
    pub(super) async fn owned(&self, attempt: &'static str) -> Result<MappedMutexGuard<'_, Kept>> {
        MutexGuard::try_map(self.kept.lock().await, Option::as_mut).map_err(|_| shared(attempt))
    }

    pub(super) fn into_kept(self) -> Result<Kept> {
        let kept = self.kept.into_inner();
        kept.ok_or_else(|| shared("start it"))
    }

    pub(super) async fn launch(&self, kept: &mut Kept) -> Result<()> {
        let log = self.log_file();
        let seen = process::log_length(&log);
        let mut command = self.layout.command(&self.binaries, "postgres");
        let postmaster = kept.run(&mut command, &log)?;
        let mut deadline = Deadline::new("PostgreSQL to start", TIMEOUT);
        while !postmaster.has_ended() {
            if self.reports_ready(postmaster.id()) && self.is_ready().await {
                return Ok(());
            }
            deadline.pause().await?;
        }
        kept.let_go()?;
        Err(Error::Program {
            program: "postgres",
            what: format!("{} ended while starting", self.binaries.version()),
            log: process::log_since(&log, seen),
        })
    }

    /// Asked before connecting: another server may be answering on the port
    /// that ours could not get. The pid file's first line says whose it is, its
    /// eighth how far the start has come.
    fn reports_ready(&self, postmaster: u32) -> bool {
        let Ok(text) = fs::read_to_string(self.pid_file()) else {
            return false;
        };
        let mut lines = text.lines();
        lines.next() == Some(&postmaster.to_string())
            && lines.nth(6).is_some_and(|status| status.trim() == "ready")
    }

    fn pid_file(&self) -> PathBuf {
        self.layout.data().join("postmaster.pid")
    }

    /// A stale file with a number that the system has given to another process
    /// would keep the server from starting; the guardian still needs it.
    fn put_pid_file_aside(&self) -> Result<()> {
        let stale = self.pid_file();
        if !stale.exists() {
            return Ok(());
        }
        fs::rename(&stale, self.layout.folder.join("crashed.pid"))
            .attempt(|| format!("put {} aside", stale.display()))
    }
}

impl Lend for Postgres {
    fn hand_over(self, run: &Run) -> Result<Address> {
        let address = Address {
            port: self.port,
            folder: self.layout.folder.clone(),
            programs: self.binaries.folder().to_owned(),
        };
        self.into_kept()?.hand_over(run)?;
        Ok(address)
    }

    fn at(address: Address) -> Result<Self> {
        Ok(Self {
            binaries: Binaries::in_folder(address.programs)?,
            port: address.port,
            layout: Layout {
                folder: address.folder,
                user: Unprivileged::find()?,
            },
            databases: Databases::new(address.port),
            kept: Mutex::new(None),
        })
    }
}

fn shared(attempt: &'static str) -> Error {
    Error::WrongState {
        request: attempt,
        state: "shared with other tests; start one of your own with Postgres::builder()",
    }
}

fn not_running(request: &'static str) -> Error {
    Error::WrongState {
        request,
        state: "not running; start_again() it first",
    }
}
