//! `pgonce demo`, short: it must be able to say yes, and to say no.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A short demo on the same plan every time; gives what it printed and what it wrote as JSON.
fn demo(extra: &[&str]) -> (Output, Value) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pgonce"))
        .args([
            "demo",
            "--plain",
            "--seconds",
            "2",
            "--intents",
            "40",
            "--seed",
            "7",
            "--json",
        ])
        .arg(file.path())
        .args(extra)
        .output()
        .unwrap();
    let report = serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap_or_default();
    (output, report)
}

#[test]
fn a_short_demo_ends_with_exactly_once() {
    let (output, report) = demo(&[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("VERDICT: exactly once — 40 intents, "),
        "{text}"
    );
    assert!(text.contains(" 40 effects, 0 duplicates, 0 lost"), "{text}");
    assert_eq!(report["exactly_once"], true);
    for trouble in [
        "kills",
        "crashes",
        "sessions_ended",
        "cuts",
        "struck",
        "replays",
        "conflicts",
    ] {
        assert!(
            report["pgonce"][trouble].as_u64() >= Some(1),
            "{trouble}: {report:#}"
        );
    }
    // The same storm does find duplicates where there is nothing against them.
    assert!(
        report["usual"]["duplicates"].as_u64() >= Some(1),
        "{report:#}"
    );
}

#[test]
fn a_service_that_ignores_the_clients_keys_is_found_out() {
    let (output, report) = demo(&["--only-pgonce", "--code", "key-per-attempt"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("VERDICT: NOT exactly once"), "{text}");
    assert_eq!(report["exactly_once"], false);
    for trouble in ["duplicates", "unequal", "unrefused"] {
        assert!(
            report["pgonce"][trouble].as_u64() >= Some(1),
            "{trouble}: {report:#}"
        );
    }
}

#[test]
fn the_usual_code_alone_is_not_exactly_once() {
    let (output, report) = demo(&["--without-pgonce"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(report["pgonce"], Value::Null);
    assert!(
        report["usual"]["duplicates"].as_u64() >= Some(1),
        "{report:#}"
    );
}

#[tokio::test]
async fn the_console_shows_the_storm_and_stays_where_it_is_asked_to() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_pgonce"))
        .args(["demo", "--plain", "--only-pgonce", "--keep"])
        .args(["--seconds", "2", "--intents", "40", "--seed", "7"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let mut line_with = |part: &str| {
        let mut said = lines.by_ref().map(Result::unwrap);
        said.find(|line| line.contains(part)).expect(part)
    };
    let said = line_with("its console on http://");
    let address = said.split(' ').find(|word| word.starts_with("http://"));
    let address = address.unwrap().to_owned();
    line_with("VERDICT: exactly once");
    line_with("until Ctrl-C");
    let page = reqwest::get(format!("{address}intents")).await.unwrap();
    assert_eq!(page.status(), 200);
    let page = page.text().await.unwrap();
    assert!(page.contains("orders.create"), "{page}");

    let id = rustix::process::Pid::from_child(&demo);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    assert!(demo.wait().unwrap().success(), "the verdict was good");
}
