//! Routes with a policy happen once, whatever the service behind them knows about it.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::response::Response;
use futures_util::future::join_all;
use pgonce_testkit::wait_until;

use crate::fixture::{Fixture, Setup, TIMEOUT};
use crate::upstream::Upstream;

#[tokio::test]
async fn many_duplicates_at_once_are_one_call_and_one_answer() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        scope: "busy = \"wait\"\nwait_timeout = \"30s\"",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    upstream.hold(true);
    let orders = async { join_all((0..20).map(|_| gateway.order("k-1"))).await };
    let release = async {
        wait_until("the first call", TIMEOUT, || async {
            upstream.orders().len() == 1
        })
        .await
        .unwrap();
        upstream.hold(false);
    };
    let (answers, ()) = tokio::join!(orders, release);
    for answer in &answers {
        assert_eq!(
            (answer.status, &answer.body[..]),
            (201, &br#"{"id":1}"#[..]),
            "{answer:?}"
        );
        assert_eq!(answer.headers["location"], "/orders/1");
    }
    assert_eq!(
        answers.iter().filter(|answer| !answer.is_replay()).count(),
        1
    );
    assert_eq!(upstream.orders().len(), 1);
}

#[tokio::test]
async fn a_second_gateway_knows_what_the_first_did() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        upstream: "keep_alive = \"0s\"",
        ..Setup::default()
    };
    let config = setup.in_front_of(&upstream.url);
    let (one, other) = (
        fixture.gateway(&config).await,
        fixture.gateway(&config).await,
    );
    let (first, again) = (one.order("k").await, other.order("k").await);
    assert_eq!((first.status, again.status), (201, 201));
    assert_eq!(first.body, again.body);
    assert!(again.is_replay() && upstream.orders().len() == 1);
}

#[tokio::test]
async fn the_service_learns_key_attempt_and_fence_and_nobody_can_forge_them() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let gateway = fixture
        .gateway(&Setup::default().in_front_of(&upstream.url))
        .await;
    let forged = [
        ("idempotency-key", "\"k-1\""),
        ("pgonce-attempt", "7"),
        ("pgonce-fence", "7"),
    ];
    assert_eq!(gateway.post("/orders", &forged, "{}").await.status, 201);
    // With and without quotes it is the same key, and the service receives it in one form.
    assert!(
        gateway
            .post("/orders", &[("idempotency-key", "k-1")], "{}")
            .await
            .is_replay()
    );
    let seen = &upstream.orders()[0];
    assert_eq!(seen.header("idempotency-key"), Some("k-1"));
    assert_eq!(seen.header("pgonce-attempt"), Some("1"));
    let fence: i64 = seen.header("pgonce-fence").unwrap().parse().unwrap();
    assert_eq!(
        fixture.sql("select fence::text from pgonce.intent").await,
        [fence.to_string()]
    );

    let setup = Setup {
        upstream: "key_form = \"quoted\"",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    assert_eq!(gateway.order("k-2").await.status, 201);
    assert_eq!(
        upstream.orders()[1].header("idempotency-key"),
        Some("\"k-2\"")
    );
    // What passes has no attempt.
    gateway.get("/orders").await;
    assert_eq!(upstream.seen()[2].header("pgonce-attempt"), None);
}

#[tokio::test]
async fn a_key_for_another_request_or_none_never_reaches_the_service() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let gateway = fixture
        .gateway(&Setup::default().in_front_of(&upstream.url))
        .await;
    assert_eq!(gateway.order("k").await.status, 201);
    let other = gateway
        .post("/orders", &[("idempotency-key", "k")], r#"{"item":"pen"}"#)
        .await;
    assert_eq!((other.status, other.code().as_str()), (422, "P4002"));
    let none = gateway.post("/orders", &[], "{}").await;
    assert_eq!((none.status, none.code().as_str()), (400, "P4001"));
    assert_eq!(upstream.orders().len(), 1);
    // A key on two routes is two requests; on two paths of one route it is a contradiction.
    assert_eq!(
        gateway
            .post("/orders/1/pay", &[("idempotency-key", "k")], "{}")
            .await
            .status,
        201
    );
    assert_eq!(
        gateway
            .post("/orders/2/pay", &[("idempotency-key", "k")], "{}")
            .await
            .code(),
        "P4002"
    );
    assert_eq!(upstream.orders().len(), 2);
    // Another spelling of the path is no way around it.
    let none = gateway.post("/%6Frders", &[], "{}").await;
    assert_eq!((none.status, none.code().as_str()), (400, "P4001"));
}

