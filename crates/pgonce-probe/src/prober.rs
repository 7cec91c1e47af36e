//! Sends intents, requests, races, cuts and the count of effects.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};

use super::answer::{Answer, Response};
use super::case::Case;
use super::evidence::{Naming, Sample};
use super::finding::{Finding, Found, Outcome};
use super::ledger::Ledger;
use super::options::{Args, Template, headers, overlay};
use super::statuses::{Allow, Statuses};
use super::wire::{Ask, Endpoint};
use crate::exit::Result;

/// Whatever happens, no more requests than these.
const MOST_REQUESTS: u64 = 5_000;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Something that is wanted once.
#[derive(Debug, Clone)]
pub(super) struct Intent {
    pub(super) key: String,
    pub(super) body: Bytes,
}

/// Where effects are counted.
#[derive(Debug)]
pub(super) struct Counter {
    at: Endpoint,
    pointer: String,
    settle: Duration,
}

#[derive(Debug)]
pub(super) struct Prober {
    pub(super) at: Endpoint,
    pub(super) other: Option<Endpoint>,
    method: Method,
    pub(super) headers: HeaderMap,
    pub(super) other_headers: Option<HeaderMap>,
    key_header: HeaderName,
    quoted: bool,
    body: Template,
    other_body: Option<Template>,
    pub(super) invalid_body: Option<Template>,
    pub(super) error_body: Option<Template>,
    pub(super) late: Duration,
    counter: Option<Counter>,
    id_pointer: String,
    expect: Statuses,
    allow: Vec<Allow>,
    pub(super) concurrency: usize,
    timeout: Duration,
    pub(super) busy_timeout: Duration,
    random: RefCell<StdRng>,
    /// The last {{number}}.
    n: Cell<u64>,
    requests: Cell<u64>,
    ledger: RefCell<Ledger>,
    /// The count of effects when it last stood still, until something is sent.
    settled: Cell<Option<i64>>,
    /// The first intent of the run, and its answer.
    pub(super) opening: OnceCell<(Intent, Answer)>,
    pub(super) sample: OnceCell<Sample>,
    pub(super) naming: OnceCell<Naming>,
    pub(super) fresh: OnceCell<(Answer, Answer)>,
}

impl Prober {
    pub(super) async fn new(args: &Args, url: &str, seed: u64) -> Result<Self> {
        let cacert = args.cacert.as_deref();
        let body = Template::read(&args.body, "--body")?;
        let read = |text: &Option<String>, option: &str| {
            text.as_deref()
                .map(|text| Template::read(text, option))
                .transpose()
        };
        let own = headers(&args.header, &body)?;
        let other_headers = match &args.other_header[..] {
            [] => None,
            given => {
                let mut others = own.clone();
                overlay(&mut others, given, "--other-header")?;
                Some(others)
            }
        };
        let other = match &args.other_url {
            Some(url) => Some(Endpoint::resolve(url, cacert).await?),
            None => None,
        };
        let counter = match &args.count_url {
            Some(url) => Some(Counter {
                at: Endpoint::resolve(url, cacert).await?,
                pointer: args.count_pointer.clone(),
                settle: args.settle,
            }),
            None => None,
        };
        for allow in &args.allow {
            allow.check()?;
        }
        let mut random = StdRng::seed_from_u64(seed);
        let n = random.random_range(1_000_000..900_000_000);
        Ok(Self {
            at: Endpoint::resolve(url, cacert).await?,
            other,
            method: args.method.clone(),
            headers: own,
            other_headers,
            key_header: args.key_header.clone(),
            quoted: args.quoted,
            other_body: read(&args.other_body, "--other-body")?,
            invalid_body: read(&args.invalid_body, "--invalid-body")?,
            error_body: read(&args.error_body, "--error-body")?,
            late: args.late,
            body,
            counter,
            id_pointer: args.id_pointer.clone(),
            expect: args.expect.clone(),
            allow: args.allow.clone(),
            concurrency: usize::from(args.concurrency),
            timeout: args.timeout,
            busy_timeout: args.busy_timeout,
            random: RefCell::new(random),
            n: Cell::new(n),
            requests: Cell::new(0),
            ledger: RefCell::new(Ledger::new(args.key_header.clone())),
            settled: Cell::new(None),
            opening: OnceCell::new(),
            sample: OnceCell::new(),
            naming: OnceCell::new(),
            fresh: OnceCell::new(),
        })
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.get()
    }

    pub(super) fn counts(&self) -> bool {
        self.counter.is_some()
    }

    /// Whether two intents have different payloads.
    pub(super) fn varies(&self) -> bool {
        self.body.varies()
    }

    /// A new intent, with a key of its own.
    pub(super) fn intent(&self) -> Intent {
        Intent {
            key: self.token(),
            body: self.fill(&self.body),
        }
    }

