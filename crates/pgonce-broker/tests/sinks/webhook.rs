//! Webhooks, with an endpoint of the test's own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pgonce::outbox::Subscription;
use pgonce_broker::sinks::{Options, open};
use pgonce_testkit::wait_until;
use ring::signature::KeyPair as _;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::conformance::{Got, Site, Stage, conforms};
use super::fixture::{DEADLINE, Fixture, Running};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3";
const SEED: [u8; 32] = [9; 32];

type Script = Arc<dyn Fn(u64, usize) -> Option<Response> + Send + Sync>;

/// What the endpoint has seen, and what it says.
#[derive(Default)]
struct Memory {
    got: Vec<Got>,
    asked: HashMap<u64, Vec<Instant>>,
    script: Option<Script>,
}

struct Endpoint {
    address: SocketAddr,
    memory: Arc<Mutex<Memory>>,
    task: Mutex<JoinHandle<()>>,
}

/// Checks the signatures as a receiver would, with each of the three keys.
fn verify(headers: &HeaderMap, body: &[u8]) {
    let header = |name: &str| headers.get(name).unwrap().to_str().unwrap().to_owned();
    let content = [
        format!("{}.{}.", header("webhook-id"), header("webhook-timestamp")).as_bytes(),
        body,
    ]
    .concat();
    let signatures = header("webhook-signature");
    let signatures: Vec<_> = signatures
        .split(' ')
        .map(|one| one.split_once(',').unwrap())
        .collect();
    assert_eq!(
        signatures.iter().map(|one| one.0).collect::<Vec<_>>(),
        ["v1", "v1", "v1a"]
    );
    for ((_, signature), secret) in signatures.iter().zip([NEW, OLD]) {
        let key = STANDARD
            .decode(secret.trim_start_matches("whsec_"))
            .unwrap();
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key);
        ring::hmac::verify(&key, &content, &STANDARD.decode(signature).unwrap()).unwrap();
    }
    let pair = ring::signature::Ed25519KeyPair::from_seed_unchecked(&SEED).unwrap();
    ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, pair.public_key())
        .verify(&content, &STANDARD.decode(signatures[2].1).unwrap())
        .unwrap();
}

async fn receive(
    State(memory): State<Arc<Mutex<Memory>>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    verify(&headers, &body);
    let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(headers["webhook-id"].to_str().unwrap(), event["id"]);
    let got = Got::new(
        event["id"].as_str().unwrap(),
        event["subject"].as_str().unwrap(),
        event["data"].to_string().as_bytes(),
    );
    let mut memory = memory.lock().unwrap();
    let asked = memory.asked.entry(got.n).or_default();
    asked.push(Instant::now());
    let times = asked.len();
    let script = memory.script.clone();
    if let Some(answer) = script.and_then(|script| script(got.n, times)) {
        return answer;
    }
    memory.got.push(got);
    StatusCode::NO_CONTENT.into_response()
}

impl Endpoint {
    fn serve(listener: TcpListener, memory: Arc<Mutex<Memory>>) -> JoinHandle<()> {
        let app = Router::new()
            .route("/hook", post(receive))
            .with_state(memory);
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() })
    }

    fn script(&self, script: impl Fn(u64, usize) -> Option<Response> + Send + Sync + 'static) {
        self.memory.lock().unwrap().script = Some(Arc::new(script));
    }

    fn asked(&self, n: u64) -> Vec<Instant> {
        self.memory
            .lock()
            .unwrap()
            .asked
            .get(&n)
            .cloned()
            .unwrap_or_default()
    }
}

impl Site for Endpoint {
    const DEDUPLICATES: bool = false;

    async fn start(_private: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let memory = Arc::<Mutex<Memory>>::default();
        Self {
            address: listener.local_addr().unwrap(),
            task: Mutex::new(Self::serve(listener, memory.clone())),
            memory,
        }
    }

    fn address(&self) -> (String, Options) {
        let options = Options::new()
            .set("secret", NEW)
            .set("secret", OLD)
            .set("secret", format!("whsk_{}", STANDARD.encode(SEED)))
            .set("allow", "127.0.0.0/8")
            .set("allow_http", "true");
        (format!("http://{}/hook", self.address), options)
    }

