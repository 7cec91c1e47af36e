//! The server that is measured: a private one, or one that the user names.

use std::sync::Mutex;

use deadpool_postgres::{Manager, Pool};
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;
use pgonce_testkit::{DelayProxy, Postgres};
use serde_json::{Map, Value, json};
use tokio_postgres::{Client, NoTls};

use super::business::TABLES;
use super::rounds::Plan;
use super::{Args, Result};

/// What a private server gets. Nothing may start in the middle of one side's turn: no checkpoint,
/// no autovacuum.
const SETTINGS: [(&str, &str); 8] = [
    ("shared_buffers", "1GB"),
    ("max_wal_size", "8GB"),
    ("min_wal_size", "2GB"),
    ("checkpoint_timeout", "1h"),
    ("maintenance_work_mem", "512MB"),
    ("autovacuum", "off"),
    ("log_lock_waits", "off"),
    ("wal_compression", "off"),
];

/// Settings that change what is measured, for the record.
const TELLING: [&str; 9] = [
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "autovacuum",
];

#[derive(Debug)]
pub(super) struct Server {
    url: Url,
    private: Option<Postgres>,
    scratch: Mutex<Vec<String>>,
}

impl Server {
    pub(super) async fn start(args: &Args) -> Result<Self> {
        let (url, private) = match &args.server {
            Some(url) => (url.clone(), None),
            None => {
                let mut builder =
                    Postgres::builder().setting("fsync", if args.fsync { "on" } else { "off" });
                for (name, value) in SETTINGS {
                    builder = builder.setting(name, value);
                }
                let server = builder.start().await?;
                (server.url(), Some(server))
            }
        };
        Ok(Self {
            url: Url::parse(&url)?,
            private,
            scratch: Mutex::default(),
        })
    }

    /// A new database with pgonce and the tables of the business. Gives its address.
    pub(super) async fn database(&self, purpose: &str) -> Result<String> {
        let name = format!("pgonce_bench_{}_{purpose}", std::process::id());
        let admin = connect(&self.url.text()).await?;
        admin
            .batch_execute(&format!("create database {name}"))
            .await?;
        if let Ok(mut scratch) = self.scratch.lock() {
            scratch.push(name.clone());
        }
        let url = self.url.database(&name).text();
        install(&url).await?;
        connect(&url).await?.batch_execute(TABLES).await?;
        Ok(url)
    }

    /// The server's own database.
    pub(super) fn address(&self) -> String {
        self.url.text()
    }

    /// Removes a database again.
    pub(super) async fn remove(&self, url: &str) -> Result<()> {
        let name = Url::parse(url)?.name;
        let admin = connect(&self.url.text()).await?;
        Ok(admin
            .batch_execute(&format!("drop database if exists {name} with (force)"))
            .await?)
    }

    /// A wire of some length in front of the server, and the database's address through it.
    pub(super) fn through_wire(
        &self,
        url: &str,
        delay: std::time::Duration,
    ) -> Result<(DelayProxy, String)> {
        let mut url = Url::parse(url)?;
        let target = if url.host.contains(':') {
            url.host.clone()
        } else {
            format!("{}:5432", url.host)
        };
        let proxy = DelayProxy::start(target, delay)?;
        url.host = proxy.addr().to_string();
        Ok((proxy, url.text()))
    }

    /// Whether it was started here.
    pub(super) fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// Changes a setting of the whole private server; one that belongs to somebody is left as it
    /// is. Answers whether it was done.
    pub(super) async fn set(&self, name: &str, value: &str) -> Result<bool> {
        if self.private.is_none() {
            return Ok(false);
        }
        let admin = connect(&self.url.text()).await?;
        admin
            .batch_execute(&format!("alter system set {name} = {value}"))
            .await?;
        admin.batch_execute("select pg_reload_conf()").await?;
        loop {
            let now = connect(&self.url.text())
                .await?
                .query_one(&format!("show {name}"), &[])
                .await?;
            if now.try_get::<_, &str>(0)? == value {
                return Ok(true);
            }
            tokio::task::yield_now().await;
        }
    }

    pub(super) async fn facts(&self, args: &Args, plan: &Plan) -> Result<Value> {
        let admin = connect(&self.url.text()).await?;
        let mut settings = Map::new();
        for name in TELLING {
            let row = admin.query_one(&format!("show {name}"), &[]).await?;
            settings.insert(name.to_owned(), row.try_get::<_, &str>(0)?.into());
        }
        Ok(json!({
            "server": if self.private.is_some() { "private, over loopback" } else { "given by --database-url" },
            "settings": settings,
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            "build": if cfg!(debug_assertions) { "debug" } else { "release" },
            "version": env!("CARGO_PKG_VERSION"),
            "commit": args.commit.as_deref().unwrap_or("not given"),
            "seed": args.seed,
            "connections": plan.connections,
            "rounds": plan.rounds,
            "turn_ms": u64::try_from(plan.turn.as_millis())?,
            "method": "sides take turns in random order; medians of the ratios of each round",
            "pools": "deadpool (fast recycling), sqlx (no ping before use), for every side",
        }))
    }

    /// Leaves nothing behind.
    pub(super) async fn end(self) -> Result<()> {
        if self.private.is_none() {
            let scratch = self
                .scratch
                .lock()
                .map(|mut names| std::mem::take(&mut *names))
                .unwrap_or_default();
            let admin = connect(&self.url.text()).await?;
            for name in scratch {
                admin
                    .batch_execute(&format!("drop database if exists {name} with (force)"))
                    .await?;
            }
        }
        Ok(())
    }
}

/// Installs pgonce as the user of the address, who then owns it.
pub(super) async fn install(url: &str) -> Result<()> {
    let pool = Pool::builder(Manager::new(url.parse()?, NoTls))
        .max_size(1)
        .build()?;
    Migrator::new(TokioPostgres::new(pool)).up().await?;
    Ok(())
}

/// A connection of its own, outside all pools.
pub(super) async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // Ends with the client.
    tokio::spawn(connection);
    Ok(client)
}

/// The address of a database, in parts that can be exchanged.
#[derive(Debug, Clone)]
struct Url {
    /// Scheme and user.
    before: String,
    host: String,
    name: String,
    /// Parameters.
    after: String,
}

impl Url {
    fn parse(url: &str) -> Result<Self> {
        // It may have a password in it, and is not repeated.
        let wrong = || "this is not an address like postgres://user@host:5432/database";
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let (authority, rest) = rest.split_once('/').ok_or_else(wrong)?;
        let (user, host) = authority
            .rsplit_once('@')
            .map_or(("", authority), |(user, host)| (user, host));
        let (name, after) = rest.find('?').map_or((rest, ""), |at| rest.split_at(at));
        let at = if user.is_empty() { "" } else { "@" };
        Ok(Self {
            before: format!("{scheme}://{user}{at}"),
            host: host.to_owned(),
            name: name.to_owned(),
            after: after.to_owned(),
        })
    }

    fn database(&self, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..self.clone()
        }
    }

    fn text(&self) -> String {
        format!("{}{}/{}{}", self.before, self.host, self.name, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_being_taken_apart() {
        for url in [
            "postgres://me:se@cret@db.example:6000/shop?sslmode=disable",
            "postgresql://localhost/shop",
        ] {
            assert_eq!(Url::parse(url).unwrap().text(), url);
        }
        let other = Url::parse("postgres://me@h:1/shop?a=b")
            .unwrap()
            .database("x");
        assert_eq!(other.text(), "postgres://me@h:1/x?a=b");
    }
}
