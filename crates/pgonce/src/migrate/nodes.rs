//! Where the rows of a database are: on one server, or by Citus on several.

use super::routines::{Routine, routines};
use crate::driver::{Connection, Row, Statement};
use crate::error::Result;

/// What is loaded on Citus alone.
pub(super) const ONLY_ON_CITUS: &[Routine] = routines![
    "citus/twins/_raise_not_distributed",
    "citus/twins/_purge_tenant",
    "citus/twins/_accept_texts",
    "citus/twins/_purge_markers",
    "citus/twins/_ledger_verify_tenant",
    "citus/twins/_fire_tenant_timers",
    "citus/twins/_lock_queue",
    "citus/twins/_enqueue_tenant_job",
    "citus/twins/_tenants_with_jobs",
    "citus/twins/_claim_tenant_jobs",
    "citus/twins/_claim_jobs_of",
    "citus/twins/_finish_tenant_jobs",
    "citus/twins/_renew_tenant_jobs",
    "citus/twins/_retry_tenant_jobs",
    "citus/twins/_purge_tenant_jobs",
    "citus/twins/_raise_queue_of_events",
    "citus/twins/_publish_tenant_event",
    "citus/twins/_refuse_dead_limit",
    "citus/twins/_delete_events",
    "citus/twins/_subscription_queue",
    "citus/twins/_settle_event",
];

/// What is loaded on Citus instead of the routine of its name.
pub(super) const TWINS: &[Routine] = routines![
    "citus/twins/_contract_of",
    "citus/twins/_begin_epoch",
    "citus/twins/_installation_epoch",
    "citus/twins/_claim_fast",
    "citus/twins/_claim_optimistic",
    "citus/twins/claim",
    "citus/twins/claim_first",
    "citus/twins/answer_of",
    "citus/twins/succeed",
    "citus/twins/purge",
    "citus/twins/_replay_state",
    "citus/twins/_replay_of",
    "citus/twins/accept",
    "citus/twins/_insert_markers",
    "citus/twins/_inbox_rules",
    "citus/twins/define_inbox",
    "citus/twins/_create_inbox_partitions",
    "citus/twins/_drop_inbox_partitions",
    "citus/twins/_purge_inbox",
    "citus/twins/_ledger_move",
    "citus/twins/_ledger_record",
    "citus/twins/_ledger_balance_at",
    "citus/twins/_ledger_heads",
    "citus/twins/ledger_post",
    "citus/twins/ledger_balance",
    "citus/twins/ledger_statement",
    "citus/twins/ledger_verify",
    "citus/twins/ledger_repair",
    "citus/twins/define_transition",
    "citus/twins/_transition",
    "citus/twins/set_timer",
    "citus/twins/_due_timers",
    "citus/twins/_postpone_timer",
    "citus/twins/fire_timers",
    "citus/twins/_job_rules",
    "citus/twins/_unblock_key",
    "citus/twins/_free_key",
    "citus/twins/_end_job",
    "citus/twins/enqueue",
    "citus/twins/_fire_schedules",
    "citus/twins/_wake_jobs",
    "citus/twins/_queue_room",
    "citus/twins/_claim_queue",
    "citus/twins/claim_jobs",
    "citus/twins/finish_jobs",
    "citus/twins/fail_job",
    "citus/twins/renew_jobs",
    "citus/twins/cancel_job",
    "citus/twins/retry_jobs",
    "citus/twins/define_queue",
    "citus/twins/define_schedule",
    "citus/twins/_purge_jobs",
    "citus/twins/_peek_jobs",
    "citus/twins/jobs",
    "citus/twins/queues",
    "citus/twins/publish",
    "citus/twins/create_subscription",
    "citus/twins/alter_subscription",
    "citus/twins/drop_subscription",
    "citus/twins/evict_subscription",
    "citus/twins/redrive",
    "citus/twins/skip",
    "citus/twins/dead_letters",
    "citus/twins/outbox_backlog",
    "citus/twins/outbox_caught_up",
    "citus/twins/event_status",
];

