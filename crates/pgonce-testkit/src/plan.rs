//! Faults as data: what is cut, where, and how to say it in a few letters.

mod fault;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

pub use self::fault::{Action, Fault, Trial, UnreadableFault};
use crate::wire::{Direction, Message};

/// A list of trials, and the seed that random ones were made from. It can be kept as JSON
/// (it is `Serialize` and `Deserialize`); one trial fits on a command line.
///
/// ```
/// use pgonce_testkit::{FaultPlan, Trial};
///
/// let plan = FaultPlan::random(42, 3, &pgonce_testkit::Spread::default());
/// assert_eq!(plan, FaultPlan::random(42, 3, &pgonce_testkit::Spread::default()));
///
/// let again: Trial = plan.trials[0].to_string().parse()?;
/// assert_eq!(again, plan.trials[0]);
///
/// let kept = serde_json::to_string(&plan)?;
/// assert_eq!(serde_json::from_str::<FaultPlan>(&kept)?, plan);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultPlan {
    /// What the random trials were made from; 0 where nothing was random.
    pub seed: u64,
    /// The trials, in order.
    pub trials: Vec<Trial>,
}

/// How far apart random faults are spread.
///
/// ```
/// use pgonce_testkit::{FaultPlan, Spread};
///
/// let spread = Spread { connections: 4, ..Spread::default() };
/// let plan = FaultPlan::random(7, 100, &spread);
/// assert!(plan.trials.iter().all(|trial| trial.faults[0].connection < 4));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Faults hit the connections below this number.
    pub connections: u64,
    /// Faults hit messages to the server below this number.
    pub to_server: u64,
    /// Faults hit messages to the client below this number.
    pub to_client: u64,
    /// What may happen; each is as likely as it is often in this list.
    pub actions: Vec<Action>,
}

impl Default for Spread {
    /// One connection, twenty messages each way, every way to cut.
    fn default() -> Self {
        Self {
            connections: 1,
            to_server: 20,
            to_client: 20,
            actions: vec![Action::CutBefore, Action::CutAfter, Action::DropReply],
        }
    }
}

impl FaultPlan {
    /// One trial for each message of a dry run and each of the actions that means something
    /// there: [`Action::DropReply`] only for messages to the server.
    pub fn every(transcript: &[Message], actions: &[Action]) -> Self {
        let trials = transcript.iter().flat_map(|message| {
            let fitting = actions.iter().copied().filter(|action| {
                *action != Action::DropReply || message.direction == Direction::ToServer
            });
            fitting.map(|action| Trial::from(Fault::at(message, action)))
        });
        Self {
            seed: 0,
            trials: trials.collect(),
        }
    }

    /// `count` trials of one fault each; the same seed makes the same plan.
    pub fn random(seed: u64, count: usize, spread: &Spread) -> Self {
        let mut chance = StdRng::seed_from_u64(seed);
        let trials = (0..count).map(|_| {
            let connection = chance.random_range(0..spread.connections.max(1));
            Trial::from(spread.fault(connection, &mut chance))
        });
        Self {
            seed,
            trials: trials.collect(),
        }
    }
}

impl Spread {
    /// How many messages of a direction faults are spread over.
    pub(crate) fn length(&self, direction: Direction) -> u64 {
        let below = match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        };
        below.max(1)
    }

    /// Some fault on this connection.
    pub(crate) fn fault(&self, connection: u64, chance: &mut StdRng) -> Fault {
        let direction = match chance.random_bool(0.5) {
            true => Direction::ToServer,
            false => Direction::ToClient,
        };
        let message = chance.random_range(0..self.length(direction));
        let action = match self.actions.len() {
            0 => Action::CutBefore,
            several => self.actions[chance.random_range(0..several)],
        };
        Fault {
            connection,
            direction,
            message,
            action,
        }
    }
}
