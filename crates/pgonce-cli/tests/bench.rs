//! The bench, as small as it gets: every line is there, and every number is one.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use serde_json::Value;

fn bench(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_pgonce"))
        .arg("bench")
        .args(args)
        .env_remove("PGONCE_COMMIT")
        .output()
        .unwrap()
}

/// Every line of these parts is there, and every number is one.
fn small_bench(parts: &[&str], wanted: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bench.json");
    let size = [
        "--rounds=1",
        "--turn=10",
        "--connections=2",
        "--growth=1k,10k",
        "--events=200",
        "--json",
        file.to_str().unwrap(),
    ];
    let output = bench(&[parts, &size].concat());
    let (table, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}");

    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let lines = report["lines"].as_array().unwrap();
    for line in lines {
        let name = line["name"].as_str().unwrap();
        // JSON has no NaN: what could not be measured would be null.
        assert!(line["measured"].is_f64(), "{line}");
        assert_eq!(line["budget"].is_null(), line["met"].is_null(), "{line}");
        assert!(table.contains(name), "{name} is not in the table");
    }
    for wanted in wanted {
        assert!(
            lines.iter().any(|line| line["name"] == *wanted),
            "{wanted} is missing in {table}"
        );
    }
    let facts = &report["facts"];
    for fact in ["cores", "seed", "connections", "rounds"] {
        assert!(facts[fact].is_u64(), "{fact}: {facts}");
    }
    assert_eq!(facts["settings"]["fsync"], "off");
    assert!(facts["settings"]["server_version"].is_string());
}

// Three tests, so that they run side by side.

#[test]
fn a_small_bench_of_commands_writes_every_line_with_a_number() {
    let parts = [
        "command",
        "realistic",
        "roles",
        "replay",
        "growth",
        "network",
        "wal",
        "ledger",
        "import",
    ];
    let wanted = [
        "tokio-postgres: one statement ÷ tokio-postgres: bare",
        "tokio-postgres: one statement, order only ÷ tokio-postgres: bare, order only",
        "sqlx: one statement ÷ sqlx: bare",
        "tokio-postgres: atomic ÷ tokio-postgres: bound",
        "tokio-postgres: optimistic ÷ tokio-postgres: optimistic bound",
        "sqlx: atomic ÷ sqlx: bound",
        "sqlx: optimistic ÷ sqlx: optimistic bound",
        "tokio-postgres: SQL callers ÷ tokio-postgres: recipe",
        "tokio-postgres: SQL callers ÷ tokio-postgres: bare",
        "tokio-postgres: two empty statements ÷ tokio-postgres: bare",
        "tokio-postgres: atomic ÷ tokio-postgres: plain recipe",
        "realistic: tokio-postgres: atomic, time ÷ tokio-postgres: bare",
        "realistic: tokio-postgres: SQL callers, p99",
        "realistic: sqlx: one statement, median",
        "realistic: sqlx: atomic",
        "granted role and limits: atomic ÷ owner: atomic",
        "granted role and limits: replay ÷ owner: replay",
        "cache in process: replays",
        "cache in process ÷ replay by answer",
        "cache in Redis ÷ replay by answer",
        "ledger, post ÷ bare",
        "ledger, one hot account: post, 32 shards ÷ one hot account: bare",
        "ledger, replay ÷ bare",
        "ledger, replay at 10 k entries ÷ at 1 k, median",
        "import ÷ plain COPY",
        "import of rows that are there ÷ plain COPY",
        "tokio-postgres: atomic ÷ tokio-postgres: bare",
        "tokio-postgres: optimistic ÷ tokio-postgres: bare",
        "tokio-postgres: atomic ÷ tokio-postgres: recipe",
        "tokio-postgres: pipelined atomic ÷ tokio-postgres: pipelined bare",
        "tokio-postgres: atomic, random keys ÷ tokio-postgres: bare",
        "tokio-postgres: leased ÷ tokio-postgres: bare",
        "sqlx: atomic ÷ sqlx: bare",
        "sqlx: optimistic ÷ sqlx: bare",
        "sqlx: atomic ÷ sqlx: recipe",
        "tokio-postgres: WAL of atomic − bare, without full pages",
        "sqlx: WAL of atomic − bare, without full pages",
        "tokio-postgres: atomic: round trips − tokio-postgres: bare (4 − 4)",
        "tokio-postgres: atomic: time ÷ tokio-postgres: bare, with 1 ms more a round trip",
        "tokio-postgres: replay by answer ÷ bare primary-key select",
        "sqlx: replay by claim ÷ bare primary-key select",
        "claim at 10 k intents ÷ at 1 k, median",
        "claim at 10 k intents, p99",
        "granted role and limits: atomic ÷ owner: atomic",
        "isolated tenant: atomic ÷ granted role and limits: atomic",
        "isolated tenant: replay ÷ granted role and limits: replay",
    ];
    small_bench(&parts, &wanted);
    // Only Linux says what a process has used.
    if cfg!(target_os = "linux") {
        let wanted = [
            "tokio-postgres: SQL callers, server's processor time",
            "sqlx: one statement, server's processor time",
            "tokio-postgres: atomic, all connections at work, the server's processor time",
            "tokio-postgres: one statement, all connections at work, the program's processor time",
        ];
        small_bench(&["cpu"], &wanted);
    }
}

