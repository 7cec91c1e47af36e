//! A service that is made with pgonce passes.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use sqlx::PgPool;

use crate::place::{names, probe, serve};

/// Counts each time that the work of making an order was committed.
async fn count(State(pool): State<PgPool>) -> Json<i64> {
    let counted = sqlx::query_scalar("select count(*) from order_event");
    Json(counted.fetch_one(&pool).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_orders_service_passes() {
    let server = pgonce_testkit::shared(None).await.unwrap();
    let install = async |url: String| orders::set_up(&orders::connect(&url)?).await;
    server.template("probed", install).await.unwrap();
    let database = server.database_from("probed").await.unwrap();
    let once = orders::connect(&database.url()).unwrap();
    let pool = PgPool::connect(&database.url()).await.unwrap();
    let address = serve(orders::router(once)).await;
    let counter = serve(Router::new().route("/", get(count)).with_state(pool)).await;

    let body = r#"{"customer": "ada", "reference": "{{uuid}}", "item": "book", "amount": {{n}}}"#;
    let told = probe(&[
        &format!("{address}/orders"),
        "--body",
        body,
        "--header",
        "X-Tenant: red",
        "--other-header",
        "X-Tenant: blue",
        "--count-url",
        &counter,
        "--format",
        "json",
    ])
    .await;
    assert_eq!(told.code, 0, "{told:?}");
    assert_eq!(told.with_outcome("fail"), names(&[]), "{}", told.out);
    assert_eq!(
        told.with_outcome("inconclusive"),
        names(&[]),
        "{}",
        told.out
    );
    for case in [
        "different-keys",
        "sequential-duplicate",
        "concurrent-duplicates",
        "duplicate-after-race",
        "changed-payload",
        "changed-payload-in-flight",
        "key-forms",
        "missing-key",
        "empty-key",
        "long-key",
        "uppercase-keys",
        "odd-keys",
        "cut-after-headers",
        "cut-mid-body",
        "cut-before-answer",
        "replay-answer",
        "replay-headers",
        "replay-cookies",
        "replay-marked",
        "other-principal",
        "failed-validation",
        "problem-documents",
    ] {
        assert_eq!(told.case(case)["outcome"], "pass", "{}", told.case(case));
    }
}
