//! A service that gives no answer: what the client gets, and whether the service is ever called again.
//! Each test is a line of the table in docs/src/gateway.md.

use pgonce_testkit::wait_until;
use rustix::process::Signal;

use crate::fixture::{Fixture, Gateway, Setup, TIMEOUT};
use crate::upstream::{Bad, BadUpstream, Upstream, silent_place};

const HASTY: &str = "connect_timeout = \"900ms\"\nresponse_timeout = \"1s\"\nidle_timeout = \"1s\"";

async fn gateway(fixture: &Fixture, url: &str, stale: &str) -> Gateway {
    let scope = format!("lease = \"2s\"\nstale = \"{stale}\"");
    limited(fixture, url, &scope, HASTY).await
}

/// Where a service that takes long is not what is tested.
async fn without_haste(fixture: &Fixture, url: &str, lease: &str) -> Gateway {
    let scope = format!("lease = \"{lease}\"\nstale = \"refuse\"");
    limited(fixture, url, &scope, "").await
}

async fn limited(fixture: &Fixture, url: &str, scope: &str, upstream: &str) -> Gateway {
    let setup = Setup {
        scope,
        upstream,
        ..Setup::default()
    };
    fixture.gateway(&setup.in_front_of(url)).await
}

/// Whatever a service does after it has read the request, nobody knows whether it happened.
async fn assert_unknown(bad: Bad, status: u16) {
    let (upstream, fixture) = (BadUpstream::start(bad).await, Fixture::new().await);
    let gateway = match status {
        504 => gateway(&fixture, &upstream.url, "refuse").await,
        _ => without_haste(&fixture, &upstream.url, "2s").await,
    };
    let answer = gateway.order("k").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (status, "upstream_unknown"),
        "{bad:?}: {answer:?}"
    );
    let last = gateway.order_until_settled("k").await;
    assert_eq!(
        (last.status, last.code().as_str()),
        (422, "P4030"),
        "{bad:?}: {last:?}"
    );
    assert_eq!(last.json()["reason"], "abandoned");
    assert_eq!(
        upstream.heads().len(),
        1,
        "{bad:?}: the service was asked again"
    );
    // It stays so, and other callers learn nothing about the key.
    assert_eq!(gateway.order("k").await.code(), "P4030");
    let other = gateway
        .post("/orders", &[("idempotency-key", "k")], "{}")
        .await;
    assert_eq!(other.code(), "P4002");
    assert_eq!(upstream.heads().len(), 1);
}

#[tokio::test]
async fn a_connection_that_closes_after_the_request_is_unknown() {
    assert_unknown(Bad::Closes, 502).await;
}

#[tokio::test]
async fn silence_after_the_request_is_unknown() {
    assert_unknown(Bad::StaysSilent, 504).await;
}

#[tokio::test]
async fn an_answer_that_breaks_off_in_its_head_is_unknown() {
    assert_unknown(Bad::BreaksOffInTheHead, 502).await;
}

#[tokio::test]
async fn an_answer_that_breaks_off_in_its_body_is_unknown() {
    assert_unknown(Bad::BreaksOffInTheBody, 502).await;
    assert_unknown(Bad::BreaksOffInAChunk, 502).await;
}

/// It may have broken off, or be whole: only who knows the service can say.
#[tokio::test]
async fn an_answer_whose_end_nothing_marks_is_unknown_unless_the_file_says_that_it_is_whole() {
    assert_unknown(Bad::MarksNoEnd, 502).await;
    let upstream = BadUpstream::start(Bad::MarksNoEnd).await;
    let fixture = Fixture::new().await;
    let setup = Setup {
        upstream: "close_delimited = \"whole\"",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    assert_eq!(gateway.order("k").await.status, 201);
    let again = gateway.order("k").await;
    assert!(again.is_replay() && again.body == b"half", "{again:?}");
}

#[tokio::test]
async fn an_answer_that_stalls_in_its_body_is_unknown() {
    assert_unknown(Bad::StallsInTheBody, 504).await;
}

#[tokio::test]
async fn with_stale_hold_it_waits_for_an_operator() {
    let (upstream, fixture) = (BadUpstream::start(Bad::Closes).await, Fixture::new().await);
    let gateway = gateway(&fixture, &upstream.url, "hold").await;
    assert_eq!(gateway.order("k").await.code(), "upstream_unknown");
    wait_until("an operator to be asked", TIMEOUT, || async {
        fixture
            .run(&["stuck"])
            .await
            .out
            .contains("needs_manual_action")
    })
    .await
    .unwrap();
    let answer = gateway.order("k").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (409, "P4029"),
        "{answer:?}"
    );
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(upstream.heads().len(), 1);
    // The operator found out that it had happened.
    let settle = [
        "intent",
        "settle",
        "orders.create",
        "k",
        "--yes",
        "--reason",
        "found",
    ];
    let settled = fixture
        .run(&[&settle[..], &["--answer", "{\"id\": 7}"]].concat())
        .await;
    assert_eq!(settled.code, 0, "{settled:?}");
    let answer = gateway.order("k").await;
    assert!(answer.status == 200 && answer.is_replay(), "{answer:?}");
    assert_eq!(answer.json()["id"], 7);
    assert_eq!(upstream.heads().len(), 1);
}

