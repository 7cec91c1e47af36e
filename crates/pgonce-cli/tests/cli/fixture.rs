//! A database to try the program on, and what the program said.

use std::process::{Command, Output, Stdio};

use pgonce_testkit::{Database, Postgres, shared};
use serde_json::Value;
use tokio_postgres::{Client, NoTls};

pub(crate) struct Fixture {
    pub(crate) server: &'static Postgres,
    pub(crate) database: Database,
    pub(crate) client: Client,
}

impl Fixture {
    /// An empty database.
    pub(crate) async fn empty() -> Self {
        Self::from("empty", async |_| {}).await
    }

    /// With pgonce in it, which the program installs once for all tests.
    pub(crate) async fn installed() -> Self {
        let migrate = async |url: String| {
            let output = program(&["migrate", "up"])
                .env("DATABASE_URL", url)
                .output();
            let run = Run::of(output.unwrap());
            assert_eq!(run.code, 0, "{run:?}");
        };
        Self::from("installed", migrate).await
    }

    async fn from(template: &str, setup: impl AsyncFnOnce(String)) -> Self {
        let server = shared(None).await.unwrap();
        let setup = async |url: String| {
            setup(url).await;
            Ok::<(), std::io::Error>(())
        };
        server.template(template, setup).await.unwrap();
        let database = server.database_from(template).await.unwrap();
        let (client, connection) = tokio_postgres::connect(&database.url(), NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        Self {
            server,
            database,
            client,
        }
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = program(args);
        command.env("DATABASE_URL", self.database.url());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        Run::of(self.command(args).output().unwrap())
    }

    /// Runs it with a standard output whose reader has gone.
    pub(crate) fn run_unread(&self, args: &[&str]) -> Run {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Run::of(self.command(args).stdout(writer).output().unwrap())
    }

    #[track_caller]
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let run = self.run(args);
        assert_eq!(run.code, 0, "{args:?}: {run:?}");
        run.out
    }

    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let args = [args, &["--format", "json"]].concat();
        serde_json::from_str(&self.ok(&args)).unwrap()
    }

    pub(crate) async fn sql(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }
}

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Run {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

pub(crate) fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgonce"));
    command
        .args(args)
        .env_remove("DATABASE_URL")
        .env_remove("PGONCE_SCHEMA")
        .env_remove("PGONCE_WAL")
        .env_remove("COLUMNS")
        .env_remove("NO_COLOR")
        .env("HOME", "/nonexistent")
        .stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("PG") && !name.starts_with("PGONCE"))
        {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) fn without_database(args: &[&str]) -> Run {
    Run::of(program(args).output().unwrap())
}
