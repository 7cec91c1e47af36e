//! What the database says was applied, and what this build makes of it.

use std::time::Duration;

use super::files::{self, MIGRATIONS, Migration};
use super::nodes::{Layout, Nodes, rows};
use super::script;
use super::status::{Entry, Routines, State, Status};
use crate::call::limited;
use crate::driver::{Connection, Row, Session};
use crate::error::{Error, ErrorDetail, Result};

/// The ledger as it was read.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) nodes: Nodes,
    applied: Option<Vec<Applied>>,
    routines: Option<(String, String)>,
}

/// What a migrator has to do, all in one transaction: routines rely on the shape of the tables.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) migrations: Vec<&'static Migration>,
    pub(super) routines: bool,
}

#[derive(Debug, Clone)]
struct Applied {
    number: u32,
    name: String,
    checksum: String,
    breaking: bool,
    at: String,
    by: String,
}

impl Ledger {
    /// Reads it in a transaction of its own that changes nothing.
    pub(super) async fn look<S: Session>(
        session: &mut S,
        schema: &str,
        statement_timeout: Option<Duration>,
    ) -> Result<Self> {
        session.open(script::BEGIN_TO_LOOK).await?;
        let limit = statement_timeout.map(limited).unwrap_or_default();
        let read = match session.batch(&format!("{}{limit}", script::SETTINGS)).await {
            Ok(()) => Self::read(session, schema).await,
            Err(error) => Err(error),
        };
        let ended = session.rollback().await;
        let read = read.map_err(|error| may_not_look(error, schema))?;
        ended.map(|()| read)
    }

    /// Reads it in the open transaction.
    pub(super) async fn read<C: Connection>(conn: &mut C, schema: &str) -> Result<Self> {
        let nodes = Nodes::read(conn, schema).await?;
        // From the table itself: to_regclass may answer from a cache that is older than the lock.
        let there = format!(
            "select relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace \
             where nspname = '{schema}' and relname in ('migration', 'routines')"
        );
        if rows(conn, &there).await?.len() < 2 {
            return Ok(Self {
                nodes,
                applied: None,
                routines: None,
            });
        }
        let migrations = format!(
            "select number::text, name, checksum, breaking::text, \
             to_char(applied_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), applied_by \
             from {schema}.migration order by number"
        );
        let applied = rows(conn, &migrations)
            .await?
            .into_iter()
            .map(Applied::of)
            .collect();
        let routines = format!("select checksum, version from {schema}.routines");
        let routines = rows(conn, &routines).await?.pop().map(|row| {
            let mut cells = row.into_iter().map(Option::unwrap_or_default);
            (
                cells.next().unwrap_or_default(),
                cells.next().unwrap_or_default(),
            )
        });
        Ok(Self {
            nodes,
            applied: Some(applied),
            routines,
        })
    }

    /// What is to be done, if migrations after `last` are left out. Routines come when all
    /// migrations are there.
    pub(super) fn work(&self, last: u32, layout: Layout) -> Option<Work> {
        let migrations: Vec<_> = self.pending().filter(|next| next.number <= last).collect();
        let complete = migrations.len() == self.pending().count();
        let routines = complete && self.routines(layout).need_loading();
        (routines || !migrations.is_empty()).then_some(Work {
            migrations,
            routines,
        })
    }

