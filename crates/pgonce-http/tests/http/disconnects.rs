//! A client that goes away at any point does not cancel the effect, and its retry gets the answer.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use pgonce_http::{Caller, HandlerError, Key, Policy, Tx};
use pgonce_testkit::DelayProxy;
use sqlx::PgPool;
use tokio::io::AsyncReadExt as _;

use crate::support::{
    Gate, SCOPE, Site, TestDriver, World, for_each_driver, leave_effect, logged, made,
    outside_effect, until,
};

for_each_driver!(
    a_client_that_leaves_while_the_handler_works_finds_its_answer,
    a_client_that_leaves_while_it_is_recorded_finds_its_answer,
    a_handler_that_outlives_its_client_and_its_time_is_undone_and_named_in_the_log,
    a_request_that_breaks_off_at_any_byte_has_one_effect_or_none_and_then_one,
);

async fn gated<D: TestDriver>(
    State(gate): State<Gate>,
    mut tx: Tx<D>,
    key: Key,
    note: String,
) -> Result<Response, HandlerError> {
    leave_effect(&mut tx, &key, &note).await?;
    gate.pass().await;
    Ok(made())
}

async fn a_client_that_leaves_while_the_handler_works_finds_its_answer<D: TestDriver>(
    world: World<D>,
) {
    let gate = Gate::closed();
    let layer = world.atomic(Policy::new(SCOPE, Caller::None));
    let router = Router::new().route("/effects", post(gated::<D>).layer(layer.clone()));
    let site = Site::open(router.with_state(gate.clone())).await;
    let wire = site.wire(&site.raw("/effects", "k1", "a book")).await;
    gate.until_entered(1).await;
    drop(wire);
    // Still held: not even the client's end has ended it.
    assert_eq!(layer.under_way(), 1);
    gate.let_pass(1);
    world.until_effects(1).await;
    let again = site.post("/effects", "k1", "a book").await;
    assert!(again.replayed());
    assert_eq!((again.status, gate.entered()), (201, 1));
    layer.drained().await;
    assert_eq!(layer.under_way(), 0);
}

async fn outside(State((gate, pool)): State<(Gate, PgPool)>, key: Key, note: String) -> Response {
    gate.pass().await;
    outside_effect(&pool, &key, &note).await;
    made()
}

/// The database is not to blame for a handler that is given up.
async fn a_handler_that_outlives_its_client_and_its_time_is_undone_and_named_in_the_log<
    D: TestDriver,
>(
    world: World<D>,
) {
    let (log, _logging) = logged();
    let limit = Duration::from_secs(5);
    let policy = Policy::new(SCOPE, Caller::None)
        .database_timeout(limit)
        .handler_timeout(limit);
    let gate = Gate::closed();
    let layer = world.atomic(policy);
    let router = Router::new().route("/effects", post(gated::<D>).layer(layer.clone()));
    let site = Site::open(router.with_state(gate.clone())).await;
    let wire = site.wire(&site.raw("/effects", "k1", "a book")).await;
    gate.until_entered(1).await;
    drop(wire);
    until("no work is under way", || async { layer.under_way() == 0 }).await;
    assert_eq!(world.effects().await, 0);
    let log = String::from_utf8(log.lock().unwrap().clone()).unwrap();
    assert!(log.contains("the handler took longer than handler_timeout"));
    assert!(!log.contains("the database did not answer"));
}

async fn a_client_that_leaves_while_it_is_recorded_finds_its_answer<D: TestDriver>(
    world: World<D>,
) {
    let gate = Gate::closed();
    let layer = world.leased(Policy::new(SCOPE, Caller::None));
    let router = Router::new().route("/effects", post(outside).layer(layer.clone()));
    let site = Site::open(router.with_state((gate.clone(), world.pool.clone()))).await;
    let wire = site.wire(&site.raw("/effects", "k1", "a book")).await;
    gate.until_entered(1).await;
    drop(wire);
    gate.let_pass(1);
    layer.drained().await;
    let again = site.post("/effects", "k1", "a book").await;
    assert!(again.replayed());
    assert_eq!(
        (again.status, world.effects().await, gate.entered()),
        (201, 1, 1)
    );
}

async fn a_request_that_breaks_off_at_any_byte_has_one_effect_or_none_and_then_one<
    D: TestDriver,
>(
    world: World<D>,
) {
    let site = world.usual(Policy::new(SCOPE, Caller::None)).await;
    let whole = site.raw("/effects", "k1", "a book").len();
    for cut in (0..whole).step_by(7).chain([whole - 1]) {
        let key = format!("cut-{cut}");
        let raw = site.raw("/effects", &key, "a book");
        drop(site.wire(&raw[..cut.min(raw.len() - 1)]).await);
    }
    assert_eq!(world.effects().await, 0, "half a request did something");
    for cut in (0..whole).step_by(7).chain([whole - 1]) {
        let reply = site.post("/effects", &format!("cut-{cut}"), "a book").await;
        assert_eq!((reply.status, reply.replayed()), (201, false));
    }
}

#[tokio::test]
async fn a_client_whose_line_is_cut_at_any_byte_of_the_answer_gets_it_on_retry() {
    let world: World = World::new().await;
    let site = world.usual(Policy::new(SCOPE, Caller::None)).await;
    let first = site
        .exchange(&site.raw("/effects", "whole", "a book"))
        .await;
    let mut effects = 1;
    for cut in (0..first.len()).step_by(9) {
        let key = format!("cut-{cut}");
        let mut wire = site.wire(&site.raw("/effects", &key, "a book")).await;
        let mut part = vec![0; cut];
        wire.read_exact(&mut part).await.unwrap();
        drop(wire);
        effects += 1;
        world.until_effects(effects).await;
        let again = site.post("/effects", &key, "a book").await;
        assert!(again.replayed());
    }
    assert_eq!(world.effects().await, effects);
}

#[tokio::test]
async fn clients_behind_a_cut_line_get_one_effect_each() {
    let world: World = World::new().await;
    let site = world.usual(Policy::new(SCOPE, Caller::None)).await;
    let line =
        DelayProxy::start(site.address.as_str(), std::time::Duration::from_millis(1)).unwrap();
    let far = Site {
        address: line.addr().to_string(),
        client: site.client.clone(),
    };
    let clients = (0..30).map(async |n: usize| {
        let key = format!("far-{n}");
        loop {
            match far.request("/effects", &key).body("a book").send().await {
                Ok(reply) if reply.status() == 201 => return,
                Ok(reply) => assert_eq!(reply.status(), 409),
                Err(_) => {}
            }
        }
    });
    let cutter = async {
        while world.effects().await < 30 {
            line.cut_all();
        }
    };
    tokio::join!(futures_util::future::join_all(clients), cutter);
    assert_eq!(world.effects().await, 30);
}
