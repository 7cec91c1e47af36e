//! Whose fault it is when a sink is unavailable: the sink's, or one event's.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use pgonce::outbox::Message;

/// A tenant and a subject.
pub(super) type Subject = (String, String);

pub(super) fn subject_of(message: &Message) -> Subject {
    (message.tenant.clone(), message.subject.clone())
}

/// What a failure says, by what the other subjects got since this one failed first.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// Others passed: it is this event.
    Event,
    /// No other has been tried: nobody knows.
    Unknown,
    /// Others fail too: it is the sink.
    Sink,
}

/// What all deliveries of a relay know of their sink.
#[derive(Debug, Default)]
pub(super) struct SinkHealth(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    acknowledged: u64,
    /// Subjects that failed last.
    failing: HashMap<Subject, Failing>,
}

#[derive(Debug, Default)]
struct Failing {
    /// The acknowledgements that there were when it failed.
    since: u64,
    /// How often it failed again after others had passed. Once may be a sink that went down in between.
    strikes: u32,
}

/// So many subjects that fail are remembered.
const MAX_FAILING: usize = 10_000;

impl SinkHealth {
    /// The sink has taken these events.
    pub(super) fn acknowledged<'m>(&self, messages: impl Iterator<Item = &'m Message>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for message in messages {
            state.acknowledged += 1;
            if !state.failing.is_empty() {
                state.failing.remove(&subject_of(message));
            }
        }
    }

    /// The sink was unavailable for an event of this subject.
    pub(super) fn unavailable(&self, subject: Subject) -> Blame {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = state.acknowledged;
        if state.failing.len() >= MAX_FAILING {
            state.failing.clear();
        }
        let failing = state.failing.entry(subject).or_insert(Failing {
            since: now,
            strikes: 0,
        });
        if failing.since < now {
            failing.since = now;
            failing.strikes += 1;
            if failing.strikes >= 2 {
                return Blame::Event;
            }
        }
        let together = state.failing.values().filter(|other| other.since == now);
        match together.count() {
            1 => Blame::Unknown,
            _ => Blame::Sink,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(name: &str) -> Subject {
        (String::new(), name.to_owned())
    }

    #[test]
    fn an_event_is_blamed_only_when_others_passed_since_it_failed() {
        let health = SinkHealth::default();
        let pass = |n| health.0.lock().unwrap().acknowledged += n;
        pass(5);
        assert_eq!(health.unavailable(subject("a")), Blame::Unknown);
        assert_eq!(health.unavailable(subject("a")), Blame::Unknown);
        assert_eq!(health.unavailable(subject("b")), Blame::Sink);
        assert_eq!(health.unavailable(subject("a")), Blame::Sink);
        // Once may be a sink that went down in between.
        pass(1);
        assert_eq!(health.unavailable(subject("a")), Blame::Unknown);
        assert_eq!(health.unavailable(subject("a")), Blame::Unknown);
        pass(1);
        assert_eq!(health.unavailable(subject("a")), Blame::Event);
        // The next time others must have passed again.
        assert_eq!(health.unavailable(subject("a")), Blame::Unknown);
        pass(1);
        assert_eq!(health.unavailable(subject("a")), Blame::Event);
    }
}
