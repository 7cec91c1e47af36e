mod builder;
mod cluster;
mod database;
mod life;
mod standby;

use std::{fs, path::Path, path::PathBuf};

use tokio::sync::Mutex;

use self::{builder::Layout, database::Databases};
pub use self::{builder::PostgresBuilder, database::Database, standby::Replication};
use crate::{Binaries, Result, error::Attempt, kept::Kept};

/// A private PostgreSQL server.
///
/// It has its own folder, a free loopback port, a unix socket in its folder,
/// the superuser `postgres` and no passwords. Dropping it ends the server and
/// removes the folder.
///
/// ```no_run
/// # async fn example() -> pgonce_testkit::Result<()> {
/// use pgonce_testkit::Postgres;
///
/// let server = Postgres::builder().setting("deadlock_timeout", "100ms").start().await?;
/// let database = server.create_database("orders").await?;
/// server.crash().await?;
/// server.start_again().await?;
/// # drop(database);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Postgres {
    binaries: Binaries,
    port: u16,
    layout: Layout,
    databases: Databases,
    /// Nothing for a server that belongs to a test run.
    kept: Mutex<Option<Kept>>,
}

impl Postgres {
    /// Choose a version and settings, then start.
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::default()
    }

    /// The address of the database `postgres`.
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    /// The address of a database of this server, for its superuser.
    pub fn url_for(&self, database: &str) -> String {
        url(self.port, database)
    }

    /// The loopback port; it stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The major version, such as 18.
    pub fn major(&self) -> u32 {
        self.binaries.major()
    }

    /// The programs that this server was started from.
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The folder with everything of this server: `data`, the unix socket and
    /// `postgres.log`. The server's user owns it.
    pub fn folder(&self) -> &Path {
        &self.layout.folder
    }

    /// Everything that the server has logged so far.
    pub fn log(&self) -> Result<String> {
        let log = self.log_file();
        let bytes = fs::read(&log).attempt(|| format!("read {}", log.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn log_file(&self) -> PathBuf {
        self.layout.log()
    }
}

/// The address of a database behind a loopback port, for the superuser.
pub(crate) fn url(port: u16, database: &str) -> String {
    let mut name = String::new();
    for byte in database.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => {
                name.push(char::from(byte));
            }
            other => name.push_str(&format!("%{other:02X}")),
        }
    }
    format!("postgres://postgres@127.0.0.1:{port}/{name}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_database_name_cannot_break_out_of_its_url() {
        let url = super::url(5, "a/b?c ü");
        assert_eq!(url, "postgres://postgres@127.0.0.1:5/a%2Fb%3Fc%20%C3%BC");
    }
}
