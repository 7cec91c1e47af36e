//! The database goes away: nothing runs without a claim, and nobody waits for long.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pgonce_testkit::{Postgres, Replication, wait_until};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::fixture::{Fixture, Gateway, Setup, TIMEOUT, program};
use crate::upstream::Upstream;

/// What a wire does with what it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Carries,
    /// Takes everything and delivers nothing.
    Swallows,
    /// Closes whatever comes.
    Cut,
    /// Rejects new sessions as a server does that has no connection left.
    Full,
}

/// A wire between the gateway and the database.
#[derive(Clone)]
struct Wire {
    address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    mood: Arc<watch::Sender<Mood>>,
}

impl Wire {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let wire = Self {
            address: listener.local_addr().unwrap(),
            target: Arc::new(Mutex::new(target)),
            mood: Arc::new(watch::Sender::new(Mood::Carries)),
        };
        let (mood, target) = (wire.mood.clone(), wire.target.clone());
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let target = *target.lock().unwrap();
                let mut cut = mood.subscribe();
                let mood = mood.clone();
                tokio::spawn(async move {
                    if *mood.borrow() == Mood::Full {
                        return reject(client).await;
                    }
                    let server = TcpStream::connect(target).await.unwrap();
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::select! {
                        _ = cut.wait_for(|mood| matches!(mood, Mood::Cut | Mood::Full)) => {}
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

    /// Ends all connections; new ones lead to this port.
    async fn lead_to(&self, port: u16) {
        self.target.lock().unwrap().set_port(port);
        self.set(Mood::Cut);
        wait_until("all connections to end", TIMEOUT, || async {
            self.mood.receiver_count() == 0
        })
        .await
        .unwrap();
        self.set(Mood::Carries);
    }
}

/// Says 53300 to a session that begins.
async fn reject(mut client: TcpStream) {
    let mut packet = [0; 1024];
    while let Ok(length @ 8..) = client.read(&mut packet).await {
        // A request for TLS comes first, and is declined.
        if packet[..8] == [0, 0, 0, 8, 4, 210, 22, 47] {
            let _ = client.write_all(b"N").await;
            continue;
        }
        assert!(length > 8, "a start-up packet names a user");
        let fields = b"SFATAL\0VFATAL\0C53300\0Msorry, too many clients already\0\0";
        let size = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
        let _ = client.write_all(&[b"E", &size[..], fields].concat()).await;
        return;
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
        database: "timeout = \"3s\"",
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
            // The limit is three seconds; the rest is for a loaded machine.
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
        database: "timeout = \"3s\"",
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

/// The heartbeat and the recording wait for the database; the client does not.
#[tokio::test]
async fn a_database_that_falls_silent_during_the_work_delays_no_client() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        database: "timeout = \"3s\"",
        scope: "lease = \"30s\"",
        ..Setup::default()
    };
    let (gateway, wire) = gateway(&fixture, &setup, &upstream.url).await;
    upstream.hold(true);
    let silence = async {
        wait_until("the call", TIMEOUT, || async {
            upstream.orders().len() == 1
        })
        .await
        .unwrap();
        wire.set(Mood::Swallows);
        upstream.hold(false);
        Instant::now()
    };
    let (answer, since) = tokio::join!(gateway.order("k"), silence);
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (503, "08007"),
        "{answer:?}"
    );
    // The limit is three seconds; the rest is for a loaded machine.
    assert!(since.elapsed() < Duration::from_secs(10));
    // What was sent into the silence is never answered: recording begins anew on another connection.
    wire.set(Mood::Carries);
    let answer = gateway.order_until_settled("k").await;
    assert!(answer.status == 201 && answer.is_replay(), "{answer:?}");
    assert_eq!(upstream.orders().len(), 1);
}

/// A server without a free connection, and a standby, are as unavailable as one that is away.
#[tokio::test]
async fn a_route_that_fails_open_does_so_for_a_full_server_and_a_standby() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let setup = Setup {
        database: "timeout = \"2s\"\nconnections = 2",
        once: "fail_open = true",
        ..Setup::default()
    };
    let (full, wire) = gateway(&fixture, &setup, &upstream.url).await;
    wire.set(Mood::Full);
    assert_eq!(full.order("\"full\"").await.status, 201);

    // After a failover that the gateway does not know of, its address leads to a standby.
    let primary = Postgres::builder().start().await.unwrap();
    let installed = program(&["migrate", "up"])
        .env("DATABASE_URL", primary.url())
        .output()
        .await
        .unwrap();
    assert!(installed.status.success(), "{installed:?}");
    let standby = primary.standby(Replication::Asynchronous).await.unwrap();
    let wire = Wire::to(SocketAddr::from(([127, 0, 0, 1], primary.port()))).await;
    let port = wire.address.port().to_string();
    let database = primary.url().replace(&primary.port().to_string(), &port);
    let quoted = Setup {
        upstream: "key_form = \"quoted\"",
        ..setup
    };
    let led = Gateway::start(&quoted.in_front_of(&upstream.url), &database).await;
    wire.lead_to(standby.port()).await;
    assert_eq!(led.order("standby").await.status, 201);
    for gateway in [&full, &led] {
        let counters = crate::fixture::get(&format!("{}/counters", gateway.admin)).await;
        let counters = counters.json();
        assert_eq!(counters["POST /orders"]["unprotected"], 1, "{counters}");
    }
    let seen: Vec<_> = upstream.orders();
    let keys: Vec<_> = seen.iter().map(|s| s.header("idempotency-key")).collect();
    // In the form in which the service always gets it, whatever the client wrote.
    assert_eq!(keys, [Some("full"), Some("\"standby\"")]);
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

/// Neither the owner nor a superuser: contracts are defined by somebody else, everything else takes the part of an application.
#[tokio::test]
async fn a_gateway_needs_the_grants_of_an_application() {
    let (upstream, fixture) = (Upstream::start().await, Fixture::new().await);
    let config = Setup {
        scope: "lease = \"8s\"\nstale = \"takeover\"",
        ..Setup::default()
    }
    .in_front_of(&upstream.url);
    let role = format!("gateway_{}", uuid::Uuid::new_v4().simple());
    fixture.sql(&format!("create role {role} login")).await;
    let granted = fixture
        .run(&["migrate", "up", "--grant", &format!("app={role}")])
        .await;
    assert_eq!(granted.code, 0, "{granted:?}");
    drop(fixture.gateway(&config).await);
    let url = fixture.database.url();
    let (_, rest) = url.split_once('@').unwrap();
    let mut gateway = Gateway::start(&config, &format!("postgres://{role}@{rest}")).await;
    let (first, again) = (gateway.order("k").await, gateway.order("k").await);
    assert_eq!(
        (first.status, again.status),
        (201, 201),
        "{}",
        gateway.log()
    );
    assert!(again.is_replay());
    let conflict = gateway
        .post("/orders", &[("idempotency-key", "k")], "{}")
        .await;
    assert_eq!(conflict.status, 422, "{conflict:?}");
    // Work that takes longer than its lease is kept by heartbeats.
    upstream.hold(true);
    let slow = async { gateway.order("slow").await };
    let release = async {
        let renewed = "select count(*) from pgonce.intent where key like 'slow%' and lease_until > first_at + interval '12 seconds'";
        wait_until("a heartbeat", TIMEOUT, || async {
            fixture.sql(renewed).await == ["1"]
        })
        .await
        .unwrap();
        upstream.hold(false);
    };
    let (slow, ()) = tokio::join!(slow, release);
    assert_eq!(slow.status, 201, "{}", gateway.log());
    assert_eq!(gateway.health("/readyz").await.0, 200);
    gateway.signal(rustix::process::Signal::TERM);
    assert_eq!(gateway.end().await, 0, "{}", gateway.log());
    let log = gateway.log();
    // Behind one of these it is a code; ports and fractions of seconds have digits too.
    let refused = [" 42501", "\"42501", "(42501", "[42501", "=42501"];
    let refused = refused.iter().any(|code| log.contains(code));
    assert!(!refused && !log.contains("denied"), "{log}");
    fixture
        .sql(&format!("drop owned by {role}; drop role {role}"))
        .await;
}
