//! The SQL that this build carries, in the order it is loaded.

use sha2::{Digest as _, Sha256};

/// A numbered file: tables, types and data. Once released it never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// Its number; they count up from 1 without a gap.
    pub number: u32,
    /// The file's name without its ending, such as `0001_core`.
    pub name: &'static str,
    /// Its text, written for the schema `pgonce`.
    pub sql: &'static str,
}

impl Migration {
    /// Whether builds that do not know this migration must not use the database: its header says
    /// `-- breaking: yes`.
    pub fn is_breaking(&self) -> bool {
        header(self.sql) == Some("yes")
    }

    /// SHA-256 of the text, in hex.
    pub fn checksum(&self) -> String {
        checksum([("", self.sql)])
    }
}

fn header(sql: &str) -> Option<&str> {
    let comments = sql.lines().take_while(|line| line.starts_with("--"));
    comments
        .filter_map(|line| line.strip_prefix("-- breaking: "))
        .next()
        .map(str::trim)
}

/// A function, view or trigger: replaced whenever it changes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Routine {
    pub(super) name: &'static str,
    pub(super) sql: &'static str,
}

macro_rules! migrations {
    ($($number:literal $name:literal),* $(,)?) => {
        &[$(Migration {
            number: $number,
            name: $name,
            sql: include_str!(concat!("../../sql/migrations/", $name, ".sql")),
        }),*]
    };
}

macro_rules! routines {
    ($($name:literal),* $(,)?) => {
        &[$(Routine {
            name: $name,
            sql: include_str!(concat!("../../sql/", $name, ".sql")),
        }),*]
    };
}

/// Every migration of this build, in order.
pub const MIGRATIONS: &[Migration] = migrations![1 "0001_core", 2 "0002_outbox", 3 "0003_inbox"];

/// A routine comes after those that its body or its definition names: PostgreSQL parses
/// `begin atomic` and `return` bodies when it creates them.
pub(super) const ROUTINES: &[Routine] = routines![
    "clock/now",
    "clock/set_clock",
    "clock/move_clock",
    "clock/reset_clock",
    "lock/lock_id",
    "lock/try_lock",
    "lock/lock",
    "scope/contract",
    "scope/plain_retention",
    "scope/keep_for",
    "scope/known_scope",
    "scope/define_scope",
    "scope/drop_scope",
    "scope/set_strict",
    "intent/timeline",
    "intent/next_fence",
    "intent/check_names",
    "intent/names_fit",
    "intent/open_attempt",
    "intent/refuse_parted_attempt",
    "intent/insist_on_open_attempt",
    "intent/insist_on_durable_commit",
    "intent/busy",
    "intent/owner_or_session",
    "intent/answer_of",
    "intent/claim_slowly",
    "intent/lease_fresh",
    "intent/glance",
    "intent/claim",
    "intent/refuse_names",
    "intent/hold",
    "intent/begin_fresh",
    "intent/succeeded_row",
    "intent/kept_row",
    "intent/holds",
    "intent/turn_away",
    "intent/guard",
    "intent/succeed",
    "intent/fail",
    "intent/heartbeat",
    "intent/release",
    "intent/wait",
    "intent/check_transition",
    "intent/count_suppressed",
    "intent/suppression",
    "unique/insert_or_fetch",
    "recovery/stuck",
    "recovery/most_retried",
    "retention/purge",
    "outbox/lane_of",
    "outbox/weigh_event",
    "outbox/event_size",
    "outbox/derived_message_id",
    "outbox/event_row",
    "outbox/publish",
    "outbox/outbox_floor",
    "outbox/mark_outbox",
    "outbox/system_identifier",
    "outbox/rebase_outbox",
    "outbox/globs",
    "outbox/known_consumer",
    "outbox/create_consumer",
    "outbox/alter_consumer",
    "outbox/drop_consumer",
    "outbox/held_lanes",
    "outbox/refuse_zombie",
    "outbox/claim_lanes",
    "outbox/advance_lanes",
    "outbox/leave_lanes",
    "outbox/ended_between",
    "outbox/outbox_stirs",
    "outbox/outbox_is_settled",
    "outbox/wanted",
    "outbox/unread",
    "outbox/lane_window",
    "outbox/read_lanes",
    "outbox/due_parked",
    "outbox/note_skip",
    "outbox/unpark",
    "outbox/settle_lane",
    "outbox/redrive",
    "outbox/skip",
    "outbox/dead_letters",
    "outbox/recover",
    "outbox/replay",
    "outbox/replay_range",
    "outbox/event_fate",
    "outbox/evict_consumer",
    "outbox/set_outbox_retention",
    "outbox/extend_outbox",
    "outbox/shrink_outbox",
    "outbox/outbox_backlog",
    "outbox/outbox_caught_up",
    "outbox/outbox_lanes",
    "outbox/unglobbed",
    "outbox/outbox_consumers",
    "outbox/outbox_log",
    "outbox/set_outbox_tail",
    "outbox/outbox_tails",
    "outbox/outbox_events",
    "inbox/refuse_parted_batch",
    "inbox/insist_on_open_batch",
    "inbox/day_of",
    "inbox/refuse_message",
    "inbox/refuse_reuse",
    "inbox/accept_slowly",
    "inbox/accept",
    "inbox/mark_slowly",
    "inbox/mark_messages",
    "inbox/accept_batch",
    "inbox/inbox_rules",
    "inbox/kept_since",
    "inbox/define_inbox",
    "inbox/held_keys",
    "inbox/retry_pause",
    "inbox/store_message",
    "inbox/claim_messages",
    "inbox/finish_messages",
    "inbox/fail_message",
    "inbox/release_messages",
    "inbox/note_act",
    "inbox/retry_messages",
    "inbox/skip_message",
    "inbox/replay_messages",
    "inbox/refuse_cursor",
    "inbox/take_partition",
    "inbox/move_partition",
    "inbox/leave_partition",
    "inbox/set_partition",
    "inbox/extend_inbox",
    "inbox/shrink_inbox",
    "inbox/purge_inbox",
    "inbox/inbox_backlog",
    "inbox/inbox_poison",
    "projection/advance_projection",
    "projection/known_projection",
    "projection/define_projection",
    "projection/projection_lock",
    "projection/version_of",
    "projection/project",
    "projection/projection_page",
    "projection/projection_rest",
    "projection/projection_has",
    "projection/projection_columns",
    "projection/known_build",
    "projection/drop_build",
    "projection/begin_build",
    "projection/build_event",
    "projection/step_build",
    "projection/end_rebuild",
    "projection/end_verify",
    "projection/projections",
    "role/admit",
];

