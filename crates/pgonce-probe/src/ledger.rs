//! How many effects there may be, by what was sent: so that no case passes in which a second effect was seen.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::answer::{Answer, Response};
use super::wire::Ask;

/// Endpoint, principal and key as written: whatever shares all three may have one effect.
type Name = (String, Vec<u8>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its effect may still come.
    Open,
    /// Refused: it has no effect, until it is sent again.
    Refused,
    /// It had its effect.
    Accepted,
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// The first payload that was accepted, and its answer.
    first: Option<(Bytes, Answer)>,
}

/// What was sent, under which keys, and what was answered.
#[derive(Debug)]
pub(super) struct Ledger {
    key_header: HeaderName,
    sent: HashMap<Name, Entry>,
    /// The names that may have their effect in this case.
    may: HashSet<Name>,
    /// Requests of this case whose key is no key; each may have an effect.
    keyless: usize,
    /// Two answers of this case that name two effects of one request.
    contradiction: Option<String>,
}

impl Ledger {
    pub(super) fn new(key_header: HeaderName) -> Self {
        Self {
            key_header,
            sent: HashMap::new(),
            may: HashSet::new(),
            keyless: 0,
            contradiction: None,
        }
    }

    /// A case begins.
    pub(super) fn begin(&mut self) {
        let open =
            |(name, entry): (&Name, &Entry)| (entry.state == State::Open).then(|| name.clone());
        self.may = self.sent.iter().filter_map(open).collect();
        self.keyless = 0;
        self.contradiction = None;
    }

    /// Before a request, or a part of it, is sent.
    pub(super) fn sends(&mut self, ask: &Ask<'_>) {
        let Some(name) = self.name(ask) else {
            self.keyless += 1;
            return;
        };
        let entry = self.sent.entry(name.clone()).or_insert(Entry {
            state: State::Open,
            first: None,
        });
        if entry.state != State::Accepted {
            entry.state = State::Open;
            self.may.insert(name);
        }
    }

    /// After its answer, which may be none.
    pub(super) fn answered(&mut self, ask: &Ask<'_>, response: &Response, accepted: bool) {
        let Some(entry) = self.name(ask).and_then(|name| self.sent.get_mut(&name)) else {
            return;
        };
        let Ok(answer) = response else { return };
        // "Accepted, and not yet done" names no effect.
        if accepted && answer.status != 202 {
            let (body, first) = entry
                .first
                .get_or_insert_with(|| (ask.body.clone(), answer.clone()));
            if *body == ask.body && first.names_the_effect_of(answer) == Some(false) {
                self.contradiction = Some(format!(
                    "one request was answered twice as two effects: {first} and {answer}"
                ));
            }
            entry.state = State::Accepted;
        } else if entry.state == State::Open && answer.is_refusal() && !answer.is_busy() {
            entry.state = State::Refused;
        }
    }

    /// The most effects that this case may have made.
    pub(super) fn most(&self) -> i64 {
        i64::try_from(self.may.len() + self.keyless).unwrap_or(i64::MAX)
    }

    pub(super) fn contradiction(&self) -> Option<String> {
        self.contradiction.clone()
    }

    fn name(&self, ask: &Ask<'_>) -> Option<Name> {
        let mut headers: HeaderMap = ask.headers.clone();
        let keys: Vec<HeaderValue> = headers.get_all(&self.key_header).iter().cloned().collect();
        let [key] = &keys[..] else { return None };
        if matches!(key.as_bytes(), b"" | b"\"\"") {
            return None;
        }
        headers.remove(&self.key_header);
        let place = format!("{} {} {headers:?}", ask.method, ask.at.url);
        Some((place, key.as_bytes().to_vec()))
    }
}
