//! Calls to providers, as an operator meets them.

use crate::fixture::Fixture;

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
