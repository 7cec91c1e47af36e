use std::{
    env,
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Binaries, Error, Result, error::Attempt, unprivileged::Unprivileged};

/// A unix socket's path may have about 100 bytes on the strictest systems; the
/// socket's own name and our folder's name take some 40 of them.
const MAX_BASE: usize = 60;

/// Makes a private temporary folder that `user` owns and can reach. The caller
/// hands the folder to a guardian, which removes it.
pub(crate) fn create(user: Unprivileged) -> Result<PathBuf> {
    let preferred = env::temp_dir();
    let usable = preferred.as_os_str().len() <= MAX_BASE && user.can_enter(&preferred);
    let base = if usable {
        preferred
    } else {
        PathBuf::from("/tmp")
    };
    let folder = tempfile::Builder::new()
        .prefix("pgonce-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(&base)
        .attempt(|| format!("make a temporary folder in {}", base.display()))?;
    user.give(folder.path())?;
    Ok(folder.keep())
}

/// Root may have its PostgreSQL in a folder that only root can enter (a
/// checkout below /root, say); the server's user then gets its own copy.
pub(crate) fn reachable(
    binaries: &Binaries,
    user: Unprivileged,
    folder: &Path,
) -> Result<Binaries> {
    if user.can_enter(binaries.folder()) {
        return Ok(binaries.clone());
    }
    let (Some(installation), Some(bin)) =
        (binaries.folder().parent(), binaries.folder().file_name())
    else {
        return Ok(binaries.clone());
    };
    let moved = folder.join("installation");
    copy(installation, &moved)?;
    Ok(binaries.moved_to(moved.join(bin)))
}

/// Copies a folder with what belongs to its files.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    // -P keeps the links between libraries' names as links.
    let done = Command::new("cp")
        .arg("-RPp")
        .args([from, to])
        .output()
        .attempt(|| "run cp".to_owned())?;
    if done.status.success() {
        return Ok(());
    }
    Err(Error::Program {
        program: "cp",
        what: format!("could not copy {}", from.display()),
        log: String::from_utf8_lossy(&done.stderr).into_owned(),
    })
}
