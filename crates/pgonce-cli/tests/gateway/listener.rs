//! What clients can speak: TLS, HTTP/2, WebSockets; and who may see a replay.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pgonce_testkit::wait_until;
use rustix::process::Signal;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::fixture::{Fixture, Gateway, Setup, TIMEOUT};
use crate::passing::raw;
use crate::upstream::{Upstream, read_request};

/// Writes a certificate for localhost and its key; gives the certificate.
pub(crate) fn certify(folder: &Path) -> rustls::pki_types::CertificateDer<'static> {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(folder.join("chain.pem"), certificate.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
    certificate.der().clone()
}

async fn handshake(
    gateway: &Gateway,
    trusted: rustls::pki_types::CertificateDer<'static>,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted).unwrap();
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(gateway.address()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

pub(crate) fn encrypted(folder: &Path) -> String {
    format!(
        "tls = {{ certificate = \"{0}/chain.pem\", key = \"{0}/key.pem\" }}",
        folder.display()
    )
}

#[tokio::test]
async fn a_client_with_http_2_has_its_order_made_once() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let folder = tempfile::tempdir().unwrap();
    let trusted = certify(folder.path());
    let listen = encrypted(folder.path());
    let setup = Setup {
        listen: &listen,
        ..Setup::default()
    };
    let mut gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let stream = handshake(&gateway, trusted, b"h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let order = || {
        Request::post("https://shop.example/orders")
            .header("idempotency-key", "k")
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .body(Full::new(Bytes::from_static(b"{}")))
            .unwrap()
    };
    // Both at once, over one connection.
    let (one, two) = tokio::join!(sender.clone().send_request(order()), async {
        sender.clone().send_request(order()).await
    });
    for answer in [one.unwrap(), two.unwrap()] {
        assert_eq!(answer.version(), Version::HTTP_2);
        assert!([201, 409].contains(&answer.status().as_u16()), "{answer:?}");
    }
    let replay = sender.send_request(order()).await.unwrap();
    assert_eq!(
        (
            replay.status().as_u16(),
            &replay.headers()["idempotent-replayed"]
        ),
        (201, &"true".parse().unwrap())
    );
    let body = replay.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, r#"{"id":1}"#);
    let seen = upstream.orders();
    assert_eq!(seen.len(), 1);
    let seen = &seen[0];
    for (name, value) in [
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "shop.example"),
        ("cookie", "a=1; b=2"),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
    // It ends with the gateway, though the client would keep it.
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.end().await, 0);
    drop(sender);
    let _ = connection.await.unwrap();
}

#[tokio::test]
async fn a_new_certificate_is_shown_after_a_hangup_and_http_1_1_is_spoken_too() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let folder = tempfile::tempdir().unwrap();
    let old = certify(folder.path());
    let listen = encrypted(folder.path());
    let setup = Setup {
        listen: &listen,
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let mut stream = handshake(&gateway, old.clone(), b"http/1.1").await.unwrap();
    stream
        .write_all(b"GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");

    let new = certify(folder.path());
    gateway.signal(Signal::HUP);
    wait_until("the new certificate", TIMEOUT, || async {
        handshake(&gateway, new.clone(), b"http/1.1").await.is_ok()
    })
    .await
    .unwrap();
    assert!(handshake(&gateway, old, b"http/1.1").await.is_err());
    // One that cannot be used changes nothing.
    std::fs::write(folder.path().join("key.pem"), "no key").unwrap();
    gateway.signal(Signal::HUP);
    wait_until("the refusal", TIMEOUT, || async {
        gateway.log().contains("not reloaded")
    })
    .await
    .unwrap();
    assert!(handshake(&gateway, new, b"http/1.1").await.is_ok());
}

/// Says yes to every WebSocket, and sends back what it gets.
async fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let head = read_request(&mut stream).await.unwrap();
                assert!(head.contains("upgrade: websocket"), "{head}");
                let yes = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: x\r\n\r\n";
                stream.write_all(yes).await.unwrap();
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    url
}

const WEBSOCKET: &str = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: x";

