use std::{
    collections::HashMap,
    env,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::process::Pid;
use tokio::{
    sync::{Mutex as AsyncMutex, OnceCell},
    time::sleep,
};
use tokio_postgres::{Client, error::SqlState};

use super::{Postgres, url};
use crate::{Error, Result, process, wait::connect};

const IN_USE_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum time for the removal of a database that nobody uses any more. It waits for every session of the server.
const REMOVE_TIMEOUT: &str = "set statement_timeout = '10s'";

/// What a server knows about its databases. No connection is kept: tests that
/// share a server each have a runtime of their own.
#[derive(Debug)]
pub(super) struct Databases {
    port: u16,
    templates: Mutex<HashMap<String, Arc<OnceCell<()>>>>,
    made: AtomicU64,
    discarded: Arc<Mutex<Vec<String>>>,
    // Copies of one template at the same time would only wait for each other.
    one_at_a_time: AsyncMutex<()>,
}

impl Databases {
    pub(super) fn new(port: u16) -> Self {
        Self {
            port,
            templates: Mutex::default(),
            made: AtomicU64::new(0),
            discarded: Arc::default(),
            one_at_a_time: AsyncMutex::new(()),
        }
    }
}

/// A database of a [`Postgres`].
///
/// One made by [`Postgres::database_from`] is discarded when this value is
/// dropped: the server removes it the next time that it makes another.
#[derive(Debug)]
pub struct Database {
    name: String,
    port: u16,
    discard_to: Option<Arc<Mutex<Vec<String>>>>,
}

impl Database {
    /// Name of the database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Address of the database, for the superuser.
    pub fn url(&self) -> String {
        url(self.port, &self.name)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(discarded) = &self.discard_to {
            let mut list = discarded.lock().unwrap_or_else(PoisonError::into_inner);
            list.push(std::mem::take(&mut self.name));
        }
    }
}

impl Postgres {
    /// Makes an empty database of this name, which stays as long as the server.
    pub async fn create_database(&self, name: &str) -> Result<Database> {
        let client = connect(&self.url()).await?;
        let _turn = self.databases.one_at_a_time.lock().await;
        copy(&client, name, "template1").await?;
        Ok(self.database(name.to_owned(), false))
    }

    /// Prepares a database of this name to make others from: `setup` gets its
    /// address and fills it. Only the first call of a name does anything, also
    /// over the processes of one test program that share a server; calls
    /// at the same time wait for it, and one after a failure tries anew. When
    /// `setup` is done, all connections to the template are closed and no more
    /// are let in.
    pub async fn template<F, E>(&self, name: &str, setup: impl FnOnce(String) -> F) -> Result<()>
    where
        F: Future<Output = Result<(), E>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let cell = {
            let templates = self.databases.templates.lock();
            let mut templates = templates.unwrap_or_else(PoisonError::into_inner);
            Arc::clone(templates.entry(name.to_owned()).or_default())
        };
        cell.get_or_try_init(|| self.prepare(name, setup))
            .await
            .copied()
    }

    /// A new database, a copy of `template`, with a name of its own.
    pub async fn database_from(&self, template: &str) -> Result<Database> {
        let number = self.databases.made.fetch_add(1, Ordering::Relaxed) + 1;
        let name = format!("{template}_{}_{number}", std::process::id());
        let client = connect(&self.url()).await?;
        let _turn = self.databases.one_at_a_time.lock().await;
        self.remove_discarded(&client).await?;
        remove_orphans(&client).await?;
        copy(&client, &name, &self.copied(&of_this_program(template))).await?;
        Ok(self.database(name, true))
    }

    /// A template and how it is copied: file by file, which takes half the time of writing every block to the WAL, where the
    /// version lets us choose (before 15 it is the only way).
    fn copied(&self, template: &str) -> String {
        let strategy = if self.major() >= 15 {
            " strategy file_copy"
        } else {
            ""
        };
        format!("{}{strategy}", quoted(template))
    }

    fn database(&self, name: String, discard: bool) -> Database {
        let list = &self.databases.discarded;
        Database {
            name,
            port: self.databases.port,
            discard_to: discard.then(|| Arc::clone(list)),
        }
    }

    async fn prepare<F, E>(&self, name: &str, setup: impl FnOnce(String) -> F) -> Result<()>
    where
        F: Future<Output = Result<(), E>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let template = of_this_program(name);
        // Held as long as this session: by one process at a time.
        let turn = connect(&self.url()).await?;
        turn.execute(
            "select pg_catalog.pg_advisory_lock(pg_catalog.hashtext($1))",
            &[&template],
        )
        .await?;
        let done = turn
            .query_opt(
                "select from pg_catalog.pg_database where datname = $1 and not datallowconn",
                &[&template],
            )
            .await?;
        if done.is_some() {
            return Ok(());
        }
        {
            let _turn = self.databases.one_at_a_time.lock().await;
            // A setup that failed or was cancelled has left its half behind.
            remove(&turn, &template).await?;
            copy(&turn, &template, "template1").await?;
        }
        setup(self.url_for(&template))
            .await
            .map_err(|error| Error::Template {
                name: name.to_owned(),
                source: error.into(),
            })?;
        let close = format!(
            "alter database {} allow_connections false",
            quoted(&template)
        );
        turn.batch_execute(&close).await?;
        turn.execute(
            "select pg_catalog.pg_terminate_backend(pid)
             from pg_catalog.pg_stat_activity where datname = $1",
            &[&template],
        )
        .await?;
        Ok(())
    }

    async fn remove_discarded(&self, client: &Client) -> Result<()> {
        loop {
            let next = {
                let list = self.databases.discarded.lock();
                list.unwrap_or_else(PoisonError::into_inner).pop()
            };
            let Some(name) = next else { return Ok(()) };
            remove_if_free(client, &name).await?;
        }
    }
}

