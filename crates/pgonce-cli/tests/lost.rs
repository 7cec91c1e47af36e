//! `pgonce lost`: what a failover took along is listed, and nothing else.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use deadpool_postgres::{Manager, Pool};
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::Migrator;
use pgonce::{Ack, Intent, Once};
use pgonce_testkit::{Postgres, Replication, shared};
use serde_json::{Value, json};
use tokio_postgres::NoTls;

fn driver(url: &str) -> TokioPostgres {
    let manager = Manager::new(url.parse().unwrap(), NoTls);
    TokioPostgres::new(Pool::builder(manager).max_size(4).build().unwrap())
}

#[derive(Debug)]
struct Run {
    code: i32,
    rows: Vec<Value>,
    out: String,
    err: String,
}

/// Runs `pgonce lost -` with these lines.
fn lost(url: &str, lines: &str, format: &str) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pgonce"))
        .args(["lost", "-", "--format", format, "--limit", "2"])
        .env("DATABASE_URL", url)
        .env_remove("PGONCE_SCHEMA")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let lines = lines.to_owned();
    let writer = std::thread::spawn(move || {
        // It may end before it has read all, at a line that does not fit.
        let _ = stdin.write_all(lines.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let parsed = out.lines().map(serde_json::from_str);
    Run {
        code: output.status.code().unwrap(),
        rows: if format == "json" {
            parsed.map(Result::unwrap).collect()
        } else {
            Vec::new()
        },
        out,
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

async fn run(once: &Once<TokioPostgres>, key: &str) -> String {
    let intent = Intent::new("orders.create", key, &json!({"item": "book"})).unwrap();
    let answer = Ack::value(&json!({"order": key})).unwrap();
    let done = once
        .run(&intent, |attempt| {
            let answer = answer.clone();
            async { attempt.succeed(answer).await }
        })
        .await
        .unwrap();
    let line = json!({"scope": "orders.create", "key": key, "answer": done.ack().json(), "at": "as a log has it"});
    format!("{line}\n")
}

fn keys(report: &Run) -> Vec<&str> {
    report
        .rows
        .iter()
        .map(|row| row["key"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn every_acknowledged_intent_that_a_failover_lost_is_listed_and_no_other() {
    let primary = Postgres::builder().start().await.unwrap();
    primary.create_database("shop").await.unwrap();
    let once = Once::builder(driver(&primary.url_for("shop")))
        .build()
        .unwrap();
    Migrator::new(once.driver().clone()).up().await.unwrap();
    let standby = primary.standby(Replication::Asynchronous).await.unwrap();

    // The access log: what was acknowledged to callers, in order.
    let mut log = String::new();
    for number in 0..50 {
        log += &run(&once, &format!("kept {number}")).await;
    }
    standby.wait_until_caught_up_with(&primary).await.unwrap();
    standby.fall_behind().await.unwrap();
    let mut expected = Vec::new();
    for number in 0..1100 {
        let key = format!("lost {number}");
        log += &run(&once, &key).await;
        expected.push(key);
    }
    assert_eq!(lost(&primary.url_for("shop"), &log, "json").code, 0);
    // A standby can be asked before it is promoted: it says what the promotion would cost.
    assert_eq!(
        keys(&lost(&standby.url_for("shop"), &log, "json")),
        expected
    );
    // Nor does it say that what it has not got yet has not happened.
    let show = Command::new(env!("CARGO_BIN_EXE_pgonce"))
        .args(["intent", "show", "orders.create", "lost 7"])
        .env("DATABASE_URL", standby.url_for("shop"))
        .env_remove("PGONCE_SCHEMA")
        .output()
        .unwrap();
    let words = String::from_utf8(show.stderr).unwrap();
    assert!(
        show.status.code() == Some(7) && words.contains("a standby: it may have happened"),
        "{words}"
    );

    primary.crash().await.unwrap();
    standby.promote().await.unwrap();
    let url = standby.url_for("shop");
    let report = lost(&url, &log, "json");
    assert_eq!(
        (report.code, keys(&report)),
        (1, expected.iter().map(String::as_str).collect())
    );
    assert!(report.rows.iter().all(|row| row["finding"] == "missing"));
    assert_eq!(report.rows[7]["acknowledged"], json!({"order": "lost 7"}));
    assert!(report.err.contains("1100 of 1150"), "{}", report.err);
    let names = lost(&url, &log, "name").out;
    assert!(names.lines().eq(&expected), "{names}");
    let csv = lost(&url, &log, "csv").out;
    assert_eq!(csv.lines().count(), 1101);
    assert_eq!(csv.matches("finding").count(), 1);

    // Sent again, each under its old key: then nothing is lost any more.
    let once = Once::builder(driver(&url)).build().unwrap();
    for key in &expected {
        run(&once, key).await;
    }
    let report = lost(&url, &log, "table");
    assert_eq!(
        (report.code, &*report.out),
        (0, "All 1150 acknowledged intents are here.\n")
    );
}

#[tokio::test]
async fn each_way_in_which_an_acknowledgement_can_be_wrong_has_its_name() {
    let server = shared(None).await.unwrap();
    let database = server.create_database("names").await.unwrap();
    let url = database.url();
    Migrator::new(driver(&url)).up().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
        .batch_execute(
            "select pgonce.claim('s', k, '\\x01', p_tenant => t) from (values ('done', ''), ('null', ''), ('bare', ''), ('ours', 'acme')) v (k, t);
             select pgonce.succeed('s', 'done', '\\x01', 1, '{\"id\": 7}');
             select pgonce.succeed('s', 'null', '\\x01', 1, 'null');
             select pgonce.succeed('s', 'bare', '\\x01', 1);
             select pgonce.succeed('s', 'ours', '\\x01', 1, p_tenant => 'acme');
             select pgonce.claim('s', 'left', '\\x01', '1 hour');
             select pgonce.fail('s', 'later', '\\x01', 1, true, 'c', 'm');
             select pgonce.fail('s', 'no', '\\x01', 1, false, 'c', 'm')",
        )
        .await
        .unwrap();
    let cases = [
        (json!({"scope": "s", "key": "done"}), ""),
        (
            json!({"scope": "s", "key": "done", "answer": {"id": 7.0}, "fingerprint": "01"}),
            "",
        ),
        (
            json!({"scope": "s", "key": "done", "answer": {"id": 8}}),
            "other answer",
        ),
        (
            json!({"scope": "s", "key": "done", "answer": null}),
            "other answer",
        ),
        (
            json!({"scope": "s", "key": "done", "fingerprint": "02"}),
            "other request",
        ),
        (json!({"scope": "s", "key": "null", "answer": null}), ""),
        (
            json!({"scope": "s", "key": "bare", "answer": {"id": 7}}),
            "",
        ),
        (json!({"scope": "s", "key": "ours"}), "missing"),
        (json!({"tenant": "acme", "scope": "s", "key": "ours"}), ""),
        (json!({"scope": "s", "key": "left"}), "unfinished"),
        (json!({"scope": "s", "key": "later"}), "unfinished"),
        (json!({"scope": "s", "key": "no"}), "refused"),
        (
            json!({"scope": "s' or true --", "key": "\" \\ ü"}),
            "missing",
        ),
    ];
    let lines = cases.iter().fold(String::new(), |mut lines, (line, _)| {
        writeln!(lines, "{line}\n").unwrap();
        lines
    });
    let report = lost(&url, &lines, "json");
    let found: Vec<_> = report
        .rows
        .iter()
        .map(|row| row["finding"].as_str().unwrap())
        .collect();
    let expected: Vec<_> = cases
        .iter()
        .map(|(_, finding)| *finding)
        .filter(|f| !f.is_empty())
        .collect();
    assert_eq!(found, expected, "{report:?}");
    let table = lost(&url, &lines, "table");
    assert!(
        table.out.contains("other answer") && !table.out.contains("refused"),
        "{table:?}"
    );
    assert!(table.err.contains("the first 2 are shown"), "{table:?}");

    for (line, why) in [
        ("not json", "line 2 of stdin does not fit"),
        (r#"{"scope": "s"}"#, "missing field `key`"),
        (
            r#"{"scope": "s", "key": "k", "fingerprint": "xyz"}"#,
            "not hexadecimal",
        ),
        (r#"{"scope": "s", "key": "a\u0000b"}"#, "NUL"),
        (
            &format!(r#"{{"scope": "s", "key": "{}"}}"#, "x".repeat(1 << 20)),
            "longer than 1 MiB",
        ),
    ] {
        let report = lost(&url, &format!("{}\n{line}\n", cases[0].0), "table");
        assert!(
            report.code == 2 && report.err.contains(why),
            "{why}: {report:?}"
        );
    }
}

#[tokio::test]
async fn numbers_are_compared_exactly_and_nothing_is_not_everything() {
    let server = shared(None).await.unwrap();
    let database = server.create_database("exact").await.unwrap();
    let url = database.url();
    Migrator::new(driver(&url)).up().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let long = "1234567890123456789012.5";
    client
        .batch_execute(&format!(
            "begin; select pgonce.claim('s', 'long', '\\x01'); \
             select pgonce.succeed('s', 'long', '\\x01', 1, '{{\"sum\": {long}}}'); commit"
        ))
        .await
        .unwrap();
    let line =
        |sum: &str| format!(r#"{{"scope": "s", "key": "long", "answer": {{"sum": {sum}}}}}"#);
    assert_eq!(lost(&url, &line(long), "json").code, 0);
    let other = lost(&url, &line("1234567890123456789012.25"), "json");
    assert_eq!(other.rows[0]["finding"], "other answer");
    for nothing in ["", "\n  \n"] {
        let report = lost(&url, nothing, "table");
        assert_eq!(report.code, 2, "{report:?}");
        assert!(report.err.contains("no acknowledged intent"), "{report:?}");
    }
    let shown = Command::new(env!("CARGO_BIN_EXE_pgonce"))
        .args(["show", "s", "long"])
        .env("DATABASE_URL", &url)
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(long), "{shown}");
}
