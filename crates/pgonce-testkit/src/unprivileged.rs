use std::{
    env, fs,
    os::unix::{
        fs::{MetadataExt, chown},
        process::CommandExt,
    },
    path::Path,
    process::Command,
};

use crate::{Error, Result, error::Attempt};

/// Who runs the servers: we ourselves, or where we are root another user,
/// since PostgreSQL and pgbouncer refuse to run as root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unprivileged(Option<Ids>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ids {
    user: u32,
    group: u32,
}

impl Unprivileged {
    pub(crate) fn find() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self(None));
        }
        let passwd = fs::read_to_string("/etc/passwd").attempt(|| "read /etc/passwd".to_owned())?;
        ["postgres", "nobody"]
            .into_iter()
            .find_map(|name| ids_of(name, &passwd))
            .map(|ids| Self(Some(ids)))
            .ok_or(Error::NoUnprivilegedUser)
    }

    /// For programs that do not mind root.
    pub(crate) fn ourselves() -> Self {
        Self(None)
    }

    /// A command that runs in `folder` with this user's rights, in its own
    /// process group (Ctrl-C in a terminal must not reach the server before
    /// our own orderly end does), and without PG* variables of the caller.
    pub(crate) fn command(self, program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(folder).process_group(0);
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        if let Self(Some(ids)) = self {
            command.uid(ids.user).gid(ids.group);
        }
        command
    }

    pub(crate) fn give(self, path: &Path) -> Result<()> {
        let Self(Some(ids)) = self else { return Ok(()) };
        chown(path, Some(ids.user), Some(ids.group))
            .attempt(|| format!("give {} to the server's user", path.display()))
    }

    /// Whether this user may walk into every folder on the way to `path`.
    pub(crate) fn can_enter(self, path: &Path) -> bool {
        let Self(Some(ids)) = self else { return true };
        path.ancestors().all(|folder| {
            let Ok(facts) = fs::metadata(folder) else {
                return false;
            };
            let needed = match (facts.uid() == ids.user, facts.gid() == ids.group) {
                (true, _) => 0o100,
                (false, true) => 0o010,
                (false, false) => 0o001,
            };
            facts.mode() & needed != 0
        })
    }
}

fn ids_of(name: &str, passwd: &str) -> Option<Ids> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let mut numbers = fields.skip(1).map(str::parse);
        let user = numbers.next()?.ok()?;
        let group = numbers.next()?.ok()?;
        Some(Ids { user, group })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_from_the_line_of_that_user_only() {
        let passwd = "postgresql:x:7:8::/:/bin/sh\npostgres:x:101:104:,,,:/:/bin/sh\n";
        let expected = Ids {
            user: 101,
            group: 104,
        };
        assert_eq!(ids_of("postgres", passwd), Some(expected));
        assert_eq!(ids_of("nobody", passwd), None);
    }
}
