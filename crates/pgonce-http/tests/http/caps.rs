//! Limits on everything, checked before the database is asked.

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use pgonce_http::{Budget, Caller, IdempotencyLayer, Policy};
use tokio::io::AsyncReadExt as _;

use crate::support::{Gate, SCOPE, Site, World, chunks, effect, made, until};

type Sqlx = pgonce::driver::sqlx::Sqlx;

/// What a request takes beside its body.
const EACH: usize = 16 * 1024;

/// A layer whose database does not exist: what it answers, it answers by itself.
fn alone(policy: Policy) -> IdempotencyLayer<Sqlx> {
    let pool = sqlx::postgres::PgPoolOptions::new().acquire_timeout(Duration::from_secs(1));
    let pool = pool
        .connect_lazy("postgres://postgres@127.0.0.1:1/none")
        .unwrap();
    IdempotencyLayer::atomic(pgonce::Once::sqlx(pool), policy).unwrap()
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused_however_it_is_sent() {
    let layer = alone(Policy::new(SCOPE, Caller::None).max_body(10));
    let site = Site::open(Router::new().route("/effects", post(effect::<Sqlx>).layer(layer))).await;
    site.post("/effects", "k1", "12345678901")
        .await
        .problem(413, "body_too_large");
    let unannounced = reqwest::Body::wrap_stream(chunks(&["12345", "678901"]));
    site.post("/effects", "k1", unannounced)
        .await
        .problem(413, "body_too_large");
    // The limit itself still fits, and then it is the database that is missing.
    site.post("/effects", "k1", "1234567890")
        .await
        .problem(503, "08006");
}

#[tokio::test]
async fn a_body_that_drips_is_not_waited_for() {
    let layer = alone(Policy::new(SCOPE, Caller::None).body_timeout(Duration::from_millis(200)));
    let site = Site::open(Router::new().route("/effects", post(effect::<Sqlx>).layer(layer))).await;
    let raw = site.raw("/effects", "k1", "a book");
    let mut wire = site.wire(&raw[..raw.len() - 1]).await;
    let mut answer = vec![0; 64];
    let read = wire.read(&mut answer).await.unwrap();
    assert!(
        answer[..read].starts_with(b"HTTP/1.1 408 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}

#[tokio::test]
async fn uploads_beyond_the_budget_get_503_and_the_budget_is_given_back() {
    let world: World = World::new().await;
    let (gate, budget) = (Gate::closed(), Budget::bytes(100 + 2 * EACH));
    let at_gate = gate.clone();
    let handler = post(async move |body: Bytes| {
        at_gate.pass().await;
        body.len().to_string()
    });
    let layer = world
        .leased(Policy::new(SCOPE, Caller::None))
        .budget(budget.clone());
    let site = Site::open(Router::new().route("/effects", handler.layer(layer.clone()))).await;
    let sixty = "x".repeat(60);
    let (first, ()) = tokio::join!(site.post("/effects", "k1", sixty.clone()), async {
        gate.until_entered(1).await;
        assert_eq!(budget.free(), 40 + EACH);
        let beyond = site.post("/effects", "k2", sixty.clone()).await;
        beyond.problem(503, "overloaded");
        let after = beyond.headers["retry-after"].to_str().unwrap();
        assert!(["1", "2", "3"].contains(&after), "{after}");
        let unannounced = reqwest::Body::wrap_stream(chunks(&[
            "0123456789",
            "0123456789",
            "0123456789",
            "0123456789",
            "!",
        ]));
        site.post("/effects", "k3", unannounced)
            .await
            .problem(503, "overloaded");
        assert_eq!(budget.free(), 40 + EACH);
        gate.let_pass(10);
        assert_eq!(
            site.post("/effects", "k4", "y".repeat(40)).await.status,
            200
        );
    });
    assert_eq!((first.status, &*first.body), (200, &b"60"[..]));
    layer.drained().await;
    assert_eq!(budget.free(), 100 + 2 * EACH);
    assert_eq!(layer.counters().unavailable(), 2);
}

#[tokio::test]
async fn the_work_of_clients_that_hang_up_is_bounded() {
    let world: World = World::new().await;
    let (gate, budget) = (Gate::closed(), Budget::bytes(3 * EACH + EACH / 2));
    let at_gate = gate.clone();
    let handler = post(async move || {
        at_gate.pass().await;
        made()
    });
    let layer = world
        .leased(Policy::new(SCOPE, Caller::None))
        .budget(budget.clone());
    let site = Site::open(Router::new().route("/effects", handler.layer(layer.clone()))).await;
    for (number, pad) in [(1, 0), (2, EACH)] {
        let request = format!(
            "POST /effects HTTP/1.1\r\nhost: x\r\nidempotency-key: k{number}\r\nx-pad: {}\r\n\r\n",
            "x".repeat(pad)
        );
        let wire = site.wire(request.as_bytes()).await;
        gate.until_entered(number).await;
        drop(wire);
    }
    assert_eq!(layer.under_way(), 2);
    site.post("/effects", "k3", "")
        .await
        .problem(503, "overloaded");
    gate.let_pass(2);
    until("the work is done", || async { layer.under_way() == 0 }).await;
    assert_eq!(budget.free(), 3 * EACH + EACH / 2);
    gate.let_pass(1);
    assert_eq!(site.post("/effects", "k3", "").await.status, 201);
}

#[tokio::test]
async fn a_handler_without_a_layer_says_so_and_does_nothing() {
    let site = Site::open(Router::new().route("/effects", post(effect::<Sqlx>))).await;
    site.post("/effects", "k1", "a book")
        .await
        .problem(500, "internal");
    let site =
        Site::open(Router::new().route("/other", post(async |_: pgonce_http::AttemptInfo| made())))
            .await;
    site.post("/other", "k1", "a book")
        .await
        .problem(500, "internal");
}
