//! Which errors end a relay or a consumer: only those that say that its configuration is wrong.

use pgonce::Error;

/// Whether retrying cannot help until an operator has changed something: the subscription does not exist or was evicted,
/// the schema is missing or of another version, rights are missing, a setting is out of range. Everything else is
/// retried for as long as it takes, known or not: a cancelled statement, a database that is renamed or restored, a
/// password that is being changed.
pub(crate) fn is_fatal(error: &Error) -> bool {
    matches!(error, Error::Schema(_) | Error::Invalid(_) | Error::Gone(_))
        || matches!(
            error.code(),
            "22023" | "23514" | "3F000" | "42501" | "42704" | "42883" | "42P01"
        )
}
