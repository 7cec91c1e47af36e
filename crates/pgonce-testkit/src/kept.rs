use std::{mem, path::Path, process::Command, time::Duration};

use rustix::process::Signal;

use crate::{Result, guardian::Guardian, process::Process, run::Run};

const TIMEOUT: Duration = Duration::from_secs(8);

/// The signal that makes a server drop everything and end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EndBy {
    Quit,
    Term,
    Kill,
}

impl EndBy {
    fn signal(self) -> Signal {
        match self {
            Self::Quit => Signal::QUIT,
            Self::Term => Signal::TERM,
            Self::Kill => Signal::KILL,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Quit => "QUIT",
            Self::Term => "TERM",
            Self::Kill => "KILL",
        }
    }
}

/// At most one running process and its folder, which both end with this value
/// (orderly) or with our process (by the guardian).
#[derive(Debug)]
pub(crate) struct Kept {
    process: Option<Process>,
    end_by: EndBy,
    // The last field: it goes, and with it the folder, after the process.
    guardian: Guardian,
}

impl Kept {
    pub(crate) fn in_folder(folder: &Path, end_by: EndBy) -> Result<Self> {
        Ok(Self {
            process: None,
            end_by,
            guardian: Guardian::over(folder, end_by.name())?,
        })
    }

    pub(crate) fn run(&mut self, command: &mut Command, log: &Path) -> Result<&mut Process> {
        let process = self.process.insert(Process::spawn(command, log)?);
        self.guardian.watch(Some(process.id()))?;
        Ok(process)
    }

    /// The process, if it runs.
    pub(crate) fn running(&mut self) -> Option<&mut Process> {
        let process = self.process.as_mut()?;
        (!process.has_ended()).then_some(process)
    }

    /// Gives process and folder to a test run: they end with it, not with us.
    pub(crate) fn hand_over(mut self, run: &Run) -> Result<()> {
        self.guardian.follow(run)?;
        mem::forget(self);
        Ok(())
    }

    /// To be called when the process has ended: its number is no longer ours.
    pub(crate) fn let_go(&mut self) -> Result<()> {
        self.process = None;
        self.guardian.watch(None)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            process.end_now(self.end_by.signal(), TIMEOUT);
        }
        // If the guardian is gone there is nobody to inform.
        let _ = self.guardian.watch(None);
    }
}
