//! One lane: messages that are applied one after the other, in transactions of as many as go together.
//!
//! What can strike, and what holds then:
//! - before the commit, anything: the transaction leaves neither mark nor effect, and it is tried again;
//! - in the commit: its reply may be lost. Marks, cursor and fence show the next try what happened;
//! - after the commit, before the acknowledgement: the message comes again and is known;
//! - another worker on the same message, partition or stored row: mark, epoch and fence let one commit.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use pgonce::driver::Driver;
use pgonce::inbox::{
    Batch, ClaimedMessage, Message, PartitionLease, Position, StoreAs, StoreResult, Verdict,
};
use pgonce::{Error, Failure, Result};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::batch_error::{BatchError, of_call, of_commit, of_handler, of_names, panicked};
use super::check::Flaw;
use super::span::{self, Fate, MessageSpan};
use super::{Dedup, Handler, Shared};
use crate::bounded::bounded;
use crate::relay::jittered;

/// How long a session may take to roll back.
pub(super) const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(1);

/// A message in hand.
pub(super) struct Item {
    /// Its place among those that were pulled or claimed together.
    pub(super) index: usize,
    pub(super) message: Arc<Message>,
    /// Why it can never be applied.
    pub(super) flaw: Option<Flaw>,
    /// Where it is stored.
    pub(super) claimed: Option<ClaimedMessage>,
    pub(super) span: MessageSpan,
}

/// What a transaction did, to be counted once it has committed.
#[derive(Default)]
struct Tally {
    applied: usize,
    duplicates: usize,
    conflicts: usize,
    stored: usize,
    poisoned: usize,
}

pub(super) struct Lane<'a, D: Driver, H> {
    pub(super) shared: &'a Shared<D, H>,
    pub(super) stop: &'a CancellationToken,
    /// It applies stored messages, which are marked already and fail where they are.
    pub(super) stored: bool,
    /// The partition, where copies are known by position.
    pub(super) held: Option<PartitionLease>,
    pub(super) partition: Option<String>,
    /// How far the partition is known to be applied.
    pub(super) reached: Option<Position>,
    /// By index: what the source may forget.
    pub(super) settled: &'a Mutex<Vec<usize>>,
    /// The index of the message that the handler has in hand, where it gets them one by one; else [`NONE`].
    pub(super) at: AtomicUsize,
    /// By index: what the handler has called out for under this claim, which it does not do again, and what it is calling out for.
    pub(super) called: Vec<usize>,
    pub(super) calling: Option<usize>,
    /// The handler's one statement failed for what it was given at once: go step by step, and message by message.
    pub(super) careful: bool,
}

/// No message's index.
pub(super) const NONE: usize = usize::MAX;

