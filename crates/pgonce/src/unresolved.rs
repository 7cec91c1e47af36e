//! What earlier tries of a command may have done, for the answer when the last one ends.

use crate::error::Error;

/// What is not known of earlier tries, and why.
#[derive(Default)]
pub(crate) struct UnresolvedCommit {
    /// The reply to a commit was lost.
    pub(crate) lost: Option<String>,
    /// Leased work ended without a record of its own.
    pub(crate) ran: Option<String>,
}

impl UnresolvedCommit {
    pub(crate) fn note(&mut self, error: &Error) {
        if let Error::Uncertain(why) = error {
            self.lost = Some(why.clone());
        }
    }

    /// What to end with: that the last try did nothing says nothing about the one before.
    pub(crate) fn or(self, error: Error) -> Error {
        // The one who holds it, or had the key with another request, came after work that the outside world may have seen.
        if let (
            Some(why),
            Error::Disconnected(_)
            | Error::Database(_)
            | Error::Cancelled
            | Error::Busy { .. }
            | Error::Conflict(_),
        ) = (&self.ran, &error)
        {
            return Error::Uncertain(why.clone());
        }
        match (self.lost, error) {
            // What is stored about the intent resolves it. Nothing else does: the holder
            // (busy) or was faster (lost race, fenced) may be that very try, still committing.
            (
                Some(why),
                Error::Disconnected(_)
                | Error::Cancelled
                | Error::Busy { .. }
                | Error::Database(_)
                | Error::LostRace(_)
                | Error::Fenced(_)
                | Error::Work(_),
            ) => Error::Uncertain(why),
            (_, error) => error,
        }
    }
}
