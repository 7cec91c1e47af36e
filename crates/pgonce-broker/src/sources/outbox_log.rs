//! Our own outbox, without a broker in between.

use std::collections::HashSet;
use std::future::pending;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pgonce::driver::Driver;
use pgonce::inbox::Message;
use pgonce::outbox::{Message as Event, Outbox};
use pgonce::{Error, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Delivery, Incoming, Relay, Sink, Source, SourceError};

/// How long the relay inside, when it is stopped, waits for batches whose acknowledgements are on their way to it. One that
/// was not acknowledged whole is not waited for any longer.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(250);

/// The events of an outbox consumer, straight from the log, in this database or another. A relay inside
/// keeps the cursor in the log, in lanes that many such sources share; the key of a message is its subject.
///
/// ```no_run
/// # async fn example(once: pgonce::Once<pgonce::driver::sqlx::Sqlx>) -> pgonce::Result<()> {
/// use pgonce_broker::sources::OutboxLog;
///
/// once.outbox().create_subscription(&pgonce::outbox::Subscription::new("balances")).await?;
/// let source = OutboxLog::new(once.outbox(), "balances");
/// # drop(source);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct OutboxLog {
    name: String,
    events: mpsc::Receiver<Handed>,
    /// Taken from the relay, not yet handed out.
    waiting: Vec<Incoming<oneshot::Sender<Delivery>>>,
    relay: Option<JoinHandle<Result<()>>>,
    /// Stops the relay when the source is closed or dropped.
    stop: Option<DropGuard>,
}

/// An event, and how its outcome gets back to its relay.
type Handed = (Event, oneshot::Sender<Delivery>);

impl OutboxLog {
    /// For an outbox consumer that was created. Must be called inside a tokio runtime: a relay begins at once.
    pub fn new<D: Driver>(outbox: Outbox<D>, consumer: &str) -> Self {
        Self::from_relay(|sink| Relay::new(outbox, consumer, sink))
    }

    fn from_relay<D: Driver>(relay: impl FnOnce(Handover) -> Relay<D, Handover>) -> Self {
        let (sender, events) = mpsc::channel(1024);
        let stop = CancellationToken::new();
        let relay = relay(Handover { sender }).drain_timeout(DRAIN_TIMEOUT);
        Self {
            name: "outbox".to_owned(),
            events,
            waiting: Vec::new(),
            relay: Some(tokio::spawn(relay.run(stop.clone()))),
            stop: Some(stop.drop_guard()),
        }
    }

    async fn relay_ended(&mut self) -> SourceError {
        let ended = match self.relay.take() {
            Some(relay) => relay.await,
            None => Ok(Ok(())),
        };
        SourceError::Broken(match ended {
            Ok(Err(error)) => error,
            Err(error) => Error::work(format!("the relay of the log ended: {error}")),
            Ok(Ok(())) => Error::work("the relay of the log has ended"),
        })
    }

    /// Another name than `outbox`, where a consumer reads the logs of several databases.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

impl Source for OutboxLog {
    type Ticket = oneshot::Sender<Delivery>;

    fn name(&self) -> &str {
        &self.name
    }

    async fn pull(
        &mut self,
        limit: usize,
        within: Duration,
    ) -> Result<Vec<Incoming<Self::Ticket>>, SourceError> {
        let mut until = None;
        while self.waiting.len() < limit {
            let next = match self.waiting.is_empty() {
                true => self.events.recv().await,
                false => {
                    let end = *until.get_or_insert_with(|| Instant::now() + within);
                    match timeout_at(end, self.events.recv()).await {
                        Ok(Some(next)) => Some(next),
                        _ => break,
                    }
                }
            };
            let Some((event, ticket)) = next else {
                return Err(self.relay_ended().await);
            };
            let message = message(event);
            self.waiting.push(Incoming { message, ticket });
        }
        Ok(std::mem::take(&mut self.waiting))
    }

