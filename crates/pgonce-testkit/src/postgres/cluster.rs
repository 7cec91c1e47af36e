//! What initdb makes, made once for all processes of a test run: to copy it takes a tenth of the time.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    process,
    time::SystemTime,
};

use crate::{Binaries, Result, error::Attempt, folder, run::Run};

/// What gives a copy an identity of its own. Some installations lack it: there every server has its initdb.
pub(super) const RESET: &str = "pg_resetwal";

/// Where this run keeps a cluster of this version, if it can be copied.
pub(super) fn kept(binaries: &Binaries) -> Option<PathBuf> {
    let run = Run::current()?;
    // Only beside a server of the run, whose guardian removes the folder: nobody else would.
    (run.folder.is_dir() && binaries.folder().join(RESET).exists())
        .then(|| run.folder.join(format!("cluster-{}", binaries.version())))
}

/// Keeps a new cluster that has not been started yet.
pub(super) fn keep(data: &Path, kept: &Path) -> Result<()> {
    let draft = PathBuf::from(format!("{}.draft-{}", kept.display(), process::id()));
    folder::copy(data, &draft)?;
    // Another process was first: its copy is as good.
    if fs::rename(&draft, kept).is_err() {
        fs::remove_dir_all(&draft).attempt(|| format!("remove {}", draft.display()))?;
    }
    Ok(())
}

/// Writes another system identifier into a cluster that does not run, as initdb chooses it: with the same one a server would
/// pass for the one that it was copied from. [`RESET`] then puts the rest right.
pub(super) fn rename(data: &Path) -> Result<()> {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let identifier = now.as_secs() << 32
        | u64::from(now.subsec_micros()) << 12
        | u64::from(process::id()) & 0xfff;
    // It is the first thing in the file.
    let file = data.join("global/pg_control");
    OpenOptions::new()
        .write(true)
        .open(&file)
        .and_then(|mut control| control.write_all(&identifier.to_ne_bytes()))
        .attempt(|| format!("write {}", file.display()))
}
