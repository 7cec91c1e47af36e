//! Nobody can ask for more than the file allows.

use axum::body::Body;
use axum::response::Response;
use pgonce_testkit::wait_until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fixture::{Fixture, Setup, TIMEOUT};
use crate::passing::{raw, read_head};
use crate::upstream::Upstream;

#[tokio::test]
async fn a_head_that_is_too_large_is_431() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        listen: "max_header_bytes = \"8 KiB\"",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let request = format!(
        "GET /x HTTP/1.1\r\nhost: x\r\nx-large: {}\r\n\r\n",
        "v".repeat(9000)
    );
    let (head, _) = raw(&gateway, request.as_bytes()).await;
    assert!(head.starts_with("HTTP/1.1 431 "), "{head}");
    assert!(upstream.seen().is_empty());
}

#[tokio::test]
async fn a_body_that_is_too_large_is_413_and_the_key_is_free() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        once: "max_body = \"1 KiB\"",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let key = [("idempotency-key", "k")];
    let answer = gateway.post("/orders", &key, &"v".repeat(1025)).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (413, "body_too_large")
    );
    assert_eq!(
        gateway
            .post("/orders", &key, &"v".repeat(1024))
            .await
            .status,
        201
    );
    assert_eq!(upstream.orders().len(), 1);
    // What is not recorded has no such limit.
    let other = [("content-length", "5000")];
    assert_eq!(
        gateway
            .post("/else", &other, &"v".repeat(5000))
            .await
            .status,
        201
    );
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_refused_or_passed_whole_as_the_route_says() {
    let fixture = Fixture::new().await;
    let upstream = Upstream::answering(|_, _| Response::new(Body::from("v".repeat(5000)))).await;
    for (oversize, status, code) in [
        ("refuse", 500, "response_too_large"),
        ("pass", 200, "P4031"),
    ] {
        let once = format!("max_response = \"1 KiB\"\noversize = \"{oversize}\"");
        let setup = Setup {
            once: &once,
            ..Setup::default()
        };
        let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
        let before = upstream.orders().len();
        let answer = gateway.order(oversize).await;
        assert_eq!(answer.status, status, "{answer:?}");
        if oversize == "pass" {
            assert_eq!(answer.body.len(), 5000);
        }
        let again = gateway.order(oversize).await;
        assert_eq!(again.code(), code, "{again:?}");
        assert_eq!(upstream.orders().len(), before + 1, "it was done again");
    }
}

#[tokio::test]
async fn a_client_that_stops_sending_gets_408() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        listen: "body_timeout = \"300ms\"",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    for path in ["/else", "/orders"] {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nidempotency-key: {path}\r\ncontent-length: 10\r\n\r\nhalf"
        );
        let (head, _) = raw(&gateway, request.as_bytes()).await;
        assert!(head.starts_with("HTTP/1.1 408 "), "{path}: {head}");
    }
    assert!(upstream.orders().is_empty());
}

#[tokio::test]
async fn a_client_may_take_longer_to_send_than_the_service_to_answer() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        upstream: "connect_timeout = \"3s\"\nresponse_timeout = \"4s\"",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream
        .write_all(b"PUT /file HTTP/1.1\r\nhost: x\r\ncontent-length: 25\r\n\r\n")
        .await
        .unwrap();
    // The pace is what is tested: each pause is shorter than the limit, all together are longer.
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(200));
    for _ in 0..25 {
        pace.tick().await;
        stream.write_all(b"v").await.unwrap();
    }
    let mut stream = tokio::io::BufReader::new(stream);
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
    assert_eq!(upstream.seen()[0].body, "v".repeat(25));
}

#[tokio::test]
async fn a_client_that_never_finishes_its_head_is_let_go() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        listen: "header_timeout = \"300ms\"",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream.write_all(b"GET /x HT").await.unwrap();
    let mut said = Vec::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut said))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn one_connection_too_many_waits_for_its_turn() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        listen: "max_connections = 1",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let request = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n";
    let (head, first) = raw(&gateway, request).await;
    assert!(head.starts_with("HTTP/1.1 201"), "{head}");
    let mut second = TcpStream::connect(gateway.address()).await.unwrap();
    second.write_all(request).await.unwrap();
    // The first is still there and served, so the second is not.
    let mut first = first.into_inner();
    first.write_all(request).await.unwrap();
    wait_until("the first connection's second request", TIMEOUT, || async {
        upstream.seen().len() == 2
    })
    .await
    .unwrap();
    let mut piece = [0; 1];
    assert!(
        second.try_read(&mut piece).is_err(),
        "the second connection was served"
    );
    assert_eq!(
        gateway.health("/healthz").await.0,
        200,
        "health has a listener of its own"
    );
    drop(first);
    let mut second = tokio::io::BufReader::new(second);
    assert!(read_head(&mut second).await.starts_with("HTTP/1.1 201"));
    assert_eq!(upstream.seen().len(), 3);
}

/// Who reads the head and then nothing more is let go, so that others get the connection.
#[tokio::test]
async fn a_client_that_stops_reading_is_let_go() {
    let upstream =
        Upstream::answering(|_, _| Response::new(Body::from(vec![b'x'; 50_000_000]))).await;
    let fixture = Fixture::new().await;
    let setup = Setup {
        listen: "max_connections = 1\nwrite_timeout = \"300ms\"",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let request = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n";
    let (head, silent) = raw(&gateway, request).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    // There is room for one: this one is served when the other is gone, which itself has not moved.
    let (head, _) = raw(&gateway, request).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    drop(silent);
}
