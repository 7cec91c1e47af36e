//! Installing pgonce into a database, and keeping it up to date.
//!
//! Tables, types and data come from numbered files that never change once they are released; each
//! has a row in the ledger, `migration`. Functions, views and triggers are replaced whenever they
//! differ from this build's, and never by a build that is older than the database. All of it is one
//! transaction: no session ever sees new tables with old functions. Migrators may run at the same time and be killed at
//! any moment: the next [`Migrator::up`] goes on.
//!
//! ```no_run
//! # #[cfg(feature = "sqlx")]
//! # async fn example(pool: sqlx::PgPool) -> Result<(), pgonce::Error> {
//! use pgonce::{driver::sqlx::Sqlx, migrate::{Migrator, Part}};
//!
//! let migrator = Migrator::new(Sqlx::new(pool));
//! let report = migrator.up().await?;      // at deployment, by the schema's owner
//! migrator.grant(Part::App, "shop").await?; // the role that the application logs in as
//! migrator.check().await?;                // when a service starts, by that role
//! # Ok(())
//! # }
//! ```

mod files;
mod header;
mod ledger;
mod nodes;
mod part;
mod plan;
mod routines;
mod script;
mod status;

pub use files::{MIGRATIONS, Migration};
#[doc(hidden)]
pub use header::{Header, public_headers};
pub use part::Part;
pub use plan::Plan;
#[doc(hidden)]
pub use script::definitions;
pub use status::{
    CHANGED, Entry, HALF_DISTRIBUTED, MISSING, NOT_DISTRIBUTED, OUTDATED, Routines, State, Status,
    TOO_NEW,
};

use std::time::Duration;

use self::ledger::{Ledger, Work};
use self::nodes::Layout;
use crate::call::{Args, Caller, DEFAULT_SCHEMA, Schema, Sql, release_unless_lost, schema_name};
use crate::driver::{Driver, Session, Settled, Statement};
use crate::error::{Error, ErrorDetail, Result};

static GRANT: Sql = Sql::seldom("select 'done' from pgonce.grant_to($1::text::name, $2)");

/// How long it waits for locks of the application.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Installs pgonce and keeps it up to date. See the [module](self).
#[derive(Debug, Clone)]
#[must_use]
pub struct Migrator<D> {
    driver: D,
    schema: String,
    lock_timeout: Duration,
    statement_timeout: Option<Duration>,
    wanted: Wanted,
}

/// What the caller says about a database with Citus.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    Nothing,
    CoordinatorOnly,
    /// Together with this table.
    Distributed(Option<String>),
}

/// What [`Migrator::up`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Report {
    /// The migrations that it applied, in order.
    pub applied: Vec<&'static str>,
    /// Whether it loaded the functions, views and triggers.
    pub routines: bool,
    /// Migrations of a newer build that were there, none of them breaking: then this build left
    /// everything as it is.
    pub newer: Vec<String>,
}

/// What one step of `up` did.
enum Step {
    Applied(Work),
    Nothing(Vec<String>),
}

impl<D: Driver> Migrator<D> {
    /// Migrates the schema `pgonce` over this driver. The role needs no superuser, only the right
    /// to create the schema, or a schema that is there and that it owns. A superuser and a member of the owner's role may migrate
    /// too: they become the owner for the transaction, so that all of it belongs to one role.
    pub fn new(driver: D) -> Self {
        Self {
            driver,
            schema: DEFAULT_SCHEMA.to_owned(),
            lock_timeout: LOCK_TIMEOUT,
            statement_timeout: None,
            wanted: Wanted::Nothing,
        }
    }

    /// Another schema: small letters, digits and underscores.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Maximum wait for a lock that a transaction of the application holds. Default: 5
    /// seconds. Other transactions queue behind, so this is kept short; then it fails with
    /// `55P03` and may be run again.
    pub fn lock_timeout(mut self, lock_timeout: Duration) -> Self {
        self.lock_timeout = lock_timeout;
        self
    }

