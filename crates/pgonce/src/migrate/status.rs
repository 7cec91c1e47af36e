//! How a database stands beside this build.

use crate::error::{Error, ErrorDetail, Result};

/// How a database stands beside this build. Made by [`Migrator::status`](super::Migrator::status).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The schema that was looked at.
    pub schema: String,
    /// Whether pgonce is installed there.
    pub installed: bool,
    /// Every migration that the database or this build knows, by number.
    pub migrations: Vec<Entry>,
    /// The functions, views and triggers.
    pub routines: Routines,
    /// A table whose rows Citus keeps on other servers, where pgonce's tables are on this one only and its owner did
    /// not say that no command writes such tables: then no claim is granted.
    pub remote_table: Option<String>,
}

/// One migration, seen from both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Number of the migration.
    pub number: u32,
    /// Name of the migration, such as `0001_core`.
    pub name: String,
    /// Whether builds that do not know it must not use the database.
    pub breaking: bool,
    /// How the migration stands.
    pub state: State,
    /// When the migration was applied, in UTC.
    pub applied_at: Option<String>,
    /// The role that applied it.
    pub applied_by: Option<String>,
}

/// How a migration stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// In the database, and the same as in this build.
    Applied,
    /// Only in this build.
    Pending,
    /// Only in the database: a newer build applied it.
    Newer,
    /// In both, and not the same text.
    Changed,
}

impl State {
    /// The state in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Pending => "pending",
            Self::Newer => "newer",
            Self::Changed => "changed",
        }
    }
}

/// How the functions, views and triggers stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Routines {
    /// None are there.
    Missing,
    /// They are those of this build.
    Current,
    /// They are those of an older build.
    Outdated,
    /// They are those of a newer build, and stay.
    Newer,
}

impl Routines {
    /// The state in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Current => "current",
            Self::Outdated => "outdated",
            Self::Newer => "newer",
        }
    }

    pub(super) fn need_loading(self) -> bool {
        matches!(self, Self::Missing | Self::Outdated)
    }
}

/// Nothing of pgonce is in the schema.
pub const MISSING: &str = "P4100";
/// The database is behind this build.
pub const OUTDATED: &str = "P4101";
/// A newer build applied a migration that this build cannot live with.
pub const TOO_NEW: &str = "P4102";
/// What was applied is not what this build knows under that number.
pub const CHANGED: &str = "P4103";
/// The database has tables on other servers, by Citus, and pgonce's are on this one only.
pub const HALF_DISTRIBUTED: &str = "P4104";
/// Not possible on Citus, or without it.
pub const NOT_DISTRIBUTED: &str = "P4105";

impl Status {
    /// Whether this build can use the database as it is: [`Error::Schema`] says why not, with
    /// code [`MISSING`], [`OUTDATED`], [`TOO_NEW`], [`CHANGED`] or [`HALF_DISTRIBUTED`].
    pub fn verdict(&self) -> Result<()> {
        self.can_migrate()?;
        let schema = &self.schema;
        if !self.installed {
            return refuse(
                MISSING,
                format!("pgonce is not installed in schema {schema}"),
                None,
                format!(
                    "Run `pgonce migrate up --schema {schema}`, or give the schema that it is in."
                ),
            );
        }
        if !self.is_up_to_date() {
            let pending = match self.names(|entry| entry.state == State::Pending) {
                none if none.is_empty() => "none".to_owned(),
                names => names,
            };
            return refuse(
                OUTDATED,
                format!("schema {schema} is older than this build of pgonce"),
                Some(format!(
                    "Pending migrations: {pending}; routines: {}.",
                    self.routines.as_str()
                )),
                format!("Run `pgonce migrate up --schema {schema}` before this build is used."),
            );
        }
        match &self.remote_table {
            Some(table) => half_distributed(table),
            None => Ok(()),
        }
    }

    /// Whether `up` has nothing to do.
    pub fn is_up_to_date(&self) -> bool {
        !self.routines.need_loading()
            && self
                .migrations
                .iter()
                .all(|entry| entry.state != State::Pending)
    }

