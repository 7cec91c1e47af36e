use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::wire::{Direction, Message};

/// What happens at the chosen message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The message is not delivered; both ends see a reset connection.
    CutBefore,
    /// The message is delivered, then both ends see the connection closed. Whether the server
    /// still acts on it is the server's race, as in real life.
    CutAfter,
    /// The message is delivered, all that the server says from then on is swallowed, and when
    /// it has nothing more to do the connection is closed: the work is done, and the client
    /// does not know. On a message to the client: that one and the rest of the answer are
    /// swallowed.
    DropReply,
    /// The message waits, and all behind it, until it is released.
    Hold,
    /// Like [`Action::Hold`]; the runner of the trial lets a second client go through the same
    /// path meanwhile, and then releases the first.
    SecondClientBetween,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::CutBefore,
        Self::CutAfter,
        Self::DropReply,
        Self::Hold,
        Self::SecondClientBetween,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::CutBefore => "cut-before",
            Self::CutAfter => "cut-after",
            Self::DropReply => "drop-reply",
            Self::Hold => "hold",
            Self::SecondClientBetween => "second-client",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.word())
    }
}

/// One fault. Its text, `c0:s3:cut-before`, names connection 0, message 3 on its way to the
/// server (`c3` would be on its way to the client), and the action.
///
/// ```
/// use pgonce_testkit::{Action, Direction, Fault};
///
/// let fault: Fault = "c0:s3:cut-before".parse()?;
/// assert_eq!(fault.direction, Direction::ToServer);
/// assert_eq!((fault.connection, fault.message), (0, 3));
/// assert_eq!(fault.action, Action::CutBefore);
/// # Ok::<(), pgonce_testkit::UnreadableFault>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// Which connection, in the order in which the proxy accepts them, from 0.
    pub connection: u64,
    /// Which way the message travels.
    pub direction: Direction,
    /// Which message that way, from 0, counted after the session was ready for its first query:
    /// the number does not depend on how the client logs in.
    pub message: u64,
    /// What happens there.
    pub action: Action,
}

impl Fault {
    /// A fault at a message that a dry run has seen.
    pub fn at(message: &Message, action: Action) -> Self {
        Self {
            connection: message.connection,
            direction: message.direction,
            message: message.number,
            action,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = self.direction.letter();
        write!(
            out,
            "c{}:{letter}{}:{}",
            self.connection, self.message, self.action
        )
    }
}

/// A text that names no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} names no fault. Write c<connection>:<s or c><message>:<action>, such as \
     c0:s3:cut-before (s: to the server, c: to the client), with one of the actions {}; put a comma \
     between several",
    Action::ALL.map(Action::word).join(", ")
)]
pub struct UnreadableFault {
    text: String,
}

impl FromStr for Fault {
    type Err = UnreadableFault;

    fn from_str(text: &str) -> Result<Self, UnreadableFault> {
        let read = || {
            let mut parts = text.trim().split(':');
            let connection = number(parts.next()?.strip_prefix('c')?)?;
            let place = parts.next()?;
            let (direction, message) = match place.strip_prefix('s') {
                Some(message) => (Direction::ToServer, message),
                None => (Direction::ToClient, place.strip_prefix('c')?),
            };
            let message = number(message)?;
            let word = parts.next()?;
            let action = Action::ALL
                .into_iter()
                .find(|action| action.word() == word)?;
            let fault = Self {
                connection,
                direction,
                message,
                action,
            };
            parts.next().is_none().then_some(fault)
        };
        read().ok_or_else(|| UnreadableFault {
            text: text.to_owned(),
        })
    }
}

/// Digits only: the standard library would also take a sign.
fn number(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

/// One run of a path, with its faults; none is a dry run. Its text is that of its faults with
/// commas between.
///
/// ```
/// use pgonce_testkit::Trial;
///
/// // The reply to the first connection's work is lost, then the second connection as well.
/// let trial: Trial = "c0:s4:drop-reply,c1:c0:cut-before".parse()?;
/// assert_eq!(trial.faults.len(), 2);
/// assert_eq!(trial.to_string(), "c0:s4:drop-reply,c1:c0:cut-before");
/// # Ok::<(), pgonce_testkit::UnreadableFault>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Trial {
    /// The faults; each happens at most once.
    pub faults: Vec<Fault>,
}

impl From<Fault> for Trial {
    fn from(fault: Fault) -> Self {
        Self {
            faults: vec![fault],
        }
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(out, "{comma}{fault}")?;
        }
        Ok(())
    }
}

impl FromStr for Trial {
    type Err = UnreadableFault;

    fn from_str(text: &str) -> Result<Self, UnreadableFault> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let faults = text.split(',').map(str::parse);
        Ok(Self {
            faults: faults.collect::<Result<_, _>>()?,
        })
    }
}

impl From<Trial> for String {
    fn from(trial: Trial) -> Self {
        trial.to_string()
    }
}

impl TryFrom<String> for Trial {
    type Error = UnreadableFault;

    fn try_from(text: String) -> Result<Self, UnreadableFault> {
        text.parse()
    }
}
