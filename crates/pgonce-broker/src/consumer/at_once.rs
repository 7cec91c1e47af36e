//! Handlers that are one SQL statement: the markers of a batch and its effect by one statement that commits itself.

use pgonce::Error;
use pgonce::driver::Driver;
use pgonce::inbox::Message;

use super::lane::{Item, Lane};
use super::{Dedup, Handler};
use crate::bounded::bounded;

impl<D: Driver, H: Handler<D>> Lane<'_, D, H> {
    /// Marks and applies what is new by the handler's one statement, where it is one, and leaves the rest to a transaction. What
    /// fails is left too: there it is known whose fault it is.
    pub(super) async fn apply_at_once(&mut self, todo: &mut Vec<&Item>) {
        let shared = self.shared;
        let Some(statement) = shared.handler.statement().filter(|_| {
            !(self.careful || self.stored || shared.store_first)
                && shared.dedup == Dedup::Ids
                && todo.iter().all(|item| item.flaw.is_none())
        }) else {
            return;
        };
        let messages: Vec<&Message> = todo.iter().map(|item| &*item.message).collect();
        let applying = async {
            fault_point!("consumer.before_begin");
            let (inbox, max) = (&shared.inbox, shared.limits.handler);
            let applied =
                inbox.apply_at_once(statement, &shared.name, &shared.source, &messages, max);
            let applied = applied.await?;
            fault_point!("consumer.committed");
            Ok::<_, Error>(applied)
        };
        match bounded(shared.limits.statement(), applying).await {
            Ok(applied) => {
                let mut is_new = applied.iter();
                let all = todo.len();
                let last = messages.iter().zip(&applied).rfind(|(_, new)| **new);
                todo.retain(|_| is_new.next() != Some(&true));
                if todo.len() < all {
                    shared.counts.applied.add(all - todo.len());
                    shared
                        .counts
                        .committed(all - todo.len(), last.map(|(last, _)| *last));
                }
            }
            Err(error) => {
                let code = error.code();
                tracing::debug!(code, "a batch failed as one statement, going step by step");
                self.careful = true;
            }
        }
    }
}
