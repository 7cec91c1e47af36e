//! Rows into a table: by COPY where all are new, else through a temporary table that says which are.

use std::ops::Range;

use bytes::Bytes;
use futures_util::SinkExt as _;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;

use super::chunk::{Chunk, Problem};
use super::trouble::{Results, Trouble};
use crate::call::{Args, Caller, Sql};
use crate::driver::Connection as _;
use crate::driver::tokio_postgres::{TokioPostgres, TokioSession};
use crate::error::{Error, Result};

static TARGET: Sql = Sql::seldom(
    "select t.name, t.type, t.equals from pgonce._import_target($1, pg_catalog.to_regclass($1), \
     array(select pg_catalog.jsonb_array_elements_text($2)), \
     case when $3::jsonb is not null then array(select pg_catalog.jsonb_array_elements_text($3)) end) t",
);
static NAME: Sql = Sql::seldom(
    "select pg_catalog.quote_ident(n.nspname), pg_catalog.quote_ident(c.relname), c.relname::text \
     from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid operator(pg_catalog.=) c.relnamespace \
     where c.oid operator(pg_catalog.=) pg_catalog.to_regclass($1)",
);

/// Rows are sent in pieces of this size.
const PIECE: usize = 256 * 1024;

/// A table, and the statements that write to it.
pub(super) struct Table {
    /// The name that errors of COPY give.
    relation: String,
    /// The natural key, as positions of columns.
    pub(super) key: Vec<usize>,
    copy: String,
    stage: String,
    copy_stage: String,
    existing: String,
    insert: String,
}

impl Table {
    pub(super) async fn find(
        caller: &Caller<TokioPostgres>,
        name: &str,
        columns: &[String],
        key: Option<&[String]>,
    ) -> Result<Self> {
        let names = serde_json::to_string(columns)?;
        let wanted = key.map(serde_json::to_string).transpose()?;
        let args = Args::new().text(name).json(&*names).json(wanted.as_deref());
        let found = caller.call(&TARGET, args).await?;
        let found = found.read(|mut row| Ok((row.text()?, row.text()?, row.opt_text())))?;
        let mut row = caller.call(&NAME, Args::texts([name])).await?.one()?;
        let (schema, table, relation) = (row.text()?, row.text()?, row.text()?);
        let target = format!("{schema}.{table}");
        let quoted: Vec<_> = columns.iter().map(|name| quoted(name)).collect();
        let all = quoted.join(", ");
        let of = |alias: &str| {
            let columns: Vec<_> = quoted
                .iter()
                .map(|name| format!("{alias}.{name}"))
                .collect();
            columns.join(", ")
        };
        let (mut key, mut types, mut equal) = (Vec::new(), Vec::new(), Vec::new());
        for (at, name) in columns.iter().enumerate() {
            let (_, kind, operator) = found
                .iter()
                .find(|column| column.0 == *name)
                .ok_or_else(crate::call::unreadable)?;
            let name = &quoted[at];
            types.push(format!("{name} {kind}"));
            if let Some(operator) = operator {
                // The operator of the index, on its own type: no other can be put in its place.
                let (operator, cast) = operator
                    .split_once("::")
                    .map_or((&**operator, String::new()), |(o, t)| (o, format!("::{t}")));
                key.push(at);
                equal.push(format!("t.{name}{cast} {operator} s.{name}{cast}"));
            }
        }
        let keys: Vec<_> = key.iter().map(|at| &*quoted[*at]).collect();
        let (first, equal) = (keys[0], equal.join(" and "));
        let keys = keys.join(", ");
        Ok(Self {
            copy: format!("copy {target} ({all}) from stdin"),
            stage: format!(
                "set local jit = off; create temporary table pgonce_import_stage (pgonce_row bigint generated always as identity, {}) on commit drop",
                types.join(", ")
            ),
            copy_stage: format!("copy pg_temp.pgonce_import_stage ({all}) from stdin"),
            // What is there already, or came before in these very rows; the same or with other content.
            existing: format!(
                "select e.same::pg_catalog.text, pg_catalog.string_agg((e.at)::pg_catalog.text, ',' order by e.at) from (\
                   select s.pgonce_row as at, pg_catalog.to_jsonb(row({s})) operator(pg_catalog.=) \
                          case when t.{first} is not null then pg_catalog.to_jsonb(row({t})) \
                               else pg_catalog.to_jsonb(row({f})) end as same \
                     from (select *, pg_catalog.min(pgonce_row) over (partition by {keys}) as pgonce_first \
                             from pg_temp.pgonce_import_stage) s \
                     left join lateral (select * from {target} t where {equal} limit 1) t on true \
                     join pg_temp.pgonce_import_stage f on f.pgonce_row operator(pg_catalog.=) s.pgonce_first \
                    where t.{first} is not null or s.pgonce_row operator(pg_catalog.<>) s.pgonce_first) e group by 1",
                s = of("s"),
                t = of("t"),
                f = of("f"),
            ),
            insert: format!(
                "insert into {target} ({all}) select {all} from pg_temp.pgonce_import_stage order by pgonce_row \
                 on conflict ({keys}) do nothing"
            ),
            relation,
            key,
        })
    }

