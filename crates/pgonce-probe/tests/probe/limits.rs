//! What it must not do, and what it must not claim.

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use not_idempotent::Fault;

use crate::place::{names, probe, probe_all, serve};

#[tokio::test]
async fn it_sends_nothing_to_another_machine_unless_told_so() {
    for args in [
        &["http://192.0.2.1/payments"][..],
        &[
            "http://127.0.0.1:1/payments",
            "--other-url",
            "https://192.0.2.1/refunds",
        ],
    ] {
        let told = probe(args).await;
        assert_eq!(told.code, 11, "{told:?}");
        assert!(
            told.err.contains("real effects")
                && told.err.contains("192.0.2.1")
                && told.err.contains("--yes"),
            "{told:?}"
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
        let told = probe(args).await;
        assert_eq!(told.code, 2, "{args:?}: {told:?}");
        assert!(
            !told.err.contains("secret") || args.contains(&"http://ada:secret@127.0.0.1/"),
            "{told:?}"
        );
    }
}

#[tokio::test]
async fn an_api_that_is_not_there_or_takes_nothing_concludes_nothing() {
    let told = probe(&["http://127.0.0.1:1/"]).await;
    assert_eq!(told.code, 10, "{told:?}");
    assert!(
        told.out.contains("no connection to 127.0.0.1:1"),
        "{told:?}"
    );

    let closed = serve(Router::new().route("/", post(async || StatusCode::UNAUTHORIZED))).await;
    let told = probe(&[&closed, "--format", "json"]).await;
    assert_eq!(told.code, 10, "{told:?}");
    assert_eq!(told.with_outcome("fail"), names(&[]), "{told:?}");
    assert!(
        told.case("sequential-duplicate")["told"]
            .as_str()
            .unwrap()
            .contains("401")
    );
}

/// It may be idempotent or not: nobody can see.
#[tokio::test]
async fn an_api_whose_answers_all_look_alike_is_neither_blamed_nor_praised() {
    let mute = serve(Router::new().route("/", post(async || "ok"))).await;
    let told = probe(&[
        &mute,
        "-d",
        "{{n}}",
        "--skip",
        "replay-date",
        "--format",
        "json",
    ])
    .await;
    assert_eq!(
        told.case("sequential-duplicate")["outcome"],
        "inconclusive",
        "{told:?}"
    );
    assert_eq!(
        told.case("different-keys")["outcome"],
        "inconclusive",
        "{told:?}"
    );
    assert_eq!(
        told.case("concurrent-duplicates")["outcome"],
        "inconclusive",
        "{told:?}"
    );
    // That payloads are not looked at does show.
    assert_eq!(
        told.with_outcome("fail"),
        names(&["changed-payload", "changed-payload-in-flight"]),
        "{told:?}"
    );

    let told = probe(&[
        &mute,
        "-d",
        "fixed",
        "--skip",
        "replay-date",
        "--format",
        "json",
    ])
    .await;
    assert_eq!(
        (told.code, &told.report()["verdict"]),
        (10, &"inconclusive".into()),
        "{told:?}"
    );
    assert!(told.with_outcome("skipped").contains("changed-payload"));
}

/// Answers whoever has a key, and nobody else.
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
    let told = probe(&[&[&sulky, "--timeout", "300ms"], &chosen[..]].concat()).await;
    let case = told.case("missing-key");
    assert_eq!(
        (told.code, &case["outcome"]),
        (9, &"fail".into()),
        "{told:?}"
    );
    let why = case["told"].as_str().unwrap();
    assert!(why.contains("no answer within 300ms"), "{why}");

    let told = probe(&[&[&sulky, "--deadline", "300ms"], &chosen[..]].concat()).await;
    assert_eq!(told.code, 10, "{told:?}");
    let case = told.case("missing-key");
    assert!(
        case["told"].as_str().unwrap().contains("the time of 300ms"),
        "{case}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_allowed_is_right() {
    let address = serve(not_idempotent::router(Fault::OptionalKey)).await;
    let told = probe_all(&address, &["--only", "missing-key"]).await;
    assert_eq!(
        told.with_outcome("advice"),
        names(&["missing-key"]),
        "{told:?}"
    );
    let told = probe_all(
        &address,
        &["--only", "missing-key", "--allow", "missing-key=2xx"],
    )
    .await;
    assert_eq!(
        told.with_outcome("pass"),
        names(&["missing-key"]),
        "{told:?}"
    );

    let address = serve(not_idempotent::router(Fault::ErrorInFlight)).await;
    let only = ["--only", "concurrent-duplicates"];
    let told = probe_all(&address, &only).await;
    assert_eq!(told.code, 9, "{told:?}");
    let allow = ["--allow", "concurrent-duplicates=500"];
    let told = probe_all(&address, &[&only[..], &allow].concat()).await;
    assert_eq!(told.code, 0, "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_cannot_be_read_is_told_and_not_guessed() {
    let address = serve(not_idempotent::router(Fault::None)).await;
    for (count, why) in [
        (format!("{address}/nowhere"), "404"),
        (format!("{address}/count"), "no whole number"),
    ] {
        let url = format!("{address}/payments");
        let body = r#"{"amount": {{n}}}"#;
        let only = "different-keys,sequential-duplicate";
        let told = probe(&[
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
        assert_eq!(told.code, 10, "{told:?}");
        let case = told.case("sequential-duplicate");
        assert!(case["told"].as_str().unwrap().contains(why), "{case}");
    }
}