    /// For a database with Citus whose commands never write distributed tables: then pgonce's tables stay on the
    /// coordinator, and claims are granted although other tables are on workers. It is remembered in the database. Default: off.
    ///
    /// ```no_run
    /// # use pgonce::migrate::Migrator;
    /// # async fn example<D: pgonce::driver::Driver>(driver: D) -> Result<(), pgonce::Error> {
    /// Migrator::new(driver).coordinator_only().up().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn coordinator_only(mut self) -> Self {
        self.wanted = Wanted::CoordinatorOnly;
        self
    }

    /// Distributes pgonce's tables by tenant over the servers of Citus, together with a table of the user's that is
    /// distributed by a tenant of type `text`, and delegates commands to the server that has the tenant's rows. Done once and
    /// remembered; later calls of [`Migrator::up`] keep it so. What it takes, and what does not work there:
    /// <https://github.com/pgonce/pgonce/blob/main/docs/src/how-to/citus.md>.
    ///
    /// ```no_run
    /// # use pgonce::migrate::Migrator;
    /// # async fn example<D: pgonce::driver::Driver>(driver: D) -> Result<(), pgonce::Error> {
    /// Migrator::new(driver).distribute(Some("public.orders")).up().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn distribute(mut self, colocate_with: Option<&str>) -> Self {
        self.wanted = Wanted::Distributed(colocate_with.map(str::to_owned));
        self
    }

    /// Maximum time of each statement of [`Migrator::check`]; for health checks. Default: none.
    #[doc(hidden)]
    pub fn statement_timeout(mut self, limit: Duration) -> Self {
        self.statement_timeout = Some(limit);
        self
    }

    /// Brings the database up to this build. Where somebody else is at it, waits and goes on from
    /// there. Where nothing is to be done, takes no lock and needs no rights but to look.
    ///
    /// [`Error::Schema`] has code [`TOO_NEW`], [`CHANGED`] or [`HALF_DISTRIBUTED`].
    pub async fn up(&self) -> Result<Report> {
        self.up_to(u32::MAX).await
    }

    /// As [`Migrator::up`], but stops after this migration. Routines are loaded only after the
    /// last one. For tests of the migrations themselves.
    #[doc(hidden)]
    pub async fn up_to(&self, last: u32) -> Result<Report> {
        schema_name(&self.schema)?;
        let mut session = self.driver.acquire().await?;
        let mut report = Report::default();
        let done = loop {
            match self.step(&mut session, last).await {
                Ok(Step::Applied(work)) => {
                    report
                        .applied
                        .extend(work.migrations.iter().map(|m| m.name));
                    report.routines |= work.routines;
                }
                Ok(Step::Nothing(newer)) => {
                    report.newer = newer;
                    break Ok(report);
                }
                Err(error) => break Err(error),
            }
        };
        release_unless_lost(session, &done);
        done
    }

    /// What [`Migrator::up`] would run now. Changes nothing.
    pub async fn plan(&self) -> Result<Plan> {
        let ledger = self.look().await?;
        ledger.status(&self.schema).can_migrate()?;
        let layout = self.layout(&ledger)?;
        Ok(Plan {
            schema: self.schema.clone(),
            migrations: ledger.pending().collect(),
            routines: ledger.routines(layout).need_loading(),
            replaced: ledger.routines_checksum().map(str::to_owned),
            layout,
            distribution: self.distribution(&ledger, layout),
            lock_timeout: self.lock_timeout,
            grants: Vec::new(),
        })
    }

    /// How the database stands beside this build. Changes nothing.
    pub async fn status(&self) -> Result<Status> {
        Ok(self.look().await?.status(&self.schema))
    }

    /// Whether this build can use the database, for a service that starts: [`Status::verdict`].
    pub async fn check(&self) -> Result<()> {
        self.status().await?.verdict()
    }

    /// Whether Citus distributes pgonce's tables: then [`Once`](crate::Once) must be built with
    /// [`distributed`](crate::OnceBuilder::distributed).
    pub async fn is_distributed(&self) -> Result<bool> {
        Ok(self.look().await?.nodes.layout() == Layout::Distributed)
    }

    /// Lets a role do one part of the work, and no more. Only the owner may; again does no harm. Later migrations grant
    /// the role what is new for its part.
    ///
    /// ```no_run
    /// # use pgonce::migrate::{Migrator, Part};
    /// # async fn example<D: pgonce::driver::Driver>(migrator: Migrator<D>) -> Result<(), pgonce::Error> {
    /// migrator.grant(Part::App, "shop").await?;
    /// migrator.grant(Part::Relay, "shop_relay").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn grant(&self, part: Part, role: &str) -> Result<()> {
        let caller = Caller {
            driver: self.driver.clone(),
            schema: Schema::new(&self.schema, false)?,
            statement_timeout: None,
            deadline: None,
        };
        caller
            .call(&GRANT, Args::texts([role, part.as_str()]))
            .await
            .map(drop)
    }

    async fn look(&self) -> Result<Ledger> {
        let schema = schema_name(&self.schema)?;
        let mut session = self.driver.acquire().await?;
        let looked = Ledger::look(&mut session, schema, self.statement_timeout).await;
        release_unless_lost(session, &looked);
        looked
    }

    /// How the routines are to be loaded.
    fn layout(&self, ledger: &Ledger) -> Result<Layout> {
        let found = ledger.nodes.layout();
        match (&self.wanted, found) {
            (Wanted::CoordinatorOnly, Layout::Watched) => Ok(Layout::CoordinatorOnly),
            (Wanted::Distributed(_), Layout::Alone) => status::no_citus(),
            (Wanted::Distributed(_), _) => Ok(Layout::Distributed),
            _ => match ledger.nodes.unguarded() {
                Some(table) => status::half_distributed(table).map(|()| found),
                None => Ok(found),
            },
        }
    }

    /// What goes before the routines on Citus: the old ones go, and tables that are not distributed yet are.
    fn distribution(&self, ledger: &Ledger, layout: Layout) -> String {
        if layout != Layout::Distributed {
            return String::new();
        }
        let with = match &self.wanted {
            // Only the first time: later tables go where those of commands are.
            Wanted::Distributed(with) if layout != ledger.nodes.layout() => with.as_deref(),
            _ => None,
        };
        script::unload(&self.schema) + &script::distribute(&self.schema, with)
    }

    /// Runs what is next, if anything is.
    async fn step(&self, session: &mut D::Session, last: u32) -> Result<Step> {
        let schema = &self.schema;
        let seen = Ledger::look(session, schema, None).await?;
        let status = seen.status(schema);
        status.can_migrate()?;
        if seen.work(last, self.layout(&seen)?).is_none() {
            return Ok(Step::Nothing(status.newer()));
        }
        fault_point!("migrate.before_step");
        session.open(script::BEGIN).await?;
        let stepped = self.locked_step(session, last).await;
        fault_point!("migrate.stepped");
        if stepped.is_err() {
            // Where the connection is lost the server rolls back by itself.
            let _ = session.rollback().await;
        }
        stepped.map_err(|error| may_not_change(error, schema))
    }

    /// The same under the lock, where what was seen before may have been done by another.
    async fn locked_step(&self, session: &mut D::Session, last: u32) -> Result<Step> {
        let schema = &self.schema;
        let lock = script::lock(schema, self.lock_timeout);
        session
            .batch(&format!("{}{lock}", script::SETTINGS))
            .await?;
        let ledger = Ledger::read(session, schema).await?;
        let status = ledger.status(schema);
        status.can_migrate()?;
        let layout = self.layout(&ledger)?;
        let Some(work) = ledger.work(last, layout) else {
            session.rollback().await?;
            return Ok(Step::Nothing(status.newer()));
        };
        let mut steps: Vec<(&str, String, String)> = Vec::new();
        for migration in &work.migrations {
            let text = layout.settings().to_owned()
                + &script::ledger(schema)
                + &script::in_schema(schema, migration.sql);
            let record = script::record_migration(schema, migration);
            steps.push((migration.name, text, record));
        }
        if work.routines {
            let record = script::record_routines(schema, layout);
            let text = layout.settings().to_owned()
                + &self.distribution(&ledger, layout)
                + &script::routines(schema, layout);
            steps.push(("the routines", text, record));
        }
        let mut last_record = "select 'done'".to_owned();
        for (name, text, record) in steps {
            session
                .batch(&format!("{text};{last_record}"))
                .await
                .map_err(|error| in_file(error, name))?;
            last_record = record;
        }
        let record = Statement {
            sql: last_record.into(),
            keep: false,
            pooled: false,
        };
        match session.settle(&record, &[]).await {
            Settled::Committed(_) => Ok(Step::Applied(work)),
            Settled::Refused(error) => Err(error),
            Settled::Unknown(why) => Err(Error::Disconnected(format!(
                "{why}; whether the migration was committed is in the ledger: run `up` again, it goes on from there"
            ))),
        }
    }
}

/// Says which file an error came from.
fn in_file(error: Error, name: &str) -> Error {
    match error {
        Error::Database(problem) => Error::Database(ErrorDetail {
            detail: Some(match problem.detail {
                Some(detail) => format!("In {name}, which was rolled back: {detail}").into(),
                None => format!("In {name}, which was rolled back.").into(),
            }),
            ..problem
        }),
        other => other,
    }
}

/// Adds what to do where PostgreSQL itself does not say it.
fn may_not_change(error: Error, schema: &str) -> Error {
    let hint = match error.code() {
        "42501" => format!(
            "Migrate as the role that owns schema {schema} or one that may become it by `set role`, or let a role of your choice \
             create it: grant create on database … to that role. `pgonce doctor` finds what in the schema belongs to others."
        ),
        "42P07" | "42710" | "42723" => format!(
            "Schema {schema} holds things that no migration put there. Choose another schema, or move them away."
        ),
        "55P03" => "A transaction of the application holds a lock on pgonce's tables for long. End it, or run it again later.".to_owned(),
        _ => return error,
    };
    match error {
        Error::Database(problem) => Error::Database(ErrorDetail {
            hint: Some(hint.into()),
            ..problem
        }),
        other => other,
    }
}
