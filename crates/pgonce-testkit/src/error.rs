use std::{fmt, io, path::PathBuf, time::Duration};

/// What can go wrong while preparing or driving test infrastructure.
///
/// Its `Debug` text is its message: tests unwrap, and the reader of a failed
/// test should read what to do rather than see a struct.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No PostgreSQL server was found at all.
    #[error(
        "no PostgreSQL server programs were found (looked at: {looked_at}). In the pgonce repository \
         run `make setup`; elsewhere install your system's PostgreSQL server package, or set \
         PGONCE_PG_BIN to the folder that holds `initdb` and `postgres`"
    )]
    NoPostgres {
        /// The places that were tried, in order.
        looked_at: String,
    },

    /// PostgreSQL was found, but not of the wanted major version.
    #[error(
        "PostgreSQL {wanted} was not found (found: {found}). In the pgonce repository run \
         `scripts/setup {wanted}`; elsewhere install it, or set PGONCE_PG_BIN to its bin folder"
    )]
    NoSuchMajor {
        /// The major version that was asked for.
        wanted: u32,
        /// The major versions that are there.
        found: String,
    },

    /// `PGONCE_PG_BIN`, or a folder given by hand, is not a server's bin folder.
    #[error(
        "{origin} names {}, which is not a PostgreSQL bin folder: {why}. Name the folder that holds \
         `initdb` and `postgres` (such as /usr/lib/postgresql/18/bin), or unset it to search the \
         usual places",
        folder.display()
    )]
    NotABinFolder {
        /// Who named the folder.
        origin: String,
        /// The folder.
        folder: PathBuf,
        /// What is wrong with it.
        why: String,
    },

    /// pgbouncer is not installed.
    #[error(
        "pgbouncer was not found on PATH nor in the usual folders. In the pgonce repository run \
         `make setup`; elsewhere install the package `pgbouncer`"
    )]
    NoPgBouncer,

    /// A broker's server is not installed.
    #[error(
        "{program} was not found (looked at: {looked_at}). In the pgonce repository run `make setup`; \
         elsewhere install the package `{program}`, or set {variable} to the folder that holds it"
    )]
    NoBroker {
        /// The program that was looked for.
        program: &'static str,
        /// The variable that can name its folder.
        variable: &'static str,
        /// The places that were tried, in order.
        looked_at: String,
    },

    /// A variable names a folder that does not hold a broker's server.
    #[error(
        "{variable} names {}, which has no `{program}`. Name the folder that holds it, or unset \
         {variable} to search the usual places",
        folder.display()
    )]
    NotABrokersFolder {
        /// The program that was looked for.
        program: &'static str,
        /// The variable.
        variable: &'static str,
        /// The folder that the variable names.
        folder: PathBuf,
    },

    /// Root has no unprivileged user to hand the server to.
    #[error(
        "running as root, and /etc/passwd has neither a user `postgres` nor `nobody` to run the \
         server as (PostgreSQL refuses root). Create one of them, or run as another user"
    )]
    NoUnprivilegedUser,

    /// A program ended although it should run, or failed.
    #[error("{program} {what}. Its log ends with:\n{log}")]
    Program {
        /// Which program.
        program: &'static str,
        /// What happened.
        what: String,
        /// The last lines it wrote.
        log: String,
    },

    /// Something was not observed in time.
    #[error("waited {within:?} for {what}, and it did not happen")]
    TimedOut {
        /// What was awaited.
        what: String,
        /// For how long.
        within: Duration,
    },

    /// The server is not in the state that the call needs.
    #[error("cannot {request}: the server is {state}")]
    WrongState {
        /// What was asked for.
        request: &'static str,
        /// How things stand.
        state: &'static str,
    },

    /// A process id that is none of this server's sessions.
    #[error(
        "process {pid} is not a session of this server, so it was not killed; ask that session for \
         pg_backend_pid()"
    )]
    NotABackend {
        /// The process id.
        pid: i32,
    },

    /// The caller's preparation of a template database failed.
    #[error("preparing the template database {name:?} failed: {source}")]
    Template {
        /// The template's name.
        name: String,
        /// What the caller's function answered.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The database answered with an error.
    #[error("PostgreSQL refused: {}", sql_text(.0))]
    Sql(#[from] tokio_postgres::Error),

    /// The operating system refused something.
    #[error("could not {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// The testkit's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The driver's own text is only "db error"; the server's message is behind it.
fn sql_text(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(answer) => format!("{} ({})", answer.message(), answer.code().code()),
        None => match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    }
}

/// Names the attempt that an [`io::Error`] by itself leaves out.
pub(crate) trait Attempt<T> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Attempt<T> for std::result::Result<T, E> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Io {
            what: what(),
            source: error.into(),
        })
    }
}