#[tokio::test]
async fn two_principals_never_share_a_key_and_nobody_is_none_of_them() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        once: "principal = { header = \"X-User-Id\" }",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let order = async |user, token| {
        let headers = [
            ("idempotency-key", "k"),
            ("x-user-id", user),
            ("authorization", token),
        ];
        gateway.post("/orders", &headers, "{}").await
    };
    let (ada, bob) = (order("ada", "t-1").await, order("bob", "t-1").await);
    assert_eq!(
        (ada.json()["id"].as_u64(), bob.json()["id"].as_u64()),
        (Some(1), Some(2))
    );
    // A new token is still the same principal.
    let again = order("ada", "t-2").await;
    assert!(again.is_replay() && again.body == ada.body);
    let nobody = gateway
        .post("/orders", &[("idempotency-key", "k")], "{}")
        .await;
    assert_eq!(
        (nobody.status, nobody.code().as_str()),
        (401, "principal_missing")
    );
    assert_eq!(
        upstream
            .orders()
            .iter()
            .filter_map(|seen| seen.header("x-user-id"))
            .collect::<Vec<_>>(),
        ["ada", "bob"]
    );
}

#[tokio::test]
async fn a_failure_of_the_service_is_frozen_or_done_again_as_the_route_says() {
    let fixture = Fixture::new().await;
    for (outcomes, replayed, calls) in [
        ("freeze", true, 1),
        ("final", false, 2),
        ("finish", false, 2),
    ] {
        let upstream = Upstream::answering(|_, number| {
            let status = if number == 1 { 500 } else { 201 };
            Response::builder()
                .status(status)
                .body(Body::from(number.to_string()))
                .unwrap()
        })
        .await;
        let once = format!("outcomes = \"{outcomes}\"");
        let setup = Setup {
            once: &once,
            ..Setup::default()
        };
        let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
        assert_eq!(gateway.order(outcomes).await.status, 500);
        let again = gateway.order(outcomes).await;
        assert_eq!(
            (again.is_replay(), upstream.orders().len()),
            (replayed, calls),
            "{outcomes}"
        );
        assert_eq!(again.status, if replayed { 500 } else { 201 });
        let attempts: BTreeSet<_> = upstream
            .orders()
            .iter()
            .map(|seen| seen.header("pgonce-attempt").unwrap().to_owned())
            .collect();
        assert_eq!(attempts.len(), calls, "every call has a number of its own");
    }
}

/// The service answers with the status that the key names; what is kept is replayed, what is not reaches it again.
#[tokio::test]
async fn statuses_of_the_file_decide_what_is_kept_and_what_was_not_processed_is_not() {
    let upstream = Upstream::answering(|seen, number| {
        let status: u16 = seen.header("idempotency-key").unwrap()[..3]
            .parse()
            .unwrap();
        Response::builder()
            .status(status)
            .body(Body::from(number.to_string()))
            .unwrap()
    })
    .await;
    let fixture = Fixture::new().await;
    let twice = async |gateway: &crate::fixture::Gateway, key: &str| {
        let before = upstream.orders().len();
        let (first, again) = (gateway.order(key).await, gateway.order(key).await);
        let asked = upstream.orders().len() - before;
        assert_eq!(first.status.to_string(), key[..3], "{key}");
        assert_eq!(again.status, first.status, "{key}");
        assert_eq!(again.is_replay(), asked == 1, "{key}");
        assert_eq!(again.body == first.body, asked == 1, "{key}");
        asked
    };
    let plain = Setup::default().in_front_of(&upstream.url);
    let plain = fixture.gateway(&plain).await;
    for status in ["400", "401", "403", "408", "422", "425", "429"] {
        assert_eq!(twice(&plain, &format!("{status}-plain")).await, 2);
    }
    for status in ["201", "404", "409", "500"] {
        assert_eq!(twice(&plain, &format!("{status}-plain")).await, 1);
    }
    let setup = Setup {
        once: "statuses = { refuse = [403], retry = [503], forget = [404] }",
        ..Setup::default()
    };
    let said = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    for (status, asked) in [("403", 1), ("503", 2), ("404", 2), ("201", 1), ("429", 2)] {
        assert_eq!(twice(&said, &format!("{status}-said")).await, asked);
    }
}