    /// All rows are new, or this fails.
    pub(super) async fn copy(
        &self,
        session: &mut TokioSession,
        chunk: &Chunk,
        rows: Range<usize>,
    ) -> Result<Results, Trouble> {
        let sent = send(session, &self.copy, chunk, rows.clone()).await;
        let copied = sent.map_err(|error| match error.code().map(SqlState::code) {
            // Rows that are there; or a table that takes no COPY, such as one with row level security.
            Some("23505" | "0A000") => Trouble::Stage,
            _ => Self::blame(error, &self.relation, chunk, rows.clone()),
        })?;
        // COPY does not say which rows a trigger kept out.
        match usize::try_from(copied) {
            Ok(copied) if copied == chunk.good(rows).len() => Ok(Results::default()),
            _ => Err(Trouble::Stage),
        }
    }

    /// Finds out which rows are new, and inserts those.
    pub(super) async fn insert(
        &self,
        session: &mut TokioSession,
        chunk: &Chunk,
        rows: Range<usize>,
    ) -> Result<Results, Trouble> {
        let good = chunk.good(rows.clone());
        session
            .raw()
            .batch_execute(&self.stage)
            .await
            .map_err(Error::from)?;
        let sent = send(session, &self.copy_stage, chunk, rows.clone()).await;
        sent.map_err(|error| Self::blame(error, "pgonce_import_stage", chunk, rows))?;
        let mut results = Results::default();
        let existing = session
            .raw()
            .simple_query(&self.existing)
            .await
            .map_err(Error::from)?;
        for message in existing {
            let SimpleQueryMessage::Row(row) = message else {
                continue;
            };
            let list = row.get(1).unwrap_or_default().split(',');
            let numbers = list.filter_map(|number| number.parse::<usize>().ok());
            let places = numbers.filter_map(|number| good.get(number - 1).copied());
            let places: Vec<_> = places.collect();
            if row.get(0) != Some("true") {
                results.changed.extend(&places);
            }
            results.skipped.extend(places);
        }
        results.skipped.sort_unstable();
        let expected = good.len() - results.skipped.len();
        if expected == 0 {
            return Ok(results);
        }
        let insert = session.raw().execute(&self.insert, &[]).await;
        let inserted = insert.map_err(Error::from)?;
        match usize::try_from(inserted) {
            Ok(inserted) if inserted == expected => {}
            // A single row that is neither there nor inserted: a trigger made it so.
            _ if good.len() == 1 => {
                results.skipped = good.clone();
                results.odd = good;
            }
            _ => return Err(Trouble::Smaller(None)),
        }
        Ok(results)
    }

    /// Which row an error of COPY is about: its context has the line. Errors that COPY finds later than when it reads
    /// a row do not say.
    fn blame(
        error: tokio_postgres::Error,
        relation: &str,
        chunk: &Chunk,
        rows: Range<usize>,
    ) -> Trouble {
        let Some(problem) = error.as_db_error() else {
            return Error::from(error).into();
        };
        let code = problem.code().code();
        let is_about_row = code.starts_with("22") || matches!(code, "23502" | "23514");
        let context = problem.where_().unwrap_or_default();
        let context = context
            .lines()
            .find_map(|line| line.strip_prefix(&format!("COPY {relation}, ")));
        let Some(context) = context.filter(|_| is_about_row) else {
            return Error::from(error).into();
        };
        let digits = context
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(context.len());
        let (_, rest) = context.split_at(digits);
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (line, rest) = rest.split_at(end);
        let row = line
            .parse::<usize>()
            .ok()
            .and_then(|line| chunk.good(rows).get(line.checked_sub(1)?).copied());
        let Some(row) = row else {
            return Error::from(error).into();
        };
        let field = rest
            .strip_prefix(", column ")
            .and_then(|rest| rest.split(':').next());
        let field = field.or(problem.column()).map(str::to_owned);
        let problem = Problem::new(code, problem.message());
        Trouble::Row(row, Problem { field, ..problem })
    }
}

async fn send(
    session: &mut TokioSession,
    copy: &str,
    chunk: &Chunk,
    rows: Range<usize>,
) -> Result<u64, tokio_postgres::Error> {
    let sink = session.raw().copy_in::<_, Bytes>(copy).await?;
    let mut sink = std::pin::pin!(sink);
    for piece in chunk.pieces(rows) {
        for part in chunk.data[piece].chunks(PIECE) {
            sink.send(Bytes::copy_from_slice(part)).await?;
        }
    }
    sink.finish().await
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
