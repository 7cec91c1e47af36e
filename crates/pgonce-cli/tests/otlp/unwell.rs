//! Collectors that are gone, or take everything and answer nothing.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use pgonce_testkit::wait_until;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::{TcpListener, TcpSocket};

use crate::fixture::{Fixture, Gateway, Setup, TIMEOUT, get, program};

const DROPPED: &str = "spans are dropped until the collector takes them again";

/// Takes connections, and never answers.
async fn silent() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let taken = Arc::<AtomicUsize>::default();
    let count = taken.clone();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            open.push(stream);
        }
    });
    (url, taken)
}

/// An address where nobody listens.
/// Bound, and not listening: nobody else gets the port meanwhile.
fn gone() -> TcpSocket {
    let nobody = TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    nobody
}

/// A short queue, and a request that may last longer than the test.
fn variables(url: &str) -> Vec<(&str, &str)> {
    vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "600000"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "8"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8"),
        ("OTEL_BSP_SCHEDULE_DELAY", "10"),
    ]
}

async fn nothing_waits(collector: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().route("/orders", post(async || StatusCode::CREATED));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let fixture = Fixture::new().await;
    let database = fixture.database.url();
    let mut variables = variables(collector);
    variables.push(("DATABASE_URL", &database));
    let config = Setup::default().in_front_of(&upstream);
    let mut gateway = Gateway::start_with(&config, &variables).await;
    for n in 0..20 {
        assert_eq!(gateway.order(&format!("key-{n}")).await.status, 201);
    }
    let said = async || gateway.log().contains(DROPPED);
    wait_until("a line about it", TIMEOUT, said).await.unwrap();
    assert_eq!(gateway.order("after").await.status, 201);
    // It ends, though a request to the collector may last ten minutes.
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.end().await, 0, "{}", gateway.log());
    let log = gateway.log();
    assert_eq!(log.matches(DROPPED).count(), 1, "said once: {log}");
}

#[tokio::test]
async fn a_collector_that_is_gone_disturbs_nothing() {
    let nobody = gone();
    nothing_waits(&format!("http://{}", nobody.local_addr().unwrap())).await;
}

#[tokio::test]
async fn a_collector_that_never_answers_disturbs_nothing() {
    let (url, taken) = silent().await;
    nothing_waits(&url).await;
    assert!(taken.load(Ordering::SeqCst) > 0);
}

/// What is dropped is counted, and the messages are applied meanwhile.
#[tokio::test]
async fn spans_that_are_dropped_are_counted() {
    let (url, _) = silent().await;
    let fixture = Fixture::new().await;
    fixture
        .sql(
            "create table received (n bigint); select pgonce.create_subscription('c'); \
             create function apply(p_message jsonb) returns void language sql as \
             'insert into received values ((p_message -> ''payload'' ->> ''n'')::bigint)'; \
             select pgonce.publish('t', 'counted', 's' || n, jsonb_build_object('n', n)) from generate_series(1, 100) n",
        )
        .await;
    let args = [
        "consume",
        "--consumer",
        "c",
        "--source",
        "outbox:c",
        "--sql",
        "apply",
        "--listen",
        "127.0.0.1:0",
        "--log-format",
        "json",
    ];
    let mut child = program(&args)
        .env("DATABASE_URL", fixture.database.url())
        .envs(variables(&url))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let admin = loop {
        let line = lines.next_line().await.unwrap().unwrap();
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        if line["message"] == "health and metrics" {
            break format!("http://{}", line["address"].as_str().unwrap());
        }
    };
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let applied = async || fixture.sql("select count(*) from received").await == ["100"];
    wait_until("all to be applied", TIMEOUT, applied)
        .await
        .unwrap();
    let counted = async || {
        let page = get(&format!("{admin}/metrics")).await;
        let page = String::from_utf8(page.body).unwrap();
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix("pgonce_trace_spans_dropped_total "));
        // Eight wait, and eight are on their way for ever.
        line.is_some_and(|count| count.parse::<u64>().unwrap() >= 84)
    };
    wait_until("what was dropped to be counted", TIMEOUT, counted)
        .await
        .unwrap();
    let id = i32::try_from(child.id().unwrap()).unwrap();
    let id = rustix::process::Pid::from_raw(id).unwrap();
    rustix::process::kill_process(id, Signal::TERM).unwrap();
    let ended = tokio::time::timeout(TIMEOUT, child.wait()).await.unwrap();
    assert!(ended.unwrap().success());
}