/// The number of this build's newest migration.
pub(super) fn newest() -> u32 {
    MIGRATIONS.last().map_or(0, |migration| migration.number)
}

/// One checksum for all routines: their names, order and texts.
pub(super) fn routines_checksum() -> String {
    checksum(ROUTINES.iter().map(|routine| (routine.name, routine.sql)))
}

/// A checkout may have other line ends than the build that was released; they do not count.
fn checksum<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut hasher = Sha256::new();
    for (name, text) in files {
        hasher.update(name);
        hasher.update([0]);
        hasher.update(text.replace("\r\n", "\n"));
        hasher.update([0]);
    }
    hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn files_below(folder: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files_below(&path, root, found);
            } else if path.extension().is_some_and(|ending| ending == "sql") {
                let name = path.strip_prefix(root).unwrap().with_extension("");
                found.push(name.to_str().unwrap().replace('\\', "/"));
            }
        }
    }

    #[test]
    fn every_sql_file_is_loaded_exactly_once() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql");
        let mut there = Vec::new();
        files_below(&root, &root, &mut there);
        there.sort();
        let mut loaded: Vec<_> = MIGRATIONS
            .iter()
            .map(|m| format!("migrations/{}", m.name))
            .collect();
        loaded.extend(ROUTINES.iter().map(|routine| routine.name.to_owned()));
        loaded.sort();
        assert_eq!(
            loaded, there,
            "src/migrate/files.rs and the folder sql/ differ"
        );
    }

    #[test]
    fn migrations_count_up_without_a_gap_and_say_whether_they_break() {
        for (migration, number) in MIGRATIONS.iter().zip(1..) {
            assert_eq!(migration.number, number);
            assert!(
                migration.name.starts_with(&format!("{number:04}_")),
                "{}",
                migration.name
            );
            assert!(
                matches!(header(migration.sql), Some("yes" | "no")),
                "{} needs a line `-- breaking: yes` or `-- breaking: no` in its header",
                migration.name
            );
        }
    }

    #[test]
    fn routines_can_be_loaded_again_over_themselves() {
        for routine in ROUTINES {
            let creates = routine
                .sql
                .lines()
                .filter(|line| line.starts_with("create "));
            for line in creates {
                assert!(
                    line.starts_with("create or replace "),
                    "{}: {line}",
                    routine.name
                );
            }
        }
    }

    #[test]
    fn no_file_begins_or_ends_a_transaction() {
        let texts = MIGRATIONS.iter().map(|m| (m.name, m.sql));
        for (name, sql) in texts.chain(ROUTINES.iter().map(|r| (r.name, r.sql))) {
            let ends = sql.lines().any(|line| {
                let line = line.trim().to_ascii_lowercase();
                ["commit;", "rollback;", "begin;"].contains(&line.as_str())
            });
            assert!(
                !ends,
                "{name} ends the transaction that its ledger row belongs to"
            );
        }
    }

    #[test]
    fn line_ends_do_not_change_a_checksum_but_texts_and_names_do() {
        let of = |name, text| checksum([(name, text)]);
        assert_eq!(of("a", "x\r\ny"), of("a", "x\ny"));
        assert_ne!(of("a", "x"), of("a", "y"));
        assert_ne!(of("a", "x"), of("b", "x"));
        assert_ne!(of("ab", "x"), of("a", "bx"));
    }
}
