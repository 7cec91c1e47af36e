//! Kafka behind TLS and a login: librdkafka's mock cluster speaks neither, so a front before it does.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_broker::Source as _;
use pgonce_broker::sinks::{Options, open};
use pgonce_broker::sources;
use pgonce_tests::TestDriver as _;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::conformance::Stage;
use super::fixture::Running;
use super::kafka::Cluster;

/// What SASL PLAIN sends: no other identity, the user, the password.
const LOGIN: &[u8] = b"\0orders\0s3cret@1";
/// The request for versions, in the only version that the mock cluster knows.
const API_VERSIONS: [u8; 4] = [0, 18, 0, 0];
const SASL_HANDSHAKE: [u8; 2] = [0, 17];

/// Writes a certificate for 127.0.0.1, and gives an acceptor that shows it.
fn certify(folder: &Path) -> TlsAcceptor {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(folder.join("ca.pem"), certificate.pem()).unwrap();
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

async fn frame(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame).await?;
    let length = u32::from_be_bytes(frame[..4].try_into().unwrap());
    frame.resize(4 + length as usize, 0);
    from.read_exact(&mut frame[4..]).await?;
    Ok(frame)
}

/// Passes requests on after the login, and replaces the cluster's port in its answers by ours.
async fn pass(client: impl AsyncRead + AsyncWrite, cluster: u16, ours: u16) -> std::io::Result<()> {
    let (mut requests, mut answers) = tokio::io::split(client);
    let server = TcpStream::connect(("127.0.0.1", cluster)).await?;
    let (mut from, mut to) = server.into_split();
    let mut known = false;
    loop {
        let request = frame(&mut requests).await?;
        if request[4..] == *LOGIN {
            known = true;
            answers.write_all(&[0; 4]).await?;
            continue;
        }
        if request[4..6] == SASL_HANDSHAKE {
            // No error, and one mechanism.
            let rest = b"\0\0\0\0\0\x01\0\x05PLAIN";
            let answer = [&[0, 0, 0, 17], &request[8..12], rest].concat();
            answers.write_all(&answer).await?;
            continue;
        }
        if !known && request[4..6] != API_VERSIONS[..2] {
            return Ok(());
        }
        to.write_all(&request).await?;
        let mut answer = frame(&mut from).await?;
        if request[4..8] == API_VERSIONS {
            // One more: the handshake, version 0, after which the login is a frame of its own.
            answer[3] += 6;
            answer[13] += 1;
            answer.extend([0, 17, 0, 0, 0, 0]);
        }
        let place = |port: u16| [b"127.0.0.1".as_slice(), &u32::from(port).to_be_bytes()].concat();
        let (old, new) = (place(cluster), place(ours));
        let found = answer.windows(old.len()).position(|bytes| bytes == old);
        if let Some(at) = found {
            answer[at..at + new.len()].copy_from_slice(&new);
        }
        answers.write_all(&answer).await?;
    }
}

async fn front(acceptor: TlsAcceptor, cluster: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ours = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    let _ = pass(stream, cluster, ours).await;
                }
            });
        }
    });
    ours
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_reach_kafka_over_tls_after_a_login_and_only_then() {
    let stage = Stage::<Cluster>::new(false).await;
    let port = stage
        .site
        .cluster
        .bootstrap_servers()
        .rsplit_once(':')
        .unwrap()
        .1
        .parse()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let port = front(certify(folder.path()), port).await;
    let trust = folder.path().join("ca.pem");
    let trusted = |timeout: &str| {
        Options::new()
            .set("timeout", timeout)
            .set("ca", trust.display().to_string())
    };
    let trusting = || trusted("2s");

    for (url, options, code) in [
        // An authority that nobody here trusts.
        (
            "kafka+tls://orders:s3cret%401@",
            Options::new().set("timeout", "2s"),
            "sink-unreachable",
        ),
        ("kafka+tls://orders:wrong@", trusting(), "sink-unreachable"),
        ("kafka+tls://", trusting(), "sink-unreachable"),
        // The password would be read by anybody on the way.
        ("kafka://orders:s3cret%401@", Options::new(), "sink-refused"),
        ("kafka://", trusting(), "sink-refused"),
        ("kafka+tls://orders@", trusting(), "sink-bad-url"),
        (
            "kafka+tls://orders:s3cret%401@",
            trusting().set("sasl", "NTLM"),
            "sink-bad-option",
        ),
        (
            "kafka+tls://orders:s3cret%401@",
            trusting().set("key", "k.pem"),
            "sink-missing-option",
        ),
    ] {
        let refusal = open(&format!("{url}127.0.0.1:{port}"), &options)
            .await
            .unwrap_err();
        assert_eq!(refusal.code(), code, "{url}: {refusal}");
        let said = format!("{refusal} {refusal:?}");
        assert!(
            !said.contains("s3cret") && !said.contains("wrong"),
            "{said}"
        );
    }

    let url = format!("kafka+tls://orders:s3cret%401@127.0.0.1:{port}");
    let sink = open(&url, &trusted("30s").set("topic", "orders"))
        .await
        .unwrap();
    assert!(!format!("{sink:?}").contains("s3cret"));
    let running = Running::start(stage.relay_to(sink));
    stage.fixture.publish(1, 3, 1).await;
    assert_eq!(stage.wait_for(3).await.len(), 3);
    running.stop().await.unwrap();

    // A consumer reads them by such an address too.
    let driver = TokioPostgres::connect(&stage.fixture.world.url(), 1);
    let once = Once::tokio_postgres(driver.pool().clone());
    let wrong = url.replace("s3cret%401", "wrong");
    let options = trusting().set("topic", "orders");
    let refusal = sources::open(&wrong, &options, &once).await.err().unwrap();
    assert_eq!(refusal.code(), "sink-unreachable", "{refusal}");
    let options = trusted("30s").set("topic", "orders");
    let mut source = sources::open(&url, &options, &once).await.unwrap();
    let mut read = 0;
    while read < 3 {
        read += source
            .pull(3, Duration::from_millis(50))
            .await
            .unwrap()
            .len();
    }
    source.close().await;
}
