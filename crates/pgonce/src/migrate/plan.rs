//! What `up` would run, for people whose database is changed by somebody else.

use std::time::Duration;

use super::files::{Migration, VERSION};
use super::nodes::Layout;
use super::part::Part;
use super::script;

/// What [`Migrator::up`](super::Migrator::up) would run now. Made by
/// [`Migrator::plan`](super::Migrator::plan).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Plan {
    pub(super) schema: String,
    pub(super) migrations: Vec<&'static Migration>,
    pub(super) routines: bool,
    /// The checksum of the routines that were there.
    pub(super) replaced: Option<String>,
    pub(super) layout: Layout,
    pub(super) distribution: String,
    pub(super) lock_timeout: Duration,
    pub(super) grants: Vec<(Part, String)>,
}

impl Plan {
    /// Whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.migrations.is_empty() && !self.routines && self.grants.is_empty()
    }

    /// Adds what [`Migrator::grant`](super::Migrator::grant) would run to the script, for a role that is there by then.
    ///
    /// ```
    /// # use pgonce::migrate::{Part, Plan};
    /// fn script(plan: Plan) -> String {
    ///     plan.grant(Part::App, "shop").grant(Part::Relay, "shop_relay").sql()
    /// }
    /// ```
    pub fn grant(mut self, part: Part, role: impl Into<String>) -> Self {
        self.grants.push((part, role.into()));
        self
    }

    /// The migrations that would be applied.
    pub fn migrations(&self) -> &[&'static Migration] {
        &self.migrations
    }

    /// Whether the functions, views and triggers would be loaded.
    pub fn routines(&self) -> bool {
        self.routines
    }

    /// All of it as one script that psql, or any other tool, can run: one transaction, all or
    /// nothing. It takes the migrators' lock and writes the ledger, so afterwards
    /// [`Migrator::up`](super::Migrator::up) has nothing left to do. Run twice, or after somebody
    /// else has migrated, it fails and changes nothing.
    pub fn sql(&self) -> String {
        let schema = &self.schema;
        if self.is_empty() {
            return format!("-- pgonce {VERSION}, schema {schema}: nothing to do.\n");
        }
        let mut text = format!(
            "-- pgonce {VERSION}, schema {schema}. Run it as the role that owns, or is to own, the schema, or a member of it.\n\
             {};\n{}{}{}",
            script::BEGIN,
            script::SETTINGS,
            script::lock(schema, self.lock_timeout) + self.layout.settings(),
            script::ledger(schema),
        );
        if self.routines {
            // What a later build has loaded meanwhile may have the same migrations.
            text.push_str(&script::require_routines(schema, self.replaced.as_deref()));
        }
        for migration in &self.migrations {
            text.push_str(&format!("\n-- {}\n", migration.name));
            // First the ledger: where the migration was applied meanwhile, its primary key says so.
            text.push_str(&script::record_migration(schema, migration));
            text.push_str(";\n");
            text.push_str(&script::in_schema(schema, migration.sql));
        }
        if self.routines {
            text.push_str("\n-- functions, views and triggers\n");
            text.push_str(&self.distribution);
            text.push_str(&script::routines(schema, self.layout));
            text.push_str(&script::record_routines(schema, self.layout));
            text.push_str(";\n");
        }
        for (part, role) in &self.grants {
            text.push_str(&format!("\n{};\n", script::grant(schema, *part, role)));
        }
        text.push_str("commit;\n");
        text
    }
}
