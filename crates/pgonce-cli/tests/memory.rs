//! The gateway's memory stays within `listen.memory`, however many upload at once.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stdout, reason = "shown with --nocapture")]

// A gateway in a process of its own, as its other tests have it.
#[allow(dead_code)]
#[path = "gateway/fixture.rs"]
mod fixture;
// The same uploads as for the layer.
#[path = "../../pgonce-http/tests/memory/uploads.rs"]
mod uploads;

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use fixture::{Fixture, Setup};
use http::StatusCode;
use tokio::net::TcpListener;
use uploads::{Held, MIB, SIZE};

const BUDGET: usize = 16 * MIB;

async fn weigh(body: Bytes) -> (StatusCode, String) {
    (StatusCode::CREATED, body.len().to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_large_uploads_at_once_stay_within_the_gateways_memory_and_all_are_answered() {
    uploads::prepare();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().route("/effects", post(weigh));
    tokio::spawn(async move { axum::serve(listener, router).await });

    let fixture = Fixture::new().await;
    let setup = Setup {
        // Nobody is to be turned away for being slow on a busy machine.
        listen: "memory = \"16 MiB\"\nbody_timeout = \"10m\"",
        database: "timeout = \"60s\"",
        upstream: "connect_timeout = \"30s\"\nresponse_timeout = \"60s\"",
        once: "max_body = \"2 MiB\"",
        ..Setup::default()
    };
    let config = setup
        .in_front_of(&upstream)
        .replacen("\"/orders\"", "\"/effects\"", 1);
    let gateway = fixture.gateway(&config).await;
    let key = |key| [("idempotency-key", key)];
    let output = gateway.post("/effects", &key("before"), "a book").await;
    assert_eq!(output.status, 201, "{output:?}");

    let process = gateway.child.id().unwrap();
    let before = Held::by(process);
    let answers = uploads::at_once(gateway.address(), async || ()).await;
    before.check(process, BUDGET);
    println!("{answers:?}");
    answers.check();

    let output = gateway
        .post("/effects", &key("after"), &"y".repeat(SIZE))
        .await;
    assert_eq!(output.status, 201, "{output:?}");
}