    async fn got(&self) -> Vec<Got> {
        self.memory.lock().unwrap().got.clone()
    }

    /// The listener is gone; connections that are open get 503 from now on.
    async fn kill(&self) {
        self.task.lock().unwrap().abort();
        self.script(|_, _| {
            let down = ([("retry-after", "0")], StatusCode::SERVICE_UNAVAILABLE);
            Some(down.into_response())
        });
    }

    async fn restart(&self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.memory.lock().unwrap().script = None;
        *self.task.lock().unwrap() = Self::serve(listener, self.memory.clone());
    }
}

conforms!(Endpoint);

async fn stage_with(subscription: Subscription) -> Stage<Endpoint> {
    Stage {
        fixture: Fixture::with(subscription).await,
        site: Endpoint::start(true).await,
    }
}

fn status(code: u16) -> Option<Response> {
    Some((StatusCode::from_u16(code).unwrap(), "because").into_response())
}

#[tokio::test]
async fn a_refusal_parks_the_subject_a_fault_is_tried_again_and_the_others_flow() {
    let short = Duration::from_millis(20);
    let stage = stage_with(Subscription::new("c").backoff(short, short * 4)).await;
    // 3 is never wanted; 4 fails twice.
    stage.site.script(|n, times| match (n, times) {
        (3, _) => status(422),
        (4, 1 | 2) => status(500),
        _ => None,
    });
    let running = Running::start(stage.relay_to(stage.site.sink().await));
    stage.fixture.publish(1, 20, 10).await;
    let letters = stage.dead_letters(1).await;
    let reason = letters[0].reason.clone().unwrap();
    assert_eq!(
        reason,
        "the endpoint answered 422 Unprocessable Entity: because"
    );
    wait_until("all but 3 and 13", DEADLINE, || async {
        stage.site.got().await.len() == 18
    })
    .await
    .unwrap();
    assert_eq!(
        (stage.site.asked(3).len(), stage.site.asked(4).len()),
        (1, 3)
    );
    running.stop().await.unwrap();
    assert_eq!(stage.check(&stage.site.got().await).await, 0);
}

#[tokio::test]
async fn a_deployment_that_answers_404_401_403_and_409_for_a_while_loses_nothing() {
    let short = Duration::from_millis(20);
    let stage = stage_with(Subscription::new("c").backoff(short, short * 4)).await;
    stage.site.script(|n, times| match (n, times) {
        (1..=5, 1..=3) => status(404),
        (6..=10, 1..=3) => status(401),
        (11..=15, 1..=3) => status(403),
        (16..=20, 1..=3) => status(409),
        _ => None,
    });
    let running = Running::start(stage.relay_to(stage.site.sink().await));
    stage.fixture.publish(1, 40, 10).await;
    stage.wait_for(40).await;
    running.stop().await.unwrap();
    assert_eq!(stage.check(&stage.site.got().await).await, 0);
}

#[tokio::test]
async fn an_endpoint_that_asks_for_a_pause_gets_it_whole_and_nothing_is_parked() {
    let stage = stage_with(Subscription::new("c")).await;
    stage.site.script(|_, times| {
        let busy = ([("retry-after", "1")], StatusCode::TOO_MANY_REQUESTS);
        (times == 1).then(|| busy.into_response())
    });
    let backoff = Duration::from_millis(5);
    let relay = stage
        .relay_to(stage.site.sink().await)
        .backoff(backoff, backoff);
    let running = Running::start(relay);
    stage.fixture.publish(1, 1, 1).await;
    stage.wait_for(1).await;
    let asked = stage.site.asked(1);
    assert_eq!(
        asked.len(),
        2,
        "tried again once, although the relay tries every 5 ms"
    );
    assert!(
        asked[1] - asked[0] >= Duration::from_millis(990),
        "{:?}",
        asked[1] - asked[0]
    );
    running.stop().await.unwrap();
    assert_eq!(
        stage
            .fixture
            .world
            .see
            .number("select count(*) from pgonce.parked")
            .await,
        0
    );
}

