//! What all relays of a process ask of one database together, so that idle ones cost nothing each: is there anything
//! new, is anything parked due, and the renewal of their leases.
//!
//! What a poller says is a hint: a relay reads from its own cursors. It looks for itself after work, with growing
//! pauses, and now and then; a poller that is gone costs time, not events.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use pgonce::Result;
use pgonce::driver::Driver;
use pgonce::outbox::{Lane, LaneClaim, Outbox};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::deliver::jittered;
use super::{Limits, WakeSignal, call_limit};
use crate::bounded::bounded;

/// How often parked events that are due are asked for.
pub(super) const DUE_EVERY: Duration = Duration::from_millis(100);
/// How often partitions are created and dropped.
const MAINTAIN_EVERY: Duration = Duration::from_secs(60);
/// How long claims are gathered: relays renew their leases at the same moments.
const GATHER: Duration = Duration::from_millis(5);
/// Maximum time that a poll may take.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum pause after a poll that failed.
const MAX_PAUSE: Duration = Duration::from_secs(1);

type Pollers = Mutex<HashMap<usize, Weak<dyn Any + Send + Sync>>>;
/// The pollers of this process, by the outbox that they ask. A poller holds its outbox, so that no other has its address.
static POLLERS: LazyLock<Pollers> = LazyLock::new(Mutex::default);

/// Asks for all relays of one outbox. Ends with the last of them.
#[derive(Debug)]
pub(super) struct Poller<D: Driver> {
    outbox: Outbox<D>,
    members: Arc<Members>,
    claims: mpsc::UnboundedSender<Asked>,
    began: Instant,
    task: AbortHandle,
}

/// A claim, and how its result gets back.
type Asked = (LaneClaim, oneshot::Sender<Result<Vec<Lane>>>);

#[derive(Debug, Default)]
struct Members {
    next_id: AtomicU64,
    all: Mutex<HashMap<u64, Member>>,
    /// Whether the last poll went well: until then relays look for themselves.
    answered: AtomicBool,
}

#[derive(Debug)]
struct Member {
    subscription: String,
    limits: Arc<Limits>,
    signal: WakeSignal,
    hint: Arc<Hint>,
}

/// What a relay is woken for.
#[derive(Debug, Default)]
struct Hint {
    wake: Notify,
    news: AtomicBool,
    due: AtomicBool,
}

/// A relay's part in a poller.
#[derive(Debug)]
pub(super) struct Membership<D: Driver> {
    poller: Arc<Poller<D>>,
    id: u64,
    hint: Arc<Hint>,
}

impl<D: Driver> Poller<D> {
    /// The poller of this outbox, in which a relay takes part from now on.
    pub(super) fn join(
        outbox: &Outbox<D>,
        subscription: &str,
        limits: &Arc<Limits>,
        signal: &WakeSignal,
    ) -> Membership<D> {
        let poller = Self::of(outbox);
        let id = poller.members.next_id.fetch_add(1, SeqCst);
        let hint = Arc::<Hint>::default();
        let member = Member {
            subscription: subscription.to_owned(),
            limits: limits.clone(),
            signal: signal.clone(),
            hint: hint.clone(),
        };
        poller.members.lock().insert(id, member);
        Membership { poller, id, hint }
    }

    fn of(outbox: &Outbox<D>) -> Arc<Self> {
        let mut pollers = POLLERS.lock().unwrap_or_else(PoisonError::into_inner);
        pollers.retain(|_, poller| poller.strong_count() > 0);
        let known = pollers.get(&outbox.address()).and_then(Weak::upgrade);
        let known = known.and_then(|poller| poller.downcast::<Self>().ok());
        // One whose runtime has ended asks no more.
        if let Some(poller) = known.filter(|poller| poller.is_alive()) {
            return poller;
        }
        let poller = Arc::new(Self::start(outbox.clone()));
        let any: Arc<dyn Any + Send + Sync> = poller.clone();
        pollers.insert(outbox.address(), Arc::downgrade(&any));
        poller
    }

    fn start(outbox: Outbox<D>) -> Self {
        let members = Arc::<Members>::default();
        let (claims, asked) = mpsc::unbounded_channel();
        let (asks, of) = (outbox.clone(), members.clone());
        let task = tokio::spawn(async move {
            tokio::join!(poll(&asks, &of), claim(&asks, asked), maintain(&asks));
        });
        Self {
            outbox,
            members,
            claims,
            began: Instant::now(),
            task: task.abort_handle(),
        }
    }

    fn is_alive(&self) -> bool {
        !self.task.is_finished()
    }
}

impl<D: Driver> Drop for Poller<D> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Members {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Member>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the log has to be looked at, for the most eager.
    fn interval(&self) -> Duration {
        let all = self.lock();
        let intervals = all.values().map(|m| m.limits.poll_interval(&m.signal));
        intervals.min().unwrap_or(MAX_PAUSE)
    }

