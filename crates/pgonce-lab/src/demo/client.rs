//! A client that wants its answer: it sends the same request with the same key until it has one.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::plan::{Client, Cut, Intent};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);
const MAX_PAUSE: Duration = Duration::from_millis(400);

/// What happened so far.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) attempts: AtomicU64,
    pub(super) in_flight: AtomicU64,
    /// Intents of which every client has its answer.
    pub(super) settled: AtomicU64,
    pub(super) replays: AtomicU64,
    pub(super) conflicts: AtomicU64,
    /// Rejected, to be retried: busy, or the database was away.
    pub(super) turned_away: AtomicU64,
    /// Hung up by the client.
    pub(super) cuts: AtomicU64,
    /// Broken by the service's end.
    pub(super) broken: AtomicU64,
    pub(super) kills: AtomicU64,
    pub(super) crashes: AtomicU64,
    pub(super) sessions_ended: AtomicU64,
    /// Requests that were under way when a disaster struck.
    pub(super) struck: AtomicU64,
    /// As last counted in the database.
    pub(super) effects: AtomicU64,
}

/// The time after which a client gives up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn is_accepted(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether it says that the key was used with another request.
    pub(super) fn is_conflict(&self) -> bool {
        let document: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        self.status == 422 && document["code"] == "P4002"
    }
}

/// Everything a client needs to reach the service.
#[derive(Debug, Clone)]
pub(super) struct Line<'a> {
    pub(super) http: reqwest::Client,
    pub(super) address: watch::Receiver<SocketAddr>,
    pub(super) counts: &'a Counts,
    pub(super) until: Instant,
}

impl Line<'_> {
    /// Asks until there is an answer; `None` when time is up.
    pub(super) async fn ask(&self, intent: &Intent, client: &Client) -> Option<Answer> {
        sleep(client.lag).await;
        let body = serde_json::to_vec(&intent.sent_by(client)).ok()?;
        let mut cut = client.cut;
        let mut pause = Duration::from_millis(20);
        while Instant::now() < self.until {
            let address = *self.address.borrow();
            self.counts.attempts.fetch_add(1, Relaxed);
            self.counts.in_flight.fetch_add(1, Relaxed);
            let answered = match cut.take() {
                Some(cut) => self.hang_up(address, &intent.key, &body, cut).await,
                None => self.send(address, &intent.key, body.clone()).await,
            };
            self.counts.in_flight.fetch_sub(1, Relaxed);
            if answered.is_some() {
                return answered;
            }
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
        None
    }

    async fn send(&self, address: SocketAddr, key: &str, body: Vec<u8>) -> Option<Answer> {
        let sent = self
            .http
            .post(format!("http://{address}/orders"))
            .header("idempotency-key", key)
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await;
        let read = match sent {
            Ok(response) => {
                let status = response.status().as_u16();
                let replayed = response.headers().contains_key("idempotent-replayed");
                response.bytes().await.map(|body| {
                    (
                        Answer {
                            status,
                            body: body.to_vec(),
                        },
                        replayed,
                    )
                })
            }
            Err(error) => Err(error),
        };
        let Ok((answer, replayed)) = read else {
            self.counts.broken.fetch_add(1, Relaxed);
            return None;
        };
        if matches!(answer.status, 409 | 500..) {
            self.counts.turned_away.fetch_add(1, Relaxed);
            return None;
        }
        self.counts.replays.fetch_add(u64::from(replayed), Relaxed);
        self.counts
            .conflicts
            .fetch_add(u64::from(answer.is_conflict()), Relaxed);
        Some(answer)
    }

    /// Sends by hand and hangs up: whether it had an effect, this client cannot know.
    async fn hang_up(
        &self,
        address: SocketAddr,
        key: &str,
        body: &[u8],
        cut: Cut,
    ) -> Option<Answer> {
        let mut request = format!(
            "POST /orders HTTP/1.1\r\nhost: {address}\r\nidempotency-key: {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        let Ok(mut wire) = TcpStream::connect(address).await else {
            self.counts.broken.fetch_add(1, Relaxed);
            return None;
        };
        let (part, pause) = match cut {
            Cut::HalfSent => (request.len() / 2, Duration::ZERO),
            Cut::Unread(pause) => (request.len(), pause),
        };
        let _ = wire.write_all(&request[..part]).await;
        sleep(pause).await;
        self.counts.cuts.fetch_add(1, Relaxed);
        None
    }
}

/// Every request on a connection of its own, straight to the service.
pub(super) fn http() -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .no_proxy()
        .pool_max_idle_per_host(0)
        .timeout(REQUEST_TIMEOUT)
        .build()
}
