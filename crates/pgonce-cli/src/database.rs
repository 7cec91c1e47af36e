//! The database that a command works on.

use std::path::Path;
use std::time::Duration;

use deadpool_postgres::{Pool, Runtime};
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::driver::{Connection as _, Driver as _, Param, Session as _, Statement, read_only};
use pgonce::migrate::{self, Migrator};

pub(crate) use crate::address::Address;
use crate::exit::{self, CliError, Result};
use crate::output::{Format, Shown};

/// Which database, which schema, and how results are shown: options of every command.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Target {
    /// Address of the database, such as postgres://user:password@host/database. Default: PGHOST, PGUSER and so on.
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
    pub(crate) shown: Shown,
}

impl Target {
    pub(crate) fn format(&self) -> Format {
        self.shown.format()
    }

    /// The address as it was given, by flag or variable.
    pub(crate) fn given_url(&self) -> Option<&str> {
        self.database_url.as_deref().filter(|url| !url.is_empty())
    }

    /// The same with another address.
    pub(crate) fn elsewhere(&self, url: &str) -> Self {
        Self {
            database_url: Some(url.to_owned()),
            ..self.clone()
        }
    }

    /// Whether an address was given, by flag or variable.
    #[cfg(feature = "embedded")]
    pub(crate) fn is_given(&self) -> bool {
        let named = self
            .database_url
            .as_deref()
            .is_some_and(|url| !url.is_empty());
        named || Address::from_variables().is_some()
    }

    /// The TCP port that it connects to, where there is one.
    pub(crate) fn port(&self) -> Option<u16> {
        let given = self.database_url.as_deref().filter(|url| !url.is_empty());
        let address = match given {
            Some(url) => Address::parse(url),
            None => Address::from_variables()?,
        };
        Some(
            address
                .ok()?
                .config
                .get_ports()
                .first()
                .copied()
                .unwrap_or(5432),
        )
    }

    /// Its address, and the schema that pgonce is in.
    pub(crate) fn address(self) -> Result<(Address, String)> {
        let given = self.database_url.filter(|url| !url.is_empty());
        let read = match given {
            Some(url) => Address::parse(&url),
            None => Address::from_variables().ok_or_else(|| {
                CliError::new(
                    exit::USAGE,
                    "no database was given",
                    "Give --database-url postgres://user:password@host/database, or set DATABASE_URL, or PGHOST and PGDATABASE.",
                )
            })?,
        };
        let address = read.map_err(|why| {
            CliError::new(
                exit::USAGE,
                format!("the address of the database cannot be read: {why}"),
                "Write postgres://user:password@host:5432/database; escape special characters of the password as %XX.",
            )
        })?;
        Ok((address, self.schema))
    }

    /// The database, whatever is in it.
    pub(crate) fn database(self) -> Result<Database> {
        let format = self.shown.format();
        let (mut address, schema) = self.address()?;
        let config = &mut address.config;
        if config.get_application_name().is_none() {
            config.application_name("pgonce");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(10));
        }
        let pool = Pool::builder(address.manager()?).max_size(1).build();
        Ok(Database {
            driver: TokioPostgres::new(pool.map_err(no_pool)?),
            schema,
            format,
        })
    }

    /// The database, if pgonce is in it and this program can read it. One that is merely older is
    /// good enough to be looked at.
    pub(crate) async fn installed(self) -> Result<Database> {
        let database = self.database()?;
        match database.migrator().check().await {
            Err(error)
                if [
                    migrate::OUTDATED,
                    migrate::CHANGED,
                    migrate::HALF_DISTRIBUTED,
                ]
                .contains(&error.code()) =>
            {
                Ok(database)
            }
            Err(error) => Err(error.into()),
            Ok(()) => Ok(database),
        }
    }
}

/// Not `read write`: a standby may be looked at.
const BEGIN: &str = "begin isolation level read committed";