#[tokio::test]
async fn with_stale_takeover_it_is_asked_again_with_a_higher_fence() {
    let (upstream, fixture) = (BadUpstream::start(Bad::Closes).await, Fixture::new().await);
    let gateway = gateway(&fixture, &upstream.url, "takeover").await;
    assert_eq!(gateway.order("k").await.code(), "upstream_unknown");
    let answer = gateway.order_until_settled("k").await;
    assert_eq!(answer.code(), "upstream_unknown");
    let heads = upstream.heads();
    assert_eq!(heads.len(), 2);
    let of = |head: &str, name: &str| -> i64 {
        let line = head
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}: ")).map(str::to_owned));
        line.unwrap_or_else(|| panic!("no {name} in {head}"))
            .parse()
            .unwrap()
    };
    assert_eq!(
        (
            of(&heads[0], "pgonce-attempt"),
            of(&heads[1], "pgonce-attempt")
        ),
        (1, 2)
    );
    assert!(of(&heads[1], "pgonce-fence") > of(&heads[0], "pgonce-fence"));
    assert!(
        heads
            .iter()
            .all(|head| head.contains("\r\nidempotency-key: k\r\n")),
        "{heads:?}"
    );
}

#[tokio::test]
async fn a_service_that_cannot_be_reached_was_sent_nothing_and_is_asked_again() {
    let (place, fixture) = (silent_place(), Fixture::new().await);
    let address = place.local_addr().unwrap();
    let gateway = without_haste(&fixture, &format!("http://{address}"), "2s").await;
    for _ in 0..2 {
        let answer = gateway.order("k").await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (502, "upstream_not_reached"),
            "{answer:?}"
        );
    }
    // Another request under the same key is still a contradiction.
    let other = gateway
        .post("/orders", &[("idempotency-key", "k")], "{}")
        .await;
    assert_eq!(other.code(), "P4002");
    let upstream = Upstream::on(place.listen(1024).unwrap(), |_, _| {
        axum::response::Response::new("made".into())
    });
    let answer = gateway.order("k").await;
    assert_eq!(
        (answer.status, answer.is_replay()),
        (200, false),
        "{answer:?}"
    );
    assert_eq!(upstream.orders()[0].header("pgonce-attempt"), Some("3"));
    assert!(gateway.order("k").await.is_replay());
    assert_eq!(upstream.orders().len(), 1);
}

#[tokio::test]
async fn a_name_that_does_not_resolve_was_sent_nothing() {
    let fixture = Fixture::new().await;
    let gateway = gateway(&fixture, "http://no-such-host.invalid", "refuse").await;
    let answer = gateway.order("k").await;
    assert_eq!(answer.code(), "upstream_not_reached", "{answer:?}");
}

#[tokio::test]
async fn a_gateway_that_is_killed_leaves_it_unknown() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let first = without_haste(&fixture, &upstream.url, "2s").await;
    upstream.hold(true);
    let kill = async {
        wait_until("the call", TIMEOUT, || async {
            upstream.orders().len() == 1
        })
        .await
        .unwrap();
        first.signal(Signal::KILL);
    };
    let (order, ()) = tokio::join!(first.try_order("k"), kill);
    assert!(order.is_err(), "{order:?}");
    upstream.hold(false);
    let second = without_haste(&fixture, &upstream.url, "2s").await;
    let answer = second.order_until_settled("k").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (422, "P4030"),
        "{answer:?}"
    );
    assert_eq!(upstream.orders().len(), 1);
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_nothing_and_the_retry_replays() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let gateway = without_haste(&fixture, &upstream.url, "30s").await;
    upstream.hold(true);
    // The client's future is dropped, and its connection with it, once the service was asked.
    tokio::select! {
        answer = gateway.try_order("k") => panic!("answered: {answer:?}"),
        asked = wait_until("the call", TIMEOUT, || async { upstream.orders().len() == 1 }) => asked.unwrap(),
    }
    upstream.hold(false);
    let answer = gateway.order_until_settled("k").await;
    assert_eq!(
        (answer.status, answer.is_replay()),
        (201, true),
        "{answer:?}"
    );
    assert_eq!(upstream.orders().len(), 1);
}
