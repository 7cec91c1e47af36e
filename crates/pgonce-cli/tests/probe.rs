//! `pgonce probe`, mounted in the program: a service that is made with pgonce passes.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::Value;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::process::Command;

/// Counts each time that the work of making an order was committed.
async fn count(State(pool): State<PgPool>) -> Json<i64> {
    let counted = sqlx::query_scalar("select count(*) from order_event");
    Json(counted.fetch_one(&pool).await.unwrap())
}

/// Serves until the test's runtime ends; gives the address.
async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
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

    let body =
        r#"{"customer": "ada", "reference": "{{uuid}}", "item": "book", "amount": {{number}}}"#;
    let url = format!("{address}/orders");
    let output = Command::new(env!("CARGO_BIN_EXE_pgonce"))
        .args(["probe", &url, "--body", body, "--count-url", &counter])
        .args([
            "--header",
            "X-Tenant: red",
            "--other-header",
            "X-Tenant: blue",
        ])
        .args(["--late", "3s", "--format", "json"])
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    let outcome = |name: &str| {
        let cases = report["cases"].as_array().unwrap();
        let case = cases.iter().find(|case| case["case"] == name);
        case.unwrap()["outcome"].as_str().unwrap().to_owned()
    };
    for case in report["cases"].as_array().unwrap() {
        assert_ne!(case["outcome"], "inconclusive", "{case:#}");
    }
    for case in [
        "different-keys",
        "sequential-duplicate",
        "concurrent-duplicates",
        "duplicate-after-race",
        "changed-payload",
        "changed-payload-in-flight",
        "changed-member",
        "member-order",
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
        "late-duplicate",
    ] {
        assert_eq!(outcome(case), "pass", "{case}: {report:#}");
    }
}
