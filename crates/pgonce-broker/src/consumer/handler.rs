//! What applies a message.

use std::future::Future;
use std::sync::Arc;

use pgonce::Result;
use pgonce::driver::Driver;
use pgonce::inbox::{ClaimedMessage, Message, Statement, Tx};

/// Applies messages. A closure that takes a [`Tx`] and an [`Arc<Message>`](Message) is one.
///
/// An error rolls everything back. [`Failure::permanent`](pgonce::Failure::permanent) says that the message will never
/// be applied, so that it needs manual action at once; any other error is tried again, with growing pauses.
pub trait Handler<D: Driver>: Send + Sync + 'static {
    /// Whether it calls out: then every message is stored first, and [`Handler::call_out`] is called for one message at a
    /// time and outside of any transaction.
    const CALLS_OUT: bool = false;

    /// The part of the work that must not hold a transaction open, such as a request over a network; what it does may happen
    /// more than once. Called before [`Handler::apply`], while this worker holds the stored message under a fence.
    /// [`Error::Disconnected`](pgonce::Error::Disconnected): nobody was reached; it is not the message's fault, and all wait.
    fn call_out(
        &self,
        message: &Message,
        claimed: &ClaimedMessage,
    ) -> impl Future<Output = Result<()>> + Send {
        let _ = (message, claimed);
        async { Ok(()) }
    }

    /// Applies one message.
    fn apply(&self, tx: Tx<D>, message: Arc<Message>) -> impl Future<Output = Result<()>> + Send;

    /// Applies many in as few statements as it likes; all or none. `None`: it has no way to, and they are
    /// applied one by one.
    fn apply_all(
        &self,
        tx: Tx<D>,
        messages: Vec<Arc<Message>>,
    ) -> impl Future<Output = Option<Result<()>>> + Send {
        let _ = (tx, messages);
        async { None }
    }

    /// Whether [`Handler::apply_all`] does something: then it has a span of its own.
    #[doc(hidden)]
    fn applies_batches(&self) -> bool {
        false
    }

    /// The one statement that it is, where it is one: see [`Consumer::statement`](crate::Consumer::statement).
    #[doc(hidden)]
    fn statement(&self) -> Option<&Statement> {
        None
    }
}

impl<D, F, Fut> Handler<D> for F
where
    D: Driver,
    F: Fn(Tx<D>, Arc<Message>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<()>> + Send,
{
    async fn apply(&self, tx: Tx<D>, message: Arc<Message>) -> Result<()> {
        self(tx, message).await
    }
}

/// A handler that applies many messages at once: `Batches(|tx, messages| async move { … })`. When it fails, the
/// batch is halved until the message that does not fit is found.
#[derive(Debug, Clone, Copy)]
pub struct Batches<F>(pub F);

impl<D, F, Fut> Handler<D> for Batches<F>
where
    D: Driver,
    F: Fn(Tx<D>, Vec<Arc<Message>>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<()>> + Send,
{
    async fn apply(&self, tx: Tx<D>, message: Arc<Message>) -> Result<()> {
        self.0(tx, vec![message]).await
    }

    async fn apply_all(&self, tx: Tx<D>, messages: Vec<Arc<Message>>) -> Option<Result<()>> {
        Some(self.0(tx, messages).await)
    }

    fn applies_batches(&self) -> bool {
        true
    }
}

/// A handler that is one SQL statement.
pub(super) struct OneStatement(pub(super) Statement);

impl<D: Driver> Handler<D> for OneStatement {
    async fn apply(&self, mut tx: Tx<D>, message: Arc<Message>) -> Result<()> {
        self.0.apply(&mut tx, &[&message]).await
    }

    async fn apply_all(&self, mut tx: Tx<D>, messages: Vec<Arc<Message>>) -> Option<Result<()>> {
        let messages: Vec<&Message> = messages.iter().map(|message| &**message).collect();
        match self.0.takes(&messages) {
            true => Some(self.0.apply(&mut tx, &messages).await),
            false => None,
        }
    }

    fn applies_batches(&self) -> bool {
        true
    }

    fn statement(&self) -> Option<&Statement> {
        Some(&self.0)
    }
}
