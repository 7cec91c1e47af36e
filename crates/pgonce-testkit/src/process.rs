use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::{Result, error::Attempt, wait::Deadline};

const LOG_TAIL: u64 = 4_000;

/// A program that we started, with its output in a log file.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn spawn(command: &mut Command, log: &Path) -> Result<Self> {
        let program = command.get_program().to_owned();
        let out = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .attempt(|| format!("open {}", log.display()))?;
        let err = out.try_clone().attempt(|| "share a log file".to_owned())?;
        command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map(Self)
            .attempt(|| format!("start {}", program.display()))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Sends a signal, unless the process has ended: its number may by then
    /// belong to somebody else.
    pub(crate) fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.has_ended() {
            return Ok(());
        }
        kill_process(self.pid(), signal).attempt(|| format!("signal process {}", self.id()))
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    pub(crate) fn succeeded(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(status)) if status.success())
    }

    pub(crate) async fn ended(&mut self, program: &str, within: Duration) -> Result<()> {
        let what = format!("{program} (process {}) to end", self.id());
        let mut deadline = Deadline::new(what, within);
        while !self.has_ended() {
            deadline.pause().await?;
        }
        Ok(())
    }

    /// For `Drop`, where nothing can be awaited.
    pub(crate) fn end_now(&mut self, signal: Signal, deadline: Duration) {
        let deadline = Instant::now() + deadline;
        let _ = self.signal(signal);
        // One that was stopped would not get it.
        let _ = self.signal(Signal::CONT);
        while !self.has_ended() {
            if Instant::now() > deadline {
                let _ = self.signal(Signal::KILL);
                let _ = self.0.wait();
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Whether there is such a process, even one that has ended unnoticed.
pub(crate) fn exists(pid: Pid) -> bool {
    !matches!(test_kill_process(pid), Err(rustix::io::Errno::SRCH))
}

/// Whether the process still does or holds anything. One that has ended stays
/// in the list until its parent asks about it, and init may take its time.
pub(crate) fn is_active(pid: Pid) -> bool {
    !matches!(state(pid), Some('Z' | 'X')) && exists(pid)
}

/// Whether a process that was sent SIGSTOP may still be doing something.
pub(crate) fn is_stopping(pid: Pid) -> bool {
    !matches!(state(pid), None | Some('T' | 'Z' | 'X'))
}

/// The letter that Linux gives to what the process is doing; elsewhere nothing.
fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.trim_start().chars().next()
}

pub(crate) fn children_of(parent: u32) -> Result<Vec<Pid>> {
    let table = processes().attempt(|| "list the system's processes".to_owned())?;
    Ok(table
        .into_iter()
        .filter(|(_, of)| u32::try_from(*of) == Ok(parent))
        .filter_map(|(pid, _)| Pid::from_raw(pid))
        .collect())
}

/// Pairs of process and parent.
#[cfg(target_os = "linux")]
fn processes() -> io::Result<Vec<(i32, i32)>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // The name in parentheses may itself hold spaces and parentheses.
            let (_, after_name) = stat.rsplit_once(')')?;
            let parent = after_name.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect())
}

/// Pairs of process and parent.
#[cfg(not(target_os = "linux"))]
fn processes() -> io::Result<Vec<(i32, i32)>> {
    let output = Command::new("ps")
        .args(["-A", "-o", "pid=,ppid="])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text
        .lines()
        .filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
        })
        .collect())
}

pub(crate) fn log_length(log: &Path) -> u64 {
    fs::metadata(log).map_or(0, |facts| facts.len())
}

/// The end of what was logged after `start`, for error messages.
pub(crate) fn log_since(log: &Path, start: u64) -> String {
    let tail_start = log_length(log).saturating_sub(LOG_TAIL).max(start);
    let mut bytes = Vec::new();
    let read = File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(tail_start))?;
        file.read_to_end(&mut bytes)
    });
    match read {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("({} cannot be read: {error})", log.display()),
    }
}
