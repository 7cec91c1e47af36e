//! What it must not do, and what it must not claim.

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use not_idempotent::Fault;

use crate::fixture::{names, probe, probe_all, serve};

#[tokio::test]
async fn it_sends_nothing_to_another_machine_unless_confirmed() {
    for args in [
        &["http://192.0.2.1/payments"][..],
        &[
            "http://127.0.0.1:1/payments",
            "--other-url",
            "https://192.0.2.1/refunds",
        ],
    ] {
        let run = probe(args).await;
        assert_eq!(run.code, 11, "{run:?}");
        assert!(
            run.err.contains("real effects")
                && run.err.contains("192.0.2.1")
                && run.err.contains("--yes"),
            "{run:?}"
        );
    }
}

#[tokio::test]
async fn what_cannot_be_understood_is_exit_2_and_shows_no_secret() {
    for args in [
        &[][..],
        &["ftp://127.0.0.1/"],
        &["/payments"],
        &["http://ada:secret@127.0.0.1/"],
        &["http://127.0.0.1:1/", "--header", "secret"],
        &["http://127.0.0.1:1/", "--header", "@/no/such/file"],
        &["http://127.0.0.1:1/", "--body", "@/no/such/file"],
        &["http://127.0.0.1:1/", "--only", "no-such-case"],
        &["http://127.0.0.1:1/", "--allow", "missing-key"],
        &["http://127.0.0.1:1/", "--allow", "missing-key=20"],
        &["http://127.0.0.1:1/", "--allow", "replay-date=200"],
        &["http://127.0.0.1:1/", "--concurrency", "1"],
        &["http://127.0.0.1:1/", "--count-pointer", "/n"],
        &["https://127.0.0.1:1/", "--cacert", "/no/such/file"],
    ] {
        let run = probe(args).await;
        assert_eq!(run.code, 2, "{args:?}: {run:?}");
        assert!(
            !run.err.contains("secret") || args.contains(&"http://ada:secret@127.0.0.1/"),
            "{run:?}"
        );
    }
}

#[tokio::test]
async fn an_unreachable_api_or_one_that_takes_nothing_concludes_nothing() {
    let run = probe(&["http://127.0.0.1:1/"]).await;
    assert_eq!(run.code, 10, "{run:?}");
    assert!(run.out.contains("no connection to 127.0.0.1:1"), "{run:?}");

    let closed = serve(Router::new().route("/", post(async || StatusCode::UNAUTHORIZED))).await;
    let run = probe(&[&closed, "--format", "json"]).await;
    assert_eq!(run.code, 10, "{run:?}");
    assert_eq!(run.with_outcome("fail"), names(&[]), "{run:?}");
    assert!(
        run.case("sequential-duplicate")["observed"]
            .as_str()
            .unwrap()
            .contains("401")
    );
}

/// It may be idempotent or not: nobody can see.
#[tokio::test]
async fn an_api_whose_answers_all_look_alike_proves_nothing() {
    let mute = serve(Router::new().route("/", post(async || "ok"))).await;
    let run = probe(&[
        &mute,
        "-d",
        "{{number}}",
        "--skip",
        "replay-date,late-duplicate",
        "--format",
        "json",
    ])
    .await;
    assert_eq!(
        run.case("sequential-duplicate")["outcome"],
        "inconclusive",
        "{run:?}"
    );
    assert_eq!(
        run.case("different-keys")["outcome"],
        "inconclusive",
        "{run:?}"
    );
    assert_eq!(
        run.case("concurrent-duplicates")["outcome"],
        "inconclusive",
        "{run:?}"
    );
    // That payloads are not looked at does show.
    assert_eq!(
        run.with_outcome("fail"),
        names(&["changed-payload", "changed-payload-in-flight"]),
        "{run:?}"
    );

    let run = probe(&[
        &mute,
        "-d",
        "fixed",
        "--skip",
        "replay-date,late-duplicate",
        "--format",
        "json",
    ])
    .await;
    assert_eq!(
        (run.code, &run.report()["verdict"]),
        (10, &"inconclusive".into()),
        "{run:?}"
    );
    assert!(run.with_outcome("skipped").contains("changed-payload"));
}

/// Answers requests with a key, and no others.
async fn answer_to_keys(headers: HeaderMap) -> &'static str {
    if !headers.contains_key("idempotency-key") {
        std::future::pending::<()>().await;
    }
    "ok"
}

#[tokio::test]
async fn what_is_never_answered_fails_its_case_and_nothing_takes_longer_than_allowed() {
    let sulky = serve(Router::new().route("/", post(answer_to_keys))).await;
    let chosen = ["--only", "missing-key", "--format", "json"];
    let run = probe(&[&[&sulky, "--timeout", "300ms"], &chosen[..]].concat()).await;
    let case = run.case("missing-key");
    assert_eq!((run.code, &case["outcome"]), (9, &"fail".into()), "{run:?}");
    let why = case["observed"].as_str().unwrap();
    assert!(why.contains("no answer within 300ms"), "{why}");

    let run = probe(&[&[&sulky, "--deadline", "300ms"], &chosen[..]].concat()).await;
    assert_eq!(run.code, 10, "{run:?}");
    let case = run.case("missing-key");
    assert!(
        case["observed"]
            .as_str()
            .unwrap()
            .contains("the time of 300ms"),
        "{case}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_allowed_is_right() {
    let address = serve(not_idempotent::router(Fault::OptionalKey)).await;
    let run = probe_all(&address, &["--only", "missing-key"]).await;
    assert_eq!(
        run.with_outcome("advice"),
        names(&["missing-key"]),
        "{run:?}"
    );
    let run = probe_all(
        &address,
        &["--only", "missing-key", "--allow", "missing-key=2xx"],
    )
    .await;
    assert_eq!(run.with_outcome("pass"), names(&["missing-key"]), "{run:?}");

    let address = serve(not_idempotent::router(Fault::ErrorInFlight)).await;
    let only = ["--only", "concurrent-duplicates"];
    let run = probe_all(&address, &only).await;
    assert_eq!(run.code, 9, "{run:?}");
    let allow = ["--allow", "concurrent-duplicates=500"];
    let run = probe_all(&address, &[&only[..], &allow].concat()).await;
    assert_eq!(run.code, 0, "{run:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_cannot_be_read_is_reported_and_not_guessed() {
    let address = serve(not_idempotent::router(Fault::None)).await;
    for (count, why) in [
        (format!("{address}/nowhere"), "404"),
        (format!("{address}/count"), "no whole number"),
    ] {
        let url = format!("{address}/payments");
        let body = r#"{"amount": {{number}}}"#;
        let only = "different-keys,sequential-duplicate";
        let run = probe(&[
            &url,
            "-d",
            body,
            "--count-url",
            &count,
            "--only",
            only,
            "--format",
            "json",
        ])
        .await;
        assert_eq!(run.code, 10, "{run:?}");
        let case = run.case("sequential-duplicate");
        assert!(case["observed"].as_str().unwrap().contains(why), "{case}");
    }
}
