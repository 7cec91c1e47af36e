//! Commands whose exit code is a verdict.

use serde_json::Value;

use crate::fixture::Fixture;

#[tokio::test]
async fn a_reader_that_goes_away_does_not_change_a_verdict() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "select pgonce.create_subscription('stuck');
             select pgonce.publish('t', 'x', 's', '{}');
             select pgonce.ledger_open('cash', 'EUR', 'debit');
             update pgonce.ledger_account set balance = 7;
             select pgonce._move_clock('1 day')",
        )
        .await;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    std::fs::write(&log, r#"{"scope": "s", "key": "k"}"#).unwrap();
    let log = log.to_str().unwrap();
    for (args, code) in [
        (&["lost", log][..], 1),
        (&["lost", log, "-o", "jsonl"], 1),
        (&["ledger", "verify"], 1),
        (&["doctor"], 12),
        (&["doctor", "-o", "json"], 12),
    ] {
        assert_eq!(fixture.run(args).code, code, "{args:?}");
        assert_eq!(fixture.run_unread(args).code, code, "{args:?}");
    }
}

#[tokio::test]
async fn a_command_that_is_not_applied_fails_and_one_that_was_applied_before_does_not() {
    let fixture = Fixture::installed().await;
    fixture
        .sql("select pgonce.define_transition('m', '', 'open'), pgonce.define_transition('m', 'open', 'closed')")
        .await;
    for (to, command, outcome, code) in [
        ("open", "1", "applied", 0),
        ("open", "1", "applied", 0),
        ("open", "2", "incompatible_state", 1),
        ("open", "2", "incompatible_state", 1),
        ("closed", "3", "applied", 0),
    ] {
        let args = ["transition", "move", "m", "e", to, "--command", command];
        let run = fixture.run(&[&args[..], &["-o", "json"]].concat());
        let rows: Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!(rows[0]["outcome"], outcome, "{run:?}");
        assert_eq!((run.code, &*run.err), (code, ""), "{run:?}");
    }
}
