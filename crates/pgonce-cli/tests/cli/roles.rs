//! Programs that log in with the grants of their part, and nothing else: neither the owner nor a superuser.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use pgonce_testkit::wait_until;
use rustix::process::Signal;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::consume::{DEADLINE, TABLES, assert_exactly_once, publish, wait_for};
use crate::consume_service::Service;
use crate::fixture::{Fixture, Run, program};
use crate::relay::{Running, get};

/// A login with these parts. Dropped by [`Granted::end`]: roles belong to the whole server.
struct Granted {
    role: String,
    url: String,
}

impl Granted {
    async fn new(fixture: &Fixture, parts: &[&str]) -> Self {
        let role = format!("granted_{}", uuid::Uuid::new_v4().simple());
        fixture.sql(&format!("create role {role} login")).await;
        for part in parts {
            fixture.ok(&["migrate", "up", "--grant", &format!("{part}={role}")]);
        }
        let url = fixture.database.url();
        let (_, rest) = url.split_once('@').unwrap();
        let url = format!("postgres://{role}@{rest}");
        Self { role, url }
    }

    fn start(&self, fixture: &Fixture, command: &str, args: &[&str]) -> Running {
        Running::with(
            fixture,
            command,
            args,
            &[("DATABASE_URL", self.url.clone())],
        )
    }

    /// Stops the program, which was refused nothing that it cannot do without.
    async fn end(self, fixture: &Fixture, mut running: Running) {
        running.signal(Signal::TERM);
        assert_eq!(running.end().await, 0, "{}", running.log());
        let log = running.log();
        // Behind one of these it is a code; ports and fractions of seconds have digits too.
        let refused = [" 42501", "\"42501", "(42501", "[42501", "=42501"];
        let refused = refused.iter().any(|code| log.contains(code));
        assert!(!refused && !log.contains("permission denied"), "{log}");
        let role = self.role;
        fixture
            .sql(&format!("drop owned by {role}; drop role {role}"))
            .await;
    }
}

