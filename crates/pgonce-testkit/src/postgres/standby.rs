use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::sync::Mutex;

use super::{
    Databases, Postgres,
    builder::{Layout, port_was_taken},
};
use crate::{
    Error, Result,
    error::Attempt,
    folder,
    kept::{EndBy, Kept},
    port,
    unprivileged::Unprivileged,
    wait::{Deadline, connect},
};

const TIMEOUT: Duration = Duration::from_secs(60);
const PORT_ATTEMPTS: u32 = 10;

/// What belongs to the running server, or is made anew by one that starts.
const NOT_COPIED: [&str; 6] = [
    "backup_label",
    "postgresql.auto.conf",
    "postmaster.opts",
    "postmaster.pid",
    "recovery.signal",
    "standby.signal",
];
const COPIED_EMPTY: [&str; 4] = ["pg_dynshmem", "pg_replslot", "pg_stat_tmp", "pg_wal"];

/// What a primary waits for before it acknowledges a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// For the standby, which has the commit on its disk too. While the standby is gone, no
    /// commit is acknowledged.
    Synchronous,
    /// For nobody: the standby may lack the last commits.
    Asynchronous,
}

/// Standbys. They are copies of the files, not made by `pg_basebackup`, which installations that
/// hold only a server do not have.
impl Postgres {
    /// Makes a copy of this server that follows it by streaming replication and can be read;
    /// returns when it answers queries and follows. It runs this server's programs: keep both
    /// values.
    ///
    /// ```no_run
    /// # async fn example() -> pgonce_testkit::Result<()> {
    /// use pgonce_testkit::{Postgres, Replication};
    ///
    /// let primary = Postgres::builder().start().await?;
    /// let standby = primary.standby(Replication::Synchronous).await?;
    /// primary.crash().await?;
    /// standby.promote().await?; // everything that was acknowledged is here
    /// # Ok(())
    /// # }
    /// ```
    pub async fn standby(&self, replication: Replication) -> Result<Self> {
        drop(self.owned("make a standby of it").await?);
        self.configure_running("wal_keep_size", "1GB").await?;
        let user = self.layout.user;
        let folder = folder::create(user)?;
        let kept = Kept::in_folder(&folder, EndBy::Quit)?;
        let layout = Layout { folder, user };
        self.copy_to(&layout).await?;
        let (standby, name) = self.start_standby(layout, kept).await?;
        self.wait_until_follows(&name, "streaming", "true").await?;
        if replication == Replication::Synchronous {
            self.configure_running("synchronous_standby_names", &name)
                .await?;
            self.wait_until_follows(&name, "synchronous", "sync_state = 'sync'")
                .await?;
        }
        Ok(standby)
    }

    /// Makes a standby the primary; returns when it accepts writes.
    pub async fn promote(&self) -> Result<()> {
        let client = connect(&self.url()).await?;
        client
            .execute("select pg_catalog.pg_promote(false)", &[])
            .await?;
        self.wait_for(
            "the standby to be promoted",
            "select not pg_catalog.pg_is_in_recovery()",
        )
        .await
    }

    /// Waits until this standby has replayed everything that `primary` has made durable so far.
    pub async fn wait_until_caught_up_with(&self, primary: &Self) -> Result<()> {
        let client = connect(&primary.url()).await?;
        let written = "select pg_catalog.pg_current_wal_flush_lsn()::text";
        let row = client.query_one(written, &[]).await?;
        let (written, port): (String, u16) = (row.get(0), primary.port);
        self.wait_for(
            &format!("the standby to catch up with {written} of port {port}"),
            &format!("select pg_catalog.pg_last_wal_replay_lsn() >= '{written}'"),
        )
        .await
    }

    /// Cuts this standby off from its primary: it gets nothing from now on, as behind a network
    /// that is down. To be called before the primary crashes, so that commits are missing here.
    pub async fn fall_behind(&self) -> Result<()> {
        self.configure_running("primary_conninfo", "").await?;
        self.wait_for(
            "the standby to let go of its primary",
            "select not exists (select from pg_catalog.pg_stat_wal_receiver)",
        )
        .await
    }

    /// A setting of the running server. Returns when every process of the server has it: those
    /// that are there get it before the next is started, and the checkpointer, which decides
    /// whether commits wait for a standby, reads it before it writes a checkpoint.
    async fn configure_running(&self, name: &str, value: &str) -> Result<()> {
        let client = connect(&self.url()).await?;
        let value = value.replace('\'', "''");
        client
            .batch_execute(&format!("alter system set {name} = '{value}'"))
            .await?;
        client
            .execute("select pg_catalog.pg_reload_conf()", &[])
            .await?;
        let query = format!("select pg_catalog.current_setting('{name}') = '{value}'");
        self.wait_for(&format!("the setting {name}"), &query)
            .await?;
        Ok(client.batch_execute("checkpoint").await?)
    }

