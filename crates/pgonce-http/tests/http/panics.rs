//! A handler that panics leaves no stuck key.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use pgonce_http::{Caller, HandlerError, Key, Outcomes, Policy, Tx};

use crate::support::{SCOPE, Site, TestDriver, World, for_each_driver, leave_effect, made};

for_each_driver!(
    a_panic_in_atomic_mode_undoes_the_effect_and_frees_the_key,
    a_panic_is_frozen_where_the_policy_freezes,
    a_panic_is_done_again_where_the_policy_finishes,
);

type Runs = Arc<AtomicUsize>;

async fn breaks_once<D: TestDriver>(
    State(runs): State<Runs>,
    mut tx: Tx<D>,
    key: Key,
    note: String,
) -> Result<Response, HandlerError> {
    leave_effect(&mut tx, &key, &note).await?;
    if runs.fetch_add(1, SeqCst) == 0 {
        panic!("as planned by a test");
    }
    Ok(made())
}

async fn a_panic_in_atomic_mode_undoes_the_effect_and_frees_the_key<D: TestDriver>(
    world: World<D>,
) {
    let layer = world.atomic(Policy::new(SCOPE, Caller::None));
    let router = Router::new().route("/effects", post(breaks_once::<D>).layer(layer.clone()));
    let site = Site::open(router.with_state(Runs::default())).await;
    site.post("/effects", "k1", "a book")
        .await
        .problem(500, "handler_failed");
    assert_eq!(world.effects().await, 0);
    assert_eq!(world.number("select count(*) from pgonce.intent").await, 0);
    let reply = site.post("/effects", "k1", "a book").await;
    assert_eq!((reply.status, reply.replayed()), (201, false));
    assert_eq!((world.effects().await, layer.counters().panics()), (1, 1));
}

/// A service in leased mode that panics the first time.
async fn leased<D: TestDriver>(world: &World<D>, outcomes: Outcomes) -> (Site, Runs) {
    let runs = Runs::default();
    let handler = async |State(runs): State<Runs>| {
        if runs.fetch_add(1, SeqCst) == 0 {
            panic!("as planned by a test");
        }
        made()
    };
    let layer = world.leased(Policy::new(SCOPE, Caller::None).outcomes(outcomes));
    let router = Router::new().route("/effects", post(handler).layer(layer));
    (Site::open(router.with_state(runs.clone())).await, runs)
}

async fn a_panic_is_frozen_where_the_policy_freezes<D: TestDriver>(world: World<D>) {
    let (site, runs) = leased(&world, Outcomes::Freeze).await;
    let first = site.post("/effects", "k1", "a book").await;
    first.problem(500, "handler_failed");
    let again = site.post("/effects", "k1", "a book").await;
    again.problem(500, "handler_failed");
    assert!(again.replayed() && !first.replayed());
    assert_eq!((again.body, runs.load(SeqCst)), (first.body, 1));
}

async fn a_panic_is_done_again_where_the_policy_finishes<D: TestDriver>(world: World<D>) {
    let (site, runs) = leased(&world, Outcomes::Finish).await;
    site.post("/effects", "k1", "a book")
        .await
        .problem(500, "handler_failed");
    assert_eq!(
        world.text("select status::text from pgonce.intent").await,
        "failed_retryable"
    );
    let again = site.post("/effects", "k1", "a book").await;
    assert_eq!(
        (again.status, again.replayed(), runs.load(SeqCst)),
        (201, false, 2)
    );
    assert!(site.post("/effects", "k1", "a book").await.replayed());
}
