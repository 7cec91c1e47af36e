//! A relay on Citus, where events travel as jobs: a worker of the queue claims them and renews their leases, and what it has at
//! hand goes to the sink together.
//!
//! What can strike, and what then happens: killed anywhere, the leases run out and others deliver again, with the same ids; an
//! event that was acknowledged and not recorded is delivered again; a lease that is lost ends the delivery. One event of a
//! subject is claimed at a time, so batches have no subject in common, and run side by side.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use pgonce::Result;
use pgonce::driver::Driver;
use pgonce::outbox::{Message, Outbox, Outcome};
use pgonce::queue::Job;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::deliver::{Ended, Terms, deliver, jittered};
use super::run::in_time;
use super::{Limits, Relay};
use crate::Sink;
use crate::fatal::is_fatal;
use crate::metrics::RelayMetrics as _;

/// The shortest pause between two looks of an idle relay: each reads every shard.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Longer than any delivery: the worker ends those whose lease is lost.
const NO_END: Duration = Duration::from_secs(86_400 * 365);

/// An event, and where to say what came of it.
type Arrival = (Message, oneshot::Sender<Outcome>);

pub(super) async fn run<D: Driver, S: Sink>(
    relay: Relay<D, S>,
    stop: CancellationToken,
) -> Result<()> {
    let Some(queue) = first_look(&relay, &stop).await? else {
        return Ok(());
    };
    let limits = relay.limits.clone();
    let at_once = (limits.in_flight * 4).min(limits.lane_events);
    let (arrive, arriving) = mpsc::channel(at_once);
    let (say_gone, gone) = mpsc::channel(1);
    let worker = (relay.outbox)
        .worker(&queue, &relay.owner, move |job| one(job, arrive.clone()))
        .concurrency(at_once)
        .lease(limits.lease)
        .poll_interval(limits.max_poll.max(LOOK_EVERY))
        .shutdown_timeout(limits.drain_timeout);
    let wake = worker.wake();
    // An error ends the worker as a stop does: what it has in hand is delivered.
    let end = stop.child_token();
    let working = worker.run(end.clone().cancelled_owned());
    let terms = Terms {
        subscription: relay.subscription.as_str().into(),
        limits,
        counts: relay.counts.clone(),
        metrics: relay.metrics.clone(),
        health: Arc::default(),
        lease: watch::Sender::new(Instant::now() + NO_END).subscribe(),
        from_log: true,
    };
    let sending = send_batches(relay.sink.clone(), arriving, terms, say_gone);
    let watching = async {
        let mut signal = relay.signal.subscribe();
        tokio::select! {
            watched = keep_looking(&relay, gone, &end) => watched,
            () = async { loop { signal.notified().await; wake.notify_one(); } } => Ok(()),
        }
    };
    let ((), (), watched) = tokio::join!(working, sending, watching);
    watched
}

/// One event, from its claim to what came of it.
async fn one<D: Driver>(
    job: Job<D>,
    arrive: mpsc::Sender<Arrival>,
) -> Result<pgonce::queue::Finished> {
    let outcome = match job.event() {
        Ok(message) => {
            let (reply, replied) = oneshot::channel();
            // Where nobody sends it, or its batch was broken off, it is given back.
            let _ = arrive.send((message, reply)).await;
            replied.await.unwrap_or(Outcome::Hold)
        }
        Err(error) => Outcome::Dead {
            reason: error.to_string(),
        },
    };
    job.settle_event(&outcome).await
}

/// The subscription's queue; nothing where it is to stop before the database could be asked.
async fn first_look<D: Driver, S: Sink>(
    relay: &Relay<D, S>,
    stop: &CancellationToken,
) -> Result<Option<String>> {
    let mut pause = relay.limits.first_pause;
    while !stop.is_cancelled() {
        match in_time(&relay.limits, relay.outbox.queue(&relay.subscription)).await {
            Ok(queue) => return Ok(Some(queue)),
            Err(error) => failed(relay, error)?,
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = sleep(jittered(pause)) => {}
        }
        pause = (pause * 2).min(relay.limits.max_delay);
    }
    Ok(None)
}

