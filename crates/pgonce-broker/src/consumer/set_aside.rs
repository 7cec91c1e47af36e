//! Where a lane puts a message that fails alone.

use pgonce::driver::Driver;
use pgonce::inbox::{FailureStatus, StoreAs};
use pgonce::unstable::digest;
use pgonce::{Error, Result};
use tokio::time::timeout;

use super::Handler;
use super::batch_error::{BatchError, of_database};
use super::lane::{Item, Lane, ROLLBACK_TIMEOUT};
use super::span::Fate;
use super::stored::key;
use crate::bounded::{MAX_CALL, bounded};

impl<D: Driver, H: Handler<D>> Lane<'_, D, H> {
    /// A message that fails alone is stored, or, where it is stored already, fails there. False: asked to stop,
    /// or fenced.
    pub(super) async fn set_aside(&mut self, item: &Item, error: &Error) -> Result<bool> {
        let refused = matches!(error, Error::Refused(_));
        let code = match error {
            Error::Refused(failure) => failure.code(),
            Error::Work(_) => "work",
            other => other.code(),
        };
        let reason = error.to_string();
        // The reason is the handler's text, and may quote the message: it is stored with it, and in no log. Ids can be
        // clients' keys: `pgonce find` finds a stored message by the digest.
        tracing::warn!(
            id = digest(&item.message.id),
            code,
            "a message could not be applied"
        );
        let mut pause = self.shared.limits.first_pause;
        loop {
            let kept = match &item.claimed {
                Some(claimed) => {
                    let (inbox, name) = (&self.shared.inbox, &self.shared.name);
                    let failed = inbox.fail(name, claimed, !refused, code, &reason);
                    let is_final = |status| status == FailureStatus::FailedFinal;
                    let failed = bounded(MAX_CALL, failed).await;
                    failed.map(is_final).map_err(of_database)
                }
                None => {
                    let kept = self.set_aside_once(item, refused, code, &reason).await;
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
                    tracing::info!(%error, "another worker has what this one had in hand");
                    self.held = None;
                    return Ok(self.partition.is_none());
                }
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
        refused: bool,
        code: &str,
        reason: &str,
    ) -> Result<(), BatchError> {
        let (code, reason) = (code.to_owned(), reason.to_owned());
        let what = match refused {
            true => StoreAs::Poison {
                code,
                reason,
                keep_bytes: usize::MAX,
            },
            false => StoreAs::Retry { code, reason },
        };
        let todo = self.not_yet_applied(std::slice::from_ref(item)).await?;
        if todo.is_empty() {
            return Ok(());
        }
        let (mut batch, _) = self.begin(&[]).await?;
        match self.store(&mut batch, item, &what).await {
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
}