    async fn wait_until_follows(&self, name: &str, how: &str, condition: &str) -> Result<()> {
        self.wait_for(
            &format!("{name} to be a {how} standby"),
            &format!(
                "select exists (select from pg_catalog.pg_stat_replication
                 where application_name = '{name}' and state = 'streaming' and {condition})"
            ),
        )
        .await
    }

    /// Asks over a new connection each time: one that was there before may not know yet.
    async fn wait_for(&self, what: &str, query: &str) -> Result<()> {
        let mut deadline = Deadline::new(what, TIMEOUT);
        loop {
            let client = connect(&self.url()).await?;
            if client.query_one(query, &[]).await?.get(0) {
                return Ok(());
            }
            deadline.pause().await?;
        }
    }

    /// Copies the files between the start and the end of a backup, so that a recovery from them
    /// knows where to begin.
    async fn copy_to(&self, layout: &Layout) -> Result<()> {
        let (start, stop) = if self.major() >= 15 {
            (
                "pg_backup_start('standby', true)",
                "pg_backup_stop(false) as b",
            )
        } else {
            (
                "pg_start_backup('standby', true, false)",
                "pg_stop_backup(false, false) as b",
            )
        };
        let client = connect(&self.url()).await?;
        client
            .execute(&format!("select pg_catalog.{start}"), &[])
            .await?;
        let (from, to, user) = (self.layout.data(), layout.data(), layout.user);
        let at = to.clone();
        let copied = tokio::task::spawn_blocking(move || copy_folder(&from, &to, user));
        copied.await.map_err(io::Error::other).attempt(copying)??;
        let row = client
            .query_one(&format!("select b.labelfile from pg_catalog.{stop}"), &[])
            .await?;
        let label: String = row.get(0);
        for (name, text) in [
            ("backup_label", &*label),
            ("standby.signal", ""),
            // Not the primary's: it may say that commits wait for a standby.
            ("postgresql.auto.conf", ""),
        ] {
            let file = at.join(name);
            fs::write(&file, text).attempt(|| format!("write {}", file.display()))?;
            user.give(&file)?;
        }
        Ok(())
    }

    async fn start_standby(&self, layout: Layout, mut kept: Kept) -> Result<(Self, String)> {
        let conf = layout.data().join("pgonce.conf");
        let copied = fs::read_to_string(&conf).attempt(|| format!("read {}", conf.display()))?;
        let mut attempt = 1;
        loop {
            let port = port::free()?;
            let name = format!("standby_{port}");
            let text = format!(
                "{copied}port = '{port}'\nunix_socket_directories = '{}'\nhot_standby = 'on'\n\
                 primary_conninfo = 'host=127.0.0.1 port={} user=postgres application_name={name}'\n",
                layout.folder.display(),
                self.port,
            );
            fs::write(&conf, text).attempt(|| format!("write {}", conf.display()))?;
            let standby = Self {
                binaries: self.binaries.clone(),
                port,
                layout: layout.clone(),
                databases: Databases::new(port),
                kept: Mutex::new(Some(kept)),
            };
            let started = standby.launch(&mut *standby.owned("start it").await?).await;
            match started {
                Ok(()) => return Ok((standby, name)),
                Err(error) if attempt < PORT_ATTEMPTS && port_was_taken(&error) => {
                    kept = standby.into_kept()?;
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn copying() -> String {
    "copy the primary's files".to_owned()
}

/// Files may vanish meanwhile: the server works on. What they lack, the recovery adds.
fn copy_folder(from: &Path, to: &Path, user: Unprivileged) -> Result<()> {
    fs::create_dir(to).attempt(|| format!("create {}", to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).attempt(copying)?;
    user.give(to)?;
    for entry in fs::read_dir(from).attempt(|| format!("read {}", from.display()))? {
        let entry = entry.attempt(copying)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if NOT_COPIED.contains(&&*name) {
            continue;
        }
        let (from, to): (PathBuf, PathBuf) = (entry.path(), to.join(&*name));
        let kind = entry.file_type().attempt(copying)?;
        if kind.is_dir() && COPIED_EMPTY.contains(&&*name) {
            fs::create_dir(&to).attempt(copying)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o700)).attempt(copying)?;
            user.give(&to)?;
        } else if kind.is_dir() {
            copy_folder(&from, &to, user)?;
        } else if kind.is_file() {
            match fs::copy(&from, &to) {
                Ok(_) => user.give(&to)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(Error::Io {
                        what: format!("copy {}", from.display()),
                        source: error,
                    });
                }
            }
        }
    }
    Ok(())
}