/// Notes an error; only a wrong configuration ends a relay.
fn failed<D: Driver, S: Sink>(relay: &Relay<D, S>, error: pgonce::Error) -> Result<()> {
    if is_fatal(&error) {
        return Err(error);
    }
    relay.metrics.database_error();
    relay.counts.database_failed(&error);
    tracing::warn!(%error, "database error, trying again");
    Ok(())
}

/// Until the end: whether the subscription is still there. Evicts it where its sink is gone.
async fn keep_looking<D: Driver, S: Sink>(
    relay: &Relay<D, S>,
    mut gone: mpsc::Receiver<String>,
    end: &CancellationToken,
) -> Result<()> {
    loop {
        let reason = tokio::select! {
            biased;
            () = end.cancelled() => return Ok(()),
            reason = gone.recv() => reason,
            () = sleep(relay.limits.lease / 3) => None,
        };
        let (outbox, subscription): (&Outbox<D>, _) = (&relay.outbox, &relay.subscription);
        let looked = async {
            if let Some(reason) = &reason {
                tracing::error!(reason, "the sink is gone: the subscription is evicted");
                outbox.evict(subscription, reason).await?;
            }
            outbox.queue(subscription).await
        };
        match in_time(&relay.limits, looked).await {
            Ok(_) => relay.counts.database_answered(),
            Err(error) => {
                if let Err(error) = failed(relay, error) {
                    end.cancel();
                    return Err(error);
                }
            }
        }
    }
}

/// Sends what has arrived together, until nothing arrives any more.
async fn send_batches<S: Sink>(
    sink: Arc<S>,
    mut arriving: mpsc::Receiver<Arrival>,
    terms: Terms,
    gone: mpsc::Sender<String>,
) {
    let mut batches = JoinSet::new();
    let mut arrived = Vec::new();
    let Limits { lane_events, .. } = *terms.limits;
    loop {
        tokio::select! {
            count = arriving.recv_many(&mut arrived, lane_events) => {
                if count == 0 {
                    break;
                }
                let batch = std::mem::take(&mut arrived);
                batches.spawn(send(sink.clone(), batch, terms.clone(), gone.clone()));
            }
            Some(sent) = batches.join_next() => note_panic(sent),
        }
    }
    while let Some(sent) = batches.join_next().await {
        note_panic(sent);
    }
}

fn note_panic(sent: std::result::Result<(), JoinError>) {
    if let Err(error) = sent {
        tracing::error!(%error, "a delivery panicked: its events are sent again");
    }
}

async fn send<S: Sink>(
    sink: Arc<S>,
    batch: Vec<Arrival>,
    terms: Terms,
    gone: mpsc::Sender<String>,
) {
    let (mut messages, mut replies): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
    for (message, number) in messages.iter_mut().zip(0..) {
        message.seq = number;
    }
    terms.metrics.read(&messages);
    // Its worker has dropped one of them: the lease is lost, or the time to stop is over.
    let dropped = select_all(replies.iter_mut().map(|reply| Box::pin(reply.closed())));
    let ended = tokio::select! {
        biased;
        _ = dropped => return,
        ended = deliver(sink, messages, &terms) => ended,
    };
    match ended {
        Ok(Ended::Settled(outcomes)) => {
            terms.metrics.batch_settled(&outcomes);
            // In the order of their numbers, one for each.
            for (reply, (_, outcome)) in replies.into_iter().zip(outcomes) {
                terms.counts.add(&outcome);
                // Where nobody listens any more, others deliver it again.
                let _ = reply.send(outcome);
            }
        }
        Ok(Ended::Gone(reason)) => {
            let _ = gone.try_send(reason);
        }
        Ok(Ended::LeaseOver) => {}
        Err(error) => tracing::warn!(%error, "a batch was broken off, and is sent again"),
    }
}
