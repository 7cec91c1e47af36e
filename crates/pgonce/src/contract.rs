//! What a scope promises: how long answers are kept, how duplicates are answered, what happens after.

use std::time::Duration;

/// How a duplicate is answered while the first attempt is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Busy {
    /// At once, with a time to come back.
    #[default]
    Reject,
    /// The answer, after waiting for it a bounded time.
    Wait,
    /// That it is accepted, and where to poll.
    Accept,
}

/// What is kept of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Storage {
    /// The whole answer.
    #[default]
    Answer,
    /// A reference to what was made.
    Reference,
    /// Only that it succeeded.
    Status,
    /// Only failures.
    Error,
}

/// What a key means after its retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterExpiry {
    /// It is free again.
    #[default]
    Rerun,
    /// It is refused as gone; a tombstone stays, for ever or so long.
    Gone(Option<Duration>),
}

/// What happens to leased work whose holder vanished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stale {
    /// The next attempt takes over.
    #[default]
    Takeover,
    /// It needs manual action; duplicates are answered busy.
    Hold,
    /// It fails permanently, with the code `abandoned`.
    Refuse,
}

/// A contract to write down with [`Once::define_scope`](crate::Once::define_scope). The database checks it.
///
/// ```
/// use std::time::Duration;
/// use pgonce::scope::{Busy, Contract};
///
/// let day = Duration::from_secs(86_400);
/// let contract = Contract::keep(30 * day).busy(Busy::Wait).client_retry(3 * day);
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Contract {
    pub(crate) retention: Duration,
    pub(crate) lease: Duration,
    pub(crate) busy: Busy,
    pub(crate) wait_timeout: Duration,
    pub(crate) storage: Storage,
    pub(crate) after_expiry: AfterExpiry,
    pub(crate) stale: Stale,
    pub(crate) client_retry: Duration,
    pub(crate) redelivery: Duration,
    pub(crate) reconciliation: Duration,
    pub(crate) audit: Duration,
    pub(crate) max_answer: u32,
    pub(crate) max_keys: Option<u64>,
    pub(crate) commit_guard: bool,
    pub(crate) probe: Option<String>,
    pub(crate) retry_queue: Option<String>,
    pub(crate) max_attempts: u32,
    pub(crate) keep_attempts: u32,
    pub(crate) note: Option<String>,
    pub(crate) tenant: String,
}

impl Contract {
    /// Keeps answers so long.
    pub fn keep(retention: Duration) -> Self {
        Self {
            retention,
            lease: Duration::from_secs(30),
            busy: Busy::default(),
            wait_timeout: Duration::from_secs(5),
            storage: Storage::default(),
            after_expiry: AfterExpiry::default(),
            stale: Stale::default(),
            client_retry: Duration::ZERO,
            redelivery: Duration::ZERO,
            reconciliation: Duration::ZERO,
            audit: Duration::ZERO,
            max_answer: 1 << 20,
            max_keys: None,
            commit_guard: false,
            probe: None,
            retry_queue: None,
            max_attempts: 10,
            keep_attempts: 20,
            note: None,
            tenant: String::new(),
        }
    }

    /// The usual length of a lease.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How a duplicate is answered meanwhile. Default: [`Busy::Reject`].
    pub fn busy(mut self, busy: Busy) -> Self {
        self.busy = busy;
        self
    }

    /// How long a duplicate waits for the answer, with [`Busy::Wait`].
    pub fn wait_timeout(mut self, wait: Duration) -> Self {
        self.wait_timeout = wait;
        self
    }

    /// What is kept of an answer.
    pub fn storage(mut self, storage: Storage) -> Self {
        self.storage = storage;
        self
    }

    /// What a key means after its retention.
    pub fn after_expiry(mut self, after: AfterExpiry) -> Self {
        self.after_expiry = after;
        self
    }

    /// What happens to leased work whose holder vanished.
    pub fn stale(mut self, stale: Stale) -> Self {
        self.stale = stale;
        self
    }

    /// How long clients may retry. Retention must not be shorter.
    pub fn client_retry(mut self, horizon: Duration) -> Self {
        self.client_retry = horizon;
        self
    }

    /// How long brokers may redeliver. Retention must not be shorter.
    pub fn redelivery(mut self, horizon: Duration) -> Self {
        self.redelivery = horizon;
        self
    }

    /// How long reconciliation may look back. Retention must not be shorter.
    pub fn reconciliation(mut self, horizon: Duration) -> Self {
        self.reconciliation = horizon;
        self
    }

    /// How long audit may look back. Retention must not be shorter.
    pub fn audit(mut self, horizon: Duration) -> Self {
        self.audit = horizon;
        self
    }

    /// Maximum size of an answer, as JSON text; a larger one is refused (`P4040`). Default: 1 MiB.
    pub fn max_answer(mut self, bytes: u32) -> Self {
        self.max_answer = bytes;
        self
    }

    /// Maximum number of keys of a tenant in the scope; when that many are committed, one more is refused (`P4044`). Commands
    /// whose transactions overlap do not count each other's keys. Default: none.
    pub fn max_keys(mut self, keys: u64) -> Self {
        self.max_keys = Some(keys);
        self
    }

    /// Refuses a COMMIT with an atomic claim that has no recorded outcome (`P4013`). For transactions that end by
    /// hand: SQL, other languages, [`Once::join`](crate::Once::join). Default: off.
    ///
    /// ```
    /// use std::time::Duration;
    /// use pgonce::scope::Contract;
    ///
    /// let contract = Contract::keep(Duration::from_secs(86_400)).commit_guard();
    /// ```
    pub fn commit_guard(mut self) -> Self {
        self.commit_guard = true;
        self
    }

    /// A SQL function, `schema.function`, that looks for the effect of work whose holder vanished, before
    /// [`Stale`] counts: [`Recovery`](crate::recovery::Recovery) asks it. Claims get `busy` until then. Default: none.
    pub fn probe(mut self, function: impl Into<String>) -> Self {
        self.probe = Some(function.into());
        self
    }

    /// Queue in which recovery enqueues a job for work that is safe to retry. Default: none, the next claim does it.
    pub fn retry_queue(mut self, queue: impl Into<String>) -> Self {
        self.retry_queue = Some(queue.into());
        self
    }

    /// Number of attempts, recoveries included, after which recovery enqueues no further job. Default: 10.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Maximum number of earlier attempts that the history of an intent keeps. Default: 20.
    pub fn keep_attempts(mut self, attempts: u32) -> Self {
        self.keep_attempts = attempts;
        self
    }

    /// A note for readers of the contract.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// For one tenant only; a tenant's own contract goes before the general one.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }
}

/// The part of a contract that the SDK itself acts on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InForce {
    pub(crate) busy: Busy,
    pub(crate) wait_timeout: Duration,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
}
