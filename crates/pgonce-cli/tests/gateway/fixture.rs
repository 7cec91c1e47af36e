//! A database, gateways in front of services, and what they said.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgonce_testkit::{Database, shared, wait_until};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio_postgres::NoTls;

/// Long enough for a loaded machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A database with pgonce in it.
pub(crate) struct Fixture {
    pub(crate) database: Database,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let server = shared(None).await.unwrap();
        server
            .template("gateway", async |url: String| {
                let output = program(&["migrate", "up"])
                    .env("DATABASE_URL", url)
                    .output()
                    .await?;
                assert!(output.status.success(), "{output:?}");
                Ok::<(), std::io::Error>(())
            })
            .await
            .unwrap();
        Self {
            database: server.database_from("gateway").await.unwrap(),
        }
    }

    pub(crate) async fn gateway(&self, config: &str) -> Gateway {
        Gateway::start(config, &self.database.url()).await
    }

    /// Runs the program on the database to its end.
    pub(crate) async fn run(&self, args: &[&str]) -> RunOutput {
        RunOutput::of(
            program(args)
                .env("DATABASE_URL", self.database.url())
                .output()
                .await
                .unwrap(),
        )
    }

    pub(crate) async fn sql(&self, sql: &str) -> Vec<String> {
        let (client, connection) = tokio_postgres::connect(&self.database.url(), NoTls)
            .await
            .unwrap();
        let connection = tokio::spawn(connection);
        let rows = client.simple_query(sql).await.unwrap();
        drop(client);
        connection.await.unwrap().unwrap();
        let cell = |message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => {
                Some(row.get(0).unwrap_or("").to_owned())
            }
            _ => None,
        };
        rows.into_iter().filter_map(cell).collect()
    }
}

pub(crate) fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgonce"));
    command
        .args(args)
        .env_remove("DATABASE_URL")
        .env_remove("PGONCE_SCHEMA")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

#[derive(Debug)]
pub(crate) struct RunOutput {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl RunOutput {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// A configuration in a folder of its own.
pub(crate) fn file(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

/// The usual configuration in front of one service, and where more can be said.
#[derive(Default)]
pub(crate) struct Setup<'a> {
    pub(crate) listen: &'a str,
    pub(crate) database: &'a str,
    pub(crate) upstream: &'a str,
    pub(crate) scope: &'a str,
    pub(crate) once: &'a str,
}

impl Setup<'_> {
    /// `POST /orders` and `POST /orders/{id}/pay` happen once, everything else passes.
    pub(crate) fn in_front_of(&self, url: &str) -> String {
        let Self {
            listen,
            database,
            upstream,
            scope,
            once,
        } = self;
        let principal = if once.contains("principal") {
            ""
        } else {
            "principal = \"none\""
        };
        let route = |path: &str| {
            format!(
                "[[routes]]\npath = \"{path}\"\nmethods = [\"POST\"]\nupstream = \"u\"\n\
                 [routes.once]\nscope = \"orders.create\"\n{principal}\n{once}\n"
            )
        };
        format!(
            "[listen]\naddress = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n{listen}\n[database]\n{database}\n\
             [upstreams.u]\nurl = \"{url}\"\n{upstream}\n[scopes.\"orders.create\"]\nretention = \"1d\"\n{scope}\n\
             {}{}[[routes]]\npath = \"/{{*rest}}\"\nupstream = \"u\"\n",
            route("/orders"),
            route("/orders/{id}/pay"),
        )
    }
}

/// A running gateway. Dropped, it is killed.
pub(crate) struct Gateway {
    pub(crate) child: Child,
    pub(crate) url: String,
    pub(crate) admin: String,
    log: Arc<Mutex<String>>,
    folder: TempDir,
}

impl Gateway {
    pub(crate) async fn start(config: &str, database: &str) -> Self {
        Self::start_with(config, &[("DATABASE_URL", database)]).await
    }

    pub(crate) async fn start_with(config: &str, variables: &[(&str, &str)]) -> Self {
        let (folder, path) = file(config);
        let mut child = program(&["gateway", "--format", "json", path.to_str().unwrap()])
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (mut errors, kept) = (child.stderr.take().unwrap(), log.clone());
        tokio::spawn(async move {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = errors.read(&mut piece).await {
                kept.lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&piece[..length]));
            }
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = tokio::time::timeout(TIMEOUT, lines.next_line())
            .await
            .unwrap()
            .unwrap();
        let Some(first) = first else {
            let ended = child.wait().await.unwrap();
            panic!(
                "the gateway did not start ({ended}): {}\n{config}",
                log.lock().unwrap()
            );
        };
        let first: Value = serde_json::from_str(&first).unwrap();
        let url = |field: &str| format!("http://{}", first[field].as_str().unwrap());
        Self {
            child,
            url: url("address"),
            admin: url("admin"),
            log,
            folder,
        }
    }

    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// Its configuration.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("gateway.toml")
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal)
            .unwrap();
    }

    /// Waits for its end and gives the exit code.
    pub(crate) async fn end(&mut self) -> i32 {
        tokio::time::timeout(TIMEOUT, self.child.wait())
            .await
            .unwrap()
            .unwrap()
            .code()
            .unwrap()
    }

    pub(crate) async fn order(&self, key: &str) -> Answer {
        self.try_order(key).await.unwrap()
    }

    /// As [`Gateway::order`], where no answer may come.
    pub(crate) async fn try_order(&self, key: &str) -> reqwest::Result<Answer> {
        self.send("/orders", &[("idempotency-key", key)], r#"{"item":"book"}"#)
            .await
    }

    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.send(path, headers, body).await.unwrap()
    }

    async fn send(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> reqwest::Result<Answer> {
        let mut request = client()
            .post(format!("{}{path}", self.url))
            .body(body.to_owned());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Ok(Answer::of(
            request
                .header("content-type", "application/json")
                .send()
                .await?,
        )
        .await)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        get(&format!("{}{path}", self.url)).await
    }

    /// What `/readyz` answers, or `/healthz`.
    pub(crate) async fn health(&self, path: &str) -> (u16, String) {
        let answer = get(&format!("{}{path}", self.admin)).await;
        (
            answer.status,
            answer.json()["status"].as_str().unwrap_or("").to_owned(),
        )
    }

    /// Sends the order again until the answer is another than "under way".
    pub(crate) async fn order_until_settled(&self, key: &str) -> Answer {
        let last = Mutex::new(None);
        wait_until("the claim to run out", TIMEOUT, || async {
            let answer = self.order(key).await;
            let settled = answer.status != 409;
            *last.lock().unwrap() = Some(answer);
            settled
        })
        .await
        .unwrap();
        last.into_inner().unwrap().unwrap()
    }
}

/// A client without proxies from the environment.
pub(crate) fn client() -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .timeout(TIMEOUT)
        .build()
        .unwrap()
}

pub(crate) async fn get(url: &str) -> Answer {
    Answer::of(client().get(url).send().await.unwrap()).await
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) async fn of(response: reqwest::Response) -> Self {
        Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.bytes().await.unwrap().to_vec(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The code of a problem document.
    pub(crate) fn code(&self) -> String {
        let kind = self
            .headers
            .get("content-type")
            .map(|kind| kind.to_str().unwrap());
        assert_eq!(kind, Some("application/problem+json"), "{self:?}");
        self.json()["code"].as_str().unwrap().to_owned()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}
