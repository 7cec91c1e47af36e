//! Messages from another part of the same process: for tests, mostly.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pgonce::inbox::Message;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{Incoming, Order, Source, SourceError};

/// A queue in this process that behaves as a broker does: what was pulled and not acknowledged is
/// delivered again when its consumer goes, and before what came after it. It is gone with the process, so it is
/// for tests of handlers.
///
/// ```
/// use pgonce::inbox::Message;
/// use pgonce_broker::sources::Channel;
///
/// let channel = Channel::new("shop");
/// channel.send(Message::new("evt-1", "{}"));
/// let source = channel.source(); // for a Consumer
/// # drop(source);
/// assert_eq!(channel.waiting(), 1);
/// ```
#[derive(Debug, Clone)]
pub struct Channel {
    name: Arc<str>,
    state: Arc<Mutex<State>>,
    stirred: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(Instant, Message)>,
    acked: u64,
    nacked: u64,
}

/// One reader of a [`Channel`].
#[derive(Debug)]
pub struct ChannelSource {
    channel: Channel,
    /// By ticket: pulled and not settled.
    pending: BTreeMap<u64, Message>,
    next: u64,
}

impl Channel {
    /// An empty queue; the name is the source's.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            state: Arc::default(),
            stirred: Arc::default(),
        }
    }

    /// Puts a message at the end.
    pub fn send(&self, message: Message) {
        self.state().waiting.push_back((Instant::now(), message));
        self.stirred.notify_waiters();
    }

    /// A reader. Several may read at once, each getting some of the messages.
    pub fn source(&self) -> ChannelSource {
        ChannelSource {
            channel: self.clone(),
            pending: BTreeMap::new(),
            next: 0,
        }
    }

    /// How many messages nobody has pulled.
    pub fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// How many deliveries were acknowledged.
    pub fn acked(&self) -> u64 {
        self.state().acked
    }

    /// How many deliveries were given back by their consumer.
    pub fn nacked(&self) -> u64 {
        self.state().nacked
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChannelSource {
    /// What is ready, at most `limit`.
    fn take(&mut self, limit: usize) -> Vec<Incoming<u64>> {
        let now = Instant::now();
        let mut state = self.channel.state();
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some((_, message)) = state.waiting.pop_front_if(|(due, _)| *due <= now)
        {
            self.next += 1;
            self.pending.insert(self.next, message.clone());
            taken.push(Incoming {
                message,
                ticket: self.next,
            });
        }
        taken
    }

    fn give_back(&mut self, messages: Vec<Message>, due: Instant) {
        let mut state = self.channel.state();
        for mut message in messages.into_iter().rev() {
            message.redelivered = true;
            state.waiting.push_front((due, message));
        }
        drop(state);
        self.channel.stirred.notify_waiters();
    }
}

impl Source for ChannelSource {
    type Ticket = u64;

    fn name(&self) -> &str {
        &self.channel.name
    }

    fn order(&self) -> Order {
        Order::Unordered
    }

    async fn pull(
        &mut self,
        limit: usize,
        within: Duration,
    ) -> Result<Vec<Incoming<u64>>, SourceError> {
        // Tickets are made only when everything is in hand: a pull that is dropped has taken nothing.
        let stirred = self.channel.stirred.clone();
        let mut until = None;
        loop {
            let notified = stirred.notified();
            let ready = {
                let now = Instant::now();
                let state = self.channel.state();
                state
                    .waiting
                    .iter()
                    .take_while(|(due, _)| *due <= now)
                    .count()
            };
            let end = *until.get_or_insert_with(|| Instant::now() + within);
            if ready == 0 {
                until = None;
                let next = self.channel.state().waiting.front().map(|(due, _)| *due);
                match next {
                    Some(due) => tokio::select! { () = notified => {} () = sleep_until(due) => {} },
                    None => notified.await,
                }
            } else if ready >= limit || timeout_at(end, notified).await.is_err() {
                return Ok(self.take(limit));
            }
        }
    }

    async fn ack(&mut self, tickets: Vec<u64>) -> Result<(), SourceError> {
        let settled = tickets
            .iter()
            .filter_map(|t| self.pending.remove(t))
            .count();
        self.channel.state().acked += settled as u64;
        Ok(())
    }

    async fn nack(&mut self, tickets: Vec<u64>, after: Duration) -> Result<(), SourceError> {
        let back: Vec<_> = tickets
            .iter()
            .filter_map(|t| self.pending.remove(t))
            .collect();
        self.channel.state().nacked += back.len() as u64;
        self.give_back(back, Instant::now() + after);
        Ok(())
    }
}

impl Drop for ChannelSource {
    fn drop(&mut self) {
        let back = std::mem::take(&mut self.pending).into_values().collect();
        self.give_back(back, Instant::now());
    }
}
