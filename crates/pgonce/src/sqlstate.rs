//! The one table that says, for each SQLSTATE, what a caller does next.
//!
//! SDK, CLI and documentation read this table; none keeps a list of its own.

use std::fmt;

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// Nothing was committed and the cause passes: run the whole transaction again.
    Retry,
    /// As [`Class::Retry`], but not at once: somebody holds it, or the server is short of something.
    RetryAfterDelay,
    /// What this attempt believed is no longer true: roll back and claim again. The claim says
    /// what is true now, often a replay.
    ClaimAgain,
    /// The code alone does not decide; look at the constraint with
    /// [`classify_violation`](crate::unique::classify_violation).
    Classify,
    /// The name was used before for something else: the caller has to choose.
    Conflict,
    /// The same try would end the same way: report it.
    Final,
    /// It may or may not have happened: claim again to learn which, never guess.
    Ambiguous,
}

impl Class {
    /// The class in lower case, for logs, metrics and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::RetryAfterDelay => "retry_after_delay",
            Self::ClaimAgain => "claim_again",
            Self::Classify => "classify",
            Self::Conflict => "conflict",
            Self::Final => "final",
            Self::Ambiguous => "ambiguous",
        }
    }

    /// Whether nothing was committed and running the transaction again is worth it.
    ///
    /// [`Class::Ambiguous`] is not among them: something may have been committed, so only work
    /// that claims its intent first may be run again.
    pub const fn is_safe_to_rerun(self) -> bool {
        matches!(self, Self::Retry | Self::RetryAfterDelay | Self::ClaimAgain)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The SQLSTATE of five characters, or the two that a group of them starts with.
    pub code: &'static str,
    /// Name of the code: PostgreSQL's, or ours for codes that start with `P4`.
    pub name: &'static str,
    /// What to do about it.
    pub class: Class,
    /// The same in words.
    pub advice: &'static str,
}

const fn entry(
    code: &'static str,
    name: &'static str,
    class: Class,
    advice: &'static str,
) -> Entry {
    Entry {
        code,
        name,
        class,
        advice,
    }
}

