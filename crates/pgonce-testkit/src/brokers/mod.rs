//! Private brokers: what they share. Each file beside this one says what its broker is started
//! with and how it shows that it is ready.

mod nats;
mod program;
mod rabbitmq;
mod redis;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Mutex,
    time::{sleep, timeout},
};

use self::program::Program;
pub use self::{nats::Nats, rabbitmq::RabbitMq, redis::Redis};
use crate::{
    Error, Result,
    error::Attempt,
    folder,
    kept::{EndBy, Kept},
    port, process,
    run::{Address, Run},
    unprivileged::Unprivileged,
    wait::Deadline,
};

const TIMEOUT: Duration = Duration::from_secs(200);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const PORT_TIMEOUT: Duration = Duration::from_secs(10);
const PORT_ATTEMPTS: u32 = 10;
const SHARED: Error = Error::WrongState {
    request: "kill the server",
    state: "shared with other tests; start one of your own",
};

/// What differs between brokers.
pub(super) trait Kind: Send + Sync + 'static {
    const PROGRAM: Program;
    /// What it logs when somebody else has its port.
    const PORT_TAKEN: &'static [&'static str];

    /// The text of its configuration file.
    fn config(&self, layout: &Layout) -> String;

    /// Arguments and variables for the program, which is run in the server's folder.
    fn arrange(&self, command: &mut Command, layout: &Layout) -> Result<()>;

    /// Whether this very server, not another that got the port, takes orders now.
    fn answers(&self, layout: &Layout, process: u32) -> impl Future<Output = bool> + Send;
}

/// Where a broker lives.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) folder: PathBuf,
    pub(super) port: u16,
    program: PathBuf,
    user: Unprivileged,
}

impl Layout {
    pub(super) fn config_file(&self) -> PathBuf {
        self.folder.join("server.conf")
    }

    /// Where the server keeps what must survive it.
    pub(super) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub(super) fn log_file(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// A name that no other server has.
    pub(super) fn name(&self) -> String {
        let name = self.folder.file_name().unwrap_or_default();
        name.to_string_lossy()
            .replace(|c: char| !c.is_ascii_alphanumeric(), "-")
    }

    pub(super) fn own_folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        fs::create_dir_all(&folder).attempt(|| format!("make {}", folder.display()))?;
        self.user.give(&folder)?;
        Ok(folder)
    }
}

/// A broker's process, its port and its folder.
#[derive(Debug)]
pub(super) struct Server<K> {
    kind: K,
    layout: Layout,
    /// Nothing for a server that belongs to a test run.
    kept: Mutex<Option<Kept>>,
}

impl<K: Kind> Server<K> {
    /// `more`: lines for its configuration file, after ours.
    pub(super) async fn start(kind: K, more: &str) -> Result<Self> {
        let program = K::PROGRAM.find()?;
        let user = Unprivileged::find()?;
        // Root's own cache may be out of another user's reach; no broker minds root.
        let user = match user.can_enter(program.parent().unwrap_or(&program)) {
            true => user,
            false => Unprivileged::ourselves(),
        };
        let folder = folder::create(user)?;
        let mut kept = Kept::in_folder(&folder, EndBy::Kill)?;
        let mut layout = Layout {
            folder,
            port: 0,
            program,
            user,
        };
        layout.own_folder("data")?;
        let mut attempt = 1;
        loop {
            layout.port = port::free()?;
            let config = layout.config_file();
            fs::write(&config, kind.config(&layout) + more + "\n")
                .attempt(|| format!("write {}", config.display()))?;
            user.give(&config)?;
            match launch(&kind, &layout, &mut kept).await {
                Ok(()) => break,
                Err(error) if attempt < PORT_ATTEMPTS && port_was_taken::<K>(&error) => {
                    attempt += 1
                }
                Err(error) => return Err(error),
            }
        }
        let kept = Mutex::new(Some(kept));
        Ok(Self { kind, layout, kept })
    }

