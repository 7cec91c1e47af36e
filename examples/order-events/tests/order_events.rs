//! What the shop did is published where it should be, once for receivers that know ids, in order, and nothing else.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::join_all;
use order_events::{deliver, place, set_up, ship, sink};
use pgonce::Once;
use pgonce::driver::sqlx::Sqlx;
use pgonce_broker::sinks::Options;
use pgonce_testkit::{Database, Nats, shared, wait_until};
use sqlx::PgPool;
use tokio::net::TcpListener;

const DEADLINE: Duration = Duration::from_secs(60);
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

async fn shop() -> (Database, Once<Sqlx>) {
    let server = shared(None).await.unwrap();
    server
        .template("empty", async |_: String| Ok::<(), std::io::Error>(()))
        .await
        .unwrap();
    let database = server.database_from("empty").await.unwrap();
    let pool = PgPool::connect(&database.url()).await.unwrap();
    let once = set_up(&pool).await.unwrap();
    (database, once)
}

/// Three orders, each asked for by four clients at once, then shipped, twice.
async fn business(once: &Once<Sqlx>) {
    for key in ["a", "b", "c"] {
        let asked = join_all((0..4).map(|_| place(once, key, "book"))).await;
        let done = asked.into_iter().find_map(Result::ok).unwrap();
        let id: i64 = done.read().unwrap();
        for _ in 0..2 {
            let shipped: i64 = ship(once, id).await.unwrap().read().unwrap();
            assert_eq!(shipped, id);
        }
    }
}

async fn stream_of(nats: &Nats) -> stream::Stream {
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let config = stream::Config {
        name: "ORDERS".to_owned(),
        subjects: vec!["shop.>".to_owned()],
        ..stream::Config::default()
    };
    context.get_or_create_stream(config).await.unwrap()
}

fn to_nats(nats: &Nats) -> String {
    format!("{}?stream=ORDERS&subject=shop.{{topic}}", nats.url())
}

/// What NATS has: for each subject the types in order.
async fn received(nats: &Nats) -> BTreeMap<String, Vec<String>> {
    let stream = stream_of(nats).await;
    let mut delivered: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for sequence in 1..=stream.get_info().await.unwrap().state.last_sequence {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let header = |name| message.headers.get(name).unwrap().as_str().to_owned();
        delivered
            .entry(header("ce-subject"))
            .or_default()
            .push(header("ce-type"));
    }
    delivered
}

#[tokio::test]
async fn everything_reaches_nats_once_and_in_order_although_nats_is_killed() {
    let (_database, once) = shop().await;
    let nats = Nats::start().await.unwrap();
    stream_of(&nats).await;
    let out = sink(&to_nats(&nats), Options::new()).await.unwrap();
    business(&once).await;
    nats.kill().await.unwrap();
    let restart = async {
        // The relay has found out by then, or finds NATS back: both must do.
        tokio::task::yield_now().await;
        nats.restart().await.unwrap();
    };
    let (delivered, ()) = tokio::join!(deliver(&once, "shop", out), restart);
    assert!(delivered.unwrap());
    let delivered = received(&nats).await;
    assert_eq!(delivered.len(), 3, "{delivered:?}");
    for (subject, types) in &delivered {
        assert_eq!(types, &["order.placed", "order.shipped"], "{subject}");
    }
    // What was delivered is not delivered again.
    let out = sink(&to_nats(&nats), Options::new()).await.unwrap();
    assert!(deliver(&once, "shop", out).await.unwrap());
    assert_eq!(received(&nats).await, delivered);
}

/// What a partner has got; the first request for each event is turned away.
#[derive(Default)]
struct Partner {
    asked: BTreeMap<String, u32>,
    got: Vec<String>,
}

async fn receive(
    State(partner): State<Arc<Mutex<Partner>>>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let signed = [
        format!("{}.{}.", header("webhook-id"), header("webhook-timestamp")).as_bytes(),
        &body,
    ]
    .concat();
    let key = STANDARD
        .decode(SECRET.trim_start_matches("whsec_"))
        .unwrap();
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key);
    let signature = header("webhook-signature");
    let signature = STANDARD
        .decode(signature.trim_start_matches("v1,"))
        .unwrap();
    ring::hmac::verify(&key, &signed, &signature).unwrap();

    let mut partner = partner.lock().unwrap();
    let times = partner.asked.entry(header("webhook-id")).or_default();
    *times += 1;
    if *times == 1 {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(event["type"], "order.shipped");
    partner.got.push(event["subject"].to_string());
    StatusCode::NO_CONTENT
}

#[tokio::test]
async fn a_partner_gets_shipments_signed_and_what_it_refused_once_more() {
    let (_database, once) = shop().await;
    let partner = Arc::new(Mutex::new(Partner::default()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let app = Router::new()
        .route("/hook", post(receive))
        .with_state(partner.clone());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });

    business(&once).await;
    let options = Options::new()
        .set("secret", SECRET)
        .set("allow", "127.0.0.0/8")
        .set("allow_http", "true");
    wait_until("all shipments", DEADLINE, || async {
        let hook = sink(&url, options.clone()).await.unwrap();
        assert!(deliver(&once, "partner", hook).await.unwrap());
        partner.lock().unwrap().got.len() >= 3
    })
    .await
    .unwrap();
    let mut got = partner.lock().unwrap().got.clone();
    got.sort();
    got.dedup();
    assert_eq!(got.len(), 3, "{got:?}");
}
