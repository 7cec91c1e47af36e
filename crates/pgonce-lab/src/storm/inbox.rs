//! Paths of a consumer: one walks step by step over the wire that breaks, another gets the same messages in
//! between, and a calm one gets them until everything is acknowledged, and once more.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pgonce::driver::{Connection as _, Param, Session as _};
use pgonce::inbox::{Message, Position, Statement, StoreAs, Verdict};
use pgonce::queue::NewJob;
use pgonce::retry::Policy;
use pgonce::{Error, Failure, Once};
use pgonce_testkit::{CuttingProxy, Outcome, Trial};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::Result;
use super::attempt::ask;
use super::driver_ext::{DriverExt, Mark};
use super::fixture::Fixture;
use super::path::Path;
use super::projection::Model;
use super::relay::holds;
use super::trial::{STUCK, WINDOW, see_it_end};

const SOURCE: &str = "storm";
/// How long a consumer that was cut off keeps what it holds.
const LEASE: Duration = Duration::from_millis(300);
/// Where nothing breaks, nobody takes over, however slow the machine.
const CALM_LEASE: Duration = Duration::from_secs(60);
/// A little longer than the longest pause before a stored message is tried again.
const BACKOFF: Duration = Duration::from_millis(12);

/// For every consumer here: what fails is tried again soon, and never given up.
pub(super) const CONTRACT: &str = "select pgonce.define_inbox('*', p_max_attempts => 1000000, \
     p_backoff => '5 ms', p_max_backoff => '10 ms'); \
     select pgonce.define_queue('*', p_max_attempts => 1000000, p_backoff => '5 ms', p_max_backoff => '10 ms'); \
     create function import_effect(p_row jsonb) returns void language sql as $$ \
         insert into public.effect (intent, attempt, payload) \
         values (p_row ->> 'intent', (p_row ->> 'attempt')::bigint, (p_row ->> 'payload')::jsonb) $$;";

/// The messages of one trial, and who applies them.
pub(super) struct Letters<'a, D: DriverExt> {
    pub(super) fixture: &'a Fixture<D>,
    /// Also the consumer's name.
    pub(super) key: &'a str,
    path: Path,
    lease: Duration,
    /// Each message, the number of its only attempt, and whether it was acknowledged to its source.
    messages: Vec<(Message, u64)>,
    acknowledged: Mutex<Vec<bool>>,
}

/// Walks a path of consumers with these faults.
pub(super) async fn walk<D: DriverExt>(
    fixture: &Fixture<D>,
    proxy: &CuttingProxy,
    path: Path,
    trial: &Trial,
    key: &str,
) -> Result<()> {
    let model = match path {
        Path::InboxProject | Path::InboxRebuild => Some(Model::make(fixture, path, key).await?),
        _ => None,
    };
    let count = match path {
        Path::InboxAccept => 1,
        Path::InboxCursor | Path::Import => 4,
        _ => 2,
    };
    let letters = Letters {
        fixture,
        key,
        path,
        lease: match trial.faults.is_empty() {
            true => CALM_LEASE,
            false => LEASE,
        },
        messages: match &model {
            Some(_) => Vec::new(),
            None => (1..=count)
                .map(|n| write_letter(fixture, path, key, n))
                .collect(),
        },
        acknowledged: Mutex::new(vec![false; count as usize]),
    };
    proxy.start_over();
    proxy.arm_trial(trial);
    let first = fixture.through(proxy, Policy::default().tries(1))?;
    let (over, first_is_over) = watch::channel(false);
    let holds = holds(trial);
    let first_consumer = async {
        let acted = async {
            letters.saw(letters.act(&first, "first", model.as_ref()).await);
            if proxy.fired().is_none() || holds {
                see_it_end(&first).await;
            }
        };
        let acted = timeout(STUCK, acted).await;
        proxy.disarm();
        // The receiver may have finished already.
        let _ = over.send(true);
        acted
    };
    let second = letters.meanwhile(proxy, holds, first_is_over, model.as_ref());
    let (acted, second) = tokio::join!(first_consumer, second);
    acted.map_err(|_| format!("the first consumer was not through within {STUCK:?}"))?;
    second?;
    letters.finish(model.as_ref()).await
}

