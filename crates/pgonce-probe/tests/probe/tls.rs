//! Encrypted connections, whole ones and cut ones.

use std::sync::Arc;

use not_idempotent::Fault;
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::fixture::{names, probe, serve};

#[tokio::test(flavor = "multi_thread")]
async fn it_speaks_tls_with_those_it_trusts_and_with_nobody_else() {
    let plain = serve(not_idempotent::router(Fault::None)).await;
    let behind = plain.trim_start_matches("http://").to_owned();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, behind) = (acceptor.clone(), behind.clone());
            tokio::spawn(async move {
                let mut outside = acceptor.accept(stream).await?;
                let mut inside = TcpStream::connect(behind).await?;
                copy_bidirectional(&mut outside, &mut inside).await
            });
        }
    });

    let authority = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(authority.path(), made.cert.pem()).unwrap();
    let url = format!("https://localhost:{port}/payments");
    let count = format!("{plain}/count");
    let only = "sequential-duplicate,cut-after-headers,cut-before-answer";
    let args = [
        &url,
        "-d",
        r#"{"amount": {{number}}}"#,
        "--count-url",
        &count,
        "--count-pointer",
        "/count",
        "--only",
        only,
        "--format",
        "json",
    ];
    let trusting = ["--cacert", authority.path().to_str().unwrap()];
    let run = probe(&[&args[..], &trusting].concat()).await;
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(run.with_outcome("pass").len(), 3, "{run:?}");

    let run = probe(&args).await;
    assert_eq!(run.code, 10, "{run:?}");
    assert_eq!(run.with_outcome("pass"), names(&[]), "{run:?}");
    assert!(run.out.contains("no encrypted connection"), "{run:?}");
}
