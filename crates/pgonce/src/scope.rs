//! A scope's contract: how long answers are kept, what a duplicate is told, what happens after.

use std::time::Duration;

use crate::driver::{Connection as _, Driver, Param, Statement};
use crate::lease::{interval, keep_unless_lost};
use crate::once::Once;
use crate::{Intent, Result};

/// What a duplicate is told while the first attempt is under way.
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
    /// It waits for a person; duplicates are told busy.
    Hold,
    /// It is refused for good as abandoned.
    Refuse,
}

/// A contract to write down with [`Once::define_scope`]. The database checks it.
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
    retention: Duration,
    lease: Duration,
    busy: Busy,
    wait_timeout: Duration,
    storage: Storage,
    after_expiry: AfterExpiry,
    stale: Stale,
    client_retry: Duration,
    redelivery: Duration,
    reconciliation: Duration,
    audit: Duration,
    note: Option<String>,
    tenant: String,
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
            note: None,
            tenant: String::new(),
        }
    }

    /// The usual length of a lease.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// What a duplicate is told meanwhile.
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

    /// Words for whoever reads the contract.
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

/// The part of a contract that the SDK itself acts on: how long a lease is, how a duplicate
/// is told to wait, and how long answers are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InForce {
    pub(crate) busy: Busy,
    pub(crate) wait_timeout: Duration,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
}

impl<D: Driver> Once<D> {
    /// Writes a scope's contract down, or changes it. [`crate::Error::Invalid`] names the rule that
    /// a contract breaks.
    pub async fn define_scope(&self, scope: &str, contract: &Contract) -> Result<()> {
        let statement = Statement {
            sql: format!(
                "select 'done' from {}.define_scope(p_scope => $1, p_retention => $2::text::interval, \
                 p_lease => $3::text::interval, p_busy => $4, p_wait_timeout => $5::text::interval, \
                 p_storage => $6, p_after_expiry => $7, p_tombstone_for => $8::text::interval, p_stale => $9, \
                 p_client_retry => $10::text::interval, p_redelivery => $11::text::interval, \
                 p_reconciliation => $12::text::interval, p_audit => $13::text::interval, p_note => $14, \
                 p_tenant => $15)",
                self.statements().schema
            )
            .into(),
            keep: false,
        };
        let tombstone = match contract.after_expiry {
            AfterExpiry::Gone(Some(length)) => Some(interval(length)),
            _ => None,
        };
        let [
            retention,
            lease,
            wait,
            client,
            redelivery,
            reconciliation,
            audit,
        ] = [
            contract.retention,
            contract.lease,
            contract.wait_timeout,
            contract.client_retry,
            contract.redelivery,
            contract.reconciliation,
            contract.audit,
        ]
        .map(interval);
        let params = [
            Some(scope),
            Some(&retention),
            Some(&lease),
            Some(match contract.busy {
                Busy::Reject => "reject",
                Busy::Wait => "wait",
                Busy::Accept => "accept",
            }),
            Some(&wait),
            Some(match contract.storage {
                Storage::Answer => "answer",
                Storage::Reference => "reference",
                Storage::Status => "status",
                Storage::Error => "error",
            }),
            Some(match contract.after_expiry {
                AfterExpiry::Rerun => "rerun",
                AfterExpiry::Gone(_) => "gone",
            }),
            tombstone.as_deref(),
            Some(match contract.stale {
                Stale::Takeover => "takeover",
                Stale::Hold => "hold",
                Stale::Refuse => "refuse",
            }),
            Some(&client),
            Some(&redelivery),
            Some(&reconciliation),
            Some(&audit),
            contract.note.as_deref(),
            Some(&contract.tenant),
        ]
        .map(Param::Text);
        let mut session = self.driver().acquire().await?;
        let defined = session.query(&statement, &params).await.map(drop);
        keep_unless_lost(session, &defined);
        self.shared.contracts.forget_all();
        self.shared.retentions.forget_all();
        defined
    }

    /// How long the answer to an intent is kept, by the contract in force for its scope; for those
    /// who tell their clients. It is asked for once in a while: a change of the contract may take two
    /// seconds to be seen here.
    ///
    /// ```no_run
    /// # async fn example<D: pgonce::driver::Driver>(once: pgonce::Once<D>, intent: pgonce::Intent)
    /// # -> Result<(), pgonce::Error> {
    /// let days = once.retention_of(&intent).await?.as_secs() / 86_400;
    /// println!("you may repeat this request for {days} days");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn retention_of(&self, intent: &Intent) -> Result<Duration> {
        let contract = self.contract(intent.scope(), intent.tenant_name()).await?;
        Ok(contract.retention)
    }

    /// The contract in force for a scope.
    pub(crate) async fn contract(&self, scope: &str, tenant: &str) -> Result<InForce> {
        if let Some(known) = self.shared.contracts.get(tenant, scope) {
            return Ok(known);
        }
        let mut session = self.driver().acquire().await?;
        let params = [Param::Text(Some(tenant)), Param::Text(Some(scope))];
        let rows = session.query(&self.statements().contract, &params).await;
        keep_unless_lost(session, &rows);
        let row = rows?.into_iter().next().unwrap_or_default();
        let cell = |i: usize| row.get(i).and_then(|c| c.as_deref());
        let millis = |i: usize| {
            Duration::from_millis(cell(i).and_then(|c| c.parse().ok()).unwrap_or_default())
        };
        let contract = InForce {
            busy: match cell(0) {
                Some("wait") => Busy::Wait,
                Some("accept") => Busy::Accept,
                _ => Busy::Reject,
            },
            wait_timeout: millis(1),
            lease: millis(2),
            retention: millis(3),
        };
        self.shared.contracts.put(tenant, scope, contract);
        Ok(contract)
    }
}