/// How a transaction begins in which no name or operator is looked for among strangers' objects: the texts of
/// this program name those of PostgreSQL without their schema, and anybody who may create objects in a schema of the
/// caller's `search_path` could put others in their place. For one transaction only, so that nothing leaks
/// through a pooler. What users name (a table, a function) is resolved elsewhere, on their own path.
fn pinned(begin: &str) -> String {
    format!(
        "{begin}; set local search_path = pg_catalog, pg_temp; set local standard_conforming_strings = on"
    )
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

    fn statement(&self, query: &str) -> Statement {
        let query = query.replace("pgonce.", &format!("{}.", self.schema));
        Statement {
            sql: format!(
                "select {}._readable(row_to_json(q)::text) from ({query}) q",
                self.schema
            )
            .into(),
            keep: false,
            pooled: false,
        }
    }

    /// As [`Database::rows`], for a list. It goes by the order of an index and ends early: a bitmap would read all of a large scope,
    /// lane or queue first, and to compile the query takes longer than to run it.
    pub(crate) async fn list(&self, query: &str, params: &[Option<&str>]) -> Result<Vec<String>> {
        let params: Vec<Param<'_>> = params.iter().copied().map(Param::Text).collect();
        let settings = "set local enable_bitmapscan = off; set local jit = off";
        Ok(read_only(&self.driver, settings, &self.statement(query), &params).await?)
    }

    /// As [`Database::rows`], for all that only looks, also before an act and by `--dry-run`: where the connection breaks, nothing was done.
    pub(crate) async fn read(&self, query: &str, params: &[Option<&str>]) -> Result<Vec<String>> {
        let params: Vec<Param<'_>> = params.iter().copied().map(Param::Text).collect();
        let settings = "set local jit = off";
        Ok(read_only(&self.driver, settings, &self.statement(query), &params).await?)
    }

    /// As [`Database::read`], the first row.
    pub(crate) async fn read_row(
        &self,
        query: &str,
        params: &[Option<&str>],
    ) -> Result<Option<String>> {
        Ok(self.read(query, params).await?.into_iter().next())
    }

    /// As [`Database::read`], for a statement that answers one number, as `n`.
    pub(crate) async fn read_count(&self, query: &str, params: &[Option<&str>]) -> Result<u64> {
        number(self.read_row(query, params).await?)
    }

    /// As [`Database::read_row`], how it is after an act that has committed.
    pub(crate) async fn read_after_act(
        &self,
        query: &str,
        params: &[Option<&str>],
    ) -> Result<Option<String>> {
        let row = self.read_row(query, params).await;
        row.map_err(CliError::after_act)
    }

    /// Runs an act, a statement that is written for the schema `pgonce`, and commits it; every row as a JSON object. The
    /// name of the schema was checked by [`Target::installed`]. An act is recorded with the [`person`], who is named
    /// for this transaction only: behind a pooler the next one may be another's.
    pub(crate) async fn rows(&self, query: &str, params: &[Option<&str>]) -> Result<Vec<String>> {
        let statement = self.statement(query);
        let params: Vec<Param<'_>> = params.iter().copied().map(Param::Text).collect();
        let mut session = self.driver.acquire().await?;
        session.open(&pinned(BEGIN)).await?;
        let named = session
            .query(&name_person(true), &[Param::Text(Some(&person()))])
            .await;
        let done = match named {
            Ok(_) => session.query(&statement, &params).await,
            Err(error) => Err(error),
        };
        let rows = match done {
            Ok(rows) => rows,
            Err(error) => {
                if session.rollback().await.is_ok() {
                    session.keep();
                }
                return Err(error.into());
            }
        };
        // Without its reply nobody knows: an act may be done.
        let committed = session.batch("commit").await;
        committed.map_err(pgonce::retry::in_commit)?;
        session.keep();
        Ok(rows
            .into_iter()
            .filter_map(|row| row.into_iter().next().flatten())
            .collect())
    }

    /// Names the [`person`] for what the SDK does on the one connection of this database, for as long as that lives. Only
    /// for commands of the owner, which need a connection of their own anyway.
    pub(crate) async fn name_person(&self) -> Result {
        let mut session = self.driver.acquire().await?;
        session
            .query(&name_person(false), &[Param::Text(Some(&person()))])
            .await?;
        session.keep();
        Ok(())
    }

    /// Whether Citus distributes pgonce's tables.
    pub(crate) async fn is_distributed(&self) -> Result<bool> {
        let query = "select to_regclass('pgonce.tenant_epoch') is not null as distributed";
        let row = self.read_row(query, &[]).await?.unwrap_or_default();
        Ok(row.contains("true"))
    }

    /// As [`Database::rows`], for an act that answers one number, as `n`.
    pub(crate) async fn count(&self, query: &str, params: &[Option<&str>]) -> Result<u64> {
        number(self.row(query, params).await?)
    }

    /// An error with exit code 7, unless the query answers that the name is known.
    pub(crate) async fn require(
        &self,
        known: &str,
        params: &[Option<&str>],
        unknown: impl FnOnce() -> CliError,
    ) -> Result {
        let query = format!("select 1 as known where {known}");
        match self.list(&query, params).await?.is_empty() {
            true => Err(unknown()),
            false => Ok(()),
        }
    }

    /// Whether this role sees every intent and event, apart from those of other tenants. A role with the part app may read the tables,
    /// and sees only the rows of a key that it has named: the policies that let a role read all have no condition.
    pub(crate) async fn sees_intents(&self) -> Result<bool> {
        let query = "select 1 as n where not row_security_active('pgonce.intent') or exists (select from pg_policy p \
             where p.polrelid = 'pgonce.intent'::regclass and p.polpermissive and p.polcmd in ('r', '*') \
               and pg_get_expr(p.polqual, p.polrelid) = 'true' \
               and exists (select from unnest(p.polroles) r where r = 0 or pg_has_role(r, 'usage')))";
        Ok(self.read_row(query, &[]).await?.is_some())
    }

    /// An error with exit code 8, unless [`Database::sees_intents`]: that no row was found would say nothing.
    pub(crate) async fn require_intents(&self) -> Result {
        match self.sees_intents().await? {
            true => Ok(()),
            false => Err(CliError::new(
                exit::NOT_ALLOWED,
                "this role does not see the intents and events of others",
                "Do it as the schema's owner, or let the owner grant this role the part operator: \
                 `pgonce migrate up --grant operator=ROLE`.",
            )),
        }
    }

    /// As [`Database::rows`], the first of them.
    pub(crate) async fn row(&self, query: &str, params: &[Option<&str>]) -> Result<Option<String>> {
        Ok(self.rows(query, params).await?.into_iter().next())
    }
}

