//! examples/gateway-python: what its README shows, asserted.

use std::path::Path;
use std::process::Stdio;

use futures_util::future::join_all;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::fixture::{Fixture, TIMEOUT};

fn example() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gateway-python")
}

/// The service on a free port, and its address.
async fn orders() -> (Child, String) {
    let mut child = Command::new("python3")
        .arg(example().join("orders.py"))
        .arg("0")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect(
            "python3 is needed here: run `make setup`, which installs it, or install it by hand",
        );
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(TIMEOUT, lines.next_line())
        .await
        .unwrap()
        .unwrap();
    let url = line.expect("the service starts").replace("orders on ", "");
    (child, url)
}

/// The example's configuration, on free ports.
fn config(url: &str) -> String {
    let text = std::fs::read_to_string(example().join("gateway.toml")).unwrap();
    let changed = text
        .replace(
            "\"127.0.0.1:8080\"",
            "\"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"",
        )
        .replace("http://127.0.0.1:9000", url)
        .replace("format = \"text\"", "format = \"json\"");
    assert!(
        changed.contains(url) && changed.contains("admin"),
        "the example has changed: {changed}"
    );
    changed
}

#[tokio::test]
async fn a_python_service_makes_each_order_once() {
    let ((_service, url), fixture) = (orders().await, Fixture::new().await);
    let gateway = fixture.gateway(&config(&url)).await;
    let first = gateway.order("ada-1").await;
    assert_eq!(
        (first.status, first.json()),
        (201, json!({"id": 1, "item": "book"}))
    );
    assert_eq!(first.headers["location"], "/orders/1");
    let again = gateway.order("ada-1").await;
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert!(again.is_replay() && again.headers["location"] == "/orders/1");
    let other = gateway
        .post(
            "/orders",
            &[("idempotency-key", "ada-1")],
            r#"{"item":"pen"}"#,
        )
        .await;
    assert_eq!(other.status, 422);
    assert_eq!(gateway.post("/orders", &[], "{}").await.status, 400);

    let answers = join_all((0..8).map(|_| gateway.order("ada-2"))).await;
    assert!(
        answers.iter().all(|answer| answer.json()["id"] == 2),
        "{answers:?}"
    );
    assert_eq!(
        gateway.get("/orders").await.json(),
        json!([
            {"id": 1, "item": "book", "key": "ada-1", "attempt": "1"},
            {"id": 2, "item": "book", "key": "ada-2", "attempt": "1"},
        ])
    );
}