    async fn ack(&mut self, tickets: Vec<Self::Ticket>) -> Result<(), SourceError> {
        for ticket in tickets {
            // A relay that has lost the lane does not listen any more.
            let _ = ticket.send(Delivery::Acknowledged);
        }
        Ok(())
    }

    async fn nack(
        &mut self,
        tickets: Vec<Self::Ticket>,
        _after: Duration,
    ) -> Result<(), SourceError> {
        drop(tickets);
        Ok(())
    }

    /// Ends when what was acknowledged is recorded and the lanes are free: who comes next need not wait for the end of a lease,
    /// also where the process ends now.
    async fn close(&mut self) {
        self.events.close();
        while self.events.try_recv().is_ok() {}
        self.waiting.clear();
        drop(self.stop.take());
        if let Some(relay) = self.relay.take()
            && let Ok(Err(error)) = relay.await
        {
            tracing::warn!(%error, "the lanes of the log could not be given back: their lease runs out");
        }
    }
}

fn message(event: Event) -> Message {
    let payload = event.payload.unwrap_or_else(|| "null".to_owned());
    let mut message = Message::new(event.id.to_string(), payload)
        .tenant(event.tenant)
        .key(event.subject)
        .kind(event.kind);
    if let serde_json::Value::Object(headers) = event.headers {
        message.headers = headers;
    }
    message.headers.insert("topic".into(), event.topic.into());
    message.sent_at = moment(&event.time);
    message
}

/// Reads `2026-01-31T12:00:00.000000Z`, as the outbox writes it.
fn moment(text: &str) -> Option<SystemTime> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    // Days since 1970, with years that begin in March.
    let (y, m) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days =
        (365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day).checked_sub(719_469)?;
    let micros = number(20..26).unwrap_or_default();
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    Some(UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros))
}

/// The sink of the relay inside: hands events over and waits for their outcomes.
#[derive(Debug, Clone)]
struct Handover {
    sender: mpsc::Sender<Handed>,
}

impl Sink for Handover {
    async fn send(&self, event: &Event) -> Delivery {
        let deliveries = self.send_batch(std::slice::from_ref(event), 1).await;
        deliveries.into_iter().next().unwrap_or(Delivery::Untried)
    }

    /// All at once, in order: the consumer keeps each subject's.
    async fn send_batch(&self, batch: &[Event], _in_flight: usize) -> Vec<Delivery> {
        let mut waiting = Vec::with_capacity(batch.len());
        for event in batch {
            let (ticket, response) = oneshot::channel();
            // Nobody receives: the ticket is gone, and the receiver says so.
            let _ = self.sender.send((event.clone(), ticket)).await;
            waiting.push(response);
        }
        let mut stopped = HashSet::new();
        let mut deliveries = Vec::with_capacity(batch.len());
        for (event, waiting) in batch.iter().zip(waiting) {
            let delivery = waiting.await.unwrap_or_else(|_| Delivery::Unavailable {
                reason: "its consumer did not settle it".to_owned(),
            });
            let subject = (&event.tenant, &event.subject);
            deliveries.push(match delivery {
                // Applied, but one before it was not: it comes again, as a copy that is known.
                Delivery::Acknowledged if stopped.contains(&subject) => Delivery::Untried,
                Delivery::Acknowledged => Delivery::Acknowledged,
                // The consumer has ended, and so will the relay: the next one reads the batch again.
                _ if self.sender.is_closed() => pending().await,
                other => {
                    stopped.insert(subject);
                    other
                }
            });
        }
        deliveries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_an_event_is_read_exactly() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00.000000Z", 0),
            ("2000-02-29T12:30:01.000000Z", 951_827_401),
            ("2026-11-15T08:00:00.000000Z", 1_794_729_600),
        ] {
            let time = moment(text).unwrap();
            assert_eq!(time.duration_since(UNIX_EPOCH).unwrap().as_secs(), seconds);
        }
        assert_eq!(moment("soon"), None);
    }
}
