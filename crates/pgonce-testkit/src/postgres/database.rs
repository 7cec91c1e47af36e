use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    sync::{Mutex as AsyncMutex, OnceCell},
    time::sleep,
};
use tokio_postgres::{Client, error::SqlState};

use super::{Postgres, url};
use crate::{Error, Result, wait::connect};

const IN_USE_PATIENCE: Duration = Duration::from_secs(20);

/// What a server knows about its databases. No connection is kept: tests that
/// share a server each have a runtime of their own.
#[derive(Debug)]
pub(super) struct Databases {
    port: u16,
    templates: Mutex<HashMap<String, Arc<OnceCell<()>>>>,
    made: AtomicU64,
    discarded: Arc<Mutex<Vec<String>>>,
    // PostgreSQL refuses to copy a template that is being copied already.
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
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address, for the superuser.
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
    /// address and fills it. Only the first call of a name does anything; calls
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
        let name = format!("{template}_{number}");
        let client = connect(&self.url()).await?;
        let _turn = self.databases.one_at_a_time.lock().await;
        self.remove_discarded(&client).await?;
        copy(&client, &name, template).await?;
        Ok(self.database(name, true))
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
        let quoted = quoted(name);
        {
            let client = connect(&self.url()).await?;
            let _turn = self.databases.one_at_a_time.lock().await;
            // A setup that failed or was cancelled has left its half behind.
            remove(&client, name).await?;
            copy(&client, name, "template1").await?;
        }
        setup(self.url_for(name))
            .await
            .map_err(|error| Error::Template {
                name: name.to_owned(),
                source: error.into(),
            })?;
        let client = connect(&self.url()).await?;
        client
            .batch_execute(&format!("alter database {quoted} allow_connections false"))
            .await?;
        client
            .execute(
                "select pg_catalog.pg_terminate_backend(pid)
                 from pg_catalog.pg_stat_activity where datname = $1",
                &[&name],
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
            remove(client, &name).await?;
        }
    }
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
    let statement = format!(
        "create database {} template {}",
        quoted(name),
        quoted(template)
    );
    let deadline = Instant::now() + IN_USE_PATIENCE;
    loop {
        match client.batch_execute(&statement).await {
            // Sessions that were told to end need a moment for it.
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