#[tokio::test]
async fn who_may_not_see_the_intents_of_others_is_not_shown_that_there_are_none() {
    let fixture = Fixture::installed().await;
    fixture
        .sql("select pgonce.claim('s', 'k', '\\x01', '1 hour')")
        .await;
    let [app, operator] = ["app", "operator"].map(|part| [part]);
    let app = Granted::new(&fixture, &app).await;
    let operator = Granted::new(&fixture, &operator).await;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    std::fs::write(&log, r#"{"scope": "s", "key": "k"}"#).unwrap();
    let log = log.to_str().unwrap();
    let run = |role: &Granted, args: &[&str]| {
        Run::of(
            program(args)
                .env("DATABASE_URL", &role.url)
                .output()
                .unwrap(),
        )
    };
    for (args, of_operator) in [
        (&["intent", "list", "s"][..], 0),
        (&["purge", "--dry-run"], 0),
        // It is not finished.
        (&["lost", log], 1),
        (
            &["tail", "--kind", "intent", "--since", "1h", "--count", "1"],
            0,
        ),
    ] {
        let refused = run(&app, args);
        assert_eq!(refused.code, 8, "{args:?}: {refused:?}");
        assert!(refused.err.contains("operator"), "{refused:?}");
        let seen = run(&operator, args);
        assert_eq!(seen.code, of_operator, "{args:?}: {seen:?}");
    }
    let doctor = ["doctor", "--only", "scope-undefined"];
    let unseen = run(&app, &doctor).out;
    assert!(unseen.contains("[not-checked]"), "{unseen}");
    let seen = run(&operator, &doctor).out;
    assert!(seen.contains("[scope-undefined]"), "{seen}");
    for role in [app.role, operator.role] {
        let drop = format!("drop owned by {role}; drop role {role}");
        fixture.sql(&drop).await;
    }
}

#[tokio::test]
async fn a_grant_that_fails_does_not_hide_what_was_applied_and_granted() {
    let fixture = Fixture::empty().await;
    let role = format!("granted_{}", uuid::Uuid::new_v4().simple());
    fixture.sql(&format!("create role {role}")).await;
    let (first, second) = (format!("app={role}"), "relay=no_role_has_this_name");
    let run = fixture.run(&["migrate", "up", "--grant", &first, "--grant", second]);
    assert_eq!(run.code, 7, "{run:?}");
    for line in ["applied 0001_core", &format!("granted app to role {role}")] {
        assert!(run.out.lines().any(|said| said == line), "{run:?}");
    }
    assert!(!run.out.contains("relay"), "{run:?}");
    // It would be cut to the name of another role.
    let long = format!("app={}", "r".repeat(64));
    let run = fixture.run(&["migrate", "up", "--grant", &long]);
    assert!(run.code == 2 && run.err.contains("63 bytes"), "{run:?}");
    let drop = format!("drop owned by {role}; drop role {role}");
    fixture.sql(&drop).await;
}

/// The database is up, whatever this role may see of it.
async fn assert_ready(running: &Running, metric: &str) {
    let admin = running.admin().await;
    let (status, ready) = get(&admin, "/readyz").await;
    assert_eq!(status, 200, "{ready}");
    let (_, page) = get(&admin, "/metrics").await;
    for line in ["pgonce_database_up 1", metric] {
        assert!(page.lines().any(|one| one.starts_with(line)), "{page}");
    }
}

/// The numbers that an endpoint got. It refuses -1.
type Got = Arc<Mutex<BTreeSet<i64>>>;

async fn endpoint() -> (Got, String) {
    let got = Got::default();
    let take = async |State(got): State<Got>, Json(event): Json<Value>| {
        let n = event["data"]["n"].as_i64().unwrap();
        if n == -1 {
            return StatusCode::UNPROCESSABLE_ENTITY;
        }
        got.lock().unwrap().insert(n);
        StatusCode::OK
    };
    let router = Router::new().route("/", post(take)).with_state(got.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (got, url)
}

/// It delivers, counts failures, gives up, makes partitions and shows its state.
#[tokio::test]
async fn a_relay_needs_the_grants_of_a_relay() {
    let fixture = Fixture::installed().await;
    fixture.ok(&["outbox", "subscriptions", "create", "billing"]);
    let few =
        "select pgonce.alter_subscription('billing', p_max_attempts => 2, p_backoff => '20 ms')";
    fixture.sql(few).await;
    let granted = Granted::new(&fixture, &["relay"]).await;
    let (got, sink) = endpoint().await;
    let args = [
        "--subscription",
        "billing",
        // It is there: the right to create it is not needed.
        "--create",
        "--sink",
        &sink,
        "--option",
        "allow_http=true",
        "--option",
        "allow=127.0.0.1/32",
        "--option",
        "secret=whsec_c2VjcmV0LW9mLXRoZS10ZXN0LTAxMjM0NTY3ODk=",
        "--listen",
        "127.0.0.1:0",
        "--log-format",
        "json",
    ];
    let relay = granted.start(&fixture, "relay", &args);
    publish(&fixture, -1..30).await;
    let dead = "select count(*) from pgonce.dead_letters where subscription = 'billing'";
    wait_for(&fixture, "the dead letter", dead, &[&relay]).await;
    // Three more of its subject wait behind it.
    let others = async || got.lock().unwrap().len() >= 27;
    wait_until("the others", DEADLINE, others)
        .await
        .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    let parked = "pgonce_outbox_parked{subscription=\"billing\",state=\"dead\"} 1";
    assert_ready(&relay, parked).await;
    granted.end(&fixture, relay).await;
}

/// From a broker `consumer` is enough; from the outbox it takes `relay` too. It applies, stores, fails and gives up.
#[tokio::test]
async fn a_consumer_needs_the_grants_of_a_consumer() {
    let redis = pgonce_testkit::Redis::start().await.unwrap();
    let broker = format!("{}?stream=events&group=c&claim_after=500ms", redis.url());
    for (parts, source, store_first) in [
        (&["consumer"][..], &*broker, "--store-first"),
        (&["consumer", "relay"], "outbox:c", "--behind-pooler"),
    ] {
        let fixture = Fixture::installed().await;
        fixture.sql(TABLES).await;
        let granted = Granted::new(&fixture, parts).await;
        let role = &granted.role;
        fixture
            .sql(&format!("grant insert on received to {role}"))
            .await;
        let relay = (parts.len() == 1).then(|| {
            fixture.ok(&["outbox", "subscriptions", "create", "billing"]);
            let sink = format!("{}?stream=events", redis.url());
            Running::start(&fixture, &["--subscription", "billing", "--sink", &sink])
        });
        let args = ["--consumer", "c", "--source", source, store_first];
        let more = ["--lease", "1s", "--sql", "apply_event", "--listen"];
        let more = [&more[..], &["127.0.0.1:0", "--log-format", "json"]].concat();
        let consumer = granted.start(&fixture, "consume", &[&args[..], &more].concat());
        publish(&fixture, 0..30).await;
        for (n, subject) in [(-1, "refused"), (-2, "failing")] {
            let sql =
                format!("select pgonce.publish('t', 'counted', '{subject}', '{{\"n\": {n}}}')");
            fixture.sql(&sql).await;
        }
        let poison = "select (count(*) = 2)::int::bigint from pgonce.inbox_poison";
        wait_for(&fixture, "both to be given up", poison, &[&consumer]).await;
        let flow = "select (count(*) = 30)::int::bigint from received";
        wait_for(&fixture, "the others to be applied", flow, &[&consumer]).await;
        assert_exactly_once(&fixture, 30, true).await;
        let waiting = "pgonce_inbox_messages{consumer=\"c\",state=\"poison\"} 2";
        assert_ready(&consumer, waiting).await;
        granted.end(&fixture, consumer).await;
        drop(relay);
    }
}

/// What is stored before a service gets it.
#[tokio::test]
async fn a_consumer_that_calls_a_service_needs_the_grants_of_a_consumer() {
    let fixture = Fixture::installed().await;
    fixture.sql(TABLES).await;
    let granted = Granted::new(&fixture, &["consumer", "relay"]).await;
    let service = Service {
        first: [3].into(),
        ..Service::default()
    };
    let (service, url) = service.start().await;
    let args = ["--consumer", "c", "--source", "outbox:c", "--to", &url];
    let more = ["--lease", "1s", "--listen", "127.0.0.1:0", "--log-format"];
    let args = [&args[..], &more, &["json"]].concat();
    let consumer = granted.start(&fixture, "consume", &args);
    publish(&fixture, 0..30).await;
    service.wait_for(30, &[&consumer]).await;
    service.assert_stable(&[]);
    assert_ready(&consumer, "pgonce_consumer_applied_total").await;
    granted.end(&fixture, consumer).await;
}
