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
        match (self.ran, self.lost, error) {
            // What is stored about the intent resolves it. Nothing else does: the holder (busy) or was faster (lost race,
            // fenced) may be that very try, still committing, and a claim may be refused (region, contract) before it is seen.
            (
                ..,
                error @ (Error::Refused(_)
                | Error::Failed(_)
                | Error::Gone(_)
                | Error::Uncertain(_)
                | Error::Answer(_)
                | Error::Sealed(_)),
            )
            | (None, None, error)
            // Leased work ran after that.
            | (Some(_), None, error @ Error::Work(_)) => error,
            // The one who holds it, or had the key with another request, came after work that the outside world may have seen.
            (Some(why), ..) | (None, Some(why), _) => Error::Uncertain(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorDetail;
    use crate::failure::Failure;

    /// Found by `pgonce storm --path slow-commit --driver tokio-postgres --fault
    /// c0:c22:drop-reply,c1:s11:second-client,c2:c11:drop-reply`: a try that lost the race to its own
    /// earlier commit reported that it did nothing.
    #[test]
    fn only_what_is_stored_resolves_a_lost_commit() {
        let end = |error| {
            let mut unresolved = UnresolvedCommit::default();
            unresolved.note(&Error::Uncertain("the reply was lost".into()));
            unresolved.or(error)
        };
        let problem = || ErrorDetail::new("P4010", "another attempt finished first", "");
        for error in [
            Error::LostRace(problem()),
            Error::Fenced(problem()),
            Error::Conflict(problem()),
            Error::WrongRegion(problem()),
            Error::Invalid(problem()),
            Error::Schema(problem()),
            Error::Cancelled,
        ] {
            assert!(matches!(end(error), Error::Uncertain(_)));
        }
        let refused = Error::Refused(Failure::permanent("no", "not this one"));
        assert!(matches!(end(refused), Error::Refused(_)));
    }

    /// Found by a storm with outages longer than leases: who had called out and lost the lease got *busy*, which says that
    /// nothing was done.
    #[test]
    fn leased_work_that_lost_its_lease_is_not_reported_as_never_begun() {
        let end = |error| {
            let ran = Some("the lease was lost".to_owned());
            let unresolved = UnresolvedCommit { ran, lost: None };
            unresolved.or(error)
        };
        let busy = Error::Busy {
            retry_after: Duration::ZERO,
            accepted: false,
        };
        let problem = || ErrorDetail::new("P4002", "the key was used with another request", "");
        for error in [
            busy,
            Error::Conflict(problem()),
            Error::WrongRegion(problem()),
            Error::Invalid(problem()),
            Error::Schema(problem()),
            Error::Cancelled,
        ] {
            assert!(matches!(end(error), Error::Uncertain(_)));
        }
        let refused = Error::Refused(Failure::permanent("no", "not this one"));
        assert!(matches!(end(refused), Error::Refused(_)));
    }
}
