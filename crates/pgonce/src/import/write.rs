//! One transaction of an import: the rows and their results, or nothing.

use std::ops::Range;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::sleep;

use super::chunk::{Chunk, Place, ranges, values_of};
use super::run::{HOLD, RETRY_FOR, Run, Writer};
use super::trouble::{Results, Trouble};
use super::{Progress, Reject};
use crate::call::{BEGIN, Sql, call_on, roll_back};
use crate::driver::tokio_postgres::TokioSession;
use crate::driver::{Driver as _, Session as _, Settled};
use crate::error::{Error, Result};

static RECORD: Sql = Sql::kept(
    "select pgonce._import_record($1, $2::text::integer, $3::text::uuid, $4, $5, $6)::text",
);

impl Run<'_> {
    /// One transaction: the rows and their results, or nothing.
    pub(super) async fn write(
        &mut self,
        chunk: &Chunk,
        rows: Range<usize>,
        staged: bool,
    ) -> Result<(), Trouble> {
        let mut session = self.caller.driver.acquire().await?;
        session.open(BEGIN).await?;
        let written = self
            .write_on(&mut session, chunk, rows.clone(), staged)
            .await;
        let results = match written {
            Ok(results) => results,
            Err(trouble) => {
                // A session that cannot roll back is closed.
                let _ = roll_back(session).await;
                return Err(trouble);
            }
        };
        let details = self.details(chunk, rows.clone(), &results);
        let failed: Vec<_> = rows
            .clone()
            .filter(|at| chunk.bad.contains_key(at))
            .collect();
        let done = Progress {
            rows: rows.len() as u64,
            skipped: results.skipped.len() as u64,
            changed: results.changed.len() as u64,
            failed: failed.len() as u64,
            ..Progress::default()
        };
        if self.import.dry_run {
            roll_back(session).await?;
            self.rejects.extend(details);
        } else {
            let place = chunk.place_before(rows.end);
            let record = json!({
                "first": chunk.start.row + rows.start as u64 + 1,
                "last": place.row,
                "skipped": ranges(chunk, &results.skipped),
                "failed": ranges(chunk, &failed),
                "skipped_count": done.skipped,
                "changed_count": done.changed,
                "failed_count": done.failed,
                "bytes": place.bytes,
                "lines": place.lines,
                "chain": place.chain.cast_signed(),
                // The transaction may have taken longer than the lease that it began with.
                "lease": crate::driver::interval_text(self.import.lease),
                "details": details,
                "done": false,
            });
            let hashes = &chunk.hashes[rows.start * 8..rows.end * 8];
            self.settle(session, &record.to_string(), hashes).await?;
        }
        self.now.rows += done.rows;
        self.now.applied += done.rows - done.skipped - done.failed;
        self.now.skipped += done.skipped;
        self.now.changed += done.changed;
        self.now.failed += done.failed;
        Ok(())
    }

    async fn write_on(
        &self,
        session: &mut TokioSession,
        chunk: &Chunk,
        rows: Range<usize>,
        staged: bool,
    ) -> Result<Results, Trouble> {
        if !self.import.dry_run {
            let args = self
                .holder()
                .interval(self.import.lease)
                .text(&*self.import.tenant);
            call_on(session, &self.caller.schema, &HOLD, &args).await?;
            fault_point!("import.held");
        }
        let results = match &self.writer {
            Writer::Table(table) if staged => table.insert(session, chunk, rows).await?,
            Writer::Table(table) => table.copy(session, chunk, rows).await?,
            Writer::Function(function) => {
                function
                    .apply(
                        self.caller,
                        session,
                        (self.import, self.now.number),
                        chunk,
                        rows,
                    )
                    .await?
            }
        };
        fault_point!("import.written");
        Ok(results)
    }

    async fn settle(&self, mut session: TokioSession, record: &str, hashes: &[u8]) -> Result<()> {
        let args = self
            .holder()
            .json(record)
            .bytes(hashes)
            .text(&*self.import.tenant);
        let statement = self.caller.schema.statement(&RECORD);
        match session.settle(&statement, args.as_slice()).await {
            Settled::Committed(_) => {
                session.keep();
                fault_point!("import.recorded");
                Ok(())
            }
            Settled::Refused(error) => Err(error),
            Settled::Unknown(why) => Err(Error::Uncertain(why)),
        }
    }

    /// Every row has its result.
    pub(super) async fn finish(&mut self, place: Place, hash: Option<[u8; 32]>) -> Result<()> {
        fault_point!("import.before_done");
        let hex = hash.map(|hash| {
            hash.iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        });
        let record = json!({
            "first": self.now.rows + 1, "last": self.now.rows, "skipped_count": 0, "changed_count": 0, "failed_count": 0,
            "bytes": place.bytes, "lines": place.lines, "chain": place.chain.cast_signed(), "file_hash": hex, "done": true,
        });
        let record = record.to_string();
        let since = Instant::now();
        loop {
            let attempt = async {
                let mut session = self.caller.driver.acquire().await?;
                session.open(BEGIN).await?;
                self.settle(session, &record, &[]).await
            };
            match attempt.await.map_err(Trouble::from) {
                Ok(()) => return Ok(()),
                Err(Trouble::Again(_) | Trouble::Slow(_)) if since.elapsed() < RETRY_FOR => {
                    sleep(Duration::from_millis(200)).await;
                    if self.look(since).await?.0 == "done" {
                        return Ok(());
                    }
                }
                Err(Trouble::Again(error) | Trouble::Slow(error) | Trouble::Fatal(error)) => {
                    return Err(error);
                }
                Err(other) => {
                    return Err(Error::work(format!("the end was not recorded: {other:?}")));
                }
            }
        }
    }

    fn details(&self, chunk: &Chunk, rows: Range<usize>, results: &Results) -> Vec<Reject> {
        let key = |at: usize| match &self.writer {
            Writer::Table(table) => {
                Some(values_of(chunk.row(at), &table.key)).filter(|_| !chunk.row(at).is_empty())
            }
            Writer::Function(_) => chunk.keys.get(at).filter(|key| key.len() > 2).cloned(),
        };
        let reject = |at: usize, status, code: &str, field, reason: &str| Reject {
            row: chunk.start.row + at as u64 + 1,
            line: chunk.line(at),
            status,
            key: key(at),
            field,
            code: code.to_owned(),
            // Texts of PostgreSQL hold no NUL.
            reason: reason.replace('\0', "\u{fffd}"),
        };
        let failed = chunk.bad.range(rows);
        let failed =
            failed.map(|(at, p)| reject(*at, "failed", &p.code, p.field.clone(), &p.reason));
        let changed = "a row with this key is there with other content";
        let changed = results
            .changed
            .iter()
            .map(|at| reject(*at, "skipped", "changed", None, changed));
        let odd = "neither there nor inserted: a trigger kept it out, or changed its key";
        let odd = results
            .odd
            .iter()
            .map(|at| reject(*at, "skipped", "not_inserted", None, odd));
        failed.chain(changed).chain(odd).collect()
    }
}
