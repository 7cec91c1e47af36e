//! `pgonce serve` and its console, over HTTP and in a browser.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgonce_testkit::{Binaries, wait_until};
use reqwest::redirect::Policy;
use reqwest::{Client, Response};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::fixture::{Fixture, Run, program};

/// A process that serves, and where. It ends with this value.
pub(crate) struct Serving {
    child: Child,
    pub(crate) log: Arc<Mutex<String>>,
    pub(crate) url: String,
    pub(crate) http: Client,
}

impl Serving {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::<Mutex<String>>::default();
        let (lines, kept) = (BufReader::new(child.stderr.take().unwrap()), log.clone());
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                kept.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let said: Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("it said {line:?}"));
        Self {
            child,
            log,
            url: format!("http://{}", said["address"].as_str().unwrap()),
            http: Client::builder().redirect(Policy::none()).build().unwrap(),
        }
    }

    pub(crate) fn of(fixture: &Fixture, args: &[&str], tokens: &str) -> Self {
        let usual = ["serve", "--format", "json", "--listen", "127.0.0.1:0"];
        let mut command = fixture.command(&[&usual, args].concat());
        command.env("PGONCE_CONSOLE_TOKENS", tokens);
        Self::start(command)
    }

    pub(crate) async fn get(&self, path: &str, token: &str) -> Response {
        let mut request = self.http.get(format!("{}{path}", self.url));
        if !token.is_empty() {
            request = request.bearer_auth(token);
        }
        request.send().await.unwrap()
    }

    pub(crate) async fn text(&self, path: &str, token: &str) -> String {
        let answer = self.get(path, token).await;
        let status = answer.status();
        let body = answer.text().await.unwrap();
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    pub(crate) async fn act(&self, name: &str, token: &str, body: &Value) -> Response {
        let mut request = self.http.post(format!("{}/api/v1/act/{name}", self.url));
        if !token.is_empty() {
            request = request.bearer_auth(token);
        }
        request.json(body).send().await.unwrap()
    }

    pub(crate) async fn form(&self, path: &str, cookie: &str, body: &str) -> Response {
        let request = self.http.post(format!("{}{path}", self.url));
        let request = request
            .header("cookie", cookie)
            .header("content-type", "application/x-www-form-urlencoded");
        request.body(body.to_owned()).send().await.unwrap()
    }

    /// Waits until the log has this.
    pub(crate) async fn logged(&self, what: &str) {
        let there = async || self.log.lock().unwrap().contains(what);
        wait_until(what, DEADLINE, there)
            .await
            .unwrap_or_else(|error| panic!("{error}: {}", self.log.lock().unwrap()));
    }

    /// Waits until readiness answers with this status and says this.
    pub(crate) async fn readiness(&self, status: u16, what: &str) {
        let there = async || {
            let answer = self.get("/readyz", "").await;
            answer.status() == status && answer.text().await.unwrap().contains(what)
        };
        wait_until(what, DEADLINE, there)
            .await
            .unwrap_or_else(|error| panic!("{error}: {}", self.log.lock().unwrap()));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

/// Long enough for a loaded machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) const TOKENS: &str = "vera:viewer:viewer-token-0123456789,otto:operator:operator-token-0123456789,ada:admin:admin-token-0123456789";
#[tokio::test]
async fn without_a_database_a_private_one_is_started_and_found_again() {
    let folder = std::env::temp_dir().join(format!("pgonce-embedded-{}", uuid::Uuid::new_v4()));
    let start = || {
        let data = folder.to_str().unwrap();
        let mut command = program(&[
            "serve",
            "--format",
            "json",
            "--listen",
            "127.0.0.1:0",
            "--data",
            data,
        ]);
        // The home of the test is nowhere; the programs are found as the testkit finds them.
        command.env("PGONCE_PG_BIN", Binaries::find().unwrap().folder());
        Serving::start(command)
    };
    for _ in 0..2 {
        let mut serving = start();
        assert_eq!(
            serving.text("/healthz", "").await,
            r#"{"detail":"answers","status":"alive"}"#
        );
        assert_eq!(serving.text("/readyz", "").await, r#"{"status":"ready"}"#);
        assert!(
            serving
                .text("/metrics", "")
                .await
                .contains("pgonce_database_up 1")
        );
        let found = serving.text("/find?q=greeting-1", "").await;
        assert!(found.contains("sample.hello"), "{found}");
        serving.signal(Signal::TERM);
        assert!(serving.child.wait().unwrap().success());
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn settings_come_from_flag_variable_file_and_default_in_this_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pgonce.toml");
    std::fs::write(&file, "listen = \"127.0.0.1:1\"\npurge_every = \"2m\"\npurge_batch = 77\nroles = [\"metrics\", \"console\"]\n").unwrap();
    let config = |words: &[&str]| {
        let mut command = program(
            &[
                words,
                &[
                    "--config",
                    file.to_str().unwrap(),
                    "--listen",
                    "127.0.0.1:3",
                ],
            ]
            .concat(),
        );
        command
            .env("PGONCE_LISTEN", "127.0.0.1:2")
            .env("PGONCE_PURGE_EVERY", "3m");
        Run::of(
            command
                .env("PGONCE_CONSOLE_TOKENS", TOKENS)
                .output()
                .unwrap(),
        )
    };
    let run = config(&["config", "show", "--origin", "--format", "json"]);
    let rows: Value = serde_json::from_str(&run.out).unwrap();
    for (name, value, origin) in [
        ("listen", "127.0.0.1:3", "flag --listen"),
        ("purge_every", "3m", "variable PGONCE_PURGE_EVERY"),
        ("purge_batch", "77", "file "),
        ("roles", "metrics,console", "file "),
        ("drain_timeout", "30s", "default"),
        ("console_tokens", "(secret)", "variable "),
    ] {
        let row = rows
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["setting"] == name)
            .unwrap();
        assert!(
            row["value"] == value && row["origin"].as_str().unwrap().starts_with(origin),
            "{row}"
        );
    }
    assert!(!run.out.contains("admin-token"));
    assert_eq!(config(&["config", "check"]).code, 0);
    for wrong in [
        "purge_every = \"0s\"",
        "roles = [\"cook\"]",
        "no_such_setting = 1",
        "purge_batch = 0",
        "listen = \"everywhere\"",
        "roles = [\"relay\"]",
    ] {
        std::fs::write(&file, wrong).unwrap();
        let run = Run::of(
            program(&["config", "check", "--config", file.to_str().unwrap()])
                .output()
                .unwrap(),
        );
        assert!(
            run.code == 2
                && (run.err.contains(wrong.split(' ').next().unwrap())
                    || run.err.contains("relay_file")),
            "{wrong}: {run:?}"
        );
    }
}

#[tokio::test]
async fn a_hangup_reads_the_file_again_and_a_wrong_file_changes_nothing() {
    let fixture = Fixture::installed().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pgonce.toml");
    let write =
        |instance: &str| std::fs::write(&file, format!("instance = \"{instance}\"\n")).unwrap();
    write("first");
    let serving = Serving::of(&fixture, &["--config", file.to_str().unwrap()], "");
    assert!(serving.text("/scopes", "").await.contains("first"));
    write("second");
    serving.signal(Signal::HUP);
    while !serving.text("/scopes", "").await.contains("second") {}
    std::fs::write(&file, "nonsense = 1").unwrap();
    serving.signal(Signal::HUP);
    serving.logged("not reloaded").await;
    assert!(serving.text("/scopes", "").await.contains("second"));
    write("third");
    serving.signal(Signal::HUP);
    while !serving.text("/scopes", "").await.contains("third") {}
}

#[tokio::test]
async fn partitions_are_kept_and_ended_jobs_purged_while_every_purge_of_records_fails() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "create or replace function pgonce.purge(p_limit integer default 10000, p_reason text default null) returns bigint language plpgsql as \
                 $$ begin raise exception 'too slow' using errcode = '57014'; end $$",
        )
        .await;
    fixture
        .sql("select pgonce._create_inbox_partitions()")
        .await;
    let newest = "select max(inhrelid::regclass::text) from pg_inherits \
                   where inhparent = 'pgonce.inbox_marker'::regclass and inhrelid::regclass::text ~ '[0-9]{8}$'";
    let row = fixture.client.query_one(newest, &[]).await.unwrap();
    let partition: String = row.get(0);
    fixture.sql(&format!("drop table {partition}")).await;
    fixture
        .sql(
            "insert into pgonce.job_end (id, ended_at, expires_at, status, attempts, tenant, queue) \
             values (1, now(), now(), 'succeeded', 1, '', 'q')",
        )
        .await;
    let flags = ["--roles", "retention", "--purge-every", "50ms"];
    let _serving = Serving::of(&fixture, &flags, "");
    let there = format!(
        "select to_regclass('{partition}') is not null and not exists (select from pgonce.job_end)"
    );
    let back = async || {
        let row = fixture.client.query_one(&there, &[]).await.unwrap();
        row.get::<_, bool>(0)
    };
    let deadline = std::time::Duration::from_secs(120);
    wait_until(
        "the partition to be there again, and no ended job",
        deadline,
        back,
    )
    .await
    .unwrap();
}

/// Where no worker and no consumer of ours runs, as with those in SQL.
#[tokio::test]
async fn ended_jobs_and_markers_go_where_only_the_daemon_or_purge_runs() {
    for by_daemon in [true, false] {
        let fixture = Fixture::installed().await;
        fixture
            .sql(
                "select pgonce._create_inbox_partitions(); \
                 select pgonce.accept('billing', 'shop', 'evt-1'); \
                 insert into pgonce.job_end (id, ended_at, expires_at, status, attempts, tenant, queue) \
                 select n, now(), now(), 'succeeded', 1, '', 'q' from generate_series(1, 25) n; \
                 select pgonce._move_clock('100 days')",
            )
            .await;
        let flags = ["--roles", "retention", "--purge-batch", "10"];
        let _serving = by_daemon.then(|| Serving::of(&fixture, &flags, ""));
        if !by_daemon {
            fixture.ok(&["purge", "--all"]);
        }
        let left = "select (select count(*) from pgonce.job_end) + (select count(*) from pgonce.inbox_marker)";
        let gone = async || {
            let row = fixture.client.query_one(left, &[]).await.unwrap();
            row.get::<_, i64>(0) == 0
        };
        let deadline = std::time::Duration::from_secs(120);
        wait_until("nothing to be left", deadline, gone)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_relay_that_cannot_go_on_is_shown_and_the_console_stays() {
    let fixture = Fixture::installed().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("relay.toml");
    let relay = "[[relays]]\nsubscription = \"billing\"\nsink = \"stdout:\"\n[relays.create]\n";
    std::fs::write(&file, relay).unwrap();
    let file = file.to_str().unwrap();
    let flags = ["--roles", "relay,console", "--relay-file", file];
    let serving = Serving::of(&fixture, &flags, "");
    let deadline = std::time::Duration::from_secs(120);
    let ready = async || serving.get("/readyz", "").await.status() == 200;
    wait_until("readiness", deadline, ready).await.unwrap();
    fixture
        .sql("select pgonce.evict_subscription('billing', 'ticket 4')")
        .await;
    let shown = async || {
        let answer = serving.get("/readyz", "").await;
        let status = answer.status();
        let said = answer.text().await.unwrap();
        status == 503 && said.contains("the relay of billing cannot go on")
    };
    wait_until("the end of the relay to be shown", deadline, shown)
        .await
        .unwrap();
    assert!(serving.text("/outbox", "").await.contains("billing"));
}

#[tokio::test]
async fn regions_that_cannot_be_looked_up_are_looked_up_again_at_once() {
    let fixture = Fixture::installed().await;
    fixture
        .sql("alter view pgonce.regions rename to regions_elsewhere")
        .await;
    let serving = Serving::of(&fixture, &["--roles", "metrics"], "");
    // A look a minute would not come to four.
    let again = async || {
        let log = serving.log.lock().unwrap();
        log.matches("regions could not be looked up").count() >= 4
    };
    wait_until("it looks again", DEADLINE, again).await.unwrap();
}