    /// This build's migrations that were not applied.
    pub(super) fn pending(&self) -> impl Iterator<Item = &'static Migration> {
        MIGRATIONS
            .iter()
            .filter(|known| self.applied().iter().all(|row| row.number != known.number))
    }

    /// Whether the routines are this build's to write: not when the database is ahead of it.
    pub(super) fn routines(&self, layout: Layout) -> Routines {
        let Some((checksum, version)) = &self.routines else {
            return Routines::Missing;
        };
        if *checksum == files::routines_checksum(layout) {
            Routines::Current
        } else if self
            .applied()
            .iter()
            .any(|row| row.number > files::newest())
            || numbers(version) > numbers(files::VERSION)
        {
            Routines::Newer
        } else {
            Routines::Outdated
        }
    }

    /// The checksum of the routines that are there.
    pub(super) fn routines_checksum(&self) -> Option<&str> {
        let (checksum, _) = self.routines.as_ref()?;
        Some(checksum)
    }

    /// Says how things stand, for people.
    pub(super) fn status(&self, schema: &str) -> Status {
        let mut migrations: Vec<Entry> = self.applied().iter().map(Applied::entry).collect();
        migrations.extend(self.pending().map(|migration| Entry {
            number: migration.number,
            name: migration.name.to_owned(),
            breaking: migration.is_breaking(),
            state: State::Pending,
            applied_at: None,
            applied_by: None,
        }));
        migrations.sort_by_key(|entry| entry.number);
        Status {
            schema: schema.to_owned(),
            installed: self.applied.is_some(),
            migrations,
            routines: self.routines(self.nodes.layout()),
            remote_table: self.nodes.unguarded().map(str::to_owned),
        }
    }

    fn applied(&self) -> &[Applied] {
        self.applied.as_deref().unwrap_or_default()
    }
}

impl Applied {
    fn of(row: Row) -> Self {
        let mut cells = row.into_iter().map(Option::unwrap_or_default);
        let mut next = || cells.next().unwrap_or_default();
        Self {
            number: next().parse().unwrap_or_default(),
            name: next(),
            checksum: next(),
            breaking: next() == "true",
            at: next(),
            by: next(),
        }
    }

    fn entry(&self) -> Entry {
        let known = MIGRATIONS.iter().find(|known| known.number == self.number);
        Entry {
            number: self.number,
            name: self.name.clone(),
            breaking: self.breaking,
            state: match known {
                None => State::Newer,
                Some(known) if known.checksum() != self.checksum => State::Changed,
                Some(_) => State::Applied,
            },
            applied_at: Some(self.at.clone()),
            applied_by: Some(self.by.clone()),
        }
    }
}

fn may_not_look(error: Error, schema: &str) -> Error {
    match error {
        Error::Database(problem) if &*problem.code == "42501" => Error::Database(ErrorDetail {
            hint: Some(
                format!(
                    "Let the owner of schema {schema} grant this role its part: select {schema}.grant_to('the role', 'app')."
                )
                .into(),
            ),
            ..problem
        }),
        other => other,
    }
}

/// The three numbers of a version; what follows them does not count.
fn numbers(version: &str) -> [u64; 3] {
    let mut parts = version
        .split(['.', '-', '+'])
        .map(|part| part.parse().unwrap_or_default());
    [(); 3].map(|()| parts.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(rows: &[(u32, bool)], routines: Option<(&str, &str)>) -> Ledger {
        let applied = rows.iter().map(|&(number, breaking)| Applied {
            number,
            name: format!("{number:04}"),
            checksum: MIGRATIONS
                .iter()
                .find(|m| m.number == number)
                .map(Migration::checksum)
                .unwrap_or_default(),
            breaking,
            at: String::new(),
            by: String::new(),
        });
        Ledger {
            nodes: Nodes::default(),
            applied: Some(applied.collect()),
            routines: routines.map(|(checksum, version)| (checksum.to_owned(), version.to_owned())),
        }
    }

    #[test]
    fn an_older_build_never_puts_older_routines_back() {
        let ours = files::routines_checksum(Layout::default());
        let of = |rows: &[_], checksum: &str, version: &str| {
            ledger(rows, Some((checksum, version))).routines(Layout::default())
        };
        assert_eq!(of(&[(1, false)], &ours, files::VERSION), Routines::Current);
        assert_eq!(of(&[(1, false)], "other", "0.0.1"), Routines::Outdated);
        assert_eq!(of(&[(1, false)], "other", "999.0.0"), Routines::Newer);
        assert_eq!(
            of(&[(1, false), (9999, false)], "other", "0.0.1"),
            Routines::Newer
        );
        assert_eq!(
            ledger(&[], None).routines(Layout::default()),
            Routines::Missing
        );
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(numbers("0.10.0") > numbers("0.9.9"));
        assert_eq!(numbers("1.2.3-rc.1"), [1, 2, 3]);
        assert_eq!(numbers("?"), [0, 0, 0]);
    }
}