/// A message, and that somebody wants it to take effect.
fn write_letter<D: DriverExt>(
    fixture: &Fixture<D>,
    path: Path,
    key: &str,
    n: i64,
) -> (Message, u64) {
    let intent = format!("{key}/{n}");
    let payload = json!({ "amount": n });
    let attempt = fixture.history.invoke(&*intent, payload.clone());
    let message = Message::new(intent, payload.to_string())
        .header("attempt", attempt)
        .at("0", n);
    match path {
        // Messages of one key are no batch for one statement.
        Path::InboxStatement => (message, attempt),
        _ => (message.key("one after the other"), attempt),
    }
}

impl<D: DriverExt> Letters<'_, D> {
    /// What a consumer does with all messages, as they come to it; at the first trouble it is as good as dead.
    async fn act(&self, once: &Once<D>, owner: &str, model: Option<&Model>) -> pgonce::Result<()> {
        if let Some(model) = model {
            return model.act(once).await;
        }
        match self.path {
            Path::InboxAccept | Path::InboxBatch => self.in_own_transaction(once).await,
            Path::InboxStatement => self.by_statement(once).await,
            Path::InboxCursor => self.by_position(once, owner).await,
            Path::InboxStored => self.stored(once, owner).await,
            Path::QueueWork => self.queued(once, owner).await,
            Path::Import => self.imported(once).await,
            _ => self.marked(once).await,
        }
    }

    /// `accept`, or `accept_batch`, in a transaction that is the caller's own.
    async fn in_own_transaction(&self, once: &Once<D>) -> pgonce::Result<()> {
        let mut batch = once.inbox().begin().await?;
        let mut tx = batch.lend("")?;
        let all: Vec<Message> = self.messages.iter().map(|(m, _)| m.clone()).collect();
        let fresh = match &*all {
            [message] => {
                let fresh = tx.accept(self.key, SOURCE, message).await?;
                if fresh { all } else { Vec::new() }
            }
            many => {
                let ids = tx.accept_batch(self.key, SOURCE, many).await?;
                all.into_iter().filter(|m| ids.contains(&m.id)).collect()
            }
        };
        for message in &fresh {
            self.apply(tx.conn(), message).await?;
        }
        drop(tx);
        batch.commit().await?;
        self.acknowledge(0..self.messages.len());
        Ok(())
    }

    /// As the engine does it where copies are known by their ids.
    async fn marked(&self, once: &Once<D>) -> pgonce::Result<()> {
        let all: Vec<&Message> = self.messages.iter().map(|(m, _)| m).collect();
        let inbox = once.inbox();
        let begun = inbox.begin_deduped(None, self.key, SOURCE, &all);
        let (mut batch, verdicts) = begun.await?;
        for (message, verdict) in all.iter().zip(verdicts) {
            match verdict {
                Verdict::New => self.apply(batch.lend("")?.conn(), message).await?,
                _ => self.fixture.history.saw("copy"),
            }
        }
        batch.commit().await?;
        self.acknowledge(0..self.messages.len());
        Ok(())
    }

    /// As the engine does it where the handler is one statement: what is not applied by it goes step by step.
    async fn by_statement(&self, once: &Once<D>) -> pgonce::Result<()> {
        let all: Vec<&Message> = self.messages.iter().map(|(m, _)| m).collect();
        let statement = Statement::new(
            "insert into effect (intent, attempt, payload) \
             select m.id, (m.headers ->> 'attempt')::bigint, m.payload from messages m",
        )?;
        let inbox = once.inbox();
        let applied = inbox.apply_at_once(&statement, self.key, SOURCE, &all, STUCK);
        if applied.await?.contains(&false) {
            return self.marked(once).await;
        }
        self.acknowledge(0..self.messages.len());
        Ok(())
    }

    /// As the engine does it where copies are known by their positions, two messages at a time.
    async fn by_position(&self, once: &Once<D>, owner: &str) -> pgonce::Result<()> {
        let inbox = once.inbox();
        let taken = inbox.take_partition(self.key, SOURCE, "0", owner, self.lease);
        let Some(mut held) = taken.await? else {
            return Ok(());
        };
        for (nth, pair) in self.messages.chunks(2).enumerate() {
            let to = Position::from(2 * nth as i64 + 2);
            if Some(to) > held.position {
                let mut batch = inbox.begin().await?;
                for (message, _) in pair {
                    self.apply(batch.lend("")?.conn(), message).await?;
                }
                batch.commit_moved(&held, to).await?;
                held.position = Some(to);
            } else {
                self.fixture.history.saw("copy");
            }
            self.acknowledge(2 * nth..2 * nth + 2);
        }
        inbox.leave_partition(&held).await
    }

    /// Two are stored, as a webhook is; the first fails, retryable, and is applied when it is due again.
    async fn stored(&self, once: &Once<D>, owner: &str) -> pgonce::Result<()> {
        let inbox = once.inbox();
        for (message, _) in &self.messages {
            inbox
                .store(self.key, SOURCE, message, &StoreAs::Received)
                .await?;
        }
        // Stored is durable: the source may forget them here.
        self.acknowledge(0..self.messages.len());
        for _ in 0..=self.messages.len() {
            for claimed in inbox.claim(self.key, owner, self.lease, 10).await? {
                if claimed.attempts == 1 && claimed.message.id.ends_with("/1") {
                    let reason = "not yet";
                    inbox
                        .fail(self.key, &claimed, true, "bank_closed", reason)
                        .await?;
                    self.fixture.history.saw("stored message failed");
                    sleep(BACKOFF).await;
                    continue;
                }
                let mut batch = inbox.begin().await?;
                self.apply(batch.lend("")?.conn(), &claimed.message).await?;
                batch.commit_finished(self.key, &[&claimed]).await?;
            }
        }
        Ok(())
    }

    /// Two are enqueued; the first fails, retryable, and is done when it is due again.
    async fn queued(&self, once: &Once<D>, owner: &str) -> pgonce::Result<()> {
        let mut batch = once.inbox().begin().await?;
        let mut tx = batch.lend("")?;
        for (message, _) in &self.messages {
            let job = NewJob::new(self.key).payload(&message.id)?;
            let job = job.unique_key(&*message.id).key("one after the other");
            let _ = tx.enqueue(&job).await?;
        }
        drop(tx);
        batch.commit().await?;
        // Enqueued is durable: who wanted them may forget them here.
        self.acknowledge(0..self.messages.len());
        for _ in 0..=self.messages.len() {
            for job in once.claim_jobs(&[self.key], owner, self.lease, 10).await? {
                let id: String = job.payload()?;
                if job.attempts() == 1 && id.ends_with("/1") {
                    job.fail(&Failure::transient("bank_closed", "not yet"))
                        .await?;
                    self.fixture.history.saw("job failed");
                    sleep(BACKOFF).await;
                    continue;
                }
                let message = self.messages.iter().map(|(m, _)| m).find(|m| m.id == id);
                let message = message.ok_or_else(|| Error::work("a job of nobody"))?;
                let finished = job.transact(async |mut tx| self.apply(tx.conn(), message).await);
                let _ = finished.await?;
            }
        }
        Ok(())
    }

    /// The messages are the rows of a stream, two in a transaction. Sent again after its end, all of it is there.
    async fn imported(&self, once: &Once<D>) -> pgonce::Result<()> {
        let mut rows = String::new();
        for (message, attempt) in &self.messages {
            let payload = String::from_utf8_lossy(&message.payload);
            let row = json!({"intent": message.id, "attempt": attempt, "payload": payload});
            rows += &format!("{row}\n");
        }
        let skipped = D::import(once, self.key, self.lease, rows).await?;
        self.fixture.history.saw_times("copy", skipped);
        self.acknowledge(0..self.messages.len());
        Ok(())
    }

    /// The effect. Nothing in its table keeps it from being there twice.
    async fn apply(
        &self,
        conn: &mut <D::Session as pgonce::driver::Connection>::Raw,
        message: &Message,
    ) -> pgonce::Result<()> {
        let written = self.messages.iter().find(|(m, _)| m.id == message.id);
        let mark = Mark {
            intent: message.id.clone(),
            attempt: written.map_or(0, |(_, attempt)| *attempt as i64),
            payload: String::from_utf8_lossy(&message.payload).into_owned(),
        };
        if self.fixture.sabotage {
            // What must never be done: the effect commits by itself.
            let mut session = self.fixture.calm.driver().acquire().await?;
            D::write(session.raw(), &mark).await?;
            session.keep();
            return Ok(());
        }
        D::write(conn, &mark).await
    }

    /// Acknowledges these to the source; from here on they must not be lost.
    fn acknowledge(&self, which: impl IntoIterator<Item = usize>) {
        let mut all = self
            .acknowledged
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for n in which {
            if let (Some(done @ false), Some((_, attempt))) = (all.get_mut(n), self.messages.get(n))
            {
                *done = true;
                let outcome = Outcome::Success(json!("acknowledged"));
                self.fixture.history.outcome(*attempt, outcome);
            }
        }
    }

    /// Everything is acknowledged, and nothing that was stored is left to be applied.
    async fn is_over(&self) -> pgonce::Result<bool> {
        if !self.is_acknowledged() {
            return Ok(false);
        }
        let left = "select ((select count(*) from pgonce.inbox_message where consumer = $1 and status <> 'processed') \
            + (select count(*) from pgonce.job_live where queue = $1))::text";
        let left = ask(&self.fixture.calm, left, &[Param::Text(Some(self.key))]).await?;
        Ok(left.as_deref() == Some("0"))
    }

    fn is_acknowledged(&self) -> bool {
        let all = self
            .acknowledged
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.iter().all(|done| *done)
    }

    /// While a message of the first is held, another gets the same messages, and what the first held when its
    /// lease is over.
    async fn meanwhile(
        &self,
        proxy: &CuttingProxy,
        holds: bool,
        mut first_is_over: watch::Receiver<bool>,
        model: Option<&Model>,
    ) -> Result<()> {
        if !holds {
            return Ok(());
        }
        let leased = matches!(
            self.path,
            Path::InboxCursor | Path::InboxStored | Path::QueueWork | Path::Import
        );
        let window = if leased {
            self.lease + 2 * WINDOW
        } else {
            WINDOW
        };
        loop {
            tokio::select! {
                _ = first_is_over.wait_for(|over| *over) => return Ok(()),
                _ = proxy.held() => {}
            }
            self.fixture.history.saw("second consumer between");
            let mut second = std::pin::pin!(self.insist("second", model));
            match timeout(window, &mut second).await {
                Ok(done) => {
                    proxy.release();
                    done?;
                }
                // It cannot get by: from here on both race.
                Err(_) => {
                    proxy.release();
                    second.await?;
                }
            }
        }
    }

    /// Delivers everything, calmly, until it is acknowledged.
    async fn insist(&self, owner: &str, model: Option<&Model>) -> Result<()> {
        let until = Instant::now() + STUCK;
        loop {
            let acted = self.act(&self.fixture.calm, owner, model).await;
            if acted.is_ok() && (model.is_some() || self.is_over().await?) {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(
                    format!("not all applied within {STUCK:?}, last outcome {acted:?}").into(),
                );
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Until everything is acknowledged, and everything once more: a source may do that.
    async fn finish(&self, model: Option<&Model>) -> Result<()> {
        self.insist("calm", model).await?;
        self.insist("calm", model).await?;
        match model {
            Some(model) => model.check(&self.fixture.calm).await,
            None => Ok(()),
        }
    }

    fn saw(&self, acted: pgonce::Result<()>) {
        match acted {
            Err(Error::Fenced(_)) => self.fixture.history.saw("consumer fenced"),
            Err(_) => self.fixture.history.saw("consumer cut off"),
            Ok(()) => {}
        }
    }
}
