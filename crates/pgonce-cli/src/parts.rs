//! Tasks that should run on beside each other, such as relays or consumers.

use std::fmt;

use tokio::task::JoinSet;

use crate::exit::{self, CliError, Result};

/// Tasks of one kind, each with its name.
pub(crate) struct Parts<T> {
    kind: &'static str,
    pub(crate) running: JoinSet<(String, Result<T>)>,
    first_error: Option<CliError>,
}

impl<T: Send + 'static> Parts<T> {
    /// Without tasks. `kind` stands before their names, such as "the relay of".
    pub(crate) fn new(kind: &'static str) -> Self {
        Self {
            kind,
            running: JoinSet::new(),
            first_error: None,
        }
    }

    /// Waits until one has ended that should run, and says why.
    pub(crate) async fn failed(&mut self) -> String {
        let kind = self.kind;
        let (what, error) = match self.running.join_next().await {
            None => std::future::pending().await,
            Some(Ok((name, Ok(_)))) => (format!("{kind} {name} has ended"), None),
            Some(Ok((name, Err(error)))) => {
                let what = format!("{kind} {name} cannot go on: {}", error.words().0);
                (what, Some(error))
            }
            Some(Err(panicked)) => (format!("{kind} one has ended: {panicked}"), None),
        };
        self.first_error = self.first_error.take().or(error);
        what
    }

    /// When all of them have ended. The first error counts.
    pub(crate) async fn ended(mut self) -> Result {
        let mut first_error = self.first_error.map_or(Ok(()), Err);
        while let Some(ended) = self.running.join_next().await {
            let ended = ended.map_err(|panicked| {
                CliError::new(exit::FAILED, panicked.to_string(), "Please report it.")
            });
            first_error = first_error.and(ended.and_then(|(_, ended)| ended.map(drop)));
        }
        first_error
    }
}

impl<T> fmt::Debug for Parts<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
