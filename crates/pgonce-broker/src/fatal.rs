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

/// Whether prepared statements are lost or taken, as behind a pooler that gives each transaction another session. A
/// session that has lost them counts as gone, so its error says so only in its text.
pub(crate) fn lost_its_statements(error: &Error) -> bool {
    error.code() == "42P05"
        || error.code() == "26000"
        || matches!(error, Error::Disconnected(why) if why.ends_with("[26000]"))
}

#[cfg(test)]
mod tests {
    use pgonce::ErrorDetail;

    use super::*;

    fn database(code: &'static str) -> Error {
        Error::Database(ErrorDetail {
            code: code.into(),
            message: "struck".into(),
            detail: None,
            hint: None,
            constraint: None,
        })
    }

    #[test]
    fn only_a_wrong_configuration_is_fatal() {
        for code in [
            "57014", "3D000", "26000", "28P01", "28000", "XX000", "XX123", "53300", "25006",
            "40001", "55000", "55P03", "57P01", "0A000",
        ] {
            assert!(!is_fatal(&database(code)), "{code}");
        }
        assert!(!is_fatal(&Error::Disconnected("gone".to_owned())));
        for code in ["42704", "42501", "42P01", "22023"] {
            assert!(is_fatal(&database(code)), "{code}");
        }
    }

    #[test]
    fn a_session_that_lost_its_statements_differs_from_one_that_is_gone() {
        let stale = "prepared statement \"s1\" does not exist [26000]";
        assert!(lost_its_statements(&Error::Disconnected(stale.to_owned())));
        assert!(lost_its_statements(&database("42P05")));
        assert!(!lost_its_statements(&Error::Disconnected(
            "connection closed".to_owned()
        )));
        assert!(!lost_its_statements(&database("57014")));
    }
}
