//! The database goes away: nothing runs without a claim, and nobody waits for long.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgonce_testkit::wait_until;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::fixture::{Fixture, Gateway, Setup, TIMEOUT};
use crate::upstream::Upstream;

/// What a wire does with what it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Carries,
    /// Takes everything and delivers nothing.
    Swallows,
    /// Closes whatever comes.
    Cut,
}

/// A wire between the gateway and the database.
#[derive(Clone)]
struct Wire {
    address: SocketAddr,
    mood: Arc<watch::Sender<Mood>>,
}

impl Wire {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let wire = Self {
            address: listener.local_addr().unwrap(),
            mood: Arc::new(watch::Sender::new(Mood::Carries)),
        };
        let mood = wire.mood.clone();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let mut cut = mood.subscribe();
                let mood = mood.clone();
                tokio::spawn(async move {
                    let server = TcpStream::connect(target).await.unwrap();
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::select! {
                        _ = cut.wait_for(|mood| *mood == Mood::Cut) => {}
                        () = carry(from_client, to_server, &mood) => {}
                        () = carry(from_server, to_client, &mood) => {}
                    }
                });
            }
        });
        wire
    }

    fn set(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mood: &watch::Sender<Mood>,
) {
    let mut piece = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        if *mood.borrow() == Mood::Carries && to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

/// A gateway whose database is at the end of a wire.
async fn gateway(fixture: &Fixture, setup: &Setup<'_>, url: &str) -> (Gateway, Wire) {
    let server = pgonce_testkit::shared(None).await.unwrap();
    let wire = Wire::to(SocketAddr::from(([127, 0, 0, 1], server.port()))).await;
    let database = fixture
        .database
        .url()
        .replace(&server.port().to_string(), &wire.address.port().to_string());
    (
        Gateway::start(&setup.in_front_of(url), &database).await,
        wire,
    )
}

#[tokio::test]
async fn without_a_database_the_answer_is_503_in_time_and_the_service_is_not_asked() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        database: "timeout = \"1s\"",
        ..Setup::default()
    };
    let (gateway, wire) = gateway(&fixture, &setup, &upstream.url).await;
    assert_eq!(gateway.order("before").await.status, 201);
    assert_eq!(gateway.health("/readyz").await, (200, "ready".to_owned()));
    for mood in [Mood::Swallows, Mood::Cut] {
        wire.set(mood);
        for key in ["before", "new"] {
            let start = Instant::now();
            let answer = gateway.order(key).await;
            assert_eq!(answer.status, 503, "{mood:?}, {key}: {answer:?}");
            assert!(
                ["08006", "08007"].contains(&answer.code().as_str()),
                "{answer:?}"
            );
            assert!(answer.headers.contains_key("retry-after"));
            // The limit is a second; the rest is for a loaded machine.
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "{mood:?}: {:?}",
                start.elapsed()
            );
        }
        assert_eq!(
            gateway.health("/readyz").await,
            (503, "not_ready".to_owned())
        );
        assert_eq!(gateway.health("/healthz").await, (200, "alive".to_owned()));
        assert_eq!(
            gateway.get("/x").await.status,
            201,
            "what needs no database passes"
        );
    }
    wire.set(Mood::Carries);
    wait_until("the gateway to be ready again", TIMEOUT, || async {
        gateway.health("/readyz").await.0 == 200
    })
    .await
    .unwrap();
    assert_eq!(upstream.orders().len(), 1);
    let answer = gateway.order_until_settled("new").await;
    assert_eq!(
        (answer.status, upstream.orders().len()),
        (201, 2),
        "{answer:?}"
    );
    assert!(gateway.order("before").await.is_replay());
}

#[tokio::test]
async fn an_answer_is_stored_once_the_database_is_back() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        database: "timeout = \"1s\"",
        scope: "lease = \"20s\"",
        ..Setup::default()
    };
    let (gateway, wire) = gateway(&fixture, &setup, &upstream.url).await;
    upstream.hold(true);
    let away = async {
        wait_until("the call", TIMEOUT, || async {
            upstream.orders().len() == 1
        })
        .await
        .unwrap();
        wire.set(Mood::Cut);
        upstream.hold(false);
    };
    let (answer, ()) = tokio::join!(gateway.order("k"), away);
    // It happened, but that could not be written down in time: the client is not promised that it is safe.
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (503, "08007"),
        "{answer:?}"
    );
    wire.set(Mood::Carries);
    let answer = gateway.order_until_settled("k").await;
    assert_eq!(
        (answer.status, answer.is_replay()),
        (201, true),
        "{answer:?}"
    );
    assert_eq!(upstream.orders().len(), 1);
}

#[tokio::test]
async fn only_a_route_that_says_so_passes_while_the_database_is_away() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        database: "timeout = \"1s\"",
        once: "fail_open = true",
        ..Setup::default()
    };
    let (gateway, wire) = gateway(&fixture, &setup, &upstream.url).await;
    wire.set(Mood::Cut);
    assert_eq!(gateway.order("k").await.status, 201);
    let counters = crate::fixture::get(&format!("{}/counters", gateway.admin))
        .await
        .json();
    assert_eq!(counters["POST /orders"]["unprotected"], 1, "{counters}");
    assert_eq!(
        counters["POST /orders/{id}/pay"]["unprotected"], 0,
        "{counters}"
    );
    let seen = &upstream.orders()[0];
    assert_eq!(
        (seen.header("idempotency-key"), seen.header("pgonce-fence")),
        (Some("k"), None)
    );
}

#[tokio::test]
async fn a_schema_that_does_not_fit_is_not_ready() {
    let fixture = Fixture::new().await;
    let gateway = fixture
        .gateway(&Setup::default().in_front_of("http://127.0.0.1:9"))
        .await;
    assert_eq!(gateway.health("/readyz").await, (200, "ready".to_owned()));
    fixture
        .sql("insert into pgonce.migration (number, name, checksum, breaking) values (9999, '9999_future', '', true)")
        .await;
    let answer = crate::fixture::get(&format!("{}/readyz", gateway.admin)).await;
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (503, Some("P4102")),
        "{answer:?}"
    );
    let answer = crate::fixture::get(&format!("{}/else", gateway.admin)).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (404, "route_missing")
    );
}