fn number(row: Option<String>) -> Result<u64> {
    let row: serde_json::Value = serde_json::from_str(&row.unwrap_or_default())?;
    Ok(row["n"].as_u64().unwrap_or_default())
}

/// The user of the operating system, as far as the environment says.
pub(crate) fn person() -> String {
    let names = ["SUDO_USER", "USER", "LOGNAME"];
    let found = names.iter().find_map(|name| std::env::var(name).ok());
    found.unwrap_or_else(|| "unknown".to_owned())
}

/// Says who acts: what records acts reads it.
fn name_person(in_transaction: bool) -> Statement {
    Statement {
        sql: format!("select pg_catalog.set_config('pgonce.person', $1, {in_transaction})").into(),
        keep: false,
        pooled: false,
    }
}

/// Maximum time without a sign of life on a connection, where the system supports it.
const SILENCE: Duration = Duration::from_secs(30);

/// Connections for a program that runs on. Nothing is connected yet.
pub(crate) fn pool(
    mut address: Address,
    name: &str,
    size: usize,
    timeout: Duration,
) -> Result<Pool> {
    let config = &mut address.config;
    if config.get_application_name().is_none() {
        config.application_name(name);
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(timeout);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE);
    }
    // The limit above is for what was sent and not acknowledged; who only waits for a reply learns by probes that the other
    // side is gone. Two hours are the default of the system.
    if config.get_keepalives_idle() == tokio_postgres::Config::new().get_keepalives_idle() {
        config.keepalives_idle(SILENCE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(SILENCE / 3);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(3);
    }
    Pool::builder(address.manager()?)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(timeout))
        .create_timeout(Some(timeout))
        .recycle_timeout(Some(timeout))
        .build()
        .map_err(no_pool)
}

fn no_pool(error: deadpool_postgres::BuildError) -> CliError {
    CliError::new(
        exit::FAILED,
        format!("no pool could be made: {error}"),
        "Please report it.",
    )
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
        CliError::new(
            exit::USAGE,
            format!("the address of the database cannot be read from {place}: {why}"),
            "Put postgres://user:password@host:5432/database there; `database` in the file says where it is looked for.",
        )
    };
    let url = found.map_err(unreadable)?;
    Address::parse(&url).map_err(unreadable)
}
