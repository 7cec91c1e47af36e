//! Secrets as canaries: in bodies, queries, headers, credentials and answers, on every path of the gateway. Its log, its
//! counters, its metrics and its own errors are searched for them.

use axum::body::Body;
use axum::response::Response;
use pgonce_testkit::wait_until;

use crate::fixture::{Answer, Fixture, Gateway, Setup, TIMEOUT, get};
use crate::upstream::{Bad, BadUpstream, Upstream};

const CANARY: &str = "c4n4ry";

/// A request with a secret in everything that a client can say.
async fn post(gateway: &Gateway, path: &str, key: &str, body: &str) -> Answer {
    let secret = format!("Bearer {CANARY}-credential");
    let headers = [
        ("idempotency-key", &*format!("{CANARY}-{key}")),
        ("authorization", &*secret),
        ("cookie", &*format!("session={CANARY}-cookie")),
        ("x-private", &*format!("{CANARY}-header")),
        ("x-user", "ada"),
    ];
    let path = format!("{path}?token={CANARY}-query");
    gateway
        .post(
            &path,
            &headers,
            &format!("{{\"card\":\"{CANARY}-{body}\"}}"),
        )
        .await
}

/// What a gateway says about itself.
async fn said(gateway: &Gateway) -> String {
    let mut said = gateway.log();
    for page in ["/metrics", "/counters", "/readyz", "/healthz"] {
        let page = get(&format!("{}{page}", gateway.admin)).await;
        said.push_str(&String::from_utf8(page.body).unwrap());
    }
    said
}

fn assert_none(what: &str, text: &str) {
    assert!(!text.contains(CANARY), "a secret is in {what}:\n{text}");
}

/// A problem of the gateway's own quotes nothing of the request.
fn own(answer: &Answer, code: &str) {
    assert_eq!(answer.code(), code, "{answer:?}");
    assert_none(code, &String::from_utf8_lossy(&answer.body));
    assert_none(code, &format!("{:?}", answer.headers));
}

#[tokio::test]
async fn no_log_counter_or_error_of_the_gateway_holds_a_secret() {
    let upstream = Upstream::answering(|seen, _| {
        let path = seen.path.clone();
        let status = if path.starts_with("/orders/7") {
            500
        } else {
            201
        };
        Response::builder()
            .status(status)
            .header("x-receipt", format!("{CANARY}-answer-header"))
            .header("set-cookie", format!("s={CANARY}-set"))
            .body(Body::from(format!("{{\"pan\":\"{CANARY}-answer\"}}")))
            .unwrap()
    })
    .await;
    let fixture = Fixture::new().await;
    let setup = Setup {
        once: "principal = { header = \"X-User\" }\nmax_body = \"1 KiB\"",
        scope: "lease = \"2s\"",
        ..Setup::default()
    };
    let config = setup.in_front_of(&upstream.url);
    let gateway = fixture.gateway(&config).await;
    let done = post(&gateway, "/orders", "done", "body").await;
    assert_eq!(done.status, 201);
    assert!(String::from_utf8_lossy(&done.body).contains(CANARY));
    assert!(post(&gateway, "/orders", "done", "body").await.is_replay());
    assert_eq!(
        post(&gateway, "/orders/7/pay", "failed", "body")
            .await
            .status,
        500
    );
    own(&post(&gateway, "/orders", "done", "other").await, "P4002");
    let long = "x".repeat(2000);
    own(
        &post(&gateway, "/orders", "long", &long).await,
        "body_too_large",
    );
    own(&post(&gateway, "/orders", &long, "body").await, "22023");
    gateway.get(&format!("/any?token={CANARY}")).await;
    wait_until("a line for each request", TIMEOUT, || async {
        gateway.log().matches("\"message\":\"request\"").count() == 7
    })
    .await
    .unwrap();
    assert_none("what the gateway says", &said(&gateway).await);

    // A service that takes the request and breaks off, and one that does not exist.
    let bad = BadUpstream::start(Bad::BreaksOffInTheBody).await;
    let broken = fixture.gateway(&setup.in_front_of(&bad.url)).await;
    own(
        &post(&broken, "/orders", "broken", "body").await,
        "upstream_unknown",
    );
    assert_none("after a service broke off", &said(&broken).await);
    let nobody = crate::upstream::silent_place();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    let alone = fixture.gateway(&setup.in_front_of(&url)).await;
    own(
        &post(&alone, "/orders", "alone", "body").await,
        "upstream_not_reached",
    );
    assert_none("without a service", &said(&alone).await);
    // Without its table nothing is known to the gateway, and the database's own text stays in neither.
    fixture.sql("drop table pgonce.intent cascade").await;
    let lost = post(&gateway, "/orders", "lost", "body").await;
    assert!(lost.status >= 500, "{lost:?}");
    assert_none(
        "an error of the database",
        &String::from_utf8_lossy(&lost.body),
    );
    assert_none("what the gateway says", &said(&gateway).await);
}
