//! Where messages come from.

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use pgonce::Error;
use pgonce::inbox::{Message, Position};

/// What is known about the order of a source's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Every message has a [`PartitionPosition`](pgonce::inbox::PartitionPosition), a partition's messages come in its order, and
    /// the source can be asked to go on from a position. A consumer then keeps one fenced cursor for each partition
    /// instead of a row for each message.
    Ordered,
    /// Any message may come any time, again, and in any order.
    Unordered,
}

/// A message on its way in, and the ticket by which its source knows this one delivery of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Incoming<T> {
    /// What came.
    pub message: Message,
    /// A delivery tag, a reply subject, an entry id: another at each delivery.
    pub ticket: T,
}

/// Why a source did not do what was asked.
#[derive(Debug)]
pub enum SourceError {
    /// The broker is unavailable: the consumer waits and tries again.
    Unavailable(String),
    /// It cannot go on, whatever is tried: the consumer ends with this.
    Broken(Error),
}

impl std::fmt::Display for SourceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unavailable(why) => write!(f, "the source is unavailable: {why}"),
            Self::Broken(why) => write!(f, "the source cannot go on: {why}"),
        }
    }
}

impl std::error::Error for SourceError {}

/// Where messages come from: a broker's queue, stream or topic. One task uses it; it may keep state.
///
/// A source only ever carries. When to acknowledge is not its business: a consumer calls [`Source::ack`]
/// after the commit that made the message's effect, or its record among the failed ones, durable. A
/// source that connects again by itself must drop tickets of the connection before; to acknowledge such
/// a ticket is no error.
pub trait Source: Send + 'static {
    /// What names one delivery.
    type Ticket: Send + 'static;

    /// The name that its messages are remembered under, 1 to 255 bytes: message ids of two sources never
    /// meet. The same after every restart; for example `nats:orders`.
    fn name(&self) -> &str;

    /// Whether the source has an order.
    fn order(&self) -> Order {
        Order::Unordered
    }

    /// Waits for messages: at most `limit`, and no longer than `within` once the first is there. An empty
    /// answer is allowed at any time; a source that has nothing waits, it does not spin.
    ///
    /// The future is dropped when the consumer is asked to stop, or has something else to do: what it had
    /// taken from the broker until then must come with a later call, or be delivered again.
    fn pull(
        &mut self,
        limit: usize,
        within: Duration,
    ) -> impl Future<Output = Result<Vec<Incoming<Self::Ticket>>, SourceError>> + Send;

    /// These are settled and durable: the broker may forget them. An ordered source has handed out only what comes after
    /// them, as far as [`Source::seek`] asks for it.
    fn ack(
        &mut self,
        tickets: Vec<Self::Ticket>,
    ) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// These were not settled: they are to be delivered again, not before `after` is over. An ordered
    /// source goes back to the first of each partition, also where this fails: then before its next pull answers.
    fn nack(
        &mut self,
        tickets: Vec<Self::Ticket>,
        after: Duration,
    ) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// Only for ordered sources. The consumer has taken a partition over, and the database, which alone
    /// knows, says that everything up to `after` is applied (`None`: nothing yet). Answers false where
    /// what was pulled of it, and neither acknowledged nor given back, goes on exactly there, as far as it is new: a database
    /// that a failover has taken back asks for what was acknowledged. Answers true where the source had to go to another
    /// place: the consumer drops what it has pulled of this partition, and it comes again.
    fn seek(
        &mut self,
        partition: &str,
        after: Option<Position>,
    ) -> impl Future<Output = Result<bool, SourceError>> + Send {
        let _ = (partition, after);
        async { Ok(false) }
    }

    /// Only for sources with several partitions. Enough waits of exactly these: until the next call `pull` is to answer nothing
    /// more of them, so that a slow partition does not hold up the others. More of them is no error. Default: does nothing.
    fn pause(
        &mut self,
        partitions: &HashSet<String>,
    ) -> impl Future<Output = Result<(), SourceError>> + Send {
        let _ = partitions;
        async { Ok(()) }
    }

    /// The consumer ends. What was not acknowledged goes back to the broker.
    fn close(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }
}