    fn subscriptions(&self) -> Vec<String> {
        let all = self.lock();
        let mut names: Vec<_> = all.values().map(|m| m.subscription.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn wake(&self, news: bool, due: &[String]) {
        for member in self.lock().values() {
            let due = due.contains(&member.subscription);
            if news {
                member.hint.news.store(true, SeqCst);
            }
            if due {
                member.hint.due.store(true, SeqCst);
            }
            if news || due {
                member.hint.wake.notify_one();
            }
        }
    }
}

impl<D: Driver> Membership<D> {
    /// Waits until there may be something to do: whether in the log, and whether parked.
    pub(super) async fn hinted(&self) -> (bool, bool) {
        self.hint.wake.notified().await;
        let Hint { news, due, .. } = &*self.hint;
        (news.swap(false, SeqCst), due.swap(false, SeqCst))
    }

    /// Whether the poller says when there is something to do.
    pub(super) fn can_rest(&self) -> bool {
        self.poller.is_alive() && self.poller.members.answered.load(SeqCst)
    }

    /// Claims lanes, together with other relays that do it now.
    pub(super) async fn claim(&self, claim: LaneClaim) -> Result<Vec<Lane>> {
        let (reply, lanes) = oneshot::channel();
        if self.poller.is_alive()
            && self.poller.claims.send((claim.clone(), reply)).is_ok()
            && let Ok(lanes) = lanes.await
        {
            return lanes;
        }
        alone(&self.poller.outbox, &claim).await
    }

    /// The next moment at which leases are renewed after `every`, or before: the same for all relays with one lease.
    pub(super) fn next_renewal(&self, after: Instant, every: Duration) -> Instant {
        let (since, every_ns) = (after - self.poller.began, every.as_nanos().max(1));
        let into = u64::try_from(since.as_nanos() % every_ns).unwrap_or_default();
        after + every - Duration::from_nanos(into)
    }
}

impl<D: Driver> Drop for Membership<D> {
    fn drop(&mut self) {
        self.poller.members.lock().remove(&self.id);
    }
}

async fn poll<D: Driver>(outbox: &Outbox<D>, members: &Members) {
    let mut cursor = None;
    let (mut looked, mut asked): (Option<Instant>, Option<Instant>) = (None, None);
    let mut pause = DUE_EVERY;
    loop {
        let now = Instant::now();
        let is_time = |last: Option<Instant>, every| last.is_none_or(|last| now >= last + every);
        let (look, ask) = (
            is_time(looked, members.interval()),
            is_time(asked, DUE_EVERY),
        );
        if look || ask {
            let names = if ask { members.subscriptions() } else { vec![] };
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let polled = outbox.poll(cursor.as_ref().filter(|_| look), &names);
            match timeout(POLL_TIMEOUT, polled).await {
                Ok(Ok(polled)) => {
                    members.answered.store(true, SeqCst);
                    members.wake(look && polled.news, &polled.due);
                    if look {
                        (looked, cursor) = (Some(now), polled.cursor);
                    }
                    if ask {
                        asked = Some(now);
                    }
                    pause = DUE_EVERY;
                }
                // Relays notice an outage when they renew their leases, and say so. What was missed is news afterwards.
                failed => {
                    tracing::warn!(?failed, ?pause, "the log could not be polled, trying again");
                    members.answered.store(false, SeqCst);
                    members.wake(true, &members.subscriptions());
                    cursor = None;
                    sleep(jittered(pause)).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                    continue;
                }
            }
        }
        let next = |last: Option<Instant>, every| last.map_or(now, |last| last + every);
        sleep_until(next(looked, members.interval()).min(next(asked, DUE_EVERY))).await;
    }
}

async fn claim<D: Driver>(outbox: &Outbox<D>, mut asked: mpsc::UnboundedReceiver<Asked>) {
    while let Some(first) = asked.recv().await {
        sleep(GATHER).await;
        let mut all = vec![first];
        while let Ok(another) = asked.try_recv() {
            all.push(another);
        }
        // One that hangs keeps no later one waiting.
        tokio::spawn(claim_together(outbox.clone(), all));
    }
}

async fn claim_together<D: Driver>(outbox: Outbox<D>, asked: Vec<Asked>) {
    let (claims, replies): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
    if claims.len() > 1 {
        let leases = claims.iter().map(|claim| claim.lease);
        let most = leases.min().unwrap_or_default() / 6;
        if let Ok(Ok(lanes)) = timeout(most, outbox.claim_lanes_of(&claims)).await {
            for (lanes, reply) in lanes.into_iter().zip(replies) {
                let _ = reply.send(Ok(lanes));
            }
            return;
        }
    }
    // One of them cannot be claimed, or is locked: each gets its own answer.
    let each = claims.iter().zip(replies).map(|(claim, reply)| async {
        let _ = reply.send(alone(&outbox, claim).await);
    });
    join_all(each).await;
}

/// One claim, for as long as it can matter.
async fn alone<D: Driver>(outbox: &Outbox<D>, claim: &LaneClaim) -> Result<Vec<Lane>> {
    let lanes = outbox.claim_lanes(&claim.subscription, &claim.owner, claim.lease);
    bounded(call_limit(claim.lease), lanes).await
}

async fn maintain<D: Driver>(outbox: &Outbox<D>) {
    loop {
        match timeout(MAINTAIN_EVERY, outbox.maintain()).await {
            Ok(Ok(())) => {}
            failed => tracing::warn!(?failed, "partitions could not be created or dropped"),
        }
        sleep(jittered(MAINTAIN_EVERY)).await;
    }
}
