//! The libraries in a program of one's own, with a subscriber of its own: layer, command, event, relay and consumer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::Request;
use opentelemetry::trace::{SpanKind, TracerProvider as _};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use pgonce::driver::sqlx::Sqlx;
use pgonce::inbox::{Message, Tx as Handed};
use pgonce::outbox::Subscription;
use pgonce::{Event, Intent, Once};
use pgonce_broker::sinks::Channel as Sink;
use pgonce_broker::sources::Channel as Source;
use pgonce_broker::{Batches, Consumer, Relay};
use pgonce_http::{Caller, HandlerError, IdempotencyLayer, Policy, Tx};
use pgonce_testkit::wait_until;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::fixture::{Fixture, TIMEOUT};

const CANARY: &str = "c4n4ry";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";

/// Spans that have ended.
#[derive(Debug, Clone, Default)]
struct Ended(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Ended {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

impl Ended {
    fn all(&self) -> Vec<SpanData> {
        self.0.lock().unwrap().clone()
    }

    /// The one of this name under this parent.
    #[track_caller]
    fn only(&self, name: &str, parent: &str) -> SpanData {
        let all = self.all();
        let mut found = all
            .iter()
            .filter(|span| span.name == name && span.parent_span_id.to_string() == parent);
        let (first, second) = (found.next(), found.next());
        assert!(
            first.is_some() && second.is_none(),
            "{name} under {parent}: {all:#?}"
        );
        first.unwrap().clone()
    }

    async fn wait_for(&self, name: &str, count: usize) {
        let there = async || self.all().iter().filter(|s| s.name == name).count() >= count;
        wait_until(name, TIMEOUT, there)
            .await
            .unwrap_or_else(|error| panic!("{error}: {:#?}", self.all()));
    }
}

fn id(span: &SpanData) -> String {
    span.span_context.span_id().to_string()
}

fn attribute(span: &SpanData, name: &str) -> String {
    let found = span
        .attributes
        .iter()
        .find(|pair| pair.key.as_str() == name);
    found.map_or(String::new(), |pair| pair.value.to_string())
}

/// Subscribes on this thread, as programs do.
fn subscribed() -> (Ended, tracing::subscriber::DefaultGuard) {
    let ended = Ended::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(ended.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let subscriber = tracing_subscriber::registry().with(layer);
    (ended, tracing::subscriber::set_default(subscriber))
}

async fn create(mut tx: Tx<Sqlx>) -> Result<String, HandlerError> {
    let event = Event::new("orders", "order.created")
        .subject(format!("{CANARY}-subject"))
        .payload(&format!("{CANARY}-payload"))?;
    tx.publish(event).await?;
    Ok(format!("{CANARY}-answer"))
}

async fn once(fixture: &Fixture) -> Once<Sqlx> {
    let pool = sqlx::PgPool::connect(&fixture.database.url()).await;
    Once::sqlx(pool.unwrap())
}

#[tokio::test]
async fn a_library_carries_a_trace_from_a_request_to_a_message() {
    let fixture = Fixture::new().await;
    let once = once(&fixture).await;
    let subscription = Subscription::new("s");
    once.outbox()
        .create_subscription(&subscription)
        .await
        .unwrap();
    let (ended, _subscribed) = subscribed();

    let policy = Policy::new("orders.create", Caller::None);
    let layer = IdempotencyLayer::atomic(once.clone(), policy).unwrap();
    let app = Router::new().route("/orders/{shop}", post(create).layer(layer));
    for _ in 0..2 {
        let request = Request::post("/orders/c4n4ry-path")
            .header("idempotency-key", format!("{CANARY}-key"))
            .header("traceparent", format!("00-{TRACE}-{CLIENT}-01"))
            .body(Body::from(format!("{CANARY}-body")))
            .unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
    }

    let (sink, mut events) = Sink::bounded(10);
    let (stop, source) = (CancellationToken::new(), Source::new("shop"));
    let relay = tokio::spawn(Relay::new(once.outbox(), "s", sink).run(stop.clone()));
    let event = events.recv().await.unwrap();
    let mut message = Message::new(event.id.to_string(), event.payload.unwrap());
    message.headers = event.headers.as_object().unwrap().clone();
    let forwards = |mut tx: Handed<Sqlx>, _: Arc<Message>| async move {
        tx.publish(Event::new("bills", "bill.made")).await?;
        Ok(())
    };
    let consumer = Consumer::new(&once, "billing", source.source(), forwards);
    let consumer = tokio::spawn(consumer.run(stop.clone()));
    // Twice, as brokers do.
    source.send(message.clone());
    source.send(message);
    ended.wait_for("process billing", 2).await;
    // What the consumer published is in the same trace.
    let bill = events.recv().await.unwrap();
    ended.wait_for("send bills", 1).await;
    stop.cancel();
    relay.await.unwrap().unwrap();
    consumer.await.unwrap().unwrap();

    let requests: Vec<_> = ended
        .all()
        .into_iter()
        .filter(|span| span.name == "POST /orders/{shop}")
        .collect();
    let outcomes = requests
        .iter()
        .map(|span| attribute(span, "pgonce.outcome"));
    assert_eq!(outcomes.collect::<Vec<_>>(), ["done", "replayed"]);
    assert_eq!(requests[0].parent_span_id.to_string(), CLIENT);
    let command = ended.only("pgonce.command", &id(&requests[0]));
    assert_eq!(attribute(&command, "pgonce.mode"), "atomic");
    ended.only("pgonce.claim", &id(&command));
    let effect = ended.only("pgonce.effect", &id(&command));
    ended.only("pgonce.commit", &id(&effect));
    let published = ended.only("publish orders", &id(&effect));
    assert_eq!(published.span_kind, SpanKind::Producer);
    let carried = event.headers["traceparent"].as_str().unwrap();
    assert_eq!(carried, format!("00-{TRACE}-{}-01", id(&published)));
    let sent = ended.only("send orders", &id(&published));
    assert_eq!(attribute(&sent, "pgonce.outcome"), "sent");
    let mut consumed: Vec<_> = ended
        .all()
        .into_iter()
        .filter(|span| span.name == "process billing")
        .collect();
    consumed.sort_by_key(|span| attribute(span, "pgonce.outcome"));
    let outcomes = consumed
        .iter()
        .map(|span| attribute(span, "pgonce.outcome"));
    assert_eq!(outcomes.collect::<Vec<_>>(), ["applied", "duplicate"]);
    for span in &consumed {
        assert_eq!(span.parent_span_id.to_string(), id(&published));
    }
    let billed = ended.only("publish bills", &id(&consumed[0]));
    let carried = bill.headers["traceparent"].as_str().unwrap();
    assert_eq!(carried, format!("00-{TRACE}-{}-01", id(&billed)));

    for span in &ended.all() {
        let trace = span.span_context.trace_id().to_string();
        assert_eq!(trace, TRACE, "{span:?}");
    }
    let everything = format!("{:?}", ended.all());
    assert!(!everything.contains(CANARY), "{everything}");
}

/// A handler of batches works in a span that is linked to those of its messages; work that fails says so in a word and a code.
#[tokio::test]
async fn batches_are_linked_and_failures_are_named_without_their_texts() {
    let fixture = Fixture::new().await;
    let once = once(&fixture).await;
    let (ended, _subscribed) = subscribed();
    let (stop, source) = (CancellationToken::new(), Source::new("shop"));
    for n in 0..3 {
        let parent = format!("00-{TRACE}-{CLIENT}-01");
        let message = Message::new(format!("{CANARY}-{n}"), "{}");
        source.send(message.header("traceparent", parent));
    }
    let consumer = Consumer::new(
        &once,
        "many",
        source.source(),
        Batches(|_: Handed<Sqlx>, _: Vec<Arc<Message>>| async { Ok(()) }),
    );
    let consumer = tokio::spawn(consumer.concurrency(1).run(stop.clone()));
    ended.wait_for("process many", 4).await;
    stop.cancel();
    consumer.await.unwrap().unwrap();
    let all = ended.all();
    let batch = all.iter().find(|span| !span.links.is_empty()).unwrap();
    assert_eq!(batch.links.len(), 3);
    assert_eq!(attribute(batch, "messaging.batch.message_count"), "3");

    let failing = Intent::new("orders.create", format!("{CANARY}-failing"), &()).unwrap();
    let failed: pgonce::Result<pgonce::Done> = once
        .run(&failing, async |_: pgonce::Attempt<Sqlx>| {
            Err(pgonce::Failure::transient("later", format!("{CANARY}-failure")).into())
        })
        .await;
    assert!(failed.is_err());
    let all = ended.all();
    let command = all
        .iter()
        .find(|span| span.name == "pgonce.command")
        .unwrap();
    assert_eq!(attribute(command, "pgonce.outcome"), "failed");
    assert!(matches!(
        command.status,
        opentelemetry::trace::Status::Error { .. }
    ));
    let recorded = all.iter().find(|span| span.name == "pgonce.fail").unwrap();
    assert_eq!(attribute(recorded, "pgonce.outcome"), "recorded");

    // A job is a trace of its own.
    fixture.sql("select pgonce.enqueue('mail')").await;
    let stop = CancellationToken::new();
    let worker = once.worker(["mail"], |job| async move { job.done("sent") });
    let worker = worker.poll_interval(Duration::from_millis(10));
    let worker = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    ended.wait_for("process mail", 1).await;
    stop.cancel();
    worker.await.unwrap();
    let all = ended.all();
    let job = all.iter().find(|span| span.name == "process mail").unwrap();
    assert_eq!(attribute(job, "pgonce.outcome"), "done");
    let everything = format!("{all:?}");
    assert!(!everything.contains(CANARY), "{everything}");
}
