//! What it says, in all three languages.

use not_idempotent::Fault;
use quick_junit::{Report, TestCaseStatus};

use crate::fixture::{everything_about, probe, probe_all, serve};

#[tokio::test(flavor = "multi_thread")]
async fn the_table_the_json_and_the_junit_file_say_the_same() {
    let address = serve(not_idempotent::router(Fault::LosesBody)).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let only = "sequential-duplicate,replay-answer,replay-marked,other-endpoint";
    let chosen = ["--only", only, "--junit", path, "--seed", "7"];

    let run = probe_all(&address, &chosen).await;
    assert_eq!(run.code, 9, "{run:?}");
    let report = run.report();
    assert_eq!(
        (&report["seed"], &report["verdict"]),
        (&7.into(), &"broken".into())
    );
    let requests = report["requests"].as_u64().unwrap();
    assert!((5..100).contains(&requests), "{requests}");
    let failed = run.case("replay-answer");
    assert!(
        failed["observed"].as_str().unwrap().contains("0 bytes"),
        "{failed}"
    );
    assert!(
        failed["source"]
            .as_str()
            .unwrap()
            .starts_with("draft-ietf-httpapi"),
        "{failed}"
    );

    let junit = Report::deserialize_from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!((junit.tests, junit.failures, junit.errors), (4, 1, 0));
    let suite = &junit.test_suites[0];
    assert!(suite.name.as_str().ends_with("/payments"), "{suite:?}");
    for case in &suite.test_cases {
        let failed = matches!(case.status, TestCaseStatus::NonSuccess { .. });
        assert_eq!(failed, case.name.as_str() == "replay-answer", "{case:?}");
    }

    // The same seed draws the same keys, so the table needs another one.
    let words = everything_about(&address);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let plain = words.strip_suffix(&["--format", "json"]).unwrap();
    let run = probe(&[plain, &["--only", only]].concat()).await;
    assert_eq!(run.code, 9, "{run:?}");
    for words in [
        "replay-answer",
        "FAIL",
        "Those of the first answer, byte for byte",
        "NOT IDEMPOTENT",
        "1 failed",
    ] {
        assert!(run.out.contains(words), "no {words} in {}", run.out);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_skipped_or_stayed_open_is_no_success_in_junit() {
    let address = serve(not_idempotent::router(Fault::None)).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let url = format!("{address}/payments");
    let run = probe(&[
        &url,
        "-d",
        r#"{"amount": {{number}}}"#,
        "--only",
        "different-keys,cut-before-answer,other-principal",
        "--junit",
        file.path().to_str().unwrap(),
    ])
    .await;
    assert_eq!(run.code, 0, "{run:?}");
    assert!(
        run.out.contains("pass (weak)") && run.out.contains("--count-url makes it strong"),
        "{run:?}"
    );
    let junit = std::fs::read_to_string(file.path()).unwrap();
    let junit = Report::deserialize_from_str(&junit).unwrap();
    let skipped = |name: &str| {
        let case = junit.test_suites[0]
            .test_cases
            .iter()
            .find(|case| case.name.as_str() == name);
        matches!(case.unwrap().status, TestCaseStatus::Skipped { .. })
    };
    assert!(
        !skipped("different-keys") && skipped("cut-before-answer") && skipped("other-principal")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_that_was_used_before_is_noticed() {
    let address = serve(not_idempotent::router(Fault::None)).await;
    let chosen = ["--only", "different-keys", "--seed", "7"];
    assert_eq!(probe_all(&address, &chosen).await.code, 0);
    let run = probe_all(&address, &chosen).await;
    assert_eq!(run.code, 10, "{run:?}");
    assert!(run.out.contains("was this seed used before?"), "{run:?}");
}

#[tokio::test]
async fn the_list_shows_every_case_and_asks_for_nothing() {
    let run = probe(&["--list", "--format", "json"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    let cases = run.report();
    assert_eq!(cases.as_array().unwrap().len(), 30);
    let table = probe(&["--list"]).await.out;
    for case in cases.as_array().unwrap() {
        assert!(table.contains(case["case"].as_str().unwrap()), "{table}");
    }
}

#[tokio::test]
async fn a_secret_can_come_from_a_file_and_is_in_no_report() {
    let address = serve(not_idempotent::router(Fault::None)).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "Authorization: Bearer s3cret\n\nX-User: ada\n").unwrap();
    let header = format!("@{}", file.path().display());
    let run = probe(&[
        &format!("{address}/payments"),
        "-d",
        r#"{"amount": {{number}}}"#,
        "-H",
        &header,
        "--only",
        "different-keys",
        "--format",
        "json",
    ])
    .await;
    assert_eq!(run.code, 0, "{run:?}");
    assert!(
        !run.out.contains("s3cret") && !run.err.contains("s3cret"),
        "{run:?}"
    );
}