    /// Another payload than an intent's, if there is one.
    pub(super) fn changed(&self) -> Found<Bytes> {
        match &self.other_body {
            Some(other) => Ok(self.fill(other)),
            None if self.varies() => Ok(self.fill(&self.body)),
            None => Err(Finding::skipped(
                "there is no second payload: put {{number}} or {{uuid}} into --body, or give --other-body",
            )),
        }
    }

    fn fill(&self, template: &Template) -> Bytes {
        self.n.set(self.n.get() + 1);
        template.fill(self.n.get(), &self.token())
    }

    /// A fresh id.
    pub(super) fn token(&self) -> String {
        let bytes = self.random.borrow_mut().random();
        uuid::Builder::from_random_bytes(bytes)
            .into_uuid()
            .to_string()
    }

    /// The key as a header's value, in the usual form or in the other one.
    pub(super) fn written(&self, key: &str, other_form: bool) -> Vec<u8> {
        if self.quoted == other_form {
            return key.as_bytes().to_vec();
        }
        let escaped = key.replace('\\', "\\\\").replace('"', "\\\"");
        format!("\"{escaped}\"").into_bytes()
    }

    pub(super) fn ask(&self, intent: &Intent) -> Ask<'_> {
        self.ask_with(&[self.written(&intent.key, false)], intent.body.clone())
    }

    /// A request with as many key headers as there are keys.
    pub(super) fn ask_with(&self, keys: &[Vec<u8>], body: Bytes) -> Ask<'_> {
        let mut headers = self.headers.clone();
        for key in keys {
            if let Ok(value) = HeaderValue::from_bytes(key) {
                headers.append(self.key_header.clone(), value);
            }
        }
        Ask {
            at: &self.at,
            method: &self.method,
            headers,
            body,
        }
    }

    /// The same request as somebody else would send it.
    pub(super) fn ask_as(&self, principal: &HeaderMap, intent: &Intent) -> Ask<'_> {
        let mut ask = self.ask(intent);
        let key = ask.headers.get(&self.key_header).cloned();
        ask.headers = principal.clone();
        if let Some(key) = key {
            ask.headers.insert(self.key_header.clone(), key);
        }
        ask
    }

    pub(super) async fn send(&self, ask: &Ask<'_>) -> Response {
        self.noted(ask, async {
            let ready = ask.ready().await?;
            ask.send(ready).await
        })
        .await
    }

    /// An exchange that may have an effect.
    async fn noted(&self, ask: &Ask<'_>, exchange: impl Future<Output = Response>) -> Response {
        self.notes(ask);
        let response = self.bounded(exchange).await;
        let accepted = response.as_ref().is_ok_and(|answer| self.accepts(answer));
        let mut ledger = self.ledger.borrow_mut();
        ledger.answered(ask, &response, accepted);
        response
    }

    fn notes(&self, ask: &Ask<'_>) {
        self.settled.set(None);
        self.ledger.borrow_mut().sends(ask);
    }

    /// Sends the run's first intent.
    pub(super) async fn open(&self) -> Found<&Answer> {
        let opening = self.opening.get_or_try_init(async || {
            let intent = self.intent();
            let answer = self.accepted(&self.ask(&intent)).await?;
            Ok((intent, answer))
        });
        Ok(&opening.await?.1)
    }

    /// Runs a case. Whatever it concludes, it fails where a second effect is seen.
    pub(super) async fn audited(&self, case: impl Future<Output = Found>) -> Finding {
        let before = self.standing().await;
        self.ledger.borrow_mut().begin();
        let finding = case.await.unwrap_or_else(|finding| finding);
        if finding.outcome == Outcome::Fail {
            return finding;
        }
        if let Some(two) = self.ledger.borrow().contradiction() {
            return Finding::fail(two);
        }
        let most = self.ledger.borrow().most();
        match (before, self.standing().await) {
            (Ok(Some(before)), Ok(Some(now))) if now - before > most => Finding::fail(format!(
                "a duplicate had a second effect: {} were counted, and the keys that were sent stand for {most}",
                now - before
            )),
            (Err(why), _) | (_, Err(why)) if finding.outcome == Outcome::Pass => why,
            _ => finding,
        }
    }

    /// Sends all at once, over connections that are open before the first is sent.
    pub(super) async fn race(&self, asks: &[Ask<'_>]) -> Vec<Response> {
        let open = asks.iter().map(|ask| self.within(ask.ready()));
        let open = join_all(open).await;
        let sent = asks
            .iter()
            .zip(open)
            .map(|(ask, ready)| self.noted(ask, async move { ask.send(ready?).await }));
        join_all(sent).await
    }

    /// Sends the head and a part of the body, waits, and is gone.
    pub(super) async fn cut(
        &self,
        ask: &Ask<'_>,
        body: usize,
        after: Duration,
    ) -> std::result::Result<(), String> {
        self.requests.set(self.requests.get() + 1);
        self.notes(ask);
        let connection = self.within(ask.send_part(body)).await?;
        sleep(after).await;
        drop(connection);
        Ok(())
    }

    /// Sends until the answer is not "come back later", or the retry timeout is over.
    pub(super) async fn send_until_settled(&self, ask: &Ask<'_>) -> Response {
        let until = Instant::now() + self.busy_timeout;
        let mut pause = FIRST_PAUSE;
        loop {
            let response = self.send(ask).await;
            let wait = match &response {
                Ok(answer) if answer.is_busy() => answer.retry_after().unwrap_or(pause),
                _ => return response,
            };
            let wait = wait.clamp(FIRST_PAUSE, MAX_PAUSE);
            if Instant::now() + wait > until {
                return response;
            }
            sleep(wait).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Sends an intent that nothing speaks against; anything but acceptance ends the case.
    pub(super) async fn accepted(&self, ask: &Ask<'_>) -> Found<Answer> {
        match self.send(ask).await {
            Ok(answer) if self.accepts(&answer) => Ok(answer),
            Ok(answer) => Err(Finding::inconclusive(format!(
                "a plain intent was not accepted but answered {answer}"
            ))),
            Err(why) => Err(Finding::inconclusive(format!(
                "a plain intent got no answer: {why}"
            ))),
        }
    }

    /// Whether this answer says that the intent was accepted.
    pub(super) fn accepts(&self, answer: &Answer) -> bool {
        self.expect.include(answer.status)
    }

    /// Whether this status is right in this case, or was allowed.
    pub(super) fn is_right(&self, case: Case, answer: &Answer) -> bool {
        case.about().statuses.contains(&answer.status) || self.is_allowed(case, answer)
    }

    pub(super) fn is_allowed(&self, case: Case, answer: &Answer) -> bool {
        self.allow
            .iter()
            .any(|allow| allow.case == case && allow.statuses.include(answer.status))
    }

    async fn bounded(&self, exchange: impl Future<Output = Response>) -> Response {
        self.requests.set(self.requests.get() + 1);
        if self.requests.get() > MOST_REQUESTS {
            return Err(format!("the limit of {MOST_REQUESTS} requests is reached"));
        }
        let mut answer = self.within(exchange).await?;
        answer.id = serde_json::from_slice::<serde_json::Value>(&answer.body)
            .ok()
            .and_then(|document| document.pointer(&self.id_pointer).cloned())
            .filter(|id| !id.is_null());
        Ok(answer)
    }

    async fn within<T>(
        &self,
        doing: impl Future<Output = std::result::Result<T, String>>,
    ) -> std::result::Result<T, String> {
        timeout(self.timeout, doing)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {:?}", self.timeout)))
    }

    /// How many effects there are now, where they can be counted.
    pub(super) async fn count(&self) -> Found<Option<i64>> {
        match &self.counter {
            Some(counter) => self.read(counter).await.map(Some),
            None => Ok(None),
        }
    }

    /// How many effects came since, once their number stands still.
    pub(super) async fn made_since(&self, before: Option<i64>) -> Found<Option<i64>> {
        let standing = self.standing().await?;
        Ok(standing.zip(before).map(|(now, before)| now - before))
    }

    /// How many effects there are, once their number stands still.
    async fn standing(&self) -> Found<Option<i64>> {
        let (Some(counter), None) = (&self.counter, self.settled.get()) else {
            return Ok(self.settled.get());
        };
        let until = Instant::now() + counter.settle * 10 + self.timeout;
        let mut last = self.read(counter).await?;
        let mut since = Instant::now();
        while since.elapsed() < counter.settle && Instant::now() < until {
            sleep((counter.settle / 6).max(Duration::from_millis(1))).await;
            let now = self.read(counter).await?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        self.settled.set(Some(last));
        Ok(self.settled.get())
    }

    async fn read(&self, counter: &Counter) -> Found<i64> {
        let ask = Ask {
            at: &counter.at,
            method: &Method::GET,
            headers: self.headers.clone(),
            body: Bytes::new(),
        };
        let unclear = |why: String| {
            Finding::inconclusive(format!("effects cannot be counted at --count-url: {why}"))
        };
        let exchange = async { ask.send(ask.ready().await?).await };
        let answer = self.bounded(exchange).await.map_err(unclear)?;
        if answer.status != 200 {
            return Err(unclear(format!("it answered {answer}")));
        }
        let document: serde_json::Value = serde_json::from_slice(&answer.body)
            .map_err(|error| unclear(format!("not JSON: {error}")))?;
        let counted = match document.pointer(&counter.pointer) {
            Some(serde_json::Value::Array(effects)) => i64::try_from(effects.len()).ok(),
            Some(number) => number.as_i64(),
            None => None,
        };
        counted.ok_or_else(|| {
            let place = &counter.pointer;
            unclear(format!("no whole number and no array is at {place:?}"))
        })
    }
}