    /// Whether this build may change the database at all.
    pub(super) fn can_migrate(&self) -> Result<()> {
        let schema = &self.schema;
        let breaking = self.names(|entry| entry.state == State::Newer && entry.breaking);
        if !breaking.is_empty() {
            return refuse(
                TOO_NEW,
                format!(
                    "schema {schema} is newer than this build of pgonce, and not compatible with it"
                ),
                Some(format!(
                    "Breaking migrations that this build does not know: {breaking}."
                )),
                "Use a build of pgonce that knows them.".to_owned(),
            );
        }
        let changed = self.names(|entry| entry.state == State::Changed);
        if !changed.is_empty() {
            return refuse(
                CHANGED,
                format!("what was applied to schema {schema} is not what this build knows"),
                Some(format!("The checksum differs: {changed}.")),
                "Released migrations never change. Find out who changed the file or the ledger; \
                 install the true build of pgonce, or a fresh schema."
                    .to_owned(),
            );
        }
        let last = self
            .migrations
            .iter()
            .rposition(|entry| entry.state != State::Pending);
        let first_pending = self
            .migrations
            .iter()
            .position(|entry| entry.state == State::Pending);
        if let (Some(last), Some(pending)) = (last, first_pending)
            && pending < last
        {
            return refuse(
                CHANGED,
                format!("the ledger of schema {schema} has a gap"),
                Some(format!(
                    "{} was applied, {} before it was not.",
                    self.migrations[last].name, self.migrations[pending].name
                )),
                "Rows of the ledger are never removed. Put the row back, or install a fresh schema.".to_owned(),
            );
        }
        Ok(())
    }

    /// Migrations that a newer build applied.
    pub(super) fn newer(&self) -> Vec<String> {
        let newer = self
            .migrations
            .iter()
            .filter(|entry| entry.state == State::Newer);
        newer.map(|entry| entry.name.clone()).collect()
    }

    fn names(&self, which: impl Fn(&Entry) -> bool) -> String {
        let names: Vec<&str> = self
            .migrations
            .iter()
            .filter(|e| which(e))
            .map(|e| e.name.as_str())
            .collect();
        names.join(", ")
    }
}

/// The refusal of a database where an effect could commit without its record.
pub(super) fn half_distributed(table: &str) -> Result<()> {
    refuse(
        HALF_DISTRIBUTED,
        format!("table {table} is distributed over other servers, and pgonce's tables are not"),
        Some(
            "Citus commits on a worker and here in two steps: a crash between them would part an effect from its record."
                .to_owned(),
        ),
        "Run `pgonce migrate up --distribute`; or, where no command writes distributed tables, `pgonce migrate up --coordinator-only`."
            .to_owned(),
    )
}

/// The refusal to distribute what cannot be.
pub(super) fn no_citus<T>() -> Result<T> {
    Err(Error::Schema(ErrorDetail::new(
        NOT_DISTRIBUTED,
        "the tables cannot be distributed: the extension citus is not in this database",
        "Create it, add the workers with citus_add_node, and run it again on the coordinator.",
    )))
}

fn refuse(code: &str, message: String, detail: Option<String>, hint: String) -> Result<()> {
    Err(Error::Schema(ErrorDetail {
        detail: detail.map(Into::into),
        ..ErrorDetail::new(code, message, &hint)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(migrations: &[(u32, State, bool)], routines: Routines) -> Status {
        Status {
            schema: "pgonce".into(),
            installed: true,
            migrations: migrations
                .iter()
                .map(|&(number, state, breaking)| Entry {
                    number,
                    name: format!("{number:04}_x"),
                    breaking,
                    state,
                    applied_at: None,
                    applied_by: None,
                })
                .collect(),
            routines,
            remote_table: None,
        }
    }

    #[test]
    fn every_way_not_to_fit_has_its_own_code() {
        use State::{Applied, Changed, Newer, Pending};
        let code = |migrations: &[_], routines| {
            let verdict = status(migrations, routines).verdict();
            verdict.map_or_else(|error| error.code().to_owned(), |()| "fits".to_owned())
        };
        let one = (1, Applied, false);
        assert_eq!(code(&[one], Routines::Current), "fits");
        assert_eq!(code(&[one], Routines::Outdated), OUTDATED);
        assert_eq!(
            code(&[one, (2, Pending, false)], Routines::Current),
            OUTDATED
        );
        assert_eq!(code(&[one, (2, Newer, false)], Routines::Newer), "fits");
        assert_eq!(code(&[one, (2, Newer, true)], Routines::Newer), TOO_NEW);
        assert_eq!(code(&[(1, Changed, false)], Routines::Current), CHANGED);
        assert_eq!(
            code(
                &[(1, Pending, false), (2, Applied, false)],
                Routines::Current
            ),
            CHANGED
        );
        let nothing = Status {
            installed: false,
            ..status(&[(1, Pending, false)], Routines::Missing)
        };
        assert_eq!(nothing.verdict().unwrap_err().code(), MISSING);
        nothing.can_migrate().unwrap();
        let half = Status {
            remote_table: Some("orders".into()),
            ..status(&[one], Routines::Current)
        };
        assert_eq!(half.verdict().unwrap_err().code(), HALF_DISTRIBUTED);
    }
}
