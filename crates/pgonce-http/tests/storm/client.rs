//! Clients that go away at every point of a request, as chance will have it.

use std::net::SocketAddr;

use pgonce_testkit::{Call, Outcome};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::service::ATTEMPT;

/// Where a client is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    InHead,
    AfterHead,
    InBody,
    AfterBody,
    InAnswer,
}

pub(crate) const CUTS: [Cut; 5] = [
    Cut::InHead,
    Cut::AfterHead,
    Cut::InBody,
    Cut::AfterBody,
    Cut::InAnswer,
];

impl Cut {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InHead => "cut in the head",
            Self::AfterHead => "cut after the head",
            Self::InBody => "cut in the body",
            Self::AfterBody => "cut after the body",
            Self::InAnswer => "cut in the answer",
        }
    }

    /// How much of a request of this head and body is sent.
    fn sent(self, head: usize, body: usize, chance: &mut StdRng) -> usize {
        match self {
            Self::InHead => chance.random_range(1..head),
            Self::AfterHead => head,
            Self::InBody => head + chance.random_range(1..body),
            Self::AfterBody | Self::InAnswer => head + body,
        }
    }
}

/// One try at an intent.
#[derive(Debug)]
pub(crate) struct Try {
    pub(crate) intent: String,
    pub(crate) payload: Value,
    /// Its number in the storm; it must not get into the key.
    pub(crate) number: u64,
}

/// What a client may believe after a try, and what was seen on the way.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) outcome: Outcome,
    pub(crate) saw: Option<&'static str>,
}

impl Received {
    fn new(outcome: Outcome) -> Self {
        Self { outcome, saw: None }
    }
}

/// The try that a storm asks for.
pub(crate) async fn attempt(service: SocketAddr, call: Call, seed: u64) -> Outcome {
    let one = Try {
        intent: call.intent.clone(),
        payload: call.payload.clone(),
        number: call.attempt,
    };
    let received = send(service, &one, seed).await;
    if let Some(state) = received.saw {
        call.saw(state);
    }
    received.outcome
}

/// Sends a request, or as much of it as chance allows.
pub(crate) async fn send(service: SocketAddr, one: &Try, seed: u64) -> Received {
    let mut chance = StdRng::seed_from_u64(seed ^ one.number.rotate_left(32));
    // The first is the rehearsal, which must succeed.
    let cut = (one.number > 0 && chance.random_bool(0.5))
        .then(|| CUTS[chance.random_range(0..CUTS.len())]);
    let body = one.payload.to_string();
    let head = format!(
        "POST /effects HTTP/1.1\r\nhost: {service}\r\nconnection: close\r\nidempotency-key: {}\r\n\
         content-type: application/json\r\n{ATTEMPT}: {}\r\ncontent-length: {}\r\n\r\n",
        one.intent,
        one.number,
        body.len()
    );
    let whole = [head.as_bytes(), body.as_bytes()].concat();
    let Ok(mut wire) = TcpStream::connect(service).await else {
        return Received::new(Outcome::Failed("not connected".to_owned()));
    };
    let sent = match cut {
        None => whole.len(),
        Some(cut) => cut.sent(head.len(), body.len(), &mut chance),
    };
    if let Err(error) = wire.write_all(&whole[..sent]).await {
        return Received::new(Outcome::Unknown(error.to_string()));
    }
    let Some(cut) = cut else {
        let mut answer = Vec::new();
        return match wire.read_to_end(&mut answer).await {
            Ok(_) => received(&answer),
            Err(error) => Received::new(Outcome::Unknown(error.to_string())),
        };
    };
    if cut == Cut::InAnswer {
        let mut part = vec![0; chance.random_range(1..200)];
        // As much of it as there is.
        let _ = wire.read_exact(&mut part).await;
    }
    if chance.random_bool(0.5) {
        // Reset instead of an orderly end.
        let _ = wire.set_zero_linger();
    }
    drop(wire);
    let outcome = match cut {
        // Half a request is none.
        Cut::InHead | Cut::AfterHead | Cut::InBody => Outcome::Failed(cut.name().to_owned()),
        Cut::AfterBody | Cut::InAnswer => Outcome::Unknown(cut.name().to_owned()),
    };
    Received {
        outcome,
        saw: Some(cut.name()),
    }
}

/// The failure of work whose process ended without a result.
pub(crate) const ABANDONED: &str = "422 P4030";

/// What a whole answer means, strictly by what is written about it in `pgonce_http::errors`.
fn received(answer: &[u8]) -> Received {
    let Some((status, headers, body)) = parts(answer) else {
        return Received::new(Outcome::Unknown("no whole answer".to_owned()));
    };
    let saw = headers
        .contains("idempotent-replayed: true")
        .then_some("replay");
    if status == 201 {
        let location = headers.lines().find(|line| line.starts_with("location: "));
        let outcome = json!({ "status": status, "location": location, "body": body });
        return Received {
            outcome: Outcome::Success(outcome),
            saw,
        };
    }
    let problem: Value = serde_json::from_str(&body).unwrap_or_default();
    let code = problem["code"].as_str().unwrap_or_default().to_owned();
    Received::new(match &*code {
        "P4029" | "P4002" | "08006" | "overloaded" | "handler_too_slow" => Outcome::Failed(code),
        _ => Outcome::Unknown(format!("{status} {code}")),
    })
}

/// Status, head and body of an answer that came whole.
fn parts(answer: &[u8]) -> Option<(u16, String, String)> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let head = head.to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let whole = length?.parse::<usize>().ok()? == body.len();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    whole.then(|| (status, head.clone(), body.to_owned()))
}
