//! Calls to providers, as an operator meets them.

use std::process::Stdio;

use crate::fixture::{Fixture, Run};
use crate::serve::DEADLINE;

const WHY: [&str; 3] = ["--reason", "ticket 9", "--yes"];

/// A call that was sent, whose sender vanished.
async fn sent(fixture: &Fixture) -> String {
    fixture
        .sql(
            "select pgonce.external_send('pay', 'order-1', (select fence from pgonce.claim('pay', 'order-1', '\\x01', '1 minute')), \
             'charge', 'bank', '\\x01', '{\"amount\": 5}'); \
             update pgonce.intent set lease_until = pgonce.now() - interval '1 second'",
        )
        .await;
    let calls = fixture.json(&["external", "list"]);
    calls[0]["effect_key"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_operator_lists_shows_and_settles_calls_and_every_decision_is_kept() {
    let fixture = Fixture::installed().await;
    assert_eq!(fixture.ok(&["external", "list"]), "No calls.\n");
    assert_eq!(fixture.json(&["external", "providers"])[0]["provider"], "*");
    let key = &*sent(&fixture).await;
    for (status, calls) in [("sent", 1), ("open", 1), ("confirmed", 0), ("disputed", 0)] {
        let listed = fixture.json(&["external", "list", "--provider", "bank", "--status", status]);
        assert_eq!(listed.as_array().unwrap().len(), calls, "{status}");
    }
    assert_eq!(
        fixture.json(&["external", "show", key])[0]["request"]["amount"],
        5
    );

    let settle = ["external", "settle", key];
    let preview = fixture.ok(&[&settle[..], &["confirmed", "--reason", "x", "--dry-run"]].concat());
    assert!(preview.contains("would settle call"), "{preview}");
    let resend = [&settle[..], &["resend"], &WHY].concat();
    let refused = fixture.run(&resend);
    assert!(
        refused.code != 0 && refused.err.contains("--force"),
        "{refused:?}"
    );
    let mistyped = fixture.run(&[&resend[..], &["--force", "bank"]].concat());
    assert_ne!(mistyped.code, 0, "{mistyped:?}");
    fixture.ok(&[&resend[..], &["--force", key]].concat());
    let confirmed = [&settle[..], &["confirmed", "--reference", "ch_7"], &WHY].concat();
    assert_eq!(fixture.json(&confirmed)["before"], "requested");
    let shown = fixture.json(&["external", "show", key]);
    assert_eq!(
        (&shown[0]["status"], &shown[0]["reference"]),
        (&"confirmed".into(), &"ch_7".into())
    );
    let acts = shown[0]["acts"].as_array().unwrap();
    assert_eq!(acts[0]["forced"], true);
    assert_eq!(
        (&acts[1]["act"], &acts[1]["reason"]),
        (&"external confirmed".into(), &"ticket 9".into())
    );
    let nobody = fixture.run(&["external", "show", "00000000-0000-0000-0000-000000000000"]);
    assert_eq!(nobody.code, 7, "{nobody:?}");
}

#[tokio::test]
async fn a_call_that_was_confirmed_since_it_was_read_is_not_sent_again_by_force() {
    let fixture = Fixture::installed().await;
    let key = &*sent(&fixture).await;
    let (reporter, connection) =
        tokio_postgres::connect(&fixture.database.url(), tokio_postgres::NoTls)
            .await
            .unwrap();
    tokio::spawn(connection);
    // The command has read the call when it waits for the report.
    let report = format!("begin; select pgonce.external_observe('bank', 'confirmed', '{key}')");
    reporter.batch_execute(&report).await.unwrap();
    let resend = ["external", "settle", key, "resend", "--force", key];
    let mut command = fixture.command(&[&resend[..], &WHY].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let settling = command.spawn().unwrap();
    let waits = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')";
    let waiting = async || {
        let row = fixture.client.query_one(waits, &[]).await.unwrap();
        row.get::<_, bool>(0)
    };
    pgonce_testkit::wait_until("the command waits", DEADLINE, waiting)
        .await
        .unwrap();
    reporter.batch_execute("commit").await.unwrap();
    let done = Run::of(settling.wait_with_output().unwrap());
    assert!(
        done.code == 1
            && done.err.contains("it is confirmed now")
            && done.err.contains("Look at it again"),
        "{done:?}"
    );
    let shown = fixture.json(&["external", "show", key]);
    assert_eq!(shown[0]["status"], "confirmed", "{shown}");
    // Who sees that it happened may do it.
    fixture.ok(&[&resend[..], &WHY].concat());
}
