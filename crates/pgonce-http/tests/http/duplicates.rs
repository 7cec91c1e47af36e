//! However often it is sent: one effect, one answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use futures_util::future::join_all;
use pgonce::scope::Busy;
use pgonce_http::{Caller, Key, Policy};
use sqlx::PgPool;

use crate::support::{
    SCOPE, Site, TestDriver, World, effect, for_each_driver, made, outside_effect,
};

const DAY: Duration = Duration::from_secs(86_400);

for_each_driver!(
    a_retry_gets_the_same_bytes_and_makes_nothing,
    a_hundred_at_once_make_one_effect_and_get_one_answer,
    a_hundred_at_once_are_recorded_once,
);

async fn a_retry_gets_the_same_bytes_and_makes_nothing<D: TestDriver>(world: World<D>) {
    let site = world.usual(Policy::new(SCOPE, Caller::None)).await;
    let first = site.post("/effects", "k1", "a book").await;
    assert_eq!(first.status, 201);
    assert!(!first.headers.contains_key("idempotent-replayed"));
    for form in ["k1", "\"k1\""] {
        let again = site.post("/effects", form, "a book").await;
        assert!(again.replayed());
        assert_eq!((again.status, &again.body), (201, &first.body));
        assert_eq!(again.headers["location"], first.headers["location"]);
    }
    assert_eq!(world.effects().await, 1);
    let other = site.post("/effects", "k2", "a book").await;
    assert!(!other.replayed());
    assert_ne!(other.body, first.body);
    assert_eq!(world.effects().await, 2);
}

/// With `Busy::Wait` all of them get the answer.
fn waiting() -> Policy {
    let policy = Policy::new(SCOPE, Caller::None)
        .retention(DAY)
        .busy(Busy::Wait);
    policy.wait_timeout(Duration::from_secs(60))
}

async fn a_hundred_at_once_make_one_effect_and_get_one_answer<D: TestDriver>(world: World<D>) {
    let layer = world.atomic(waiting());
    layer.agree().await.unwrap();
    let site =
        Site::open(Router::new().route("/effects", post(effect::<D>).layer(layer.clone()))).await;
    one_answer_for_a_hundred(&site).await;
    assert_eq!(world.effects().await, 1);
    assert_eq!(
        (layer.counters().done(), layer.counters().replayed()),
        (1, 99)
    );
}

async fn a_hundred_at_once_are_recorded_once<D: TestDriver>(world: World<D>) {
    let layer = world.leased(waiting());
    layer.agree().await.unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let state = (world.pool.clone(), runs.clone());
    let router = Router::new()
        .route("/effects", post(outside).layer(layer))
        .with_state(state);
    one_answer_for_a_hundred(&Site::open(router).await).await;
    assert_eq!((world.effects().await, runs.load(SeqCst)), (1, 1));
}

async fn outside(
    State((pool, runs)): State<(PgPool, Arc<AtomicUsize>)>,
    key: Key,
    note: String,
) -> Response {
    runs.fetch_add(1, SeqCst);
    outside_effect(&pool, &key, &note).await;
    made()
}

async fn one_answer_for_a_hundred(site: &Site) {
    let replies = join_all((0..100).map(|_| site.post("/effects", "k1", "a book"))).await;
    let originals = replies.iter().filter(|reply| !reply.replayed()).count();
    assert_eq!(
        originals,
        1,
        "{:?}",
        replies.iter().map(|t| t.status).collect::<Vec<_>>()
    );
    for one in &replies {
        assert_eq!((one.status, &one.body), (201, &replies[0].body));
        assert_eq!(one.headers["location"], replies[0].headers["location"]);
    }
}
