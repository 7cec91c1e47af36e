//! The database that a command works on.

use std::path::Path;
use std::time::Duration;

use deadpool_postgres::{Manager, Pool, Runtime};
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::driver::{Connection as _, Driver as _, Param, Session as _, Statement};
use pgonce::migrate::{self, Migrator};
use tokio_postgres::NoTls;
use tokio_postgres::config::SslMode;

use crate::exit::{self, Result, Trouble};
use crate::output::{Format, Shown};

/// Where a database is, and as whom.
pub(crate) type Address = tokio_postgres::Config;

/// Which database, which schema, and how results are shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// Address of the database, such as postgres://user:password@host/database.
    #[arg(
        long,
        value_name = "URL",
        env = "DATABASE_URL",
        hide_env_values = true,
        global = true
    )]
    database_url: Option<String>,
    /// The schema that pgonce is in.
    #[arg(long, value_name = "NAME", env = "PGONCE_SCHEMA", default_value = pgonce::DEFAULT_SCHEMA, global = true)]
    schema: String,
    #[command(flatten)]
    shown: Shown,
}

impl Target {
    pub(crate) fn format(&self) -> Format {
        self.shown.format
    }

    /// Its address, and the schema that pgonce is in.
    pub(crate) fn address(self) -> Result<(Address, String)> {
        let Some(url) = self.database_url.filter(|url| !url.is_empty()) else {
            return Err(Trouble::new(
                exit::USAGE,
                "no database was given",
                "Give --database-url postgres://user:password@host/database, or set DATABASE_URL.",
            ));
        };
        let address = url.parse().map_err(|error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            Trouble::new(
                exit::USAGE,
                format!("the address of the database cannot be read: {error}{cause}"),
                "Write postgres://user:password@host:5432/database; escape special characters of the password as %XX.",
            )
        })?;
        Ok((address, self.schema))
    }

    /// The database, whatever is in it.
    pub(crate) fn database(self) -> Result<Database> {
        let format = self.shown.format;
        let (mut config, schema) = self.address()?;
        if config.get_application_name().is_none() {
            config.application_name("pgonce");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(10));
        }
        let manager = match config.get_ssl_mode() {
            SslMode::Require => Manager::new(config, crate::tls::connector()?),
            _ => Manager::new(config, NoTls),
        };
        let pool = Pool::builder(manager)
            .max_size(1)
            .build()
            .map_err(|error| {
                Trouble::new(
                    exit::FAILED,
                    format!("no pool could be made: {error}"),
                    "Please report it.",
                )
            })?;
        Ok(Database {
            driver: TokioPostgres::new(pool),
            schema,
            format,
        })
    }

    /// The database, if pgonce is in it and this program can read it. One that is merely older is
    /// good enough to be looked at.
    pub(crate) async fn installed(self) -> Result<Database> {
        let database = self.database()?;
        match database.migrator().check().await {
            Err(error) if [migrate::OUTDATED, migrate::CHANGED].contains(&error.code()) => {
                Ok(database)
            }
            Err(error) => Err(error.into()),
            Ok(()) => Ok(database),
        }
    }
}

/// A database and pgonce's schema in it.
pub(crate) struct Database {
    pub(crate) driver: TokioPostgres,
    pub(crate) schema: String,
    pub(crate) format: Format,
}

impl Database {
    pub(crate) fn migrator(&self) -> Migrator<TokioPostgres> {
        Migrator::new(self.driver.clone()).schema(&self.schema)
    }

    /// Runs a statement that is written for the schema `pgonce`; every row as a JSON object. The
    /// name of the schema was checked by whoever made the [`Database`] with [`Target::installed`].
    pub(crate) async fn rows(&self, query: &str, params: &[Option<&str>]) -> Result<Vec<String>> {
        let query = query.replace("pgonce.", &format!("{}.", self.schema));
        let statement = Statement {
            sql: format!("select row_to_json(q)::text from ({query}) q").into(),
            keep: false,
            pooled: false,
        };
        let params: Vec<Param<'_>> = params.iter().copied().map(Param::Text).collect();
        let mut session = self.driver.acquire().await?;
        let rows = session.query(&statement, &params).await?;
        session.keep();
        Ok(rows
            .into_iter()
            .filter_map(|row| row.into_iter().next().flatten())
            .collect())
    }

    /// As [`Database::rows`], the first of them.
    pub(crate) async fn row(&self, query: &str, params: &[Option<&str>]) -> Result<Option<String>> {
        Ok(self.rows(query, params).await?.into_iter().next())
    }
}

/// How long a connection that went silent is believed in, where the system can be told.
const SILENCE: Duration = Duration::from_secs(30);

/// Connections for a program that runs on. Nothing is connected yet.
pub(crate) fn pool(
    mut address: Address,
    name: &str,
    size: usize,
    timeout: Duration,
) -> Result<Pool> {
    if address.get_application_name().is_none() {
        address.application_name(name);
    }
    if address.get_connect_timeout().is_none() {
        address.connect_timeout(timeout);
    }
    if address.get_tcp_user_timeout().is_none() {
        address.tcp_user_timeout(SILENCE);
    }
    let manager = match address.get_ssl_mode() {
        SslMode::Require => Manager::new(address, crate::tls::connector()?),
        _ => Manager::new(address, NoTls),
    };
    Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(timeout))
        .create_timeout(Some(timeout))
        .recycle_timeout(Some(timeout))
        .build()
        .map_err(|error| {
            Trouble::new(
                exit::FAILED,
                format!("no pool could be made: {error}"),
                "Please report it.",
            )
        })
}

/// The address of a database, from a variable of the environment.
pub(crate) fn address_in_variable(name: &str) -> Result<Address> {
    let found = std::env::var(name).ok().filter(|url| !url.is_empty());
    let found = found.ok_or_else(|| "it is not set".to_owned());
    address(found, &format!("the variable {name}"))
}

/// The address of a database, from a file with nothing else in it.
pub(crate) fn address_in_file(file: &Path) -> Result<Address> {
    let found = std::fs::read_to_string(file).map_err(|error| error.to_string());
    address(found, &format!("the file {}", file.display()))
}

fn address(found: std::result::Result<String, String>, place: &str) -> Result<Address> {
    let unreadable = |why: String| {
        Trouble::new(
            exit::USAGE,
            format!("the address of the database cannot be read from {place}: {why}"),
            "Put postgres://user:password@host:5432/database there; `database` in the file says where it is looked for.",
        )
    };
    let url = found.map_err(unreadable)?;
    // The error's own text names the part that is wrong, never the address, which has the password.
    url.trim()
        .parse()
        .map_err(|error: tokio_postgres::Error| unreadable(error.to_string()))
}
