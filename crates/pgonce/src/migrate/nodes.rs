//! Where the rows of a database are: on one server, or by Citus on several.

use super::ledger::rows;
use crate::driver::Connection;
use crate::error::Result;

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
             (select p.logicalrelid::text from pg_dist_partition p \
                join pg_dist_shard s on s.logicalrelid = p.logicalrelid join pg_dist_placement l on l.shardid = s.shardid \
               where not (p.partmethod = 'n' and (p.repmodel = 't' or p.colocationid = 0)) \
                 and l.groupid <> (select g.groupid from pg_dist_local_group g) limit 1)"
        );
        let row = rows(conn, &looked).await?.pop().unwrap_or_default();
        let mut cells = row.into_iter();
        let allowed = cells.next().flatten().is_some();
        Ok(Self {
            layout: match allowed {
                true => Layout::CoordinatorOnly,
                false => Layout::Watched,
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
            Layout::Alone | Layout::CoordinatorOnly => None,
        }
    }
}

impl Layout {
    /// The same where the owner says that no command writes distributed tables.
    pub(super) fn guarded_by_owner(self) -> Self {
        match self {
            Self::Alone => Self::Alone,
            Self::Watched | Self::CoordinatorOnly => Self::CoordinatorOnly,
        }
    }

    /// Settings for the transaction that loads: what stays on the coordinator is not copied to workers.
    pub(super) fn settings(self) -> &'static str {
        match self {
            Self::Alone => "",
            Self::Watched | Self::CoordinatorOnly => {
                "set local citus.enable_ddl_propagation = off;\n"
            }
        }
    }

    /// What is loaded after the routines.
    pub(super) fn switches(self) -> impl Iterator<Item = &'static str> {
        let one_node = "create or replace function pgonce._is_one_node() returns boolean \
             language sql stable parallel safe return true;\n";
        match self {
            Self::Alone | Self::Watched => None,
            Self::CoordinatorOnly => Some(one_node),
        }
        .into_iter()
    }
}
