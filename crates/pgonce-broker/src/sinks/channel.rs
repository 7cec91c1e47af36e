//! Events to another part of the same process: for tests, mostly.

use pgonce::outbox::Message;
use tokio::sync::mpsc;

use crate::{Delivery, Sink};

/// Hands events to the holder of the receiver. Full, it waits; without a receiver it is unavailable.
///
/// An event counts as acknowledged once it is in the channel: what is in there when the process ends
/// is lost. For tests of your own handlers that is what you want.
#[derive(Debug, Clone)]
pub struct Channel {
    sender: mpsc::Sender<Message>,
}

impl Channel {
    /// A channel that holds so many events before the relay has to wait.
    pub fn bounded(events: usize) -> (Self, mpsc::Receiver<Message>) {
        let (sender, receiver) = mpsc::channel(events.max(1));
        (Self { sender }, receiver)
    }
}

impl Sink for Channel {
    async fn send(&self, message: &Message) -> Delivery {
        match self.sender.send(message.clone()).await {
            Ok(()) => Delivery::Acknowledged,
            Err(_) => Delivery::Unavailable {
                reason: "nobody receives from the channel".into(),
            },
        }
    }
}
