//! The private PostgreSQL of a laptop: started when no database is given, kept in a folder.

use std::path::{Path, PathBuf};

use pgonce_lab::embedded::Server;

use crate::database::Address;
use crate::exit::{self, CliError, Result};

/// The folder that was chosen, or the usual one.
pub(super) fn folder(chosen: Option<PathBuf>) -> Result<PathBuf> {
    let home = || {
        let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
        data.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/share")))
            .map(|data| data.join("pgonce"))
    };
    // PostgreSQL does not run as root, and another user cannot enter root's home.
    let is_root = || {
        std::env::var("USER").is_ok_and(|user| user == "root")
            || std::env::var("HOME").is_ok_and(|home| home == "/root")
    };
    let usual = || {
        if is_root() {
            Some(PathBuf::from("/var/lib/pgonce"))
        } else {
            home()
        }
    };
    chosen.or_else(usual).ok_or_else(|| {
        CliError::new(
            exit::USAGE,
            "there is no folder for a private PostgreSQL",
            "Give --data FOLDER, or --database-url.",
        )
    })
}

pub(super) struct Running(Server);

impl Running {
    pub(super) fn address(&self) -> Result<Address> {
        Address::parse(&self.0.url())
            .map_err(|why| CliError::new(exit::FAILED, why, "Please report it."))
    }

    /// Orderly, so that the next start needs no recovery.
    pub(super) async fn stop(self) {
        if let Err(error) = self.0.stop().await {
            tracing::warn!(%error, "the private PostgreSQL did not end orderly; it recovers at its next start");
        }
    }
}

pub(super) async fn start(folder: &Path) -> Result<Running> {
    tracing::info!(folder = %folder.display(), "no database was given: a private PostgreSQL is started");
    let server = Server::start(folder).await.map_err(|error| {
        CliError::new(exit::FAILED, format!("no private PostgreSQL could be started in {}: {error}", folder.display()), "Install PostgreSQL (`make setup` does), choose another --data, or give --database-url.")
    })?;
    Ok(Running(server))
}
