use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use tokio::sync::watch;

use super::{Fired, link::Link};
use crate::{plan::Fault, wire::Message};

const MAX_TRANSCRIPT: usize = 100_000;

/// What the proxy's owner and its connections share.
#[derive(Debug)]
pub(super) struct State {
    pub(super) target: SocketAddr,
    shared: Mutex<Shared>,
    unreachable: AtomicBool,
    refused: AtomicU64,
    held: watch::Sender<BTreeMap<u64, Fired>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Rises with every fresh start, so that a connection from before is not mistaken for one
    /// of now.
    era: u64,
    accepted: u64,
    tickets: u64,
    armed: HashMap<u64, Vec<Fault>>,
    fired: Vec<Fired>,
    transcript: Vec<Message>,
    links: Vec<Arc<Link>>,
    sessions: Vec<i32>,
}

impl State {
    pub(super) fn new(target: SocketAddr) -> Self {
        Self {
            target,
            shared: Mutex::default(),
            unreachable: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            held: watch::Sender::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn arm(&self, fault: Fault) {
        let mut shared = self.lock();
        shared
            .armed
            .entry(fault.connection)
            .or_default()
            .push(fault);
    }

    pub(super) fn disarm(&self) {
        self.lock().armed.clear();
    }

    pub(super) fn fired(&self) -> Vec<Fired> {
        self.lock().fired.clone()
    }

    pub(super) fn transcript(&self) -> Vec<Message> {
        self.lock().transcript.clone()
    }

    pub(super) fn backends(&self) -> Vec<i32> {
        self.lock()
            .links
            .iter()
            .filter_map(|link| link.backend())
            .collect()
    }

    /// All there have been, also those whose client has gone.
    pub(super) fn sessions(&self) -> Vec<i32> {
        self.lock().sessions.clone()
    }

    pub(super) fn logged_in(&self, link: &Link, pid: i32) {
        link.set_backend(pid);
        self.lock().sessions.push(pid);
    }

    pub(super) fn cut_all(&self) {
        self.lock().links.drain(..).for_each(|link| link.cut());
    }

    pub(super) fn set_reachable(&self, reachable: bool) {
        self.unreachable.store(!reachable, SeqCst);
        if !reachable {
            self.cut_all();
        }
    }

    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, SeqCst);
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(SeqCst)
    }

    pub(super) fn is_reachable(&self) -> bool {
        !self.unreachable.load(SeqCst)
    }

    pub(super) fn start_over(&self) {
        let mut shared = self.lock();
        shared.links.drain(..).for_each(|link| link.cut());
        *shared = Shared {
            era: shared.era + 1,
            tickets: shared.tickets,
            ..Shared::default()
        };
    }

    pub(super) fn accepted(&self) -> Arc<Link> {
        let mut shared = self.lock();
        let link = Arc::new(Link::new(shared.era, shared.accepted));
        shared.accepted += 1;
        shared.links.push(Arc::clone(&link));
        link
    }

    pub(super) fn ended(&self, link: &Arc<Link>) {
        self.lock().links.retain(|other| !Arc::ptr_eq(other, link));
    }

    /// Takes note of a message, and says which fault it meets.
    pub(super) fn meet(&self, link: &Link, message: Message) -> Option<Fired> {
        let mut shared = self.lock();
        if link.era != shared.era {
            return None;
        }
        let found = shared.armed.get_mut(&link.number).and_then(|faults| {
            let here = |fault: &Fault| {
                fault.direction == message.direction && fault.message == message.number
            };
            let index = faults.iter().position(here)?;
            Some(faults.remove(index))
        });
        let fired = found.map(|fault| Fired {
            fault,
            message: message.clone(),
        });
        shared.fired.extend(fired.clone());
        if shared.transcript.len() < MAX_TRANSCRIPT {
            shared.transcript.push(message);
        }
        fired
    }

    /// Waits until the message is released.
    pub(super) async fn hold(&self, fired: Fired) {
        let ticket = {
            let mut shared = self.lock();
            shared.tickets += 1;
            shared.tickets
        };
        let mut held = self.held.subscribe();
        self.held.send_modify(|held| {
            held.insert(ticket, fired);
        });
        // If the connection is cut meanwhile, nothing is held any more.
        let _taken_back = TakeBack {
            state: self,
            ticket,
        };
        // The sender lives as long as `self`.
        let _ = held.wait_for(|held| !held.contains_key(&ticket)).await;
    }

    pub(super) async fn held(&self) -> Fired {
        let mut held = self.held.subscribe();
        loop {
            let first = held.borrow_and_update().values().next().cloned();
            if let Some(fired) = first {
                return fired;
            }
            // The sender lives as long as `self`.
            let _ = held.changed().await;
        }
    }

    pub(super) fn release(&self) {
        self.held.send_modify(BTreeMap::clear);
    }
}

struct TakeBack<'a> {
    state: &'a State,
    ticket: u64,
}

impl Drop for TakeBack<'_> {
    fn drop(&mut self) {
        let ticket = self.ticket;
        self.state
            .held
            .send_if_modified(|held| held.remove(&ticket).is_some());
    }
}
