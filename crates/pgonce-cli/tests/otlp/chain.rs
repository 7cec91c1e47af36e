//! The programs: one request through the gateway, the relay, NATS and a consumer.

use std::process::Stdio;
use std::sync::{Arc, Mutex};

use async_nats::jetstream::{self, stream};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use pgonce_testkit::{Nats, wait_until};
use rustix::process::Signal;
use tokio::net::TcpListener;
use tokio::process::Child;
use tokio_postgres::NoTls;

use crate::collector::{Collector, Span};
use crate::fixture::{Fixture, Gateway, Setup, TIMEOUT, program};

const CANARY: &str = "c4n4ry";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";

/// Two services that know nothing of pgonce but what comes in headers: one takes orders and publishes them by SQL, one applies
/// what was published, at the second attempt.
#[derive(Clone)]
struct Services {
    database: String,
    /// The `traceparent` of each request.
    orders: Arc<Mutex<Vec<String>>>,
    events: Arc<Mutex<Vec<String>>>,
}

impl Services {
    async fn start(database: String) -> (Self, String) {
        let services = Self {
            database,
            orders: Arc::default(),
            events: Arc::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/orders", post(Self::order))
            .route("/events", post(Self::event))
            .with_state(services.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (services, url)
    }

    async fn order(State(services): State<Self>, headers: HeaderMap) -> (StatusCode, String) {
        let parent = headers["traceparent"].to_str().unwrap();
        let (client, connection) = tokio_postgres::connect(&services.database, NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        let headers = format!(r#"{{"traceparent": "{parent}", "secret": "{CANARY}-header"}}"#);
        client
            .batch_execute(&format!(
                "select pgonce.publish('orders', 'order.created', '{CANARY}-subject', \
                 '{{\"card\": \"{CANARY}-payload\"}}', p_headers => '{headers}')"
            ))
            .await
            .unwrap();
        services.orders.lock().unwrap().push(parent.to_owned());
        (StatusCode::CREATED, format!("{CANARY}-answer"))
    }

    async fn event(State(services): State<Self>, headers: HeaderMap) -> (StatusCode, String) {
        let mut events = services.events.lock().unwrap();
        events.push(headers["traceparent"].to_str().unwrap().to_owned());
        match events.len() {
            1 => (
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("{CANARY}-failure"),
            ),
            _ => (StatusCode::OK, String::new()),
        }
    }
}

/// A command that runs on, on the fixture's database.
fn running(fixture: &Fixture, collector: &Collector, command: &str, args: &[&str]) -> Child {
    program(&[&[command], args].concat())
        .env("DATABASE_URL", fixture.database.url())
        .envs(collector.variables(command))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// A stream at NATS; the addresses of a sink and a source.
async fn stream(nats: &Nats) -> (String, String) {
    let url = nats.url();
    let context = jetstream::new(async_nats::connect(&url).await.unwrap());
    let config = stream::Config {
        name: "EVENTS".to_owned(),
        subjects: vec!["events.*".to_owned()],
        ..stream::Config::default()
    };
    context.create_stream(config).await.unwrap();
    (
        format!("{url}?stream=EVENTS&subject=events.{{topic}}"),
        format!("{url}?stream=EVENTS&durable=billing"),
    )
}

/// A request with a secret in everything that a client can say.
async fn order(gateway: &Gateway, span: &str) -> u16 {
    let headers = [
        ("idempotency-key", &*format!("{CANARY}-key")),
        ("authorization", &*format!("Bearer {CANARY}-credential")),
        ("x-private", &*format!("{CANARY}-header")),
        ("traceparent", &*format!("00-{TRACE}-{span}-01")),
    ];
    let path = format!("/orders?token={CANARY}-query");
    let body = format!("{{\"card\":\"{CANARY}-body\"}}");
    gateway.post(&path, &headers, &body).await.status
}

#[track_caller]
fn only<'a>(spans: &'a [Span], name: &str, parent: &str) -> &'a Span {
    let found: Vec<_> = spans
        .iter()
        .filter(|span| span.name == name && span.parent == parent)
        .collect();
    assert_eq!(found.len(), 1, "{name} under {parent}: {spans:#?}");
    found[0]
}

#[tokio::test]
async fn a_request_is_one_trace_from_the_gateway_to_the_inbox_and_a_duplicate_is_shown_as_one() {
    let (collector, nats) = (Collector::start().await, Nats::start().await.unwrap());
    let fixture = Fixture::new().await;
    let (services, url) = Services::start(fixture.database.url()).await;
    fixture
        .sql(
            "select pgonce.define_inbox('billing', p_backoff => '20 ms', p_max_backoff => '50 ms')",
        )
        .await;
    let (sink, source) = stream(&nats).await;
    let relay = ["--create", "--subscription", "billing", "--sink", &*sink];
    let mut relay = running(&fixture, &collector, "relay", &relay);
    let to = format!("{url}/events");
    let consumer = ["--consumer", "billing", "--source", &*source, "--to", &*to];
    let mut consumer = running(&fixture, &collector, "consume", &consumer);

    let mut variables = collector.variables("gateway");
    variables.push(("DATABASE_URL".to_owned(), fixture.database.url()));
    let variables: Vec<_> = variables.iter().map(|(n, v)| (&**n, &**v)).collect();
    let config = Setup::default().in_front_of(&url);
    let mut gateway = Gateway::start_with(&config, &variables).await;
    assert_eq!(order(&gateway, CLIENT).await, 201);
    let again = "00f067aa0ba902b8";
    assert_eq!(order(&gateway, again).await, 201);
    assert_eq!(services.orders.lock().unwrap().len(), 1);
    let applied = |span: &Span| span.name == "process billing" && span.outcome() == "applied";
    collector
        .wait_for("the message to be applied", |spans| {
            spans.iter().any(applied)
        })
        .await;
    // What is left is sent when the programs end.
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.end().await, 0);
    for child in [&mut relay, &mut consumer] {
        let id = i32::try_from(child.id().unwrap()).unwrap();
        let id = rustix::process::Pid::from_raw(id).unwrap();
        rustix::process::kill_process(id, Signal::TERM).unwrap();
        let ended = tokio::time::timeout(TIMEOUT, child.wait()).await.unwrap();
        assert!(ended.unwrap().success());
    }
    let spans = collector.spans();
    collector.assert_authorised();

    // From the request to the service behind the gateway.
    let request = only(&spans, "POST /orders", CLIENT);
    assert_eq!(
        (request.kind, &*request.service, request.outcome()),
        (SpanKind::Server, "gateway", "done")
    );
    assert_eq!(request.get("http.response.status_code"), "201");
    assert_eq!(request.get("http.route"), "/orders");
    let command = only(&spans, "pgonce.command", &request.id);
    assert_eq!(
        (command.get("pgonce.scope"), command.get("pgonce.mode")),
        ("orders.create", "leased")
    );
    assert_eq!(
        (command.outcome(), command.get("pgonce.replayed")),
        ("done", "false")
    );
    let claim = only(&spans, "pgonce.claim", &command.id);
    assert_eq!(
        (claim.outcome(), claim.get("db.system.name"), claim.kind),
        ("claimed", "postgresql", SpanKind::Client)
    );
    let effect = only(&spans, "pgonce.effect", &command.id);
    assert_eq!(
        only(&spans, "pgonce.commit", &effect.id).outcome(),
        "committed"
    );
    let upstream = only(&spans, "POST", &effect.id);
    assert_eq!(upstream.kind, SpanKind::Client);
    let parent = format!("00-{TRACE}-{}-01", upstream.id);
    assert_eq!(*services.orders.lock().unwrap(), [parent]);

    // From the service's event to its consumer: a service that has spans of its own would be in between.
    let sent = only(&spans, "send orders", &upstream.id);
    assert_eq!((&*sent.service, sent.outcome()), ("relay", "sent"));
    assert_eq!(sent.get("pgonce.subscription"), "billing");
    let mut outcomes: Vec<_> = spans
        .iter()
        .filter(|span| span.name == "process billing" && span.parent == upstream.id)
        .collect();
    outcomes.sort_by_key(|span| span.outcome().to_owned());
    let shown: Vec<_> = outcomes
        .iter()
        .map(|s| (s.outcome(), s.is_error, &*s.service))
        .collect();
    assert_eq!(
        shown,
        [
            ("applied", false, "consume"),
            ("retried", true, "consume"),
            ("stored", false, "consume"),
        ]
    );
    // The service that applies it goes on with the span of its attempt.
    let events = services.events.lock().unwrap().clone();
    for (event, attempt) in events.iter().zip([outcomes[1], outcomes[0]]) {
        assert_eq!(*event, format!("00-{TRACE}-{}-01", attempt.id));
    }

    // The duplicate: asked and answered, nothing done.
    let duplicate = only(&spans, "POST /orders", again);
    assert_eq!(duplicate.outcome(), "replayed");
    assert_eq!(
        duplicate.get("pgonce.key_digest"),
        request.get("pgonce.key_digest")
    );
    let replay = only(&spans, "pgonce.command", &duplicate.id);
    assert_eq!(
        (replay.outcome(), replay.get("pgonce.replayed")),
        ("replayed", "true")
    );
    assert_eq!(
        only(&spans, "pgonce.claim", &replay.id).outcome(),
        "replayed"
    );
    assert_eq!(
        spans.iter().filter(|s| s.name == "pgonce.effect").count(),
        1
    );

    // One trace, and nothing secret in any byte of it.
    for span in &spans {
        assert_eq!((&*span.trace, span.events), (TRACE, 0), "{span:?}");
    }
    let everything = collector.everything();
    assert!(!everything.contains(CANARY), "{everything}");
    // Who looks at a trace finds what it is about by the digest of its key.
    let digest = command.get("pgonce.key_digest").to_owned();
    for digest in [digest.as_str(), request.get("pgonce.key_digest")] {
        let found = fixture.run(&["find", digest]).await;
        assert!(found.out.contains("orders.create"), "{found:?}");
    }
}

/// What the environment says decides: nothing is exported that is not sampled, or where the SDK is disabled.
#[tokio::test]
async fn the_standard_variables_decide_whether_anything_is_exported() {
    let collector = Collector::start().await;
    let fixture = Fixture::new().await;
    let (services, url) = Services::start(fixture.database.url()).await;
    let config = Setup::default().in_front_of(&url);
    for (name, value, says) in [
        ("OTEL_SDK_DISABLED", "true", ""),
        ("OTEL_TRACES_EXPORTER", "none", ""),
        ("OTEL_TRACES_SAMPLER", "always_off", ""),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "http://c4n4ry is no host",
            "must be an address",
        ),
    ] {
        let mut variables = collector.variables("gateway");
        variables.push((name.to_owned(), value.to_owned()));
        variables.push(("DATABASE_URL".to_owned(), fixture.database.url()));
        let variables: Vec<_> = variables.iter().map(|(n, v)| (&**n, &**v)).collect();
        let mut gateway = Gateway::start_with(&config, &variables).await;
        let key = [
            ("idempotency-key", name),
            ("traceparent", &*format!("00-{TRACE}-{CLIENT}-01")),
        ];
        assert_eq!(gateway.post("/orders", &key, "{}").await.status, 201);
        let said = async || gateway.log().contains(says);
        wait_until("its complaint", TIMEOUT, said).await.unwrap();
        gateway.signal(Signal::TERM);
        assert_eq!(gateway.end().await, 0, "{name}");
        assert!(!gateway.log().contains(CANARY), "{}", gateway.log());
        assert_eq!(collector.requests(), 0, "{name}");
        // The trace goes on all the same.
        let parent = services.orders.lock().unwrap().pop().unwrap();
        assert!(parent.contains(TRACE), "{parent}");
        let is_sampled = parent.ends_with("-01");
        assert_eq!(is_sampled, name != "OTEL_TRACES_SAMPLER", "{name}");
    }
}