    /// A server that belongs to a test run.
    pub(super) fn at(kind: K, address: Address) -> Self {
        let layout = Layout {
            folder: address.folder,
            port: address.port,
            program: address.programs,
            user: Unprivileged::ourselves(),
        };
        let kept = Mutex::new(None);
        Self { kind, layout, kept }
    }

    pub(super) fn hand_over(self, run: &Run) -> Result<Address> {
        if let Some(kept) = self.kept.into_inner() {
            kept.hand_over(run)?;
        }
        Ok(Address {
            port: self.layout.port,
            folder: self.layout.folder,
            programs: self.layout.program,
        })
    }

    pub(super) fn port(&self) -> u16 {
        self.layout.port
    }

    pub(super) fn folder(&self) -> &Path {
        &self.layout.folder
    }

    pub(super) fn data(&self) -> PathBuf {
        self.layout.data()
    }

    pub(super) fn log(&self) -> Result<String> {
        let log = self.layout.log_file();
        let bytes = fs::read(&log).attempt(|| format!("read {}", log.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) async fn kill(&self) -> Result<()> {
        let mut kept = self.kept.lock().await;
        kill::<K>(kept.as_mut().ok_or(SHARED)?).await
    }

    pub(super) async fn restart(&self) -> Result<()> {
        let mut kept = self.kept.lock().await;
        let kept = kept.as_mut().ok_or(SHARED)?;
        if kept.running().is_some() {
            kill::<K>(kept).await?;
        }
        let deadline = Instant::now() + PORT_TIMEOUT;
        loop {
            match launch(&self.kind, &self.layout, kept).await {
                // The callers know the port by now, so it has to be this one.
                Err(error) if port_was_taken::<K>(&error) && Instant::now() < deadline => {
                    sleep(Duration::from_millis(50)).await;
                }
                other => return other,
            }
        }
    }
}

async fn kill<K: Kind>(kept: &mut Kept) -> Result<()> {
    let process = kept.running().ok_or(Error::WrongState {
        request: "kill the server",
        state: "not running; restart() it first",
    })?;
    process.signal(Signal::KILL)?;
    process.ended(K::PROGRAM.name, TIMEOUT).await?;
    kept.let_go()
}

async fn launch<K: Kind>(kind: &K, layout: &Layout, kept: &mut Kept) -> Result<()> {
    let log = layout.log_file();
    let seen = process::log_length(&log);
    let mut command = layout.user.command(&layout.program, &layout.folder);
    command.env("HOME", &layout.folder);
    kind.arrange(&mut command, layout)?;
    let running = kept.run(&mut command, &log)?;
    let id = running.id();
    let mut deadline = Deadline::new(format!("{} to answer", K::PROGRAM.name), TIMEOUT);
    let failure = loop {
        if running.has_ended() {
            break "ended while starting".to_owned();
        }
        let answer = timeout(ANSWER_TIMEOUT, kind.answers(layout, id)).await;
        if answer == Ok(true) && !running.has_ended() {
            return Ok(());
        }
        if let Err(error) = deadline.pause().await {
            break format!("is not ready: {error}");
        }
    };
    running.signal(Signal::KILL)?;
    running.ended(K::PROGRAM.name, TIMEOUT).await?;
    kept.let_go()?;
    Err(Error::Program {
        program: K::PROGRAM.name,
        what: failure,
        log: process::log_since(&log, seen),
    })
}

fn port_was_taken<K: Kind>(error: &Error) -> bool {
    let taken = |log: &str| K::PORT_TAKEN.iter().any(|words| log.contains(words));
    matches!(error, Error::Program { log, .. } if taken(log))
}

/// Says something to a port and listens until the answer holds all of `expected`.
pub(super) async fn says(port: u16, words: &[u8], expected: &[&[u8]]) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await else {
        return false;
    };
    if stream.write_all(words).await.is_err() {
        return false;
    }
    let mut received = Vec::new();
    loop {
        let holds = |part: &[u8]| received.windows(part.len()).any(|window| window == part);
        if expected.iter().all(|part| holds(part)) {
            return true;
        }
        match stream.read_buf(&mut received).await {
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
    }
}
