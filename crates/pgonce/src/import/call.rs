//! Rows to a function of the user's, with the rights of the caller.

use std::ops::Range;

use super::Import;
use super::chunk::Chunk;
use super::rows::invalid;
use super::trouble::{Results, Trouble};
use crate::call::{Args, Caller, Sql, call_on};
use crate::driver::tokio_postgres::{TokioPostgres, TokioSession};
use crate::driver::{Connection as _, Param, Statement};
use crate::error::Result;

static FIND: Sql = Sql::seldom(
    "select pg_catalog.quote_ident(n.nspname), pg_catalog.quote_ident(p.proname) \
     from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid operator(pg_catalog.=) p.pronamespace \
     where p.oid operator(pg_catalog.=) pg_catalog.to_regprocedure(pg_catalog.concat($1, '(pg_catalog.jsonb)')) \
       and p.prokind operator(pg_catalog.=) 'f'::pg_catalog.\"char\"",
);
static KEYS: Sql = Sql::kept(
    "select at::text, changed::text from pgonce._import_keys($1, $2::text::integer, $3, $4)",
);

/// A function, and the statement that calls it.
pub(super) struct Function {
    call: Statement,
    keyed: bool,
}

impl Function {
    pub(super) async fn find(
        caller: &Caller<TokioPostgres>,
        name: &str,
        batch: bool,
        keyed: bool,
    ) -> Result<Self> {
        let found = caller.call(&FIND, Args::texts([name])).await?.first();
        let Some(mut row) = found else {
            return Err(invalid(
                "P4096",
                format!("there is no function {name}(jsonb)"),
                "Create a function that takes a row, or with --batch a list of rows, as jsonb; name it with its schema.",
            ));
        };
        let function = format!("{}.{}", row.text()?, row.text()?);
        // Without `offset 0` the planner could leave the call out.
        let call = match batch {
            true => {
                format!(
                    "select pg_catalog.count(*)::pg_catalog.text from (select {function}($1) offset 0) q"
                )
            }
            false => format!(
                "select pg_catalog.count(*)::pg_catalog.text from (select {function}(r.value) \
                 from pg_catalog.jsonb_array_elements($1) r (value) offset 0) q"
            ),
        };
        Ok(Self {
            call: caller.schema.statement_of(call),
            keyed,
        })
    }

    pub(super) async fn apply(
        &self,
        caller: &Caller<TokioPostgres>,
        session: &mut TokioSession,
        import: (&Import, i32),
        chunk: &Chunk,
        rows: Range<usize>,
    ) -> Result<Results, Trouble> {
        let good = chunk.good(rows);
        let mut results = Results::default();
        if self.keyed && !good.is_empty() {
            let listed = good.iter().map(|at| {
                let hash: String = chunk.hashes[at * 8..][..8]
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                (&*chunk.keys[*at], hash, chunk.start.row + *at as u64 + 1)
            });
            let listed = serde_json::to_string(&listed.collect::<Vec<_>>())
                .map_err(crate::error::Error::from)?;
            let args = Args::texts([&import.0.job])
                .int(i64::from(import.1))
                .json(&*listed)
                .text(&*import.0.tenant);
            let known = call_on(session, &caller.schema, &KEYS, &args).await?;
            for (at, changed) in known.read(|mut row| Ok((row.get::<usize>()?, row.bool()?)))? {
                results.skipped.push(good[at]);
                if changed {
                    results.changed.push(good[at]);
                }
            }
            results.skipped.sort_unstable();
        }
        let new = good
            .iter()
            .filter(|at| results.skipped.binary_search(at).is_err());
        let mut list = String::from("[");
        for at in new {
            if list.len() > 1 {
                list.push(',');
            }
            list.push_str(&String::from_utf8_lossy(chunk.row(*at)));
        }
        list.push(']');
        if list.len() > 2 {
            session
                .query(&self.call, &[Param::Json(Some(&list))])
                .await?;
        }
        Ok(results)
    }
}
