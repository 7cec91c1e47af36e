//! What a handler gets, and what it must give back.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use pgonce::ClaimKind;
use pgonce_http::{AttemptInfo, Caller, HandlerError, Key, Outcomes, Policy, Tx};

use crate::support::{SCOPE, Site, TestDriver, World, for_each_driver, leave_effect, made};

for_each_driver!(
    the_handler_learns_which_attempt_it_is,
    a_transaction_that_is_not_given_back_commits_nothing,
    two_transactions_at_once_are_not_given_out,
    a_handler_publishes_and_locks_under_the_tenant_of_its_request,
);

type Seen = Arc<Mutex<Vec<(u32, ClaimKind, i64)>>>;

async fn the_handler_learns_which_attempt_it_is<D: TestDriver>(world: World<D>) {
    let seen = Seen::default();
    let handler = async |State(seen): State<Seen>, info: AttemptInfo, Key(key): Key| {
        assert_eq!(&*key, "k1");
        let mut seen = seen.lock().unwrap();
        seen.push((info.number, info.kind, info.fence));
        match seen.len() {
            3 => http::StatusCode::OK,
            _ => http::StatusCode::BAD_GATEWAY,
        }
    };
    let layer = world.leased(Policy::new(SCOPE, Caller::None).outcomes(Outcomes::Finish));
    let site = Site::open(
        Router::new()
            .route("/effects", post(handler).layer(layer))
            .with_state(seen.clone()),
    )
    .await;
    for status in [502, 502, 200, 200] {
        assert_eq!(site.post("/effects", "\"k1\"", "").await.status, status);
    }
    let seen = seen.lock().unwrap();
    let kinds: Vec<_> = seen
        .iter()
        .map(|(number, kind, _)| (*number, *kind))
        .collect();
    assert_eq!(
        kinds,
        [
            (1, ClaimKind::Fresh),
            (2, ClaimKind::Retry),
            (3, ClaimKind::Retry)
        ]
    );
    assert!(seen.is_sorted_by(|a, b| a.2 < b.2), "fences rise: {seen:?}");
}

async fn a_transaction_that_is_not_given_back_commits_nothing<D: TestDriver>(world: World<D>) {
    let handler = async |mut tx: Tx<D>, key: Key| {
        leave_effect(&mut tx, &key, "").await?;
        tokio::spawn(async move {
            let _kept = tx;
            std::future::pending::<()>().await;
        });
        Ok::<_, HandlerError>(made())
    };
    let layer = world.atomic(Policy::new(SCOPE, Caller::None));
    let site = Site::open(Router::new().route("/effects", post(handler).layer(layer))).await;
    site.post("/effects", "k1", "")
        .await
        .problem(500, "handler_failed");
    assert_eq!(world.effects().await, 0);
}

async fn two_transactions_at_once_are_not_given_out<D: TestDriver>(world: World<D>) {
    let handler = async |_one: Tx<D>, _two: Tx<D>| made();
    let layer = world.atomic(Policy::new(SCOPE, Caller::None));
    let site = Site::open(Router::new().route("/effects", post(handler).layer(layer))).await;
    site.post("/effects", "k1", "")
        .await
        .problem(500, "internal");
}

async fn a_handler_publishes_and_locks_under_the_tenant_of_its_request<D: TestDriver>(
    world: World<D>,
) {
    let handler = async |mut tx: Tx<D>| {
        tx.publish(pgonce::Event::new("orders", "order.created"))
            .await?;
        assert!(tx.try_lock("close").await?);
        assert_eq!(tx.tenant(), "acme");
        Ok::<_, HandlerError>(made())
    };
    let policy = Policy::new(SCOPE, Caller::None)
        .tenant(Caller::Header(http::HeaderName::from_static("x-tenant")));
    let layer = world.atomic(policy);
    let site = Site::open(Router::new().route("/effects", post(handler).layer(layer))).await;
    for _ in 0..2 {
        let request = site
            .request("/effects", "\"k1\"")
            .header("x-tenant", "acme");
        assert_eq!(request.send().await.unwrap().status(), 201);
    }
    let events: i64 =
        sqlx::query_scalar("select count(*) from pgonce.outbox where tenant = 'acme'")
            .fetch_one(&world.pool)
            .await
            .unwrap();
    assert_eq!(events, 1);
}
