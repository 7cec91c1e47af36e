use std::{
    fs,
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

use crate::{Result, error::Attempt, run::Run};

const SCRIPT: &str = include_str!("guardian.sh");

/// Outlives us, in whatever way we end, and then ends the server and removes
/// its folder.
///
/// `Drop` alone cannot promise that: it does not run for statics, nor on
/// Ctrl-C, nor when the test process is killed. The guardian is a shell that
/// reads from a pipe; the system closes the pipe when we end.
#[derive(Debug)]
pub(crate) struct Guardian {
    folder: PathBuf,
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl Guardian {
    /// `signal` is what makes the server end at once, such as `QUIT`.
    pub(crate) fn over(folder: &Path, signal: &str) -> Result<Self> {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "pgonce-guardian"])
            .arg(folder)
            .arg(signal)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .attempt(|| "start /bin/sh as the server's guardian".to_owned())?;
        Ok(Self {
            folder: folder.to_owned(),
            pipe: shell.stdin.take(),
            shell,
        })
    }

    /// From now on this process, or none, is to be ended with us.
    pub(crate) fn watch(&mut self, process: Option<u32>) -> Result<()> {
        self.write(&process.map_or("-".to_owned(), |id| id.to_string()))
    }

    /// From now on it waits for the end of a test run instead of ours.
    pub(crate) fn follow(&mut self, run: &Run) -> Result<()> {
        self.write(&format!("run {} {}", run.runner, run.folder.display()))
    }

    fn write(&mut self, line: &str) -> Result<()> {
        let Some(pipe) = self.pipe.as_mut() else {
            return Ok(());
        };
        pipe.write_all(format!("{line}\n").as_bytes())
            .attempt(|| "write to the server's guardian (was it killed?)".to_owned())
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.pipe = None;
        // Nothing can be done about a failure here, and there is nobody to report it to.
        let _ = self.shell.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