#[tokio::test]
async fn a_websocket_is_a_tunnel_on_a_route_that_passes_and_on_no_other() {
    let (url, fixture) = (echo().await, Fixture::new().await);
    let mut gateway = fixture.gateway(&Setup::default().in_front_of(&url)).await;
    let request = format!("GET /chat HTTP/1.1\r\nhost: x\r\n{WEBSOCKET}\r\n\r\n");
    let (head, mut stream) = raw(&gateway, request.as_bytes()).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(
        head.to_lowercase().contains("upgrade: websocket")
            && head.contains("sec-websocket-accept: x"),
        "{head}"
    );
    for word in [&b"ping"[..], b"pong"] {
        stream.write_all(word).await.unwrap();
        let mut echoed = [0; 4];
        stream.read_exact(&mut echoed).await.unwrap();
        assert_eq!(echoed, word);
    }
    let request = format!(
        "POST /orders HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ncontent-length: 0\r\n{WEBSOCKET}\r\n\r\n"
    );
    let (head, _) = raw(&gateway, request.as_bytes()).await;
    assert!(head.starts_with("HTTP/1.1 501 "), "{head}");
    // An open tunnel does not keep the gateway from its end.
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.end().await, 0);
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_replay_is_shown_only_to_those_who_still_may_see_it() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let status = Arc::new(AtomicU16::new(200));
    let says = status.clone();
    let authority = Upstream::answering(move |_, _| {
        let status = says.load(Ordering::SeqCst);
        Response::builder()
            .status(status)
            .body(Body::from("no"))
            .unwrap()
    })
    .await;
    let once = format!("reauthorise = \"{}/check\"", authority.url);
    let setup = Setup {
        once: &once,
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let headers = [("idempotency-key", "k"), ("authorization", "Bearer t")];
    assert_eq!(gateway.post("/orders", &headers, "{}").await.status, 201);
    assert!(
        authority.seen().is_empty(),
        "what is done now is the service's concern"
    );
    assert!(gateway.post("/orders", &headers, "{}").await.is_replay());
    let asked = authority.seen();
    assert_eq!(asked[0].path, "/check");
    for (name, value) in [
        ("authorization", "Bearer t"),
        ("x-original-method", "POST"),
        ("x-original-uri", "/orders"),
    ] {
        assert_eq!(asked[0].header(name), Some(value), "{name}");
    }
    for (says, expected) in [(403, 403), (500, 503), (302, 503)] {
        status.store(says, Ordering::SeqCst);
        let refused = gateway.post("/orders", &headers, "{}").await;
        assert_eq!(refused.status, expected, "{refused:?}");
        assert!(!refused.body.starts_with(b"{\"id\""), "{refused:?}");
    }
    assert_eq!(upstream.orders().len(), 1);
}

/// Who asks is decided by the same headers as at the service: a client can neither hide them from the authority, nor imitate
/// them, nor say where it comes from.
#[tokio::test]
async fn the_authority_believes_a_client_no_more_than_the_service_does() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let authority = Upstream::answering(|_, _| Response::new(Body::empty())).await;
    let once = format!(
        "principal = {{ header = \"x-user\" }}\nreauthorise = \"{}/check\"",
        authority.url
    );
    let setup = Setup {
        once: &once,
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let headers = [
        ("idempotency-key", "k"),
        ("x-user", "ada"),
        ("connection", "x-user"),
        ("x_user", "root"),
        ("x_original_uri", "/public"),
        ("x-forwarded-for", "10.0.0.1"),
        ("forwarded", "for=10.0.0.1"),
    ];
    assert_eq!(gateway.post("/orders", &headers, "{}").await.status, 201);
    assert!(gateway.post("/orders", &headers, "{}").await.is_replay());
    let asked = authority.seen();
    for (name, value) in [
        ("x-user", Some("ada")),
        ("x_user", None),
        ("x_original_uri", None),
        ("x-original-uri", Some("/orders")),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("forwarded", None),
    ] {
        assert_eq!(asked[0].header(name), value, "{name}");
    }
}
