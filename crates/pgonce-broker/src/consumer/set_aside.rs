//! Where a lane puts a message that fails alone.

use pgonce::driver::Driver;
use pgonce::inbox::{FailureStatus, Message, StoreAs};
use pgonce::unstable::digest;
use pgonce::{Error, Failure, Result};
use tokio::time::timeout;

use super::Handler;
use super::batch_error::{BatchError, is_unwritable, of_database};
use super::lane::{Item, Lane, ROLLBACK_TIMEOUT};
use super::span::Fate;
use super::stored::key;
use crate::bounded::{MAX_CALL, bounded};
use crate::fatal::is_fatal;

/// How often less of a message is stored: its reason in ASCII, no headers and no type, no names but those in ASCII.
const MOST: usize = 3;

/// Every encoding has these characters.
fn in_ascii(text: &str) -> String {
    text.replace(|character: char| !character.is_ascii(), "?")
}

impl<D: Driver, H: Handler<D>> Lane<'_, D, H> {
    /// A message that fails alone is stored, or, where it is stored already, fails there. False: asked to stop,
    /// or fenced.
    pub(super) async fn set_aside(&mut self, item: &Item, error: &Error) -> Result<bool> {
        let flaw = item.flaw.as_ref();
        let flaw = flaw.map(|(code, why)| Error::from(Failure::permanent(*code, why.clone())));
        let error = flaw.as_ref().unwrap_or(error);
        let mut refused = matches!(error, Error::Refused(_));
        let code = match error {
            Error::Refused(failure) => failure.code(),
            Error::Work(_) => "work",
            other => other.code(),
        };
        let (mut code, mut reason) = (code.to_owned(), error.to_string());
        // The reason is the handler's text, and may quote the message: it is stored with it, and in no log. Ids can be
        // clients' keys: `pgonce find` finds a stored message by the digest.
        tracing::warn!(
            id = digest(&item.message.id),
            code,
            "a message could not be applied"
        );
        let mut pause = self.shared.limits.first_pause;
        let mut left_out = 0;
        // What is stored already was written down once.
        let most = if item.claimed.is_some() { 1 } else { MOST };
        loop {
            let kept = match &item.claimed {
                Some(claimed) => {
                    let (inbox, name) = (&self.shared.inbox, &self.shared.name);
                    let failed = inbox.fail(name, claimed, !refused, &code, &reason);
                    let is_final = |status| status == FailureStatus::FailedFinal;
                    let failed = bounded(MAX_CALL, failed).await;
                    failed.map(is_final).map_err(of_database)
                }
                None => {
                    let why = (code.clone(), reason.clone());
                    let kept = self.set_aside_once(item, left_out, refused, why).await;
                    kept.map(|()| refused)
                }
            };
            match kept {
                Ok(given_up) => {
                    let counts = &self.shared.counts;
                    match given_up {
                        true => counts.poisoned.add(1),
                        false => counts.retried.add(1),
                    }
                    item.span.note(match given_up {
                        true => Fate::Poison,
                        false => Fate::Retried,
                    });
                    self.settle(std::slice::from_ref(item));
                    return Ok(true);
                }
                Err(BatchError::Fatal(error) | BatchError::Unreachable(error)) => {
                    return Err(error);
                }
                Err(BatchError::Fenced(error)) => {
                    tracing::info!(%error, "what was in hand is given back");
                    self.held = None;
                    return Ok(self.partition.is_none());
                }
                Err(BatchError::Message(error))
                    if left_out < most && (is_unwritable(&error) || is_fatal(&error)) =>
                {
                    tracing::warn!(%error, "what failed cannot be stored as it is");
                    left_out += 1;
                    if left_out > 1 {
                        (refused, code, reason) =
                            (true, error.code().to_owned(), error.to_string());
                    }
                    (code, reason) = (in_ascii(&code), in_ascii(&reason));
                }
                // It is not the message's names that do not fit.
                Err(BatchError::Message(error)) if is_fatal(&error) => return Err(error),
                Err(
                    BatchError::Database(error)
                    | BatchError::Transient(error)
                    | BatchError::Message(error),
                ) => {
                    tracing::warn!(%error, ?pause, "what failed could not be stored, trying again");
                    if !self.rest(&mut pause).await {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Leaves out what comes behind a stored message that is not applied, and has its key.
    pub(super) fn leave_key_of(&self, item: &Item, pieces: &mut Vec<&[Item]>) {
        let Some(held) = item.claimed.as_ref().and_then(key) else {
            return;
        };
        let behind = |item: &Item| item.claimed.as_ref().and_then(key).as_ref() == Some(&held);
        let left = pieces.iter().flat_map(|piece| {
            let parts = piece.split(behind).filter(|part| !part.is_empty());
            let mut parts: Vec<_> = parts.collect();
            parts.reverse();
            parts
        });
        *pieces = left.collect();
    }

    async fn set_aside_once(
        &mut self,
        item: &Item,
        left_out: usize,
        refused: bool,
        (code, reason): (String, String),
    ) -> Result<(), BatchError> {
        let keep_bytes = item.flaw.as_ref().map(|_| self.shared.checks.max_bytes);
        let what = match refused {
            true => StoreAs::Poison {
                code,
                reason,
                keep_bytes: keep_bytes.unwrap_or(usize::MAX),
            },
            false => StoreAs::Retry { code, reason },
        };
        let todo = self.not_yet_applied(std::slice::from_ref(item)).await?;
        if todo.is_empty() {
            return Ok(());
        }
        let (name, source) = (&self.shared.name, &self.shared.source);
        let message = self.without(&item.message, left_out);
        let (mut batch, _) = self.begin(&[]).await?;
        let storing = batch.store(name, source, &message, &what);
        match self.asked(storing).await {
            Ok(_) => {
                let committed = self.commit(batch, &todo).await;
                if matches!(&committed, Err(BatchError::Transient(Error::Uncertain(_)))) {
                    self.held = None;
                }
                committed
            }
            Err(error) => {
                let _ = timeout(ROLLBACK_TIMEOUT, batch.roll_back()).await;
                Err(error)
            }
        }
    }

    /// A message without what the database may not take of it. It keeps its key for as long as that can be written down: what
    /// comes for it waits.
    fn without(&self, message: &Message, left_out: usize) -> Message {
        let mut message = message.clone();
        if left_out > 1 {
            message.headers.clear();
            message.kind = None;
        }
        if left_out > 2 {
            if !(message.id.is_ascii() && message.tenant.is_ascii()) {
                let name = digest(&format!("{} {}", message.tenant, message.id));
                message.id = format!("without-id:{name}");
            }
            if !message.tenant.is_ascii() {
                message.tenant = self.shared.checks.tenant.clone().unwrap_or_default();
            }
            message.key = message.key.filter(|key| key.is_ascii());
        }
        message
    }
}