#[test]
fn a_small_bench_of_messages_writes_every_line_with_a_number() {
    let wanted = [
        "outbox: relay ÷ SKIP LOCKED + UPDATE",
        "outbox: relay, xmin pinned ÷ relay",
        "outbox: reading windows ÷ SKIP LOCKED + UPDATE",
        "outbox: relay ÷ SKIP LOCKED + DELETE",
        "outbox: relay, one hot subject ÷ relay",
        "outbox, tokio-postgres: publish ÷ plain insert",
        "outbox, sqlx: select pgonce.publish ÷ plain insert",
        "outbox: commit to sink at 1000 /s, 100 k subjects, p99",
        "outbox: commit to sink at 1000 /s, one hot subject, median",
        "outbox: WAL of an event, publish and relay, without full pages",
        "outbox: dead rows of an event, SKIP LOCKED + UPDATE",
        "inbox, 1 in a transaction: unordered ÷ bare",
        "inbox, 1 in a transaction: accept as a gate ÷ bare",
        "inbox, 100 in a transaction, a statement each: ordered ÷ bare",
        "inbox, 100 in a transaction, one statement: unordered ÷ recipe",
        "inbox, 1000 in a transaction, one statement: ordered ÷ bare",
        "inbox, 1000 in a transaction, one statement: all known ÷ recipe, all known",
        "inbox: WAL of a message, 100 in a transaction, ordered, without full pages",
        "inbox: 100 taken on at 10 k markers ÷ at none, ids UUIDv7, median",
        "inbox: 100 taken on at 10 k markers ÷ at none, ids UUIDv4, median",
    ];
    small_bench(&["outbox", "inbox"], &wanted);
}

#[test]
fn a_small_bench_of_services_writes_every_line_with_a_number() {
    let wanted = [
        "retention: commands beside it ÷ retention: commands alone",
        "retention: records purged beside commands",
        "metrics: commands beside them ÷ metrics: commands alone",
        "metrics: relay with them ÷ metrics: relay without them",
        "http, tokio-postgres: atomic ÷ http, tokio-postgres: bare",
        "http, tokio-postgres: atomic ÷ http, tokio-postgres: the SDK in the handler",
        "http, tokio-postgres: atomic ÷ http, tokio-postgres: two empty statements",
        "http, tokio-postgres: replay ÷ http, tokio-postgres: atomic",
        "http, sqlx: atomic ÷ http, sqlx: bare",
        "http, sqlx: atomic ÷ http, sqlx: the SDK in the handler",
        "http, sqlx: leased ÷ http, sqlx: bare",
        "http, sqlx: replay ÷ http, sqlx: atomic, the database 1 ms away",
        "http: through the gateway, passed − directly, median with 200 in flight",
        "http: through the gateway, once − directly, median with 200 in flight",
        "queue: worker, ends recorded together ÷ SKIP LOCKED + UPDATE, twice",
        "queue: worker, ends recorded together, xmin pinned ÷ worker, ends recorded together",
        "queue: start latency at half load, p99",
    ];
    small_bench(&["http", "queue", "retention", "metrics"], &wanted);
}

#[test]
fn a_missed_budget_is_an_error_only_where_it_was_asked_for() {
    // A claim among 11 intents against one among 10, in a debug build: may be met or missed, so
    // both answers are right; the code must agree with the report.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bench.json");
    let output = bench(&[
        "growth",
        "--only=growth",
        "--growth=10,11",
        "--rounds=1",
        "--check",
        "--json",
        file.to_str().unwrap(),
    ]);
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let missed = report["missed"].as_u64().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(missed > 0)));
}

#[test]
fn a_wrong_size_is_refused_with_what_was_expected() {
    let output = bench(&["--growth=10k,many"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("is not a size such as 10k, 1m"));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
