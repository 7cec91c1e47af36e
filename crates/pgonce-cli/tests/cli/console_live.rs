//! The console over time: charts, pages that are live, and the description of the API.

use std::collections::BTreeSet;

use pgonce_testkit::wait_until;
use serde_json::{Value, json};

use crate::console::{ADMIN, OPERATOR, VIEWER};
use crate::fixture::Fixture;
use crate::serve::{DEADLINE, Serving, TOKENS};

/// A day of counts, ten minutes apart.
pub(crate) async fn history(fixture: &Fixture) {
    fixture
        .sql(
            "insert into pgonce.sample select date_trunc('minute', now()) - n * interval '10 minutes', 100000 - n * 100 + 40 * (n % 5), 5000 - 30 * n + 20 * (n % 7), 900 - n, n \
             from generate_series(1, 150) n",
        )
        .await;
}

#[tokio::test]
async fn counts_are_taken_once_a_minute_and_the_overview_draws_what_happened_between_them() {
    let fixture = Fixture::installed().await;
    let serving = Serving::of(&fixture, &["--roles", "console"], "");
    assert!(serving.text("/", "").await.contains("Nothing to draw yet"));
    fixture.ok(&["purge"]);
    fixture.ok(&["purge"]);
    let count = "select count(*) from pgonce.sample where at > now() - interval '10 minutes'";
    let taken = fixture.client.query_one(count, &[]).await.unwrap();
    assert!(
        (1..=2).contains(&taken.get::<_, i64>(0)),
        "one for each minute"
    );
    // Old minutes go, hours stay for ninety days.
    fixture
        .sql(
            "delete from pgonce.sample; select pgonce._move_clock('-3 days');
             insert into pgonce.sample select date_trunc('hour', pgonce.now()) + n * interval '1 minute', 0, 0, 0, 0 from generate_series(0, 59) n;
             select pgonce._reset_clock(); insert into pgonce.sample values (now() - interval '91 days', 0, 0, 0, 0); select pgonce.purge();
             delete from pgonce.sample where at > now() - interval '10 minutes'",
        )
        .await;
    let left = fixture
        .client
        .query_one("select count(*) from pgonce.sample", &[]);
    assert_eq!(left.await.unwrap().get::<_, i64>(0), 1);
    fixture
        .sql(
            "truncate pgonce.sample;
             insert into pgonce.sample select date_bin('10 minutes', now(), '2000-01-01') - interval '2 hours' + n * interval '10 minutes',
                (array[100, 130, 130, 7])[n], n * 10, 0, 0 from generate_series(1, 4) n",
        )
        .await;
    let page = serving.text("/", "").await;
    assert!(
        page.contains("<svg viewBox=") && page.contains("37 intents recorded"),
        "{page}"
    );
    let answer = serving.get("/api/v1/overview", "").await;
    let rows = answer.json::<Value>().await.unwrap()["sections"][1]["rows"].take();
    let of = |name: &str| -> Vec<i64> {
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row[name].as_i64().unwrap()).collect()
    };
    // After a reset of the statistics counting began anew.
    assert_eq!(
        (of("intents"), of("suppressed")),
        (vec![30, 0, 7], vec![10, 10, 10])
    );
    assert!(!serving.text("/?range=1h", "").await.contains("<svg"));
}

#[tokio::test]
async fn a_page_is_reported_that_something_changed_and_only_to_who_may_look() {
    let fixture = Fixture::installed().await;
    let serving = Serving::of(&fixture, &["--roles", "console"], TOKENS);
    assert_eq!(serving.get("/events", "").await.status(), 303);
    let mut stream = serving.get("/events", VIEWER).await;
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let number = std::sync::atomic::AtomicU64::new(0);
    let work = async {
        let done = async || {
            let n = number.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            fixture
                .sql(&format!(
                    "select pgonce.claim('s', 'k{n}', '\\x01', '1 second')"
                ))
                .await;
            false
        };
        wait_until("never", DEADLINE, done).await
    };
    let mut said = String::new();
    let changed = async {
        while let Some(bytes) = stream.chunk().await.unwrap() {
            said.push_str(&String::from_utf8_lossy(&bytes));
            if said.contains("event: changed") {
                return;
            }
        }
        panic!("the stream ended: {said}");
    };
    tokio::select! {
        () = changed => {}
        late = work => panic!("{late:?}"),
    }
}

#[tokio::test]
async fn the_description_of_the_api_is_what_the_routes_do() {
    let fixture = Fixture::installed().await;
    let serving = Serving::of(&fixture, &[], TOKENS);
    assert_eq!(serving.get("/api/v1/openapi.json", "").await.status(), 401);
    let answer = serving.get("/api/v1/openapi.json", VIEWER).await;
    let document: Value = answer.json().await.unwrap();
    assert_eq!(
        (&document["openapi"], &document["servers"][0]["url"]),
        (&json!("3.1.0"), &json!("/api/v1"))
    );
    let paths = document["paths"].as_object().unwrap();
    let mut ids = BTreeSet::new();
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().unwrap() {
            assert!(
                ids.insert(operation["operationId"].to_string()),
                "{path}: its id is taken"
            );
            let token = match operation["x-role"].as_str().unwrap() {
                "viewer" => VIEWER,
                "operator" => OPERATOR,
                _ => ADMIN,
            };
            let name = path.strip_prefix("/act/");
            let status = match (method.as_str(), name) {
                ("get", None) => serving.get(&format!("/api/v1{path}"), token).await.status(),
                ("post", Some(act)) => {
                    let least = serving.act(act, VIEWER, &json!({})).await.status();
                    assert_eq!(least, 403, "{path} is not for viewers");
                    serving.act(act, token, &json!({})).await.status()
                }
                other => panic!("{path}: {other:?}"),
            };
            assert!(
                operation["responses"].get(status.as_str()).is_some(),
                "{path} answered {status}, which is not described"
            );
            assert_ne!(status, 403, "{path} as {token}");
        }
    }
    // None is left out.
    let acts = include_str!("../../../pgonce-console/src/acts.rs").matches("    Act {\n");
    let pages = include_str!("../../../pgonce-console/src/pages/mod.rs").matches("    entry(");
    assert_eq!(paths.len(), acts.count() + pages.count());
    assert_eq!(serving.get("/api/v1/nothing", VIEWER).await.status(), 404);
}