/// Every code with a line of its own, sorted by code.
#[rustfmt::skip]
pub const TABLE: &[Entry] = &[
    entry("08000", "connection_exception", Class::Retry, "Connect again and run the whole transaction again."),
    entry("08003", "connection_does_not_exist", Class::Retry, "Connect again and run the whole transaction again."),
    entry("08006", "connection_failure", Class::Retry, "The connection broke before a commit was sent: run the whole transaction again."),
    entry("08007", "transaction_resolution_unknown", Class::Ambiguous, "The reply to the commit was lost: claim again with the same key, the claim knows."),
    entry("22023", "invalid_parameter_value", Class::Final, "Correct the input; the message names the field and its limit."),
    entry("22030", "answer_does_not_fit", Class::Final, "The answer is not JSON, or not of the type that was asked for: correct the type."),
    entry("23502", "not_null_violation", Class::Final, "A value is missing: correct the request or the handler."),
    entry("23503", "foreign_key_violation", Class::Final, "What it refers to does not exist: refuse the request."),
    entry("23505", "unique_violation", Class::Classify, "Look at the constraint: lost race, business duplicate or bug."),
    entry("23514", "check_violation", Class::Final, "The value breaks a rule of the table: refuse the request."),
    entry("25006", "read_only_sql_transaction", Class::Retry, "This may be a former primary: connect again and run the whole transaction again."),
    entry("25P02", "in_failed_sql_transaction", Class::ClaimAgain, "An earlier error of this transaction was ignored: roll back, claim again, and look for that first error."),
    entry("25P03", "idle_in_transaction_session_timeout", Class::Retry, "The server rolled back a transaction that stood still: run it again, and keep slow work out of it."),
    entry("25P04", "transaction_timeout", Class::Retry, "The server rolled back a transaction that took too long: run it again, and keep slow work out of it."),
    entry("2D000", "invalid_transaction_termination", Class::Final, "The transaction of the attempt was ended by hand: never send COMMIT or ROLLBACK on its connection."),
    entry("3F000", "invalid_schema_name", Class::Final, "The schema does not exist: run `pgonce migrate up`."),
    entry("40001", "serialization_failure", Class::Retry, "Run the whole transaction again."),
    entry("40003", "statement_completion_unknown", Class::Ambiguous, "Whether it happened is not known: claim again with the same key."),
    entry("40P01", "deadlock_detected", Class::Retry, "Run the whole transaction again; lock rows in one order."),
    entry("42883", "undefined_function", Class::Final, "The function does not exist: run `pgonce migrate up`, or correct the types of the arguments."),
    entry("42P01", "undefined_table", Class::Final, "The table does not exist: run `pgonce migrate up`."),
    entry("53300", "too_many_connections", Class::RetryAfterDelay, "Wait and connect again; use a pool with a limit."),
    entry("55P03", "lock_not_available", Class::RetryAfterDelay, "Somebody holds the lock: wait and run the whole transaction again."),
    entry("57014", "query_canceled", Class::Final, "It was cancelled or ran into a timeout: find out why before the next try."),
    entry("57P01", "admin_shutdown", Class::Retry, "The server is going down: connect again and run the whole transaction again."),
    entry("57P02", "crash_shutdown", Class::Retry, "The server crashed: connect again and run the whole transaction again."),
    entry("57P03", "cannot_connect_now", Class::Retry, "The server is starting: connect again and run the whole transaction again."),
    entry("57P04", "database_dropped", Class::Final, "The database is gone: correct the address."),
    entry("P4000", "scope_missing", Class::Final, "Name the scope; in strict mode define it first."),
    entry("P4001", "key_missing", Class::Final, "Send the caller's name for this one request."),
    entry("P4002", "key_reused", Class::Conflict, "The key was used with another request: send that request, or take a new key."),
    entry("P4003", "fingerprint_missing", Class::Final, "Send the digest of the canonical request."),
    entry("P4010", "success_not_recorded", Class::ClaimAgain, "Roll back and claim again: another attempt may have finished first."),
    entry("P4011", "failure_not_recorded", Class::ClaimAgain, "Claim again: another attempt may have finished first."),
    entry("P4012", "fenced", Class::ClaimAgain, "A newer attempt holds the intent: stop, roll back, claim again to learn the answer."),
    entry("P4013", "claim_left_open", Class::Final, "The transaction was to be committed with an atomic claim that has no outcome: call pgonce.succeed on every way out of the work."),
    entry("P4029", "busy", Class::RetryAfterDelay, "Somebody else holds the intent: ask again after the time it names."),
    entry("P4030", "refused", Class::Final, "It failed permanently: give the caller the stored refusal."),
    entry("P4031", "gone", Class::Final, "It finished, and its answer is no longer kept: a new request takes a new key."),
    entry("P4032", "answer_sealed", Class::Final, "The stored answer does not open with the keys of this program: give it the key that the message names, or look who altered the row."),
    entry("P4040", "answer_too_large", Class::Final, "The answer is larger than the contract allows: answer with a reference, or raise max_answer."),
    entry("P4041", "payload_too_large", Class::Final, "The payload is larger than 1 MiB: publish a reference to it."),
    entry("P4042", "headers_too_large", Class::Final, "The headers are larger than 64 KiB: put what is large into the payload."),
    entry("P4043", "batch_too_large", Class::Final, "The batch has more than 10,000 messages: accept them in several batches."),
    entry("P4044", "too_many_keys", Class::Final, "The tenant has as many keys as the contract allows: slow it down, or raise max_keys."),
    entry("P4050", "message_reused", Class::Conflict, "The message id came before with another payload: park it and ask the sender."),
    entry("P4060", "dead_letters_full", Class::RetryAfterDelay, "Too many events of a subscription are given up: look at them, then redrive or skip, or raise the limit."),
    entry("P4070", "ledger_conflict", Class::Conflict, "The operation or account is in the ledger with other content: send that, or take another name."),
    entry("P4071", "group_not_balanced", Class::Final, "Debits and credits of a currency differ: fix the group."),
    entry("P4072", "account_unknown", Class::Final, "There is no such account: open it first."),
    entry("P4073", "amount_too_large", Class::Final, "An amount or a balance has more than 38 digits: use a larger minor unit."),
    entry("P4074", "amount_not_positive", Class::Final, "An amount is a positive integer in minor units: fix the entry."),
    entry("P4075", "currency_differs", Class::Final, "The account is in another currency: name the right one."),
    entry("P4076", "account_closed", Class::Final, "The account is closed: name an open one."),
    entry("P4077", "below_floor", Class::Final, "The account does not have that much: refuse the request."),
    entry("P4078", "not_pending", Class::Conflict, "The group cannot be settled or reversed so: look at what became of it."),
    entry("P4079", "append_only", Class::Final, "Ledgers and timelines are not changed: record a reversal instead."),
    entry("P4080", "command_reused", Class::Conflict, "The command was sent before with other content: send that, or take a new id."),
    entry("P4081", "entity_unknown", Class::Final, "There is no such entity: create it with a transition first."),
    entry("P4082", "import_cancelled", Class::Final, "Somebody cancelled the import: what was applied stays; import the file again to go on."),
    entry("P4083", "import_failed_rows", Class::Final, "More rows failed than the import allows: look at the reasons, then raise the limit or fix the file."),
    entry("P4085", "job_reused", Class::Conflict, "The unique key names a job with another payload: send that, or take a new unique key."),
    entry("P4086", "external_step_reused", Class::Conflict, "The step of the command was begun with another request: make its request from what the command was asked."),
    entry("P4090", "import_malformed", Class::Final, "The file breaks its format: fix it at the line that the message names."),
    entry("P4091", "import_column_count", Class::Final, "The row has more or fewer values than the header: fix the row."),
    entry("P4092", "import_not_utf8", Class::Final, "The row is not UTF-8: convert the file."),
    entry("P4093", "import_row_too_large", Class::Final, "The row is larger than the limit: raise it, or look for a quote that is never closed."),
    entry("P4094", "import_empty", Class::Final, "The file has no header: look at what wrote it."),
    entry("P4095", "import_column_unknown", Class::Final, "The target does not take a column of the file: rename it or leave it out."),
    entry("P4096", "import_target_unknown", Class::Final, "There is no such table or function: name an existing one."),
    entry("P4097", "import_key_missing", Class::Final, "No unique key says which rows are new: create a unique index, or name its columns."),
    entry("P4098", "import_conflict", Class::Conflict, "The import was begun with other settings or another input: give the same, or another job."),
    entry("P4099", "impossible_state", Class::Final, "The protocol was broken from outside, or by a bug: look at the intent, report it."),
    entry("P4100", "schema_missing", Class::Final, "pgonce is not installed in this schema: run `pgonce migrate up`, or name the schema it is in."),
    entry("P4101", "schema_outdated", Class::Final, "The schema is older than this program: run `pgonce migrate up` before you start it."),
    entry("P4102", "schema_too_new", Class::Final, "A newer release changed the schema in a breaking way: update this program."),
    entry("P4103", "schema_changed", Class::Final, "An applied migration is not the one this program knows: find out who changed it, never edit a released file."),
    entry("P4104", "half_distributed", Class::Final, "Tables are distributed over other servers and pgonce's are not: an effect could commit without its record. Run `pgonce migrate up --distribute`, or say with `--coordinator-only` that no command writes them."),
    entry("P4105", "not_distributed", Class::Final, "This part of pgonce does not work on Citus, or the extension is missing: use what does, or keep it in a database of its own."),
    entry("P4110", "wrong_region", Class::Final, "The intent's home is another region: send the request to the address that the detail names."),
    entry("P4111", "region_not_joined", Class::RetryAfterDelay, "The region was restored or has not joined yet: run `pgonce region join`, and send requests to another region meanwhile."),
];