impl<D: Driver, H: Handler<D>> Lane<'_, D, H> {
    /// Applies or stores everything, in order; ends early where it is asked to stop, or fenced.
    pub(super) async fn run(&mut self, items: &[Item]) -> Result<()> {
        let mut pieces = match H::CALLS_OUT && self.stored {
            // What was called for one is not called again because of another.
            true => items.chunks(1).rev().collect(),
            false => vec![items],
        };
        let mut pause = self.shared.limits.first_pause;
        let mut tries = 0;
        while let Some(piece) = pieces.pop() {
            let error = match self.apply(piece).await {
                Ok(()) => {
                    (pause, tries) = (self.shared.limits.first_pause, 0);
                    self.careful = false;
                    continue;
                }
                Err(BatchError::Fatal(error) | BatchError::Unreachable(error)) => {
                    return Err(error);
                }
                Err(BatchError::Fenced(error)) if self.partition.is_some() || piece.len() == 1 => {
                    tracing::info!(%error, "what was in hand is given back");
                    self.leave_key_of(&piece[0], &mut pieces);
                    self.held = None;
                    if self.partition.is_some() {
                        return Ok(());
                    }
                    continue;
                }
                Err(BatchError::Database(error)) => {
                    tracing::warn!(%error, ?pause, "database error, trying again");
                    self.shared.counts.database_errors.add(1);
                    pieces.push(piece);
                    if !self.rest(&mut pause).await {
                        return Ok(());
                    }
                    continue;
                }
                Err(BatchError::Transient(error)) if tries < self.shared.limits.tries => {
                    let code = error.code();
                    tracing::debug!(code, ?pause, "a transient error, trying again");
                    tries += 1;
                    pieces.push(piece);
                    if !self.rest(&mut pause).await {
                        return Ok(());
                    }
                    continue;
                }
                Err(
                    BatchError::Transient(error)
                    | BatchError::Message(error)
                    | BatchError::Fenced(error),
                ) => error,
            };
            (pause, tries) = (self.shared.limits.first_pause, 0);
            match piece {
                [item] => {
                    if !self.set_aside(item, &error).await? {
                        return Ok(());
                    }
                    self.leave_key_of(item, &mut pieces);
                }
                many => {
                    self.shared.counts.splits.add(1);
                    // The one that failed goes alone, where it is known: if it took its time, the others wait for it no more.
                    let at = self.at.swap(NONE, Ordering::Relaxed);
                    let known = many.iter().position(|item| item.index == at);
                    let (before, after) = many.split_at(known.unwrap_or(many.len() / 2));
                    let (one, after) = after.split_at(known.map_or(0, |_| 1));
                    pieces.extend([after, one, before].into_iter().filter(|p| !p.is_empty()));
                }
            }
        }
        Ok(())
    }

    /// Waits a while, longer each time. False: it was asked to stop.
    pub(super) async fn rest(&self, pause: &mut Duration) -> bool {
        let waited = tokio::select! {
            () = self.stop.cancelled() => false,
            () = tokio::time::sleep(jittered(*pause)) => true,
        };
        *pause = (*pause * 2).min(self.shared.limits.max_delay);
        waited
    }

    /// One transaction.
    async fn apply(&mut self, piece: &[Item]) -> Result<(), BatchError> {
        self.at.store(NONE, Ordering::Relaxed);
        let mut todo = self.not_yet_applied(piece).await?;
        let copies = piece.len() - todo.len();
        self.apply_at_once(&mut todo).await;
        if !todo.is_empty() {
            self.call_out(&todo).await?;
            let (mut batch, verdicts) = self.begin(&todo).await?;
            let worked = tokio::select! {
                worked = self.work(&mut batch, &todo, verdicts) => worked,
                lost = self.renew_lease() => Err(lost),
            };
            let worked = match worked {
                Ok(tally) => self.commit(batch, &todo).await.map(|()| tally),
                Err(error) => {
                    // The error is what counts; a session that cannot roll back, or is still busy with what its
                    // handler was too slow for, is closed.
                    let _ = timeout(ROLLBACK_TIMEOUT, batch.roll_back()).await;
                    Err(error)
                }
            };
            match worked {
                Ok(tally) => self.count(&tally, &todo),
                Err(error) => {
                    // Whether it was committed is not known: ask where the partition is now.
                    if matches!(&error, BatchError::Transient(Error::Uncertain(_))) {
                        self.held = None;
                    }
                    return Err(error);
                }
            }
        }
        self.shared.counts.duplicates.add(copies);
        self.settle(piece);
        Ok(())
    }

    /// Before the transaction, which must not wait for a network.
    async fn call_out(&mut self, todo: &[&Item]) -> Result<(), BatchError> {
        for item in todo
            .iter()
            .filter(|item| H::CALLS_OUT && item.flaw.is_none())
        {
            if let Some(claimed) = &item.claimed
                && !self.called.contains(&item.index)
            {
                let calling = self.shared.handler.call_out(&item.message, claimed);
                self.calling = Some(item.index);
                let called = item.span.within(self.call(calling)).await.flatten();
                self.calling = None;
                called.map_err(of_call)?;
                self.called.push(item.index);
            }
        }
        Ok(())
    }

    /// Opens the transaction. Where nothing else is to be asked first the messages are taken on with it, which saves a
    /// round trip.
    pub(super) async fn begin(
        &self,
        todo: &[&Item],
    ) -> Result<(Batch<D>, Option<Vec<Verdict>>), BatchError> {
        let shared = self.shared;
        let at_once = !self.stored
            && !shared.store_first
            && shared.dedup != Dedup::Positions
            && todo
                .iter()
                .all(|i| i.flaw.is_none() && i.message.key.is_none());
        let begun = async {
            fault_point!("consumer.before_begin");
            let (inbox, max) = (&shared.inbox, shared.limits.handler);
            let begun = match at_once {
                true => {
                    let messages: Vec<&Message> = todo.iter().map(|item| &*item.message).collect();
                    let begun =
                        inbox.begin_deduped(Some(max), &shared.name, &shared.source, &messages);
                    let (batch, verdicts) = begun.await?;
                    (batch, Some(verdicts))
                }
                false => (inbox.begin_with_timeout(max).await?, None),
            };
            fault_point!("consumer.begun");
            Ok(begun)
        };
        self.asked(begun).await
    }

    async fn work(
        &self,
        batch: &mut Batch<D>,
        todo: &[&Item],
        verdicts: Option<Vec<Verdict>>,
    ) -> Result<Tally, BatchError> {
        let mut tally = Tally::default();
        let (mut sound, mut flawed) = (Vec::new(), Vec::new());
        for item in todo {
            match &item.flaw {
                Some(flaw) => flawed.push((item, flaw)),
                None => sound.push(*item),
            }
        }
        if let Some((_, (code, why))) = flawed.first()
            && self.stored
        {
            let refused = Failure::permanent(*code, why.clone());
            return Err(BatchError::Message(refused.into()));
        }
        for (item, (code, why)) in flawed {
            let what = StoreAs::Poison {
                code: (*code).to_owned(),
                reason: why.clone(),
                keep_bytes: self.shared.checks.max_bytes,
            };
            match self.store(batch, item, &what).await? {
                StoreResult::New => tally.poisoned += 1,
                StoreResult::Duplicate => tally.duplicates += 1,
                StoreResult::Conflict => tally.conflicts += 1,
            }
        }
        let fresh = self.sift(batch, sound, verdicts, &mut tally).await?;
        let applied = async {
            fault_point!("consumer.marked");
            self.hand_over(batch, &fresh).await?;
            fault_point!("consumer.applied");
            Ok(())
        };
        applied.await.map_err(of_handler)?;
        tally.applied = fresh.len();
        Ok(tally)
    }

    /// Which are to be applied now. The others are copies, or stored.
    async fn sift<'p>(
        &self,
        batch: &mut Batch<D>,
        sound: Vec<&'p Item>,
        verdicts: Option<Vec<Verdict>>,
        tally: &mut Tally,
    ) -> Result<Vec<&'p Item>, BatchError> {
        if self.stored {
            return Ok(sound);
        }
        let messages = |items: &[&'p Item]| -> Vec<&'p Message> {
            items.iter().map(|item| &*item.message).collect()
        };
        let name = &self.shared.name;
        let waits = async {
            let waits = match (self.shared.store_first, &verdicts) {
                (true, _) => vec![true; sound.len()],
                (false, Some(_)) => vec![false; sound.len()],
                (false, None) => batch.held(name, &messages(&sound)).await?,
            };
            fault_point!("consumer.held");
            Ok(waits)
        };
        let waits = self.asked(waits).await?;
        let (mut aside, mut fresh) = (Vec::new(), Vec::new());
        for (item, waits) in sound.into_iter().zip(waits) {
            if waits { &mut aside } else { &mut fresh }.push(item);
        }
        if self.shared.dedup != Dedup::Positions && !fresh.is_empty() {
            let verdicts = match verdicts {
                Some(verdicts) => verdicts,
                None => {
                    let source = &self.shared.source;
                    let fresh = messages(&fresh);
                    self.asked(batch.dedupe(name, source, &fresh)).await?
                }
            };
            let (mut verdicts, mut keyed_copies) = (verdicts.into_iter(), false);
            fresh.retain(|item| match verdicts.next() {
                Some(Verdict::New) => true,
                Some(Verdict::Conflict) => {
                    aside.push(*item);
                    false
                }
                _ => {
                    item.span.note(Fate::Duplicate);
                    tally.duplicates += 1;
                    keyed_copies |= item.message.key.is_some();
                    false
                }
            });
            // Between the two looks another consumer may have stored a copy: what came behind it has its marker here, and is
            // stored behind it only in another transaction.
            if keyed_copies {
                let left = messages(&fresh);
                if self.asked(batch.held(name, &left)).await?.contains(&true) {
                    let why = "another consumer has just stored a message of its key";
                    let stored = Failure::transient("stored_meanwhile", why);
                    return Err(BatchError::Transient(Error::Failed(stored)));
                }
            }
        }
        for item in aside {
            match self.store(batch, item, &StoreAs::Received).await? {
                StoreResult::New => tally.stored += 1,
                StoreResult::Duplicate => tally.duplicates += 1,
                StoreResult::Conflict => tally.conflicts += 1,
            }
        }
        Ok(fresh)
    }

    async fn store(
        &self,
        batch: &mut Batch<D>,
        item: &Item,
        what: &StoreAs,
    ) -> Result<StoreResult, BatchError> {
        let (name, source) = (&self.shared.name, &self.shared.source);
        let stored = batch.store(name, source, &item.message, what);
        let stored = self.asked(stored).await?;
        item.span.note_stored(what, stored);
        Ok(stored)
    }

    /// The result of a call of ours inside the transaction.
    pub(super) async fn asked<T>(
        &self,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T, BatchError> {
        let limit = self.shared.limits.statement();
        bounded(limit, call).await.map_err(of_names)
    }

    async fn hand_over(&self, batch: &mut Batch<D>, fresh: &[&Item]) -> Result<()> {
        let handler = &self.shared.handler;
        // A transaction works for one tenant.
        for same in fresh.chunk_by(|a, b| a.message.tenant == b.message.tenant) {
            let tenant = &same[0].message.tenant;
            if same.len() > 1 && !self.careful {
                let all = same.iter().map(|item| item.message.clone()).collect();
                let applied = handler.apply_all(batch.lend(tenant)?, all);
                let span = span::of_batch(self.shared, same);
                if let Some(done) = self.call(applied).instrument(span).await? {
                    done?;
                    continue;
                }
            }
            for item in same {
                self.at.store(item.index, Ordering::Relaxed);
                let applied = handler.apply(batch.lend(tenant)?, item.message.clone());
                item.span.within(self.call(applied)).await??;
            }
            self.at.store(NONE, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Neither a panic nor a handler that never ends may end the lane.
    async fn call<T>(&self, handling: impl Future<Output = T>) -> Result<T> {
        let max = self.shared.limits.handler;
        match timeout(max, AssertUnwindSafe(handling).catch_unwind()).await {
            Ok(done) => done.map_err(|panic| panicked(&*panic)),
            Err(_) => {
                let why = format!("the handler took longer than {max:?}");
                Err(Error::Failed(Failure::transient("handler_timeout", why)))
            }
        }
    }

    pub(super) async fn commit(
        &mut self,
        batch: Batch<D>,
        todo: &[&Item],
    ) -> Result<(), BatchError> {
        let committed = async {
            fault_point!("consumer.before_commit");
            let places = todo.iter().filter_map(|item| item.message.place.as_ref());
            let to = places.max_by_key(|place| place.position);
            match (&mut self.held, to) {
                (Some(held), Some(place)) => {
                    batch.commit_moved(held, place.position).await?;
                    held.position = Some(place.position);
                }
                _ if self.stored => {
                    let claimed: Vec<_> = todo.iter().filter_map(|i| i.claimed.as_ref()).collect();
                    batch.commit_finished(&self.shared.name, &claimed).await?;
                }
                _ => batch.commit().await?,
            }
            fault_point!("consumer.committed");
            Ok(())
        };
        let committed = bounded(self.shared.limits.statement(), committed).await;
        committed.map_err(of_commit)
    }

    pub(super) fn settle(&self, items: &[Item]) {
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        settled.extend(items.iter().map(|item| item.index));
        items.iter().for_each(|item| item.span.settle());
    }

    fn count(&self, tally: &Tally, todo: &[&Item]) {
        let counts = &self.shared.counts;
        for (counter, n) in [
            (&counts.applied, tally.applied),
            (&counts.duplicates, tally.duplicates),
            (&counts.conflicts, tally.conflicts),
            (&counts.stored, tally.stored),
            (&counts.poisoned, tally.poisoned),
        ] {
            counter.add(n);
        }
        counts.committed(todo.len(), todo.last().map(|last| &*last.message));
    }
}