#[tokio::test]
async fn the_log_has_a_line_for_each_request_and_never_the_key() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        once: "tenant = { header = \"X-Tenant\" }",
        ..Setup::default()
    };
    let config = setup.in_front_of(&upstream.url) + "[log]\ncorrelation = \"X-Request-Id\"\n";
    let gateway = fixture.gateway(&config).await;
    let order = async |key: &str, body: &str| {
        let headers = [
            ("idempotency-key", key),
            ("x-tenant", "red"),
            ("x-request-id", "r-1"),
        ];
        gateway.post("/orders", &headers, body).await
    };
    order("very-secret-key", "{}").await;
    order("\"very-secret-key\"", "{}").await;
    gateway.get("/x?token=very-secret-key").await;
    order("very-secret-key", "[]").await;
    gateway.order("no-tenant").await;
    wait_until("five lines", TIMEOUT, || async {
        gateway.log().matches("\"message\":\"request\"").count() == 5
    })
    .await
    .unwrap();
    let log = gateway.log();
    assert!(!log.contains("very-secret-key"), "{log}");
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|line| line["message"] == "request")
        .collect();
    assert_eq!(lines[0]["key"], lines[1]["key"]);
    assert_eq!(lines[0]["key"].as_str().unwrap().len(), 16);
    let outcomes: Vec<_> = lines
        .iter()
        .map(|line| line["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(
        outcomes,
        ["done", "replayed", "passed", "conflicts", "refused"]
    );
    assert_eq!(lines[0]["scope"], "orders.create");
    for (line, attempts) in [(0, 1), (1, 0), (3, 0)] {
        let line = &lines[line];
        assert_eq!(
            (&line["tenant"], &line["correlation"], &line["attempts"]),
            (&"red".into(), &"r-1".into(), &attempts.into()),
            "{line}"
        );
    }
    assert_eq!(lines[2]["route"], "/{*rest}");
}

#[tokio::test]
async fn a_gateway_sends_a_request_home_and_the_home_calls_the_service_once() {
    let (upstream, eu, us) = (
        Upstream::start().await,
        Fixture::new().await,
        Fixture::new().await,
    );
    let config = Setup::default().in_front_of(&upstream.url);
    let (away, home) = (eu.gateway(&config).await, us.gateway(&config).await);
    let be_eu = |mode: &str| {
        format!(
            "select pgonce.region_join(1::smallint, 'eu'), pgonce._add_region(2::smallint, 'us', '{}'), \
             pgonce._activate_region(1::smallint), pgonce._activate_region(2::smallint); \
             select pgonce.define_region_rule('*', '{mode}', 'us'), pgonce._apply_region_rule('*', '')",
            home.url
        )
    };
    eu.sql(&be_eu("home")).await;
    // The client follows.
    let (first, again) = (away.order("k-1").await, away.order("k-1").await);
    assert_eq!((first.status, again.status), (201, 201), "{first:?}");
    assert!(!first.is_replay() && again.is_replay());
    assert_eq!(upstream.orders().len(), 1);
    eu.sql(&be_eu("read_only")).await;
    let refused = away.order("k-2").await;
    assert_eq!((refused.status, &*refused.code()), (421, "P4110"));
    assert_eq!(upstream.orders().len(), 1);
}