/// What holds for codes without a line of their own, by their first two characters, sorted.
/// Whatever is in neither list is final.
#[rustfmt::skip]
pub const GROUPS: &[Entry] = &[
    entry("08", "connection exception", Class::Retry, "Connect again and run the whole transaction again."),
    entry("22", "data exception", Class::Final, "Correct the input."),
    entry("23", "integrity constraint violation", Class::Final, "The change breaks a rule of the table: refuse the request."),
    entry("40", "transaction rollback", Class::Retry, "Run the whole transaction again."),
    entry("42", "syntax error or access rule violation", Class::Final, "Correct the statement or the rights."),
    entry("53", "insufficient resources", Class::RetryAfterDelay, "The server is short of something: wait and run the whole transaction again."),
    entry("57", "operator intervention", Class::Retry, "Connect again and run the whole transaction again."),
];

/// What to do about an error with this SQLSTATE.
///
/// ```
/// use pgonce::retry::{Class, classify};
///
/// assert_eq!(classify("40P01"), Class::Retry);
/// assert_eq!(classify("08007"), Class::Ambiguous);
/// assert_eq!(classify("22003"), Class::Final); // by its group
/// ```
pub fn classify(code: &str) -> Class {
    lookup(code).map_or(Class::Final, |entry| entry.class)
}

/// The line of the table that holds for this SQLSTATE: its own, else its group's.
pub fn lookup(code: &str) -> Option<&'static Entry> {
    let find = |table: &'static [Entry], code: &str| {
        let at = table.binary_search_by(|entry| entry.code.cmp(code)).ok()?;
        table.get(at)
    };
    find(TABLE, code).or_else(|| find(GROUPS, code.get(..2).filter(|_| code.len() == 5)?))
}

/// The table as Markdown, as the documentation shows it.
pub fn markdown() -> String {
    let mut page = String::from("| code | name | class | what to do |\n|---|---|---|---|\n");
    for entry in TABLE {
        // Every code of ours has a page of its own.
        let code = if entry.code.starts_with("P4") {
            format!("[`{0}`]({0}.md)", entry.code)
        } else {
            format!("`{}`", entry.code)
        };
        page += &row(&code, entry);
    }
    page += "\nCodes without a line of their own, by their first two characters:\n\n";
    page += "| starts with | group | class | what to do |\n|---|---|---|---|\n";
    for entry in GROUPS {
        page += &row(&format!("`{}`", entry.code), entry);
    }
    page
}

