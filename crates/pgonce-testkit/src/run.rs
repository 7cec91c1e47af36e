//! What the processes of one test run share.
//!
//! `cargo nextest` runs every test in a process of its own and gives all of them the same
//! `NEXTEST_RUN_ID`. The first that needs a server starts it and leaves its address in the run's
//! folder; the others find it there. The server ends with the runner: its guardian looks.

use std::{
    env,
    fs::{self, File, Permissions},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{Result, error::Attempt};

/// A run of tests over several processes.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) folder: PathBuf,
    /// The process that started us and all the others.
    pub(crate) runner: i32,
}

/// Where a server is that another process may have started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) port: u16,
    pub(crate) folder: PathBuf,
    pub(crate) programs: PathBuf,
}

/// A server that can outlive the process that started it.
pub(crate) trait Lend: Sized {
    /// Gives the server to the run. This process can no longer stop it.
    fn hand_over(self, run: &Run) -> Result<Address>;

    /// A server that belongs to the run.
    fn at(address: Address) -> Result<Self>;
}

impl Run {
    /// The run that this process belongs to, if it belongs to one.
    pub(crate) fn current() -> Option<Self> {
        let id = env::var("NEXTEST_RUN_ID").ok()?;
        let named = !id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        Some(Self {
            folder: env::temp_dir().join(format!("pgonce-run-{id}")),
            runner: rustix::process::getppid()?.as_raw_pid(),
        })
        .filter(|_| named)
    }

    /// The run's server of this name, which `start` starts if nobody has yet.
    pub(crate) async fn server<T, F>(&self, name: &str, start: impl FnOnce() -> F) -> Result<T>
    where
        T: Lend,
        F: Future<Output = Result<T>>,
    {
        // Held until the address is written; the system frees it if we are killed meanwhile.
        let _turn = self.lock(name).await?;
        let file = self.folder.join(format!("{name}.json"));
        if let Ok(text) = fs::read(&file)
            && let Ok(address) = serde_json::from_slice(&text)
        {
            return T::at(address);
        }
        let address = start().await?.hand_over(self)?;
        let text = serde_json::to_vec(&address).map_err(io::Error::from);
        text.and_then(|text| write_whole(&file, &text))
            .attempt(|| format!("write {}", file.display()))?;
        T::at(address)
    }

    async fn lock(&self, name: &str) -> Result<File> {
        let (folder, file) = (
            self.folder.clone(),
            self.folder.join(format!("{name}.lock")),
        );
        let locking = move || {
            fs::create_dir_all(&folder)?;
            fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
            let file = File::create(file)?;
            file.lock()?;
            Ok(file)
        };
        let locked = tokio::task::spawn_blocking(locking).await;
        locked
            .map_err(io::Error::other)
            .flatten()
            .attempt(|| format!("lock {name} in {}", self.folder.display()))
    }
}

/// The answer to a question that one process of a run asks for all of them: to start programs in order to find others costs each
/// test more than many of them take. Where there is no run, or nothing can be written, everybody asks.
pub(crate) fn remembered<T: Serialize + DeserializeOwned>(
    question: &impl Hash,
    ask: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let Some(run) = Run::current() else {
        return ask();
    };
    let mut hasher = DefaultHasher::new();
    question.hash(&mut hasher);
    let file = run.folder.join(format!("found-{:x}.json", hasher.finish()));
    if let Ok(text) = fs::read(&file)
        && let Ok(answer) = serde_json::from_slice(&text)
    {
        return Ok(answer);
    }
    let answer = ask()?;
    // Only beside a server of the run, whose guardian removes the folder: nobody else would.
    if run.folder.is_dir()
        && let Ok(text) = serde_json::to_vec(&answer)
    {
        let _ = write_whole(&file, &text);
    }
    Ok(answer)
}

fn write_whole(file: &Path, text: &[u8]) -> io::Result<()> {
    let draft = file.with_extension(format!("draft-{}", std::process::id()));
    fs::write(&draft, text)?;
    fs::rename(draft, file)
}
