//! What can go wrong with a transaction, and whose fault it is.

use pgonce::Error;
use pgonce::retry::Class;

/// What went wrong, by what it says about the messages.
pub(super) enum Trouble {
    /// Nothing: the database is not there. Waited out, however long it takes.
    Away(Error),
    /// It may pass: tried again, but not for ever.
    Passing(Error),
    /// One of them does not fit.
    Blamed(Error),
    /// They are another worker's now.
    Fenced(Error),
    /// Whatever is tried, it will not go.
    Hopeless(Error),
}

/// What a handler said when it panicked.
pub(super) fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let said = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    let said = said.unwrap_or_else(|| "it did not say why".to_owned());
    Error::work(format!("the handler panicked: {said}"))
}

/// Trouble with a call of ours: never a message's fault.
pub(super) fn of_database(error: Error) -> Trouble {
    match error.class() {
        _ if matches!(error, Error::Fenced(_)) => Trouble::Fenced(error),
        Class::Retry | Class::RetryAfterDelay | Class::Ambiguous | Class::ClaimAgain => {
            Trouble::Away(error)
        }
        // It waited for a lock for longer than a statement may take, or a person ended it.
        _ if error.code() == "57014" => Trouble::Away(error),
        _ => Trouble::Hopeless(error),
    }
}

/// Trouble with what the handler did.
pub(super) fn of_handler(error: Error) -> Trouble {
    match error {
        Error::Failed(_) | Error::Work(_) => Trouble::Blamed(error),
        _ => match error.class() {
            Class::Retry | Class::RetryAfterDelay | Class::Ambiguous | Class::ClaimAgain => {
                Trouble::Passing(error)
            }
            _ => Trouble::Blamed(error),
        },
    }
}

/// Trouble with the end of the transaction: a fence of ours, or what the handler left to be found there.
pub(super) fn of_commit(error: Error) -> Trouble {
    match error {
        Error::Fenced(_) => Trouble::Fenced(error),
        // It swallowed an error of its own.
        _ if error.code() == "25P02" => Trouble::Blamed(error),
        _ if error.code() == "57014" => Trouble::Passing(error),
        other => of_handler(other),
    }
}
