use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tokio_postgres::Client;

use crate::{
    cut::CuttingProxy,
    plan::{Action, Spread},
    wire::{Direction, Message},
};

/// A held message goes on when another attempt has ended, or after this time.
const MAX_HOLD: Duration = Duration::from_millis(20);
/// Of ten stretches of a connection, so many get a fault.
const FAULTY_IN_TEN: u32 = 8;
/// A connection of a pool is used again and again: without faults on its later messages, a pool would soon hold only connections
/// that nothing happens to.
const STRETCHES: u64 = 8;
/// A session is killed each time that some attempts have ended: at most so many.
const CALLS_PER_KILL: u64 = 20;

/// Where faults can hit, from the messages of one calm call. A connection that is used again
/// and again carries more of them than one call does.
pub(super) fn spread(transcript: &[Message]) -> Spread {
    let mut counted: HashMap<_, u64> = HashMap::new();
    for message in transcript {
        *counted
            .entry((message.direction, message.connection))
            .or_default() += 1;
    }
    let most = |direction| {
        let of_it = counted
            .iter()
            .filter(|((towards, _), _)| *towards == direction);
        2 * of_it.map(|(_, count)| *count).max().unwrap_or(1)
    };
    Spread {
        connections: 1,
        to_server: most(Direction::ToServer),
        to_client: most(Direction::ToClient),
        // The lost reply is what most handlers get wrong.
        actions: vec![
            Action::CutBefore,
            Action::CutBefore,
            Action::CutAfter,
            Action::DropReply,
            Action::DropReply,
            Action::DropReply,
            Action::Hold,
            Action::Hold,
        ],
    }
}

/// Arms faults on the connections to come; the same seed arms the same.
pub(super) fn arm(proxy: &CuttingProxy, seed: u64, spread: &Spread, connections: u64) {
    let mut chance = StdRng::seed_from_u64(seed);
    for connection in 0..connections {
        for stretch in 0..STRETCHES {
            let mut fault = spread.fault(connection, &mut chance);
            fault.message += stretch * spread.length(fault.direction);
            if chance.random_ratio(FAULTY_IN_TEN, 10) {
                proxy.arm(fault);
            }
        }
    }
}

/// What goes on beside the clients; it ends when this is dropped.
pub(super) struct FaultInjector {
    tasks: JoinSet<()>,
    kills: Arc<AtomicU64>,
    outages: Arc<AtomicU64>,
}

/// However an outage ends, the server can be reached again.
struct Back<'a>(&'a CuttingProxy);

impl Drop for Back<'_> {
    fn drop(&mut self) {
        self.0.set_reachable(true);
    }
}

impl FaultInjector {
    pub(super) fn new() -> Self {
        Self {
            tasks: JoinSet::new(),
            kills: Arc::default(),
            outages: Arc::default(),
        }
    }

    /// Holds are short: long enough for a second client to come between.
    pub(super) fn release_what_is_held(
        &mut self,
        proxy: &Arc<CuttingProxy>,
        mut ended: watch::Receiver<u64>,
    ) {
        let proxy = Arc::clone(proxy);
        self.tasks.spawn(async move {
            loop {
                proxy.held().await;
                ended.mark_unchanged();
                // Either way it is time.
                let _ = timeout(MAX_HOLD, ended.changed()).await;
                proxy.release();
            }
        });
    }

    pub(super) fn kill_sessions(
        &mut self,
        proxy: &Arc<CuttingProxy>,
        seed: u64,
        killer: Client,
        mut ended: watch::Receiver<u64>,
    ) {
        let (proxy, kills) = (Arc::clone(proxy), Arc::clone(&self.kills));
        let mut chance = StdRng::seed_from_u64(seed);
        self.tasks.spawn(async move {
            let mut next = 0;
            loop {
                next += chance.random_range(1..=CALLS_PER_KILL);
                if ended.wait_for(|ended| *ended >= next).await.is_err() {
                    return;
                }
                let backends = proxy.backends();
                if backends.is_empty() {
                    continue;
                }
                let victim = backends[chance.random_range(0..backends.len())];
                let statement = "select pg_catalog.pg_terminate_backend($1)";
                match killer.query_one(statement, &[&victim]).await {
                    Ok(row) => kills.fetch_add(u64::from(row.get::<_, bool>(0)), SeqCst),
                    // Not allowed to: the missing kills are found by the checker.
                    Err(_) => return,
                };
            }
        });
    }

    /// Each after some attempts, so that it strikes in the middle of others.
    pub(super) fn make_outages(
        &mut self,
        proxy: &Arc<CuttingProxy>,
        seed: u64,
        (count, length): (u64, Duration),
        mut ended: watch::Receiver<u64>,
    ) {
        let (proxy, outages) = (Arc::clone(proxy), Arc::clone(&self.outages));
        let mut chance = StdRng::seed_from_u64(seed);
        self.tasks.spawn(async move {
            for _ in 0..count {
                let next = *ended.borrow() + chance.random_range(1..=CALLS_PER_KILL);
                if ended.wait_for(|ended| *ended >= next).await.is_err() {
                    return;
                }
                proxy.set_reachable(false);
                let _back = Back(&proxy);
                tokio::time::sleep(length).await;
                outages.fetch_add(1, SeqCst);
            }
        });
    }

    /// How many outages are over.
    pub(super) fn outages(&self) -> u64 {
        self.outages.load(SeqCst)
    }

    /// Ends it, and says how many sessions were killed, and how many outages there were.
    pub(super) async fn calm_down(mut self) -> (u64, u64) {
        self.tasks.shutdown().await;
        (self.kills.load(SeqCst), self.outages.load(SeqCst))
    }
}
