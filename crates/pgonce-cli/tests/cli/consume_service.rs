//! A service in front of which `pgonce consume` stands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use pgonce_testkit::wait_until;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::consume::DEADLINE;
use crate::relay::Running;

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) key: String,
    pub(crate) fence: i64,
    pub(crate) id: String,
    pub(crate) subject: String,
    pub(crate) n: i64,
    pub(crate) applied: bool,
}

/// A service that knows nothing of pgonce.
#[derive(Default)]
pub(crate) struct Service {
    pub(crate) calls: Mutex<Vec<Call>>,
    /// Fails the first time for these, does not answer the first time for those; fails always for these, and never answers
    /// for one.
    pub(crate) first: BTreeSet<i64>,
    pub(crate) first_hangs: BTreeSet<i64>,
    pub(crate) always: BTreeSet<i64>,
    pub(crate) hangs: Option<i64>,
}

impl Service {
    pub(crate) async fn start(self) -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/events", listener.local_addr().unwrap());
        let service = Arc::new(self);
        service.clone().serve(listener);
        (service, url)
    }

    pub(crate) fn serve(self: Arc<Self>, listener: TcpListener) {
        let router = Router::new()
            .route("/events", post(Self::take))
            .with_state(self);
        tokio::spawn(async move { axum::serve(listener, router).await });
    }

    async fn take(State(service): State<Arc<Self>>, headers: HeaderMap, body: String) -> Response {
        let header = |name: &str| headers[name].to_str().unwrap().to_owned();
        let body: Value = serde_json::from_str(&body).unwrap();
        let mut call = Call {
            key: header("idempotency-key"),
            fence: header("pgonce-fence").parse().unwrap(),
            id: header("ce-id"),
            subject: header("ce-subject"),
            n: body["n"].as_i64().unwrap(),
            applied: true,
        };
        assert_eq!(header("ce-type"), "counted");
        let seen = service
            .calls
            .lock()
            .unwrap()
            .iter()
            .any(|other| other.n == call.n);
        let fails = service.always.contains(&call.n) || (service.first.contains(&call.n) && !seen);
        let hangs =
            service.hangs == Some(call.n) || (service.first_hangs.contains(&call.n) && !seen);
        call.applied = !fails && !hangs;
        service.calls.lock().unwrap().push(call);
        if hangs {
            std::future::pending::<()>().await;
        }
        match fails {
            true => (StatusCode::INTERNAL_SERVER_ERROR, "not now").into_response(),
            false => StatusCode::NO_CONTENT.into_response(),
        }
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    pub(crate) fn applied(&self) -> BTreeSet<i64> {
        let calls = self.calls();
        calls
            .iter()
            .filter(|call| call.applied)
            .map(|call| call.n)
            .collect()
    }

    pub(crate) async fn wait_for(&self, count: usize, running: &[&Running]) {
        let there = async || self.applied().len() >= count;
        let what = format!("{count} messages to be applied");
        wait_until(what, DEADLINE, there)
            .await
            .unwrap_or_else(|error| {
                let logs: Vec<_> = running.iter().map(|one| one.log()).collect();
                panic!(
                    "{error}: {}: {}",
                    self.applied().len(),
                    logs.join("\n---\n")
                )
            });
    }

    /// One key for each message, rising fences, and nothing before what comes before it in its subject.
    /// `skipped` by an operator.
    pub(crate) fn assert_stable(&self, skipped: &[i64]) {
        let (mut keys, mut fences, mut last) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for call in self.calls() {
            let key = keys.entry(call.id.clone()).or_insert(call.key.clone());
            assert_eq!(*key, call.key, "another key for the same message");
            let fence = fences.entry(call.id).or_insert(0);
            assert!(call.fence > *fence, "fence {} after {fence}", call.fence);
            *fence = call.fence;
            let before = last.entry(call.subject).or_insert((i64::MIN, true));
            assert!(call.n >= before.0, "{} after {}", call.n, before.0);
            assert!(
                call.n == before.0 || before.1 || skipped.contains(&before.0),
                "{} before {} was applied",
                call.n,
                before.0
            );
            *before = (call.n, call.applied || (before.0 == call.n && before.1));
        }
        let distinct: BTreeSet<_> = keys.values().collect();
        assert_eq!(distinct.len(), keys.len(), "two messages share a key");
    }
}
