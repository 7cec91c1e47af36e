//! The ways through the protocol that are stormed, one after the other.

use std::time::Duration;

use pgonce::scope::{AfterExpiry, Busy, Contract};
use serde_json::{Value, json};

use super::config::Driver;

/// How long leases are at first: short, since a client that comes after a cut must wait for their end. A
/// configuration takes longer ones when a walk without a fault lost its lease: the machine is busy.
pub(super) const LEASE: Duration = Duration::from_millis(80);

/// A way through the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Path {
    /// claim, effect, acknowledgement in one transaction
    AtomicFresh,
    /// the same, declared as the first attempt
    AtomicOptimistic,
    /// the same, with the SDK's own retries over the broken wire
    AtomicRetried,
    /// the same, and the commit takes a while: a retry meets the attempt before
    SlowCommit,
    /// claim, effect, acknowledgement in one statement
    OneStatement,
    /// the same, declared as the first attempt
    StatementFirst,
    /// one transaction, and duplicates through a cache that is flushed and lied to
    Cached,
    /// the work refuses, final, after it has written
    AtomicRefuse,
    /// the work fails, retryable, after it has written; then a retry
    AtomicFail,
    /// one transaction over a lease that ran out
    AtomicTakeover,
    /// a claim over a finished intent
    ReplayClaim,
    /// a look at a finished intent
    ReplayAnswer,
    /// a finished intent's key with another request
    Conflict,
    /// somebody else holds it in an open transaction
    Busy,
    /// the same, and the contract says wait
    Wait,
    /// a claim inside the caller's own transaction
    Joined,
    /// lease, a call to the outside, success
    LeaseSucceed,
    /// the same with heartbeats before and after the call
    LeaseHeartbeat,
    /// lease, then effect and success in one fenced transaction
    LeaseBegin,
    /// the same over a lease that ran out, whose holder comes back at the end
    LeaseTakeover,
    /// lease, retryable failure; then a retry
    LeaseFail,
    /// lease, given back; then a retry
    LeaseRelease,
    /// lease, final failure
    LeaseRefuse,
    /// the SDK's own loop around a lease
    LeaseRun,
    /// a recorded call to a provider that honours keys, sent again where its outcome is not known
    ExternalKeyed,
    /// a recorded call to a provider without keys, which is looked up and never sent again
    ExternalLookUp,
    /// a call whose answer was lost is looked up by a reconciler, which ends the command
    ExternalReconcile,
    /// work whose holder vanished, with its effect or without, is decided by its probe
    Recovery,
    /// claim, effect, event, acknowledgement in one transaction
    Publish,
    /// claim, effect, a group of the ledger, acknowledgement in one transaction
    Ledger,
    /// the same with groups that are held, posted, voided and undone
    LedgerSettle,
    /// claim, effect, a state change of its entity, acknowledgement in one transaction
    Transition,
    /// the same with a timer, which fires over the wire
    TransitionTimer,
    /// claim, effect, insert or fetch of a row with a natural key, acknowledgement in one transaction
    Unique,
    /// the same with a row that is changed once
    UpdateOnce,
    /// the same with another system's name for it
    Refer,
    /// removal of expired records while a retry comes
    Purge,
    /// a relay claims lanes, reads windows while somebody commits late, delivers and keeps its place
    RelayWindow,
    /// a relay delivers, one event fails, retryable; it settles, tries again and settles
    RelaySettle,
    /// a relay delivers, one event is poison; it parks the subject
    RelayPark,
    /// an operator redrives a parked subject, and a relay delivers it
    RelayRedrive,
    /// partitions of the log are made ahead, and dropped when everybody is past them
    RelayMaintain,
    /// a message is accepted in the caller's own transaction, with its effect
    InboxAccept,
    /// a batch of messages is accepted in the caller's own transaction, with its effects
    InboxBatch,
    /// a consumer marks a batch of messages and applies what is new
    InboxMark,
    /// markers and effect of a batch are one statement
    InboxStatement,
    /// a consumer takes a partition, applies two batches and moves its cursor with each
    InboxCursor,
    /// messages are stored, claimed, fail, retryable, are claimed again and finished
    InboxStored,
    /// events are applied to a projection
    InboxProject,
    /// a projection that is wrong is made anew and exchanged
    InboxRebuild,
    /// jobs are enqueued, claimed, retried and finished with their effects
    QueueWork,
    /// rows of a stream are passed to a function, two in a transaction
    Import,
    /// installation into an empty schema
    Migrate,
}

