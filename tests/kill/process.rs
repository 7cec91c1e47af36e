//! Worker processes that a test starts, stops and kills, by their own id only.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::TIMEOUT;

const SIGABRT: i32 = 6;

/// A running worker; it is killed when this is dropped.
pub(crate) struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
}

/// How a worker ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) said: Vec<String>,
    pub(crate) id: u32,
}

impl Worker {
    /// Starts one, with `PGONCE_FAULTS` set to this.
    pub(crate) fn start(driver: &str, url: &str, path: &str, key: &str, faults: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kill-worker"))
            .args([driver, url, path, key])
            .env("PGONCE_FAULTS", faults)
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A panic that is wanted would fill the test's output.
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            stdin,
            stdout,
        }
    }

    /// Starts one and waits for its end.
    pub(crate) async fn run(driver: &str, url: &str, path: &str, key: &str, faults: &str) -> Ended {
        Self::start(driver, url, path, key, faults).ended().await
    }

    /// Waits until it says this.
    pub(crate) async fn says(&mut self, line: &str) {
        let said = timeout(TIMEOUT, self.stdout.next_line())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(said.as_deref(), Some(line));
    }

    /// Sends it a line.
    pub(crate) async fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin
            .write_all(format!("{line}\n").as_bytes())
            .await
            .unwrap();
    }

    /// Stops it in its tracks; returns when it stands still.
    pub(crate) fn stop(&self) {
        let pid = self.pid();
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    /// Kills it, wherever it is.
    pub(crate) fn kill(&self) {
        kill_process(self.pid(), Signal::KILL).unwrap();
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    fn pid(&self) -> Pid {
        let id = self.child.id().expect("it was not waited for");
        Pid::from_raw(id.try_into().unwrap()).unwrap()
    }

    /// Waits for its end.
    pub(crate) async fn ended(mut self) -> Ended {
        let id = self.child.id().unwrap();
        let mut said = Vec::new();
        while let Some(line) = timeout(TIMEOUT, self.stdout.next_line())
            .await
            .unwrap()
            .unwrap()
        {
            said.push(line);
        }
        let status = timeout(TIMEOUT, self.child.wait()).await.unwrap().unwrap();
        Ended { status, said, id }
    }
}

impl Ended {
    /// Whether it killed itself at the fault point.
    pub(crate) fn was_killed(&self) -> bool {
        self.status.signal() == Some(SIGABRT)
    }

    /// What it said after this word, the last time.
    pub(crate) fn after(&self, word: &str) -> Option<&str> {
        let lines = self.said.iter().rev();
        lines
            .filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '))
            .next()
    }

    /// Whose answer it got.
    pub(crate) fn answer(&self) -> Option<&str> {
        self.after("done")
    }
}
