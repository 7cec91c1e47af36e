//! The parts of pgonce's work, each with the rights that it needs and no more.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorDetail};

/// A part of pgonce's work that a role is granted by [`Migrator::grant`](super::Migrator::grant). A role may have
/// several.
///
/// ```
/// use pgonce::migrate::Part;
///
/// assert_eq!("relay".parse::<Part>()?, Part::Relay);
/// # Ok::<(), pgonce::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// A service: claims and settles intents, publishes events, accepts messages. It cannot change or delete what is
    /// finished, list keys or answers, or change contracts.
    App,
    /// A relay: reads the outbox and moves the lanes that it has leased.
    Relay,
    /// A consumer: accepts and applies messages, publishes events.
    Consumer,
    /// An operator: contracts, subscriptions, dead letters, retention. Reads everything and writes through functions.
    Operator,
    /// A viewer: backlogs and counts, no answers and no payloads.
    Viewer,
}

impl Part {
    /// Every part.
    pub const ALL: [Self; 5] = [
        Self::App,
        Self::Relay,
        Self::Consumer,
        Self::Operator,
        Self::Viewer,
    ];

    /// The name of the part in SQL and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::App => "app",
            Self::Relay => "relay",
            Self::Consumer => "consumer",
            Self::Operator => "operator",
            Self::Viewer => "viewer",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Part {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let known = Self::ALL.into_iter().find(|part| part.as_str() == name);
        known.ok_or_else(|| {
            Error::Invalid(ErrorDetail::new(
                "22023",
                format!("there is no part {name:?}"),
                "The parts are app, relay, consumer, operator and viewer.",
            ))
        })
    }
}
