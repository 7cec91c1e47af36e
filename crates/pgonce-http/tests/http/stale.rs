//! The process that did the work is gone: no silent second run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use pgonce::scope::Stale;
use pgonce_http::{AttemptInfo, Caller, Disposition, Policy};

use crate::support::{SCOPE, Site, TestDriver, World, for_each_driver, made};

for_each_driver!(
    abandoned_work_is_not_done_again,
    abandoned_work_is_taken_over_where_the_policy_says_so,
    abandoned_work_waits_for_an_operator_where_the_contract_says_so,
    abandoned_work_waits_for_an_operator_where_only_the_policy_says_so,
);

type Runs = Arc<AtomicUsize>;

/// The first run ends as if its process had vanished: the claim stays and runs out.
async fn abandoned<D: TestDriver>(world: &World<D>, policy: Policy) -> (Site, Runs) {
    let runs = Runs::default();
    let count = runs.clone();
    let handler = post(async move |info: AttemptInfo| {
        let mut response = made();
        if count.fetch_add(1, SeqCst) == 0 {
            assert_eq!(info.number, 1);
            response.extensions_mut().insert(Disposition::Unknown);
        }
        response
    });
    let layer = world.leased(policy);
    let site = Site::open(Router::new().route("/effects", handler.layer(layer))).await;
    assert_eq!(site.post("/effects", "k1", "").await.status, 201);
    site.post("/effects", "k1", "").await.problem(409, "P4029");
    world
        .run_sql("select pgonce._move_clock(interval '1 hour')")
        .await;
    (site, runs)
}

async fn abandoned_work_is_not_done_again<D: TestDriver>(world: World<D>) {
    // Nobody has defined the scope: its contract would hand the work to the next one.
    let (site, runs) = abandoned(&world, Policy::new(SCOPE, Caller::None)).await;
    for _ in 0..2 {
        let reply = site.post("/effects", "k1", "").await;
        assert_eq!(reply.problem(422, "P4030")["reason"], "abandoned");
    }
    assert_eq!(runs.load(SeqCst), 1);
}

async fn abandoned_work_is_taken_over_where_the_policy_says_so<D: TestDriver>(world: World<D>) {
    let (site, runs) = abandoned(
        &world,
        Policy::new(SCOPE, Caller::None).stale(Stale::Takeover),
    )
    .await;
    let reply = site.post("/effects", "k1", "").await;
    assert_eq!(
        (reply.status, reply.replayed(), runs.load(SeqCst)),
        (201, false, 2)
    );
    assert!(site.post("/effects", "k1", "").await.replayed());
}

async fn abandoned_work_waits_for_an_operator_where_the_contract_says_so<D: TestDriver>(
    world: World<D>,
) {
    let policy = Policy::new(SCOPE, Caller::None)
        .retention(Duration::from_secs(86_400))
        .stale(Stale::Hold);
    world.leased(policy.clone()).agree().await.unwrap();
    let (site, runs) = abandoned(&world, policy).await;
    site.post("/effects", "k1", "").await.problem(409, "P4029");
    assert_eq!(runs.load(SeqCst), 1);
}

async fn abandoned_work_waits_for_an_operator_where_only_the_policy_says_so<D: TestDriver>(
    world: World<D>,
) {
    // Nobody has defined the scope: its contract would hand the work to the next one.
    let policy = Policy::new(SCOPE, Caller::None).stale(Stale::Hold);
    let (site, runs) = abandoned(&world, policy).await;
    for _ in 0..2 {
        let reply = site.post("/effects", "k1", "").await;
        reply.problem(409, "P4029");
        assert!(reply.headers.contains_key("retry-after"));
    }
    let waiting = "select count(*) from pgonce.intent where status = 'processing'";
    assert_eq!((world.number(waiting).await, runs.load(SeqCst)), (1, 1));
}
