//! State machines: entities moved by commands, each applied or rejected once.
//!
//! Which states may follow which is data ([`Once::define_transition`]). A [`Command`] has an id and may name
//! the state or version that it expects; sent again it gets the same answer.

use std::time::Duration;

use serde::Serialize;

use crate::call::{Args, Sql, unreadable};
use crate::driver::{Connection, Driver};
use crate::error::Result;
use crate::once::Once;
use crate::tx::Tx;

static DEFINE: Sql = Sql::seldom("select 'done' from pgonce.define_transition($1, $2, $3, $4, $5)");
static MOVE: Sql = Sql::kept(
    "select outcome, made_now::text, state, version::text \
     from pgonce.transition($1, $2, $3, $4, $5, $6::text::bigint, $7, $8)",
);
static SET_TIMER: Sql = Sql::kept(
    "select made_now::text from pgonce.set_timer($1, $2, $3, $4, $5::text::interval, $6)",
);
static FIRE: Sql =
    Sql::kept("select pg_catalog.count(*)::text from pgonce.fire_timers($1::text::integer)");

/// A transition that a state machine allows.
///
/// ```
/// use pgonce::transition::Rule;
///
/// let opens = Rule::new("case", "", "open");
/// let closes = Rule::new("case", "open", "closed").guard("public.may_close").topic("cases");
/// # let _ = (opens, closes);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    machine: String,
    from: String,
    to: String,
    guard: Option<String>,
    topic: Option<String>,
}

impl Rule {
    /// From one state to another; from `""` creates an entity.
    pub fn new(machine: impl Into<String>, from: impl Into<String>, to: impl Into<String>) -> Self {
        Self {
            machine: machine.into(),
            from: from.into(),
            to: to.into(),
            guard: None,
            topic: None,
        }
    }

    /// A SQL function of (tenant text, entity text, data jsonb) that must return true. It runs with the rights of the role that
    /// sends the command, and belongs to that role or a member of it, to the owner of pgonce or to a superuser. Default: none.
    #[must_use]
    pub fn guard(mut self, function: impl Into<String>) -> Self {
        self.guard = Some(function.into());
        self
    }

    /// The topic of the event that each such transition publishes. Default: none.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }
}

/// A command to move an entity to a state.
///
/// ```
/// use pgonce::transition::Command;
///
/// let close = Command::new("case", "7", "closed", "click-12").expected_state("open");
/// # let _ = close;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    machine: String,
    entity: String,
    to: String,
    id: String,
    expected_state: Option<String>,
    expected_version: Option<i64>,
    data: Option<String>,
}

impl Command {
    /// A command with its id, which expects nothing.
    pub fn new(
        machine: impl Into<String>,
        entity: impl Into<String>,
        to: impl Into<String>,
        id: impl Into<String>,
    ) -> Self {
        Self {
            machine: machine.into(),
            entity: entity.into(),
            to: to.into(),
            id: id.into(),
            expected_state: None,
            expected_version: None,
            data: None,
        }
    }

    /// The state that the entity must be in. Default: any from which a rule leads on.
    #[must_use]
    pub fn expected_state(mut self, state: impl Into<String>) -> Self {
        self.expected_state = Some(state.into());
        self
    }

    /// The version that the entity must have. Default: any.
    #[must_use]
    pub fn expected_version(mut self, version: i64) -> Self {
        self.expected_version = Some(version);
        self
    }

    /// What the guard, the event and the timeline get. Default: nothing.
    pub fn data(mut self, data: &(impl Serialize + ?Sized)) -> Result<Self> {
        self.data = Some(serde_json::to_string(data)?);
        Ok(self)
    }
}

/// What became of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The entity is in the state.
    Applied,
    /// No rule leads from where the entity is to the state.
    IncompatibleState,
    /// The entity was not in the expected state or version.
    Stale,
    /// The entity was in the expected state and version when the command began; another command came first.
    LostRace,
    /// The guard said no.
    Refused,
}

/// The answer to a command, the same each time that it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "it says whether the entity was moved"]
#[non_exhaustive]
pub struct Moved {
    /// Whether the command was applied, or why not.
    pub outcome: Outcome,
    /// Whether this call decided it; else it was decided before.
    pub new: bool,
    /// The state after the command, or the one that it met; empty where there was no entity.
    pub state: String,
    /// The version after the command, or the one that it met.
    pub version: i64,
}

impl<C: Connection> Tx<C> {
    /// Moves an entity of this transaction's tenant. A command that is rejected is an answer, not an error, and
    /// is recorded when the transaction commits. `P4080`: the command was sent before with other content.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(tx: &mut pgonce::sqlx::Tx) -> Result<(), pgonce::Error> {
    /// use pgonce::transition::{Command, Outcome};
    ///
    /// let close = Command::new("case", "7", "closed", "click-12").expected_state("open");
    /// let moved = tx.transition(&close).await?;
    /// assert_eq!(moved.outcome, Outcome::Applied);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transition(&mut self, command: &Command) -> Result<Moved> {
        let tenant = self.shared_tenant().unwrap_or_default();
        let args = Args::texts([&command.machine, &command.entity, &command.to, &command.id])
            .text(command.expected_state.as_deref())
            .int(command.expected_version)
            .json(command.data.as_deref())
            .text(&*tenant);
        let mut row = self.call(&MOVE, args).await?.one()?;
        Ok(Moved {
            outcome: match &*row.text()? {
                "applied" => Outcome::Applied,
                "incompatible_state" => Outcome::IncompatibleState,
                "stale" => Outcome::Stale,
                "lost_race" => Outcome::LostRace,
                "refused" => Outcome::Refused,
                _ => return Err(unreadable()),
            },
            new: row.bool()?,
            state: row.text()?,
            version: row.get()?,
        })
    }

    /// Starts a timer that moves an entity when it is due, unless one of this kind is active. Returns whether
    /// it was started. It ends when the entity leaves its state.
    pub async fn set_timer(
        &mut self,
        machine: &str,
        entity: &str,
        kind: &str,
        to: &str,
        after: Duration,
    ) -> Result<bool> {
        let tenant = self.shared_tenant().unwrap_or_default();
        let args = Args::texts([machine, entity, kind, to])
            .interval(after)
            .text(&*tenant);
        self.call(&SET_TIMER, args).await?.one()?.bool()
    }
}

impl<D: Driver> Once<D> {
    /// Allows a transition; again, it changes guard and topic.
    pub async fn define_transition(&self, rule: &Rule) -> Result<()> {
        let args = Args::texts([&rule.machine, &rule.from, &rule.to])
            .text(rule.guard.as_deref())
            .text(rule.topic.as_deref());
        self.caller().write(&DEFINE, args).await.map(drop)
    }

    /// Lets due timers move their entities, each once, and of an entity one at a call. Returns how many fired.
    /// Call it as often as lateness hurts, from as many processes as you like.
    pub async fn fire_timers(&self, limit: u32) -> Result<u64> {
        let args = Args::new().int(i64::from(limit));
        self.caller().write(&FIRE, args).await?.one()?.get()
    }
}
