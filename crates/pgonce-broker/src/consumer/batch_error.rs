//! Why a transaction of a consumer failed, by what that says about its messages.

use pgonce::Error;
use pgonce::retry::Class;

use crate::fatal::is_fatal;
use crate::panics::panic_text;

/// Why a transaction failed, by what that says about its messages.
pub(super) enum BatchError {
    /// Nothing about the messages: the database is unavailable. Retried however long it takes.
    Database(Error),
    /// Nothing about the messages: what the handler calls is unavailable. They are given back.
    Unreachable(Error),
    /// A transient error of the work: retried a few times.
    Transient(Error),
    /// One of the messages cannot be applied.
    Message(Error),
    /// Another worker has the messages now, or the database was taken back.
    Fenced(Error),
    /// Retrying cannot help: the configuration or the installation is wrong.
    Fatal(Error),
}

/// The error of a handler that panicked.
pub(super) fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    Error::work(format!("the handler panicked: {}", panic_text(panic)))
}

/// Whether the database can never take a value, such as one with a character that its encoding lacks. Values are the message's; a
/// length of time that does not fit is the contract's.
pub(super) fn is_unwritable(error: &Error) -> bool {
    let code = error.code();
    !["22023", "22008"].contains(&code) && ["22", "54"].iter().any(|class| code.starts_with(class))
}

/// An error of a call of ours: never a message's fault, unless it cannot be written down.
pub(super) fn of_database(error: Error) -> BatchError {
    match error {
        Error::Fenced(_) => BatchError::Fenced(error),
        _ if is_fatal(&error) => BatchError::Fatal(error),
        _ if is_unwritable(&error) => BatchError::Message(error),
        _ => BatchError::Database(error),
    }
}

/// An error of a call of ours that names messages. How long a name may be is counted in the server's encoding: one of them may not
/// fit (`22023`).
pub(super) fn of_names(error: Error) -> BatchError {
    match error.code() {
        "22023" => BatchError::Message(error),
        _ => of_database(error),
    }
}

/// An error of what the handler did.
pub(super) fn of_handler(error: Error) -> BatchError {
    match error {
        Error::Failed(_) | Error::Work(_) => BatchError::Message(error),
        _ => match error.class() {
            Class::Retry | Class::RetryAfterDelay | Class::Ambiguous | Class::ClaimAgain => {
                BatchError::Transient(error)
            }
            _ => BatchError::Message(error),
        },
    }
}

/// An error of what the handler called, outside of a transaction.
pub(super) fn of_call(error: Error) -> BatchError {
    match error {
        Error::Disconnected(_) => BatchError::Unreachable(error),
        _ => BatchError::Message(error),
    }
}

/// An error of the end of the transaction: a fence of ours, or what the handler left to be found there.
pub(super) fn of_commit(error: Error) -> BatchError {
    match error {
        Error::Fenced(_) => BatchError::Fenced(error),
        // The handler ignored an error of its own statement.
        _ if error.code() == "25P02" => BatchError::Message(error),
        _ if error.code() == "57014" => BatchError::Transient(error),
        other => of_handler(other),
    }
}
