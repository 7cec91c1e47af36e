//! `pgonce storm`, a drawn sample of it: it must be able to say yes, and to say no.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

/// Gives what a storm printed, and its ledger.
fn storm(options: &[&str]) -> (Output, Value) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pgonce"))
        // Few at a time: other tests run meanwhile, and leases are short.
        .args([
            "storm",
            "--quick",
            "--workers",
            "6",
            "--seed",
            "7",
            "--ledger",
        ])
        .arg(file.path())
        .args(options)
        .output()
        .unwrap();
    let ledger = serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap_or_default();
    (output, ledger)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_sample_of_the_storm_finds_everything_done_exactly_once() {
    let history = tempfile::tempdir().unwrap();
    let folder = history.path().to_str().unwrap();
    let (output, ledger) = storm(&["--sample", "200", "--random", "4s", "--history", folder]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains(" trials, 0 duplicates, 0 lost, 0 stuck; "),
        "{text}"
    );
    assert_eq!(ledger["exactly_once"], true);
    assert!(ledger["enumerated"].as_u64() >= Some(400), "{text}");
    assert!(ledger["random"].as_u64() >= Some(10), "{text}");
    assert_eq!(ledger["configurations"].as_array().unwrap().len(), 4);
    for configuration in ledger["configurations"].as_array().unwrap() {
        for state in [
            "replay",
            "busy",
            "conflict",
            "uncertain",
            "takeover",
            "fenced",
        ] {
            assert!(
                configuration["met"][state].as_u64() >= Some(1),
                "{state}: {configuration}"
            );
        }
    }
    assert_eq!(fs::read_dir(history.path()).unwrap().count(), 4);
}

#[test]
fn an_effect_that_is_parted_from_its_claim_is_found_out_and_can_be_replayed() {
    let parted = "--sabotage --path atomic-fresh --isolation read-committed --sample 40";
    let parted: Vec<&str> = parted.split(' ').collect();
    let (output, ledger) = storm(&parted);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(ledger["exactly_once"], false);
    assert!(
        ledger["totals"]["duplicates"].as_u64() >= Some(10),
        "{text}"
    );

    let replay = ledger["violations"]
        .as_array()
        .unwrap()
        .iter()
        .find_map(|violation| violation["replay"].as_str())
        .unwrap();
    assert!(text.contains(&format!("replay: {replay}")), "{text}");
    let mut again = replay.split(' ');
    assert_eq!(
        (again.next(), again.next()),
        (Some("pgonce"), Some("storm"))
    );
    let options: Vec<&str> = again.collect();
    let (output, ledger) = storm(&[&options[..], &["--sabotage"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", self::text(&output));
    assert_eq!(ledger["totals"]["trials"], 1);

    // The same trial without sabotage is harmless.
    let (output, _) = storm(&options);
    assert!(output.status.success(), "{}", self::text(&output));
}

#[test]
fn relays_that_are_cut_off_lose_nothing_and_turn_nothing_round() {
    let paths = "relay-window,relay-settle,relay-park,relay-redrive,relay-maintain";
    let (output, ledger) = storm(&["--path", paths, "--sample", "100"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(ledger["exactly_once"], true);
    let configurations = ledger["configurations"].as_array().unwrap();
    let relayed: Vec<_> = configurations
        .iter()
        .filter(|configuration| configuration["trials"].as_u64() > Some(0))
        .collect();
    assert_eq!(relayed.len(), 2, "once for each driver: {text}");
    for configuration in relayed {
        for state in [
            "delivered again",
            "relay fenced",
            "redriven",
            "partition dropped",
        ] {
            assert!(
                configuration["met"][state].as_u64() >= Some(1),
                "{state}: {configuration}"
            );
        }
    }
}

#[test]
fn consumers_that_are_cut_off_apply_every_message_once() {
    let paths = "inbox-accept,inbox-batch,inbox-mark,inbox-statement,inbox-cursor,inbox-stored,inbox-project,inbox-rebuild,queue-work";
    let (output, ledger) = storm(&["--path", paths, "--sample", "120"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(ledger["exactly_once"], true);
    let configurations = ledger["configurations"].as_array().unwrap();
    let consumed: Vec<_> = configurations
        .iter()
        .filter(|configuration| configuration["trials"].as_u64() > Some(0))
        .collect();
    assert_eq!(consumed.len(), 2, "once for each driver: {text}");
    for configuration in consumed {
        for state in [
            "copy",
            "consumer cut off",
            "second consumer between",
            "stored message failed",
        ] {
            assert!(
                configuration["met"][state].as_u64() >= Some(1),
                "{state}: {configuration}"
            );
        }
    }
}

#[test]
fn business_patterns_that_are_cut_off_write_once_what_goes_with_the_effect() {
    let paths = "ledger,ledger-settle,transition,transition-timer,unique,update-once,refer,import";
    let (output, ledger) = storm(&["--path", paths, "--sample", "120"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(ledger["exactly_once"], true);
    let configurations = ledger["configurations"].as_array().unwrap();
    assert_eq!(configurations.len(), 4, "{text}");
    for configuration in configurations {
        assert!(
            configuration["met"]["timer fired"].as_u64() >= Some(1),
            "{configuration}"
        );
    }
    // Of the two drivers one has imports, at one of the isolation levels.
    let copies = configurations
        .iter()
        .filter(|configuration| configuration["met"]["copy"].as_u64() >= Some(1));
    assert_eq!(copies.count(), 1, "{text}");
}

#[test]
fn an_effect_that_is_parted_from_its_message_is_found_out() {
    let options =
        "--sabotage --path inbox-mark,inbox-cursor --isolation read-committed --sample 60";
    let options: Vec<&str> = options.split(' ').collect();
    let (output, ledger) = storm(&options);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(ledger["totals"]["duplicates"].as_u64() >= Some(5), "{text}");
}

#[test]
fn a_place_that_is_kept_before_its_events_are_delivered_is_found_out() {
    let relay = [
        "--sabotage",
        "--path",
        "relay-window",
        "--driver",
        "tokio-postgres",
    ];
    let (output, ledger) = storm(
        &[
            &relay[..],
            &["--isolation", "read-committed", "--sample", "60"],
        ]
        .concat(),
    );
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(ledger["totals"]["lost"].as_u64() >= Some(1), "{text}");
}

#[test]
fn a_fault_that_cannot_be_read_says_how_to_write_one() {
    let (output, _) = storm(&["--path", "atomic-fresh", "--fault", "here"]);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("c0:s3:cut-before"), "{complaint}");
}

#[test]
fn calls_that_are_cut_off_between_sent_and_answered_happen_once_and_vanished_work_is_decided() {
    let paths = "external-keyed,external-look-up,external-reconcile,recovery";
    let (output, ledger) = storm(&["--path", paths, "--sample", "140"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(ledger["exactly_once"], true);
    let configurations = ledger["configurations"].as_array().unwrap();
    assert_eq!(configurations.len(), 4, "{text}");
    for state in [
        "outcome not known",
        "reconciled",
        "recovered",
        "released",
        "fenced",
    ] {
        let met = configurations
            .iter()
            .filter_map(|configuration| configuration["met"][state].as_u64());
        assert!(met.sum::<u64>() >= 1, "{state}: {text}");
    }
}