/// The name of a template on the server. Programs that share the server may mean different things
/// by one name.
fn of_this_program(template: &str) -> String {
    let program = env::current_exe().unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    program.hash(&mut hasher);
    format!("{template}_{:08x}", hasher.finish() as u32)
}

/// Removes the databases of processes that have ended. A second one does nothing.
async fn remove_orphans(client: &Client) -> Result<()> {
    let first = "select pg_catalog.pg_try_advisory_lock(0, 0)";
    if !client.query_one(first, &[]).await?.get::<_, bool>(0) {
        return Ok(());
    }
    let names =
        "select datname::text from pg_catalog.pg_database where datname ~ '_[0-9]+_[0-9]+$'";
    for row in client.query(names, &[]).await? {
        let name: String = row.get(0);
        let maker = name.rsplit('_').nth(1).and_then(|pid| pid.parse().ok());
        if maker
            .and_then(Pid::from_raw)
            .is_some_and(|pid| !process::exists(pid))
        {
            remove_if_free(client, &name).await?;
        }
    }
    Ok(())
}

/// Removes a database, or leaves it to the end of the server: a session that does not answer must not stop the next test.
#[expect(
    clippy::print_stderr,
    reason = "shown where a test fails, to find the session that does not answer"
)]
async fn remove_if_free(client: &Client, name: &str) -> Result<()> {
    client.batch_execute(REMOVE_TIMEOUT).await?;
    let removed = remove(client, name).await;
    client.batch_execute("reset statement_timeout").await?;
    if let Err(error) = removed {
        let sessions = "select pg_catalog.string_agg(pg_catalog.concat_ws(' ', pid, datname, application_name, state, \
             wait_event_type, wait_event, pg_catalog.left(query, 60)), E'\\n') from pg_catalog.pg_stat_activity";
        let sessions: Option<String> = client.query_one(sessions, &[]).await?.get(0);
        eprintln!(
            "{name} was not removed: {error}; sessions:\n{}",
            sessions.unwrap_or_default()
        );
    }
    Ok(())
}

async fn remove(client: &Client, name: &str) -> Result<()> {
    let name = quoted(name);
    // A failed test may have left its connections open: they go as well.
    client
        .batch_execute(&format!("drop database if exists {name} with (force)"))
        .await?;
    Ok(())
}

async fn copy(client: &Client, name: &str, template: &str) -> Result<()> {
    let statement = format!("create database {} template {template}", quoted(name));
    let deadline = Instant::now() + IN_USE_TIMEOUT;
    loop {
        match client.batch_execute(&statement).await {
            // Sessions that are being ended need a moment for it.
            Err(error)
                if error.code() == Some(&SqlState::OBJECT_IN_USE) && Instant::now() < deadline =>
            {
                sleep(Duration::from_millis(5)).await;
            }
            other => return Ok(other?),
        }
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
