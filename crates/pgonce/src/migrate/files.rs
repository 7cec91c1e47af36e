//! The SQL that this build carries, in the order it is loaded.

use sha2::{Digest as _, Sha256};

use super::nodes::{Layout, TWINS};

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

pub(super) use routines;

/// Every migration of this build, in order.
pub const MIGRATIONS: &[Migration] = migrations![1 "0001_core", 2 "0002_outbox", 3 "0003_inbox", 4 "0004_ledger", 5 "0005_transition", 6 "0006_import", 7 "0007_queue", 8 "0008_reference", 9 "0009_external", 10 "0010_region"];

/// A routine comes after those that its body or its definition names: PostgreSQL parses
/// `begin atomic` and `return` bodies when it creates them.
pub(super) const ROUTINES: &[Routine] = routines![
    "clock/now",
    "role/_tenant_is_allowed",
    "role/_session_tenant",
    "clock/_set_clock",
    "clock/_move_clock",
    "clock/_reset_clock",
    "citus/_is_one_node",
    "citus/_remote_tables",
    "citus/_assert_one_node",
    "lock/_lock_id",
    "lock/try_lock",
    "lock/lock",
    "scope/_fixed_length",
    "scope/_contract",
    "scope/_simple_retention",
    "scope/_answer_to_keep",
    "scope/_retention_for",
    "scope/_scope_is_allowed",
    "scope/_guarded_scopes",
    "scope/_is_unguarded",
    "scope/_guard_scopes",
    "scope/_probe_name",
    "region/_set_claim_switch",
    "scope/define_scope",
    "scope/drop_scope",
    "scope/set_strict",
    "intent/_utf16_order",
    "intent/_canonical_number",
    "intent/_canonical_json",
    "intent/fingerprint",
    "intent/_timeline",
    "outbox/_database_life",
    "intent/_begin_epoch",
    "intent/_installation_epoch",
    "intent/_first_fence",
    "intent/_lease_number",
    "intent/_lease_fence",
    "intent/_next_fence",
    "intent/_check_names",
    "intent/_names_fit",
    "intent/_intent_name",
    "intent/_is_marked",
    "intent/_is_open_attempt",
    "intent/_open_attempt",
    "intent/_raise_transaction_ended",
    "intent/_assert_same_transaction",
    "intent/_force_durable_commit",
    "intent/_busy",
    "intent/_owner_or_session",
    "intent/answer_of",
    "intent/_guard_claim",
    "intent/_claim_full",
    "intent/_lease_fresh",
    "intent/_claim_fast",
    "intent/claim",
    "intent/_raise_bad_names",
    "intent/_claim_optimistic",
    "intent/_raise_busy",
    "intent/_raise_no_row",
    "intent/claim_first",
    "intent/_success_row",
    "intent/_success_row_with_retention",
    "intent/_fence_is_current",
    "intent/_raise_not_holder",
    "intent/guard",
    "intent/_is_lease",
    "intent/_is_first",
    "intent/_succeed_lease",
    "intent/_succeed_full",
    "intent/succeed",
    "intent/fail",
    "intent/heartbeat",
    "intent/release",
    "intent/wait",
    "intent/_check_transition",
    "intent/_assert_claim_settled",
    "intent/_record_attempt",
    "intent/_forget_attempts",
    "cache/_replay_state",
    "cache/_replay_of",
    "cache/_forget_replays",
    "intent/_count_suppressed",
    "intent/suppression",
    "unique/_insert_or_fetch_sql",
    "unique/_note_existing",
    "unique/_existing_row",
    "unique/_raise_row_not_found",
    "unique/insert_or_fetch",
    "unique/_row_has",
    "unique/_raise_nothing_to_set",
    "unique/update_once",
    "unique/_sha1",
    "unique/resource_id",
    "unique/refer",
    "recovery/_readable",
    "recovery/_audit_act",
    "recovery/stuck",
    "recovery/_verdict",
    "recovery/intervene",
    "recovery/_take_stale",
    "recovery/_decide_stale",
    "recovery/_history",
    "recovery/find",
    "recovery/most_retried",
    "retention/purge",
    "outbox/_lane_of",
    "outbox/_is_header_name",
    "outbox/_check_event",
    "outbox/_event_size",
    "outbox/_derived_message_id",
    "outbox/_event_row",
    "outbox/publish",
    "outbox/_outbox_floor",
    "outbox/_record_watermark",
    "outbox/_rebase_outbox",
    "outbox/_like_patterns",
    "outbox/_require_subscription",
    "outbox/create_subscription",
    "outbox/alter_subscription",
    "outbox/drop_subscription",
    "outbox/_leased_lanes",
    "outbox/_raise_lane_fenced",
    "outbox/_claim_lanes",
    "outbox/_claim_lanes_of",
    "outbox/_advance_lanes",
    "outbox/_release_lanes",
    "outbox/_ended_between",
    "outbox/_has_new_events",
    "outbox/_poll_outbox",
    "outbox/_outbox_is_settled",
    "outbox/_is_wanted",
    "outbox/_is_unread",
    "outbox/_lane_window",
    "outbox/_others_snapshot",
    "outbox/_read_lanes",
    "outbox/_due_parked",
    "outbox/_record_skip",
    "outbox/_wake_subject",
    "outbox/_unpark",
    "outbox/_settle_lane",
    "outbox/claim_events",
    "outbox/settle_events",
    "outbox/release_events",
    "outbox/redrive",
    "outbox/skip",
    "outbox/dead_letters",
    "outbox/recover",
    "outbox/replay",
    "outbox/replay_range",
    "outbox/event_status",
    "outbox/evict_subscription",
    "outbox/set_outbox_retention",
    "outbox/_create_outbox_partitions",
    "retention/_lock_wait",
    "outbox/_drop_outbox_partitions",
    "outbox/outbox_backlog",
    "outbox/outbox_caught_up",
    "outbox/outbox_lanes",
    "outbox/_glob_patterns",
    "outbox/outbox_subscriptions",
    "outbox/outbox_log",
    "outbox/_set_wal_publication",
    "outbox/outbox_wal_listeners",
    "outbox/outbox_events",
    "inbox/_raise_batch_ended",
    "inbox/_assert_same_batch",
    "inbox/_day_of",
    "inbox/_raise_message_fenced",
    "inbox/_raise_message_id_reused",
    "inbox/_message_fits",
    "inbox/_accept_full",
    "inbox/accept",
    "inbox/_mark_batch_full",
    "inbox/_insert_markers",
    "inbox/accept_batch",
    "inbox/_inbox_rules",
    "inbox/_kept_since",
    "inbox/define_inbox",
    "inbox/_blocked_keys",
    "inbox/_retry_delay",
    "inbox/store_message",
    "inbox/claim_messages",
    "inbox/finish_messages",
    "inbox/fail_message",
    "inbox/release_messages",
    "inbox/_audit_inbox",
    "inbox/retry_messages",
    "inbox/skip_message",
    "inbox/replay_messages",
    "inbox/_raise_cursor_fenced",
    "inbox/_lease_partition",
    "inbox/_is_after",
    "inbox/_is_at",
    "inbox/_advance_partition",
    "inbox/_release_partition",
    "inbox/_renew_partition",
    "inbox/set_partition",
    "inbox/_create_inbox_partitions",
    "inbox/_drop_inbox_partitions",
    "inbox/_purge_inbox",
    "inbox/inbox_backlog",
    "inbox/inbox_poison",
    "projection/_raise_bad_version",
    "projection/advance_projection",
    "projection/_require_projection",
    "projection/_define_projection",
    "projection/define_projection",
    "projection/_projection_lock",
    "projection/_version_of",
    "projection/project",
    "projection/_projection_page",
    "projection/_projection_rest",
    "projection/_projection_has",
    "projection/_projection_columns",
    "projection/_projection_match",
    "projection/_require_build",
    "projection/_drop_build",
    "projection/_begin_build",
    "projection/_build_event",
    "projection/_step_build",
    "projection/_end_rebuild",
    "projection/_end_verify",
    "projection/projections",
    "ledger/_ledger_genesis",
    "ledger/_ledger_digest",
    "ledger/_ledger_hash",
    "ledger/_ledger_lines",
    "ledger/_ledger_assert_balanced",
    "ledger/_ledger_move",
    "ledger/_ledger_record",
    "ledger/ledger_accounts",
    "ledger/ledger_groups",
    "ledger/_ledger_seq_at",
    "ledger/_ledger_balance_at",
    "ledger/_ledger_broken",
    "ledger/_ledger_heads",
    "ledger/ledger_open",
    "ledger/ledger_close",
    "ledger/ledger_post",
    "ledger/ledger_settle",
    "ledger/ledger_reverse",
    "ledger/ledger_balance",
    "ledger/ledger_statement",
    "ledger/ledger_verify",
    "ledger/ledger_repair",
    "retention/_append_only",
    "transition/define_transition",
    "transition/_transition",
    "transition/transition",
    "transition/timelines",
    "transition/set_timer",
    "transition/_due_timers",
    "transition/_postpone_timer",
    "transition/fire_timers",
    "queue/_job_rules",
    "queue/_job_key_lock",
    "queue/_unblock_key",
    "queue/_free_key",
    "queue/_key_is_busy",
    "queue/_audit_job",
    "queue/_end_job",
    "queue/enqueue",
    "queue/_cron_field",
    "queue/_cron_next",
    "queue/_fire_schedules",
    "queue/_wake_jobs",
    "queue/_queue_room",
    "queue/_claim_queue",
    "queue/claim_jobs",
    "queue/finish_jobs",
    "queue/fail_job",
    "queue/renew_jobs",
    "queue/cancel_job",
    "queue/retry_jobs",
    "queue/define_queue",
    "queue/define_schedule",
    "queue/_purge_jobs",
    "queue/_peek_jobs",
    "queue/jobs",
    "queue/job_groups",
    "queue/queues",
    "import/_import_begin",
    "import/_import_hold",
    "import/_import_record",
    "import/_import_keys",
    "import/_import_target",
    "import/import_cancel",
    "import/import_result",
    "import/imports",
    "region/_home_of",
    "region/_check_region",
    "region/_verdict_of",
    "region/_merge_intent",
    "region/_merge_pending",
    "region/_land_fact",
    "region/_land_facts",
    "region/_record_fact",
    "region/_record_old_facts",
    "region/_add_region",
    "region/_connect_region",
    "region/_activate_region",
    "region/_beat_region",
    "region/_region_slot",
    "region/_purge_facts",
    "region/region_join",
    "region/region_leave",
    "region/define_region_rule",
    "region/region_of",
    "region/resolve_double_commit",
    "region/_region_is_current",
    "region/regions",
    "region/double_commits",
    "role/_grants",
    "role/_apply_grants",
    "role/grant_to",
    "role/revoke_from",
    "role/isolate_tenants",
    "role/bind_tenant",
    "external/_effect_key",
    "external/_external_rules",
    "external/_external_status",
    "external/_external_gate",
    "external/_external_health",
    "external/_external_step",
    "external/define_provider",
    "external/external_send",
    "external/_external_settle_command",
    "external/_external_decide",
    "external/_external_join",
    "external/_external_lock",
    "external/external_record",
    "external/external_observe",
    "external/external_due",
    "external/external_settle",
    "external/external_calls",
    "external/_purge_external",
];

/// The number of this build's newest migration.
pub(super) fn newest() -> u32 {
    MIGRATIONS.last().map_or(0, |migration| migration.number)
}

/// One checksum for all routines: their names, order and texts, and for whom they are loaded.
pub(super) fn routines_checksum(layout: Layout) -> String {
    let loaded = ROUTINES.iter().map(|routine| (routine.name, routine.sql));
    let twins = TWINS.iter().filter(|_| layout == Layout::Distributed);
    let twins = twins.map(|routine| (routine.name, routine.sql));
    checksum(
        loaded
            .chain(twins)
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
