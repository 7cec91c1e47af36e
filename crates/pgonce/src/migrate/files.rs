//! The migrations that this build carries, and the checksums of all its SQL.

use sha2::{Digest as _, Sha256};

use super::nodes::{DISTRIBUTE, Layout, TWINS};
use super::routines::ROUTINES;

/// This build.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

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

macro_rules! migrations {
    ($($number:literal $name:literal),* $(,)?) => {
        &[$(Migration {
            number: $number,
            name: $name,
            sql: include_str!(concat!("../../sql/migrations/", $name, ".sql")),
        }),*]
    };
}

/// Every migration of this build, in order.
pub const MIGRATIONS: &[Migration] = migrations![1 "0001_core", 2 "0002_outbox", 3 "0003_inbox", 4 "0004_ledger", 5 "0005_transition", 6 "0006_import", 7 "0007_queue", 8 "0008_reference", 9 "0009_external", 10 "0010_region", 11 "0011_acts", 12 "0012_vanished", 13 "0013_external_life", 14 "0014_kept_markers", 15 "0015_shared", 16 "0016_bound_roles", 17 "0017_parked_in_order", 18 "0018_asked_try"];

/// The number of this build's newest migration.
pub(super) fn newest() -> u32 {
    MIGRATIONS.last().map_or(0, |migration| migration.number)
}

/// One checksum for all routines: their names, order and texts, and for whom they are loaded.
pub(super) fn routines_checksum(layout: Layout) -> String {
    let loaded = ROUTINES.iter().map(|routine| (routine.name, routine.sql));
    let distributed = layout == Layout::Distributed;
    let twins = TWINS.iter().filter(|_| distributed);
    let twins = twins.map(|routine| (routine.name, routine.sql));
    checksum(
        loaded
            .chain(twins)
            .chain(distributed.then_some(("", DISTRIBUTE)))
            .chain(layout.switches().map(|sql| ("", sql))),
    )
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
    use super::super::nodes::ONLY_ON_CITUS;
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
        let routines = ROUTINES.iter().chain(TWINS).chain(ONLY_ON_CITUS);
        loaded.extend(routines.map(|routine| routine.name.to_owned()));
        loaded.extend(
            ["unload", "distribute", "delegate"].map(|name| format!("citus/scripts/{name}")),
        );
        loaded.sort();
        assert_eq!(
            loaded, there,
            "the lists in src/migrate/ and the folder sql/ differ"
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
        for routine in ROUTINES.iter().chain(TWINS).chain(ONLY_ON_CITUS) {
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
