//! An empty database to migrate, and ways to look at what came of it.

use std::process::Command;

use deadpool_postgres::{Manager, Pool};
use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;
use pgonce_testkit::{Database, Postgres, shared};
use tokio_postgres::{Client, NoTls};

pub(super) struct TestDb {
    pub(super) server: &'static Postgres,
    pub(super) database: Database,
    pub(super) client: Client,
}

impl TestDb {
    pub(super) async fn new() -> Self {
        Self::on(shared(None).await.unwrap()).await
    }

    pub(super) async fn on(server: &'static Postgres) -> Self {
        let nothing = async |_: String| Ok::<(), std::io::Error>(());
        server.template("empty", nothing).await.unwrap();
        let database = server.database_from("empty").await.unwrap();
        let client = connect(&database.url()).await;
        Self {
            server,
            database,
            client,
        }
    }

    pub(super) fn migrator(&self) -> Migrator<TokioPostgres> {
        Migrator::new(tokio_driver(&self.database.url()))
    }

    pub(super) fn sqlx_migrator(&self) -> Migrator<Sqlx> {
        Migrator::new(sqlx_driver(&self.database.url()))
    }

    pub(super) async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    pub(super) async fn text(&self, sql: &str) -> String {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Everything that pg_dump sees, and the ledger.
    pub(super) async fn dump(&self, schema: &str) -> String {
        let dump = self.program("pg_dump", &["--schema-only", "--schema", schema]);
        // Newer versions of pg_dump put a random word at both ends.
        let lines = dump
            .lines()
            .filter(|line| !line.starts_with(r"\restrict") && !line.starts_with(r"\unrestrict"));
        let dump: String = lines.map(|line| format!("{line}\n")).collect();
        let ledger = format!(
            "select coalesce(string_agg(concat_ws(' ', number, name, checksum, breaking), '; ' order by number), '') || \
             (select string_agg(checksum || ' ' || version, '; ') from {schema}.routines) from {schema}.migration"
        );
        dump + &self.text(&ledger).await
    }

    pub(super) fn program(&self, name: &str, args: &[&str]) -> String {
        let program = self.server.binaries().program(name).unwrap_or_else(|| {
            panic!(
                "{} has no `{name}`: install PostgreSQL's client programs beside the server, \
                 or set PGONCE_PG_BIN to a folder that has them",
                self.server.binaries().folder().display()
            )
        });
        let output = Command::new(program)
            .args(args)
            .arg(self.database.url())
            .output()
            .unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name} {args:?}: {complaint}");
        String::from_utf8(output.stdout).unwrap()
    }
}

pub(super) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(super) fn tokio_driver(url: &str) -> TokioPostgres {
    let manager = Manager::new(url.parse().unwrap(), NoTls);
    TokioPostgres::new(Pool::builder(manager).max_size(2).build().unwrap())
}

pub(super) fn sqlx_driver(url: &str) -> Sqlx {
    Sqlx::new(sqlx::PgPool::connect_lazy(url).unwrap())
}