#[tokio::test]
async fn a_pause_is_asked_for_once_however_many_events_wait() {
    let stage = stage_with(Subscription::new("c")).await;
    let calls = AtomicUsize::new(0);
    stage.site.script(move |_, _| {
        let busy = ([("retry-after", "1")], StatusCode::SERVICE_UNAVAILABLE);
        (calls.fetch_add(1, SeqCst) < 3).then(|| busy.into_response())
    });
    stage.fixture.publish(1, 3, 3).await;
    let running = Running::start(stage.relay_to(stage.site.sink().await));
    stage.wait_for(3).await;
    running.stop().await.unwrap();
    let mut asked: Vec<_> = (1..=3).flat_map(|n| stage.site.asked(n)).collect();
    asked.sort();
    for pair in asked[..4].windows(2) {
        assert!(
            pair[1] - pair[0] >= Duration::from_millis(990),
            "a second call within the pause"
        );
    }
}

#[tokio::test]
async fn an_endpoint_that_is_gone_evicts_the_subscription_with_the_reason_and_ends_the_relay() {
    let stage = stage_with(Subscription::new("c")).await;
    stage.site.script(|_, _| status(410));
    let running = Running::start(stage.relay_to(stage.site.sink().await));
    stage.fixture.publish(1, 3, 1).await;
    let error = running.ended().await.unwrap_err();
    assert_eq!(error.code(), "P4031");
    assert!(error.to_string().contains("410"), "{error}");
    let backlog = stage.fixture.outbox.backlog().await.unwrap();
    assert!(backlog[0].evicted.as_ref().unwrap().contains("410 Gone"));

    // Once it is back, the subscription reads on, and has missed nothing.
    stage.site.memory.lock().unwrap().script = None;
    stage.fixture.outbox.replay_from("c", 1).await.unwrap();
    let running = Running::start(stage.relay_to(stage.site.sink().await));
    let got = stage.wait_for(3).await;
    assert_eq!(stage.check(&got).await, 0);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let stage = stage_with(Subscription::new("c")).await;
    stage.site.script(|_, _| {
        let elsewhere = (
            [("location", "http://169.254.169.254/latest/meta-data")],
            StatusCode::FOUND,
        );
        Some(elsewhere.into_response())
    });
    let running = Running::start(stage.relay_to(stage.site.sink().await));
    stage.fixture.publish(1, 1, 1).await;
    let letters = stage.dead_letters(1).await;
    let reason = letters[0].reason.clone().unwrap();
    assert!(reason.contains("redirects are not followed"), "{reason}");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn addresses_that_are_not_public_are_refused_unless_allowed() {
    let secret = Options::new().set("secret", NEW).set("allow_http", "true");
    for host in [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "169.254.169.254",
        "10.0.0.1",
        "0x7f000001",
        "2130706433",
        "[::ffff:127.0.0.1]",
    ] {
        let refusal = open(&format!("http://{host}:1/"), &secret)
            .await
            .unwrap_err();
        assert_eq!(refusal.code(), "sink-refused", "{host}: {refusal}");
        assert!(
            refusal.to_string().contains("not a public address"),
            "{refusal}"
        );
    }
    let wrong = secret.clone().set("allow", "10.0.0.0/8");
    assert!(open("http://127.0.0.1:1/", &wrong).await.is_err());
    let right = secret.set("allow", "127.0.0.1");
    assert!(open("http://127.0.0.1:1/", &right).await.is_ok());
}

#[tokio::test]
async fn an_endpoint_that_never_answers_is_given_up_in_time_and_nothing_is_parked() {
    let fixture = Fixture::new().await;
    // It listens, and that is all.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let site = Endpoint::start(true).await;
    let (_, options) = site.address();
    let url = format!("http://{}/hook", silent.local_addr().unwrap());
    let sink = open(&url, &options.set("timeout", "50ms")).await.unwrap();
    let stage = Stage { fixture, site };
    let running = Running::start(stage.relay_to(sink).drain_timeout(Duration::ZERO));
    stage.fixture.publish(1, 1, 1).await;
    for _ in 0..3 {
        // A new connection is a new try: the last one was given up.
        tokio::time::timeout(DEADLINE, silent.accept())
            .await
            .unwrap()
            .unwrap();
    }
    assert_eq!(
        stage
            .fixture
            .world
            .see
            .number("select count(*) from pgonce.parked")
            .await,
        0
    );
    running.stop().await.unwrap();
}
