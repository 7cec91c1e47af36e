//! Encrypted connections to the service.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::fixture::{Fixture, Gateway, Setup};
use crate::upstream::read_request;

/// A service with a certificate of a private authority; gives its port and the authority as PEM.
async fn start() -> (u16, String) {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(["localhost".to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![leaf.der().clone()],
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    return;
                };
                while let Some(head) = read_request(&mut stream).await {
                    let host = head
                        .lines()
                        .find_map(|line| line.strip_prefix("host: "))
                        .unwrap()
                        .to_owned();
                    let answer = format!(
                        "HTTP/1.1 201 Created\r\ncontent-length: {}\r\n\r\n{host}",
                        host.len()
                    );
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    (port, authority.pem())
}

async fn gateway(fixture: &Fixture, url: &str, authority: Option<&str>) -> Gateway {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), authority.unwrap_or_default()).unwrap();
    let ca_file = authority
        .map(|_| format!("ca_file = \"{}\"", file.path().display()))
        .unwrap_or_default();
    fixture
        .gateway(
            &Setup {
                upstream: &ca_file,
                ..Setup::default()
            }
            .in_front_of(url),
        )
        .await
}

#[tokio::test]
async fn a_service_with_a_private_authority_is_reached_only_by_who_knows_it() {
    let ((port, authority), fixture) = (start().await, Fixture::new().await);
    let url = format!("https://localhost:{port}");
    let known = gateway(&fixture, &url, Some(&authority)).await;
    let answer = known.order("k").await;
    assert_eq!(
        (answer.status, answer.body),
        (201, format!("localhost:{port}").into_bytes())
    );
    assert_eq!(known.get("/x").await.status, 201);

    let stranger = gateway(&fixture, &url, None).await;
    let answer = stranger.order("k-2").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (502, "upstream_not_reached"),
        "{answer:?}"
    );
    assert!(stranger.log().contains("certificate"), "{}", stranger.log());
    // The certificate is for a name, not for an address.
    let other = gateway(
        &fixture,
        &format!("https://127.0.0.1:{port}"),
        Some(&authority),
    )
    .await;
    assert_eq!(other.order("k-3").await.code(), "upstream_not_reached");
    // Nothing was sent, so a later attempt may do it.
    assert_eq!(known.order("k-2").await.status, 201);
}

#[tokio::test]
async fn a_handshake_that_never_ends_was_sent_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "https://localhost:{}",
        listener.local_addr().unwrap().port()
    );
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut said = Vec::new();
                let _ = stream.read_to_end(&mut said).await;
            });
        }
    });
    let fixture = Fixture::new().await;
    let setup = Setup {
        upstream: "connect_timeout = \"300ms\"",
        ..Setup::default()
    };
    let gateway = fixture.gateway(&setup.in_front_of(&url)).await;
    let answer = gateway.order("k").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (504, "upstream_not_reached"),
        "{answer:?}"
    );
}
