//! Where a storm rages: which server, which driver, how strict, and what is in between.

use std::fmt;

use pgonce_testkit::Trial;

use super::path::Path;

/// A driver's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Driver {
    Sqlx,
    TokioPostgres,
}

/// An isolation level's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Isolation {
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

impl From<Isolation> for pgonce::Isolation {
    fn from(level: Isolation) -> Self {
        match level {
            Isolation::ReadCommitted => Self::ReadCommitted,
            Isolation::RepeatableRead => Self::RepeatableRead,
            Isolation::Serializable => Self::Serializable,
        }
    }
}

/// What is between client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Pooler {
    /// nothing
    Direct,
    /// PgBouncer in transaction mode
    Pgbouncer,
}

/// One of the cursors. Its text is the part of a command line that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) major: u32,
    pub(super) driver: Driver,
    pub(super) isolation: Isolation,
    pub(super) pooler: Pooler,
}

impl Config {
    /// The command that runs one trial again.
    pub(super) fn replay(&self, path: Path, trial: &Trial) -> String {
        format!("pgonce storm --path {} {self} --fault {trial}", path.name())
    }

    /// Its name in a ledger, and of its files.
    pub(super) fn name(&self) -> String {
        let (driver, isolation, pooler) = self.words();
        format!("{}-{driver}-{isolation}-{pooler}", self.major)
    }

    fn words(&self) -> (String, String, String) {
        (word(self.driver), word(self.isolation), word(self.pooler))
    }
}

impl fmt::Display for Config {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (driver, isolation, pooler) = self.words();
        let major = self.major;
        write!(
            out,
            "--driver {driver} --isolation {isolation} --pooler {pooler} --major {major}"
        )
    }
}

fn word(value: impl clap::ValueEnum) -> String {
    value
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}