fn row(code: &str, entry: &Entry) -> String {
    format!(
        "| {code} | {} | {} | {} |\n",
        entry.name, entry.class, entry.advice
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const OURS: [&str; 53] = [
        "P4000", "P4001", "P4002", "P4003", "P4010", "P4011", "P4012", "P4013", "P4029", "P4030",
        "P4031", "P4032", "P4040", "P4041", "P4042", "P4043", "P4044", "P4050", "P4060", "P4070",
        "P4071", "P4072", "P4073", "P4074", "P4075", "P4076", "P4077", "P4078", "P4079", "P4080",
        "P4081", "P4082", "P4083", "P4085", "P4086", "P4090", "P4091", "P4092", "P4093", "P4094",
        "P4095", "P4096", "P4097", "P4098", "P4099", "P4100", "P4101", "P4102", "P4103", "P4104",
        "P4105", "P4110", "P4111",
    ];

    fn docs(path: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../../docs/src")
            .join(path)
    }

    fn read(path: &str) -> String {
        std::fs::read_to_string(docs(path)).unwrap_or_else(|e| panic!("docs/src/{path}: {e}"))
    }

    #[test]
    fn both_tables_are_sorted_without_duplicates() {
        for table in [TABLE, GROUPS] {
            assert!(table.is_sorted_by(|a, b| a.code < b.code));
        }
        assert!(TABLE.iter().all(|entry| entry.code.len() == 5));
        assert!(GROUPS.iter().all(|entry| entry.code.len() == 2));
    }

    #[test]
    fn every_code_of_ours_is_in_the_table_and_no_other() {
        let listed: Vec<_> = TABLE
            .iter()
            .map(|e| e.code)
            .filter(|c| c.starts_with("P4"))
            .collect();
        assert_eq!(listed, OURS);
    }

    #[test]
    fn a_code_without_a_line_goes_by_its_group_and_an_unknown_one_is_final() {
        assert_eq!(classify("08P01"), Class::Retry);
        assert_eq!(classify("40002"), Class::Retry);
        assert_eq!(classify("53100"), Class::RetryAfterDelay);
        assert_eq!(classify("57P05"), Class::Retry);
        for code in ["XX000", "", "0", "é0000", "4000", "400011", "P0001"] {
            assert_eq!(classify(code), Class::Final, "{code}");
        }
    }

    #[test]
    fn nothing_transient_is_ever_final() {
        for code in [
            "40001", "40P01", "08006", "08007", "57P01", "53300", "55P03", "P4012",
        ] {
            assert_ne!(classify(code), Class::Final, "{code}");
        }
    }

    #[test]
    fn an_ambiguous_end_is_never_run_again_blindly() {
        assert!(!classify("08007").is_safe_to_rerun());
        assert!(classify("40001").is_safe_to_rerun());
        assert!(!classify("23505").is_safe_to_rerun());
    }

    #[test]
    fn every_code_of_ours_has_a_page_that_is_in_the_index_and_the_summary() {
        let index = read("reference/errors/README.md");
        let summary = read("SUMMARY.md");
        for code in OURS.into_iter().chain(["22023", "08007"]) {
            let page = read(&format!("reference/errors/{code}.md"));
            assert!(
                page.starts_with(&format!("# {code}")),
                "{code}.md starts with its code"
            );
            assert!(
                index.contains(&format!("({code}.md)")),
                "reference/errors/README.md links {code}"
            );
            assert!(
                summary.contains(&format!("(reference/errors/{code}.md)")),
                "SUMMARY.md links {code}"
            );
        }
    }

    #[test]
    fn the_documented_table_is_this_table() {
        const BEGIN: &str = "<!-- table: begin -->\n";
        const END: &str = "<!-- table: end -->";
        let path = "reference/errors/classification.md";
        let page = read(path);
        let begin = page.find(BEGIN).expect("a begin mark") + BEGIN.len();
        let end = page.find(END).expect("an end mark");
        if std::env::var_os("PGONCE_UPDATE_DOCS").is_some() {
            let page = format!("{}{}{}", &page[..begin], markdown(), &page[end..]);
            std::fs::write(docs(path), page).unwrap();
            return;
        }
        assert_eq!(
            page[begin..end],
            markdown(),
            "docs/src/{path} is stale: run this test again with PGONCE_UPDATE_DOCS=1"
        );
    }
}
