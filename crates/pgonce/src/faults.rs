//! Named places where a test makes this process pause, fail, panic or die.
//!
//! Only with the feature `faults`; without it the places are not compiled in and cost nothing. Arm them
//! from a test with [`arm`] or [`pause`], or from outside a process with the environment variable
//! `PGONCE_FAULTS=succeed.settled=kill@2,claim.opened=error`: at the second time that the place is
//! reached, respectively the first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::Notify;

use crate::error::{Error, Result};

/// Every place there is, in the order of the protocol.
pub const POINTS: &[&str] = &[
    "claim.before_open",
    "claim.opened",
    "succeed.before_settle",
    "succeed.settled",
    "fail.before_record",
    "fail.recorded",
    "lease.before_claim",
    "lease.claimed",
    "lease.before_heartbeat",
    "lease.renewed",
    "lease.before_begin",
    "lease.began",
    "lease.before_release",
    "lease.released",
    "wait.before_sleep",
    "wait.woken",
    "migrate.before_step",
    "migrate.stepped",
];

/// Those of a relay, in the order of its protocol.
pub const RELAY_POINTS: &[&str] = &[
    "relay.before_claim",
    "relay.claimed",
    "relay.before_read",
    "relay.read",
    "relay.before_send",
    "relay.sent",
    "relay.before_settle",
    "relay.settled",
    "relay.before_advance",
    "relay.advanced",
];

/// Those of a consumer, in the order of its protocol; the last two are of its stored messages.
pub const CONSUMER_POINTS: &[&str] = &[
    "consumer.pulled",
    "consumer.before_begin",
    "consumer.begun",
    "consumer.held",
    "consumer.marked",
    "consumer.applied",
    "consumer.before_commit",
    "consumer.committed",
    "consumer.before_ack",
    "consumer.before_claim",
    "consumer.claimed",
];

/// Those of a worker of queues, in the order of its protocol.
pub const QUEUE_POINTS: &[&str] = &[
    "queue.before_claim",
    "queue.claimed",
    "queue.before_begin",
    "queue.begun",
    "queue.before_finish",
    "queue.finished",
    "queue.before_record",
    "queue.recorded",
    "queue.before_fail",
    "queue.failed",
    "queue.before_renew",
    "queue.renewed",
];

/// Those of calls to providers, in the order of their protocol; the last three are of a reconciler.
pub const EXTERNAL_POINTS: &[&str] = &[
    "external.before_send",
    "external.sent",
    "external.answered",
    "external.recorded",
    "external.due",
    "external.before_observe",
    "external.observed",
];

/// Those of recovery, in the order of its protocol.
pub const RECOVERY_POINTS: &[&str] = &[
    "recovery.before_take",
    "recovery.taken",
    "recovery.probed",
    "recovery.before_decide",
    "recovery.decided",
];

/// Those of an import, in the order of its protocol.
pub const IMPORT_POINTS: &[&str] = &[
    "import.begun",
    "import.held",
    "import.written",
    "import.recorded",
    "import.before_done",
];

fn is_known(place: &str) -> bool {
    [
        POINTS,
        RELAY_POINTS,
        CONSUMER_POINTS,
        IMPORT_POINTS,
        QUEUE_POINTS,
        EXTERNAL_POINTS,
        RECOVERY_POINTS,
    ]
    .iter()
    .any(|points| points.contains(&place))
}

/// What happens at an armed place.
#[derive(Debug, Clone)]
pub enum Action {
    /// Waits until it is released.
    Pause(Paused),
    /// Fails as if the connection had broken there.
    Error,
    /// Panics.
    Panic,
    /// Ends the process at once, as `kill -9` would.
    Kill,
}

/// A place that stands still. Made by [`pause`].
#[derive(Debug, Clone, Default)]
pub struct Paused {
    reached: Arc<Notify>,
    resumed: Arc<Notify>,
}

impl Paused {
    /// Waits until somebody stands at the place.
    pub async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Releases what waits there.
    pub fn resume(&self) {
        self.resumed.notify_one();
    }
}

#[derive(Debug, Default)]
struct Registry {
    armed: HashMap<String, (u64, Action)>,
    reached: HashMap<&'static str, u64>,
}

fn registry() -> MutexGuard<'static, Registry> {
    static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();
    REGISTRY
        .get_or_init(|| {
            let text = std::env::var("PGONCE_FAULTS").unwrap_or_default();
            let faults = text.split(',').filter(|fault| !fault.trim().is_empty());
            Mutex::new(Registry {
                armed: faults.map(parse).collect(),
                reached: HashMap::new(),
            })
        })
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Reads `place=action@nth`.
///
/// # Panics
/// On anything else: a test that arms nothing proves nothing.
fn parse(text: &str) -> (String, (u64, Action)) {
    let read = || {
        let (place, action) = text.trim().split_once('=')?;
        let (action, nth) = action.split_once('@').unwrap_or((action, "1"));
        let action = match action {
            "error" => Action::Error,
            "panic" => Action::Panic,
            "kill" => Action::Kill,
            _ => return None,
        };
        let known = is_known(place).then(|| place.to_owned())?;
        Some((known, (nth.parse().ok()?, action)))
    };
    read().unwrap_or_else(|| {
        panic!(
            "PGONCE_FAULTS: {text:?} is not place=error|panic|kill, with @2 for the second time; places: {}",
            [POINTS, RELAY_POINTS].concat().join(", ")
        )
    })
}

/// Arms a place: the `nth` time from now that it is reached, `action` happens, once.
///
/// # Panics
/// When there is no such place: a test that arms nothing proves nothing.
pub fn arm(place: &str, nth: u64, action: Action) {
    assert!(
        is_known(place),
        "there is no fault point {place:?}; see pgonce::faults::POINTS and RELAY_POINTS"
    );
    registry()
        .armed
        .insert(place.to_owned(), (nth.max(1), action));
}

/// Arms a place to stand still the next time that it is reached.
pub fn pause(place: &str) -> Paused {
    let paused = Paused::default();
    arm(place, 1, Action::Pause(paused.clone()));
    paused
}

/// Disarms every place.
pub fn disarm_all() {
    registry().armed.clear();
}

/// How often a place was reached in this process.
pub fn reached(place: &str) -> u64 {
    registry().reached.get(place).copied().unwrap_or_default()
}

/// Called at the place itself; by pgonce's own crates only.
#[doc(hidden)]
pub async fn reach(place: &'static str) -> Result<()> {
    let action = {
        let mut registry = registry();
        *registry.reached.entry(place).or_default() += 1;
        match registry.armed.get_mut(place) {
            Some((nth, _)) if *nth > 1 => {
                *nth -= 1;
                None
            }
            Some(_) => registry.armed.remove(place).map(|(_, action)| action),
            None => None,
        }
    };
    match action {
        None => Ok(()),
        Some(Action::Pause(paused)) => {
            paused.reached.notify_one();
            paused.resumed.notified().await;
            Ok(())
        }
        Some(Action::Error) => Err(Error::Disconnected(format!("fault point {place}"))),
        Some(Action::Panic) => panic!("fault point {place}"),
        Some(Action::Kill) => std::process::abort(),
    }
}
