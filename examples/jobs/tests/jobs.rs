//! What the example promises, on a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::Duration;

use jobs::{Request, request, set_up, work};
use pgonce_testkit::wait_until;

#[tokio::test]
async fn every_request_has_one_report_in_order_and_its_group_says_so() {
    let server = pgonce_testkit::shared(None).await.unwrap();
    let install = async |url: String| set_up(&url).await.map(drop);
    server.template("jobs", install).await.unwrap();
    let database = server.database_from("jobs").await.unwrap();
    let once = set_up(&database.url()).await.unwrap();
    for customer in ["ada", "bob", "nobody"] {
        for month in ["2026-01", "2026-02", "2026-03"] {
            let wanted = Request {
                customer: customer.to_owned(),
                month: month.to_owned(),
            };
            let id = request(&once, &wanted).await.unwrap();
            assert_eq!(request(&once, &wanted).await.unwrap(), id, "the same job");
        }
    }
    // Two workers; one is dropped in the middle, as a process that is killed.
    let killed = tokio::spawn({
        let once = once.clone();
        async move { work(&once, std::future::pending()).await }
    });
    let status = async || {
        let group = once.job_group("", "2026-03").await.unwrap().unwrap();
        group.status
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = tokio::spawn({
        let once = once.clone();
        async move { work(&once, async move { drop(stopped.await) }).await }
    });
    killed.abort();
    wait_until("the group to end", Duration::from_secs(120), || async {
        status().await != "running"
    })
    .await
    .unwrap();
    assert_eq!(
        status().await,
        "stuck",
        "the job of nobody is a dead letter"
    );
    stop.send(()).unwrap();
    worker.await.unwrap();
    let pool = once.driver().pool();
    let reports = "select string_agg(customer || month, ' ' order by customer collate \"C\", id) from reports";
    let reports: String = sqlx::query_scalar(reports).fetch_one(pool).await.unwrap();
    assert_eq!(
        reports,
        "ada2026-01 ada2026-02 ada2026-03 bob2026-01 bob2026-02 bob2026-03"
    );
}