impl Path {
    /// All that make attempts at intents.
    pub(super) fn of_intents() -> impl Iterator<Item = Self> {
        use clap::ValueEnum as _;
        Self::value_variants()
            .iter()
            .copied()
            .filter(|path| path.is_of_intents())
    }

    /// All that move events.
    pub(super) fn of_relays() -> impl Iterator<Item = Self> {
        use clap::ValueEnum as _;
        Self::value_variants()
            .iter()
            .copied()
            .filter(|path| path.is_of_relays())
    }

    /// All that apply messages.
    pub(super) fn of_consumers() -> impl Iterator<Item = Self> {
        use clap::ValueEnum as _;
        Self::value_variants()
            .iter()
            .copied()
            .filter(|path| path.is_of_consumers())
    }

    pub(super) fn is_of_relays(self) -> bool {
        self.name().starts_with("relay-")
    }

    pub(super) fn is_of_consumers(self) -> bool {
        self.name().starts_with("inbox-") || matches!(self, Self::QueueWork | Self::Import)
    }

    /// Whether the driver has what the path needs: imports are COPY of tokio-postgres.
    pub(super) fn is_possible_with(self, driver: Driver) -> bool {
        self != Self::Import || driver == Driver::TokioPostgres
    }

    pub(super) fn is_of_intents(self) -> bool {
        !self.is_of_relays() && !self.is_of_consumers() && self != Self::Migrate
    }

    pub(super) fn name(self) -> String {
        use clap::ValueEnum as _;
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    pub(super) fn scope(self) -> String {
        format!("storm.{}", self.name())
    }

    /// The scope's contract with leases of this length, where the usual one will not do.
    pub(super) fn contract(self, lease: Duration) -> Option<Contract> {
        let day = Duration::from_secs(86_400);
        match self {
            Self::Wait => Some(
                Contract::keep(day)
                    .busy(Busy::Wait)
                    .wait_timeout(Duration::from_secs(5)),
            ),
            Self::LeaseRun
            | Self::ExternalKeyed
            | Self::ExternalLookUp
            | Self::ExternalReconcile => Some(Contract::keep(day).lease(lease)),
            Self::Purge => {
                Some(Contract::keep(Duration::from_millis(1)).after_expiry(AfterExpiry::Gone(None)))
            }
            _ => None,
        }
    }

    /// The effect is made outside of the attempt's transaction, in a system that knows the key.
    pub(super) fn is_outside(self) -> bool {
        matches!(
            self,
            Self::LeaseSucceed
                | Self::LeaseHeartbeat
                | Self::LeaseFail
                | Self::LeaseRelease
                | Self::LeaseRun
                | Self::Recovery
        ) || self.is_external()
    }

    /// The effect is made by a recorded call to a provider.
    pub(super) fn is_external(self) -> bool {
        self.name().starts_with("external-")
    }

    /// Second clients may have to wait for the end of a lease.
    pub(super) fn is_leased(self) -> bool {
        self.name().starts_with("lease")
            || self.is_external()
            || matches!(self, Self::AtomicTakeover | Self::Recovery)
    }

    /// What the last answer must be, if it is not success.
    pub(super) fn ends_with(self) -> Option<&'static str> {
        match self {
            Self::Conflict => Some("P4002"),
            Self::AtomicRefuse | Self::LeaseRefuse => Some("P4030"),
            Self::Purge => Some("P4031"),
            _ => None,
        }
    }

    /// The outcome of the first client where nothing is broken: a path that is not walked
    /// proves nothing.
    pub(super) fn calm_code(self) -> Option<&'static str> {
        match self {
            Self::Busy => Some("P4029"),
            Self::AtomicFail | Self::LeaseFail => Some("bank_closed"),
            Self::LeaseRelease => Some("released"),
            other => other.ends_with().filter(|_| other != Self::Purge),
        }
    }

    /// The request of an intent.
    pub(super) fn payload(number: u64) -> Value {
        json!({ "amount": number % 97 + 1 })
    }

    /// Another request under the same key.
    pub(super) fn other_payload(number: u64) -> Value {
        json!({ "amount": number % 97 + 1001 })
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::Path;

    #[test]
    fn every_path_is_in_the_book() {
        let page = include_str!("../../../../docs/src/explanation/how-we-know.md");
        for path in Path::value_variants() {
            let name = path.name();
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