/// Removes the routines on Citus, before they are loaded again.
pub(super) const UNLOAD: &str = include_str!("../../sql/citus/scripts/unload.sql");
/// Distributes the tables that are not yet: between the migrations and the routines.
pub(super) const DISTRIBUTE: &str = include_str!("../../sql/citus/scripts/distribute.sql");
/// Delegates functions to the servers that have the rows: after the routines.
pub(super) const DELEGATE: &str = include_str!("../../sql/citus/scripts/delegate.sql");

/// What Citus says about a database.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    layout: Layout,
    /// A table with rows on other servers.
    remote: Option<String>,
}

/// For which kind of database the routines are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Layout {
    /// Without Citus.
    #[default]
    Alone,
    /// With Citus; claims look whether a table has rows on other servers.
    Watched,
    /// With Citus; the owner says that no command writes tables with rows on other servers.
    CoordinatorOnly,
    /// With Citus; pgonce's tables are distributed by tenant.
    Distributed,
}

impl Nodes {
    pub(super) async fn read<C: Connection>(conn: &mut C, schema: &str) -> Result<Self> {
        let citus = "select extname::text from pg_extension where extname = 'citus'";
        if rows(conn, citus).await?.is_empty() {
            return Ok(Self::default());
        }
        // As pgonce._remote_tables, which may not be there yet.
        let looked = format!(
            "select (select true from pg_proc p join pg_namespace n on n.oid = p.pronamespace \
                where n.nspname = '{schema}' and p.proname = '_is_one_node' \
                  and pg_get_functiondef(p.oid) like '%RETURN true%')::text, \
             (select true from pg_dist_partition p where p.logicalrelid = to_regclass('{schema}.intent'))::text, \
             (select p.logicalrelid::text from pg_dist_partition p \
                join pg_dist_shard s on s.logicalrelid = p.logicalrelid join pg_dist_placement l on l.shardid = s.shardid \
               where not (p.partmethod = 'n' and (p.repmodel = 't' or p.colocationid = 0)) \
                 and l.groupid <> (select g.groupid from pg_dist_local_group g) limit 1)"
        );
        let row = rows(conn, &looked).await?.pop().unwrap_or_default();
        let mut cells = row.into_iter();
        let (allowed, distributed) = (cells.next().flatten(), cells.next().flatten());
        Ok(Self {
            layout: match (distributed, allowed) {
                (Some(_), _) => Layout::Distributed,
                (None, Some(_)) => Layout::CoordinatorOnly,
                (None, None) => Layout::Watched,
            },
            remote: cells.next().flatten(),
        })
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// A table whose effects could commit without their record.
    pub(super) fn unguarded(&self) -> Option<&str> {
        match self.layout {
            Layout::Watched => self.remote.as_deref(),
            Layout::Alone | Layout::CoordinatorOnly | Layout::Distributed => None,
        }
    }
}

impl Layout {
    /// Settings for the transaction that loads: what stays on the coordinator is not copied to workers.
    pub(super) fn settings(self) -> &'static str {
        match self {
            Self::Alone => "",
            Self::Watched | Self::CoordinatorOnly => {
                "set local citus.enable_ddl_propagation = off;\n"
            }
            Self::Distributed => {
                "set local citus.multi_shard_modify_mode = 'sequential';\n\
                 set local citus.enable_unsafe_triggers = on;\n\
                 set local client_min_messages = error;\n"
            }
        }
    }

    /// What is loaded after the routines.
    pub(super) fn switches(self) -> impl Iterator<Item = &'static str> {
        let one_node = "create or replace function pgonce._is_one_node() returns boolean \
             language sql stable parallel safe return true;\n";
        let answered_for = matches!(self, Self::CoordinatorOnly | Self::Distributed);
        let distributed = self == Self::Distributed;
        let more = ONLY_ON_CITUS.iter().filter(move |_| distributed);
        (answered_for.then_some(one_node).into_iter())
            .chain(more.map(|routine| routine.sql))
            .chain(distributed.then_some(DELEGATE))
            // Citus stumbles over the rights of functions that depend on each other. The schema is closed on every server.
            .chain(distributed.then_some("set local citus.enable_ddl_propagation = off;\n"))
    }
}

pub(super) async fn rows<C: Connection>(conn: &mut C, sql: &str) -> Result<Vec<Row>> {
    let statement = Statement {
        sql: sql.into(),
        keep: false,
        pooled: false,
    };
    conn.query(&statement, &[]).await
}
