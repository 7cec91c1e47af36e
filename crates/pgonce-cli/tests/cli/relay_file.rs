//! The relay's configuration file: what is wrong is shown where it is, and what is right runs.

use pgonce_testkit::wait_until;
use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Fixture, Run, program, without_database};
use crate::relay::{Running, get, publish};
use crate::serve::DEADLINE;

fn file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("relay.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

fn check(text: &str) -> Run {
    let (_folder, path) = file(text);
    Run::of(program(&["relay", "--check", &path]).output().unwrap())
}

#[test]
fn a_database_that_an_option_names_beside_a_file_is_refused() {
    for command in ["relay", "consume", "webhooks", "gateway", "work"] {
        for (option, value) in [("--database-url", "postgres://x/y"), ("--schema", "mine")] {
            let run = without_database(&[command, "some.toml", option, value]);
            assert!(
                run.code == 2 && run.err.contains(option) && run.err.contains("[database]"),
                "{command}: {run:?}"
            );
            let run = without_database(&[option, value, command, "some.toml"]);
            assert!(
                run.code == 2 && run.err.contains("[database]"),
                "{command}: {run:?}"
            );
        }
    }
}

#[test]
fn the_example_is_right_and_names_every_field() {
    let example = without_database(&["relay", "--print-example"]).out;
    let run = check(&example);
    assert!(
        run.code == 0 && run.out.contains("is right: billing"),
        "{run:?}"
    );
    // What is commented out is right too.
    let all: String = example
        .lines()
        .filter(|line| !line.contains("url_env =") && !line.starts_with("sink = "))
        .map(|line| match line.strip_prefix("# ") {
            Some(field) if field.contains(" = ") => format!("{field}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let run = check(&all);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(
        all.contains("\nsink_env = ") && all.contains("\ntenants = "),
        "{all}"
    );
}

#[test]
fn the_file_of_the_example_order_events_is_right() {
    let text = include_str!("../../../../examples/order-events/relay.toml");
    let run = check(text);
    assert!(
        run.code == 0 && run.out.contains("is right: shop, partner"),
        "{run:?}"
    );
}

#[test]
fn every_fault_is_shown_on_its_line() {
    let relay = "[[relays]]\nsubscription = \"billing\"\nsink = \"stdout:\"\n";
    for (text, line, what) in [
        ("", 1, "no relay in the file"),
        ("[[relays]]\nsubscription = \"c\"", 2, "has no sink"),
        (
            "[[relays]]\nsubscription = \"c\"\nsink = \"mqtt://u:secret@h\"",
            3,
            "no sink \"mqtt:\"",
        ),
        (
            "[[relays]]\nsubscription = \"\"\nsink = \"stdout:\"",
            2,
            "1 to 255 bytes",
        ),
        (
            "[[relays]]\nsubscription = \"c\"\nsink = \"stdout:\"\nsink_env = \"X\"",
            4,
            "two places",
        ),
        (&format!("{relay}lease = \"10ms\""), 4, "so short"),
        (&format!("{relay}lease = \"soon\""), 4, "no length of time"),
        (&format!("{relay}in_flight = 0"), 4, "not possible"),
        (&format!("{relay}lane_events = 1"), 4, "not possible"),
        (&format!("{relay}lane_bytes = \"1 GiB\""), 4, "64 MiB"),
        (&format!("{relay}lane_bytes = \"much\""), 4, "no size"),
        (&format!("{relay}in_fligth = 5"), 4, "unknown field"),
        (
            &format!("{relay}[relays.create]\ntopics = []"),
            5,
            "empty list",
        ),
        (
            &format!("{relay}[relays.create]\nmax_attempts = 0"),
            5,
            "at least once",
        ),
        (
            &format!("{relay}[relays.create]\nbackoff = \"1h\""),
            5,
            "cannot grow",
        ),
        (
            &format!("{relay}[relays.create]\ndead_limit = 3000000000"),
            5,
            "cannot count",
        ),
        (
            &format!("{relay}[relays.create]\nfrom = \"never\""),
            5,
            "never",
        ),
        (&format!("{relay}{relay}"), 5, "has a relay already"),
        (
            &format!("[database]\nurl_env = \"A\"\nurl_file = \"b\"\n{relay}"),
            3,
            "two places",
        ),
        (
            &format!("[listen]\naddress = \"here\"\n{relay}"),
            2,
            "address",
        ),
    ] {
        let run = check(text);
        assert_eq!(run.code, 2, "{text}: {run:?}");
        assert!(
            run.err.contains(&format!("relay.toml:{line}:"))
                && run.err.contains(what)
                && run.err.contains("do:"),
            "{text}: {run:?}"
        );
        // Shown is the line; a password is on it only where the user wrote it there.
        let (_folder, path) = file(text);
        let json = without_database(&["relay", "--check", &path, "--format", "json"]).err;
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["error"]["faults"][0]["line"], line, "{json}");
    }
}

#[tokio::test]
async fn one_process_serves_several_subscriptions_and_one_that_cannot_go_on_stops_no_other() {
    let fixture = Fixture::installed().await;
    for subscription in ["billing", "evicted"] {
        fixture.ok(&["outbox", "subscriptions", "create", subscription]);
    }
    fixture.ok(&[
        "outbox",
        "evict",
        "evicted",
        "--reason",
        "it was forgotten",
        "--yes",
    ]);
    let (_folder, path) = file(
        "[listen]\naddress = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n\
         [[relays]]\nsubscription = \"evicted\"\nsink = \"stdout:\"\n\
         [[relays]]\nsubscription = \"billing\"\nsink = \"stdout:\"\nlease = \"2s\"\n\
         [[relays]]\nsubscription = \"new\"\nsink = \"stdout:\"\n[relays.create]\ntopics = [\"orders\"]\n",
    );
    let mut relay = Running::start(&fixture, &[&path]);
    publish(&fixture, 1, 5).await;
    relay.wait_for(10).await;
    let admin = relay.admin().await;
    wait_until("the relay that ended to be seen", DEADLINE, || async {
        let (status, body) = get(&admin, "/readyz").await;
        status == 503 && body.contains("it was forgotten")
    })
    .await
    .unwrap();
    relay.signal(Signal::TERM);
    assert_eq!(relay.end().await, 1, "{}", relay.log());
    assert!(relay.log().contains("P4031"), "{}", relay.log());
    assert!(fixture.ok(&["outbox", "subscriptions"]).contains("orders"));
}

/// One sink refuses its address, and a broker says nothing for as long as it is waited for.
#[tokio::test]
async fn a_relay_that_cannot_start_holds_up_no_other() {
    let fixture = Fixture::installed().await;
    publish(&fixture, 1, 3).await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let broker = silent.local_addr().unwrap();
    let (_folder, path) = file(&format!(
        "[listen]\naddress = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n\
         [[relays]]\nsubscription = \"refused\"\nsink = \"stdout:?colour=red\"\n[relays.create]\n\
         [[relays]]\nsubscription = \"silent\"\nsink = \"nats://{broker}?stream=ORDERS\"\n[relays.create]\n\
         [[relays]]\nsubscription = \"billing\"\nsink = \"stdout:\"\n[relays.create]\n"
    ));
    let mut relay = Running::start(&fixture, &[&path]);
    relay.wait_for(3).await;
    let admin = relay.admin().await;
    wait_until("the relay that ended to be seen", DEADLINE, || async {
        let (status, body) = get(&admin, "/readyz").await;
        status == 503 && body.contains("refused: ")
    })
    .await
    .unwrap();
    relay.signal(Signal::TERM);
    assert_eq!(relay.end().await, 2, "{}", relay.log());
    assert!(!fixture.ok(&["outbox", "subscriptions"]).contains("refused"));
}

#[tokio::test]
async fn addresses_come_from_variables_and_files() {
    let fixture = Fixture::installed().await;
    publish(&fixture, 1, 3).await;
    let (folder, path) = file(
        "[database]\nurl_file = \"secret\"\n[[relays]]\nsubscription = \"c\"\nsink_env = \"OUR_SINK\"\n[relays.create]\n",
    );
    let run = program(&["relay", "--once", &path]).output().unwrap();
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    std::fs::write(folder.path().join("secret"), fixture.database.url()).unwrap();
    let run = Run::of(program(&["relay", "--once", &path]).output().unwrap());
    assert!(run.code == 2 && run.err.contains("OUR_SINK"), "{run:?}");
    let mut command = program(&["relay", "--once", &path]);
    let run = Run::of(command.env("OUR_SINK", "stdout:").output().unwrap());
    assert_eq!((run.code, run.out.lines().count()), (0, 3), "{run:?}");
}
