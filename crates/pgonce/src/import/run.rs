//! The loop of an import: rows and their results in one transaction, chunk by chunk.
//!
//! What can strike: the process, the connection or the server ends anywhere, also between a commit and its reply
//! (the database says how many rows have their result, and the next run begins there); a second process goes
//! on with the import (it is another runner, and this one is fenced out before it writes); a row is refused (the
//! transaction is made smaller until the row is alone); others insert the same keys meanwhile (the rows are looked
//! at again).

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::call::Function;
use super::chunk::{Chunk, Place, Problem};
use super::input::{Input, Opened};
use super::rows::{Format, Rows, invalid, unreadable};
use super::table::Table;
use super::trouble::{Trouble, is_transient};
use super::{Import, Progress, Reject, Report, Target};
use crate::call::{Args, Caller, Sql};
use crate::driver::tokio_postgres::TokioPostgres;
use crate::error::{Error, ErrorDetail, Result};

static BEGIN_IMPORT: Sql = Sql::seldom(
    "select number::text, state, row_count::text, applied::text, skipped::text, changed::text, failed::text, \
     bytes::text, lines::text, chain::text \
     from pgonce._import_begin($1, $2, $3, $4, $5::text::uuid, $6::text::interval, $7, $8::text::integer)",
);
static BEGIN_STREAM: Sql = Sql::seldom(
    "select number::text, state, row_count::text, applied::text, skipped::text, changed::text, failed::text, \
     bytes::text, lines::text, chain::text \
     from pgonce._import_begin($1, null, $2, $3, $4::text::uuid, $5::text::interval, $6, $7::text::integer)",
);
pub(super) static HOLD: Sql = Sql::kept(
    "select pgonce._import_hold($1, $2::text::integer, $3::text::uuid, $4::text::interval, $5)::text",
);
/// How long transient errors in a row are borne.
pub(super) const RETRY_FOR: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// After rows that were there already, so many chunks at most go through the temporary table before plain COPY is
/// tried again.
const MAX_STAGED: u32 = 64;

pub(super) enum Writer {
    Table(Box<Table>),
    Function(Function),
}

pub(super) struct Run<'a> {
    pub(super) caller: &'a Caller<TokioPostgres>,
    pub(super) import: &'a Import,
    pub(super) writer: Writer,
    pub(super) runner: String,
    pub(super) source: String,
    pub(super) settings: String,
    pub(super) hash: Option<[u8; 32]>,
    /// Its number in the job, once it is known; or the one that is to be gone on with.
    pub(super) number: Option<i32>,
    pub(super) now: Progress,
    pub(super) rejects: Vec<Reject>,
    /// Chunks that still go through the temporary table, and how many did the last time.
    pub(super) staged: (u32, u32),
    /// Maximum number of rows in a transaction, after one took too long.
    pub(super) max_rows: usize,
}

pub(super) async fn run(
    caller: &Caller<TokioPostgres>,
    import: &Import,
    input: Input,
    mut progress: impl FnMut(&Progress) + Send,
) -> Result<Report> {
    let mut import = import.clone();
    let source = match &input {
        Input::File(path) => path.to_string_lossy().into_owned(),
        Input::Stream(_) => "-".to_owned(),
    };
    import
        .layout
        .format
        .get_or_insert_with(|| format_of(&source));
    let import = &import;
    let layout = import.layout.clone();
    let (opened, mut rows) = blocking(move || {
        let mut opened = Opened::open(input)?;
        let reader = std::mem::replace(&mut opened.reader, Box::new(std::io::empty()));
        Ok((opened, Rows::open(reader, layout)?))
    })
    .await?;
    let writer = match &import.target {
        Target::Table(name) => {
            let table = Table::find(caller, name, &rows.columns, import.key.as_deref()).await?;
            let names: Vec<_> = table
                .key
                .iter()
                .map(|at| rows.columns[*at].clone())
                .collect();
            rows.set_key(&names)?;
            Writer::Table(Box::new(table))
        }
        Target::Function(name, batch) => {
            let key = import.key.as_deref().unwrap_or_default();
            rows.set_key(key)?;
            let function = Function::find(caller, name, *batch, !key.is_empty()).await?;
            if key.is_empty() && opened.hash.is_none() {
                return Err(invalid(
                    "P4097",
                    "rows of a stream that are passed to a function need a natural key",
                    "Name its columns with --key, or import a file: sent again after its last row, a stream without keys would call the function a second time for every row.",
                ));
            }
            Writer::Function(function)
        }
    };
    let mut run = Run {
        caller,
        import,
        writer,
        runner: Uuid::new_v4().to_string(),
        source,
        settings: import.settings().to_string(),
        hash: opened.hash,
        number: import.number,
        now: Progress {
            total_bytes: opened.size,
            ..Progress::default()
        },
        rejects: Vec::new(),
        staged: (0, 0),
        max_rows: usize::MAX,
    };
    let mut from = rows.place();
    if !import.dry_run {
        let (state, place) = run.begin().await?;
        if state == "done" {
            return Ok(run.report(false));
        }
        if place.row > 0 {
            from = place;
        }
    }
    let read = opened.read.clone();
    let (send, mut chunks) = mpsc::channel(1);
    let reading = tokio::task::spawn_blocking(move || -> Result<Option<[u8; 32]>> {
        let opened = go_to(opened, &mut rows, from)?;
        loop {
            let chunk = rows.next()?;
            let last = chunk.last;
            // Nobody receives any more where the import has failed.
            if send.blocking_send(chunk).is_err() || last {
                return Ok(opened.hash.is_none().then(|| opened.running_hash()));
            }
        }
    });
    let mut shown = |now: &mut Progress| {
        now.bytes = read.load(Ordering::Relaxed);
        progress(now);
    };
    let done = async {
        fault_point!("import.begun");
        shown(&mut run.now);
        let mut end = from;
        while let Some(chunk) = run.next(&mut chunks).await? {
            end = chunk.place_before(chunk.len());
            run.chunk(chunk, &mut shown).await?;
        }
        let hash = reading.await.map_err(Error::work)??;
        match import.dry_run {
            true => Ok(()),
            false => run.finish(end, hash).await,
        }
    };
    if let Err(error) = done.await {
        run.let_go().await;
        return Err(error);
    }
    Ok(run.report(true))
}

/// Goes on where the import was. A stream is read again up to there, and must be the same.
fn go_to(
    mut opened: Opened,
    rows: &mut Rows<Box<dyn std::io::BufRead + Send>>,
    from: Place,
) -> Result<Opened> {
    if from.row == 0 {
        return Ok(opened);
    }
    if opened.hash.is_some() {
        std::mem::swap(rows.reader(), &mut opened.reader);
        opened
            .skip(rows.place().bytes, from.bytes)
            .map_err(unreadable)?;
        std::mem::swap(rows.reader(), &mut opened.reader);
        rows.moved_to(from);
        return Ok(opened);
    }
    rows.stop_at(from.row);
    while rows.place().row < from.row && !rows.next()?.last {}
    if rows.place() != from {
        return Err(Error::Conflict(ErrorDetail::new(
            "P4098",
            "the input does not begin with the rows that were imported from it before",
            "Send the same input again, or use another job.",
        )));
    }
    rows.stop_at(u64::MAX);
    Ok(opened)
}

fn format_of(name: &str) -> Format {
    let name = name.to_ascii_lowercase();
    let name = name
        .strip_suffix(".gz")
        .or(name.strip_suffix(".zst"))
        .unwrap_or(&name);
    match name.ends_with(".jsonl") || name.ends_with(".ndjson") {
        true => Format::JsonLines,
        false => Format::Csv,
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(Error::work)?
}

impl Run<'_> {
    fn report(self, new: bool) -> Report {
        Report {
            number: self.number.unwrap_or_default(),
            new,
            rows: self.now,
            rejects: self.rejects,
        }
    }

    /// Takes the import over, and learns how far it is.
    pub(super) async fn begin(&mut self) -> Result<(String, Place)> {
        let args = Args::texts([&self.import.job]);
        let (sql, args) = match &self.hash {
            Some(hash) => (&BEGIN_IMPORT, args.bytes(hash)),
            None => (&BEGIN_STREAM, args),
        };
        let args = args
            .text(&*self.source)
            .json(&*self.settings)
            .text(&*self.runner);
        let args = args
            .interval(self.import.lease)
            .text(&*self.import.tenant)
            .int(self.number.map(i64::from));
        let mut row = self.caller.write(sql, args).await?.one()?;
        self.now.number = row.get()?;
        self.number = Some(self.now.number);
        let state = row.text()?;
        self.now.rows = row.get()?;
        self.now.applied = row.get()?;
        self.now.skipped = row.get()?;
        self.now.changed = row.get()?;
        self.now.failed = row.get()?;
        let place = Place {
            row: self.now.rows,
            bytes: row.get()?,
            lines: row.get()?,
            chain: row.get::<i64>()?.cast_unsigned(),
        };
        Ok((state, place))
    }

    /// Learns how far the import is after a commit whose reply was lost, which may have happened. Nothing is written before the
    /// database has said so: what was committed would look like the work of another process.
    pub(super) async fn look(&mut self, since: Instant) -> Result<(String, Place)> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.begin().await {
                Err(error) if is_transient(&error) && since.elapsed() < RETRY_FOR => {}
                known => return known,
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// The next chunk; meanwhile the lease is kept.
    async fn next(&self, chunks: &mut mpsc::Receiver<Chunk>) -> Result<Option<Chunk>> {
        let mut failing = None;
        loop {
            match timeout(self.import.lease / 3, chunks.recv()).await {
                Ok(chunk) => return Ok(chunk),
                Err(_) if self.import.dry_run => {}
                Err(_) => match self.hold(self.import.lease).await {
                    Ok(()) => failing = None,
                    Err(error) => {
                        let since: &mut Instant = failing.get_or_insert_with(Instant::now);
                        if since.elapsed() > RETRY_FOR || !is_transient(&error) {
                            return Err(error);
                        }
                    }
                },
            }
        }
    }

    async fn hold(&self, lease: Duration) -> Result<()> {
        let args = self.holder().interval(lease).text(&*self.import.tenant);
        self.caller.write(&HOLD, args).await.map(drop)
    }

    /// Others need not wait for the lease to end. Where that fails, they do.
    async fn let_go(&self) {
        if !self.import.dry_run {
            let _ = self.hold(Duration::ZERO).await;
        }
    }

    pub(super) fn holder(&self) -> Args<'_> {
        Args::texts([&self.import.job])
            .int(self.number.map(i64::from))
            .text(&*self.runner)
    }

    async fn chunk(
        &mut self,
        mut chunk: Chunk,
        progress: &mut (dyn FnMut(&mut Progress) + Send),
    ) -> Result<()> {
        let (mut at, mut size) = (0, chunk.len());
        let mut staged = self.staged.0 > 0;
        self.staged.0 = self.staged.0.saturating_sub(1);
        let mut failing: Option<(Instant, Duration)> = None;
        let unknown = || Problem::new("P4099", "the row was refused without a reason");
        while at < chunk.len() {
            let rows = at..chunk.len().min(at + size.clamp(1, self.max_rows));
            match self.write(&chunk, rows.clone(), staged).await {
                Ok(()) => {
                    failing = None;
                    (at, size) = (rows.end, rows.len() * 2);
                    progress(&mut self.now);
                    self.check_failed()?;
                }
                // It ends this transaction, so that many bad rows do not send the others again and again.
                Err(Trouble::Row(row, problem)) => {
                    chunk.bad.insert(row, problem);
                    size = row + 1 - at;
                }
                Err(Trouble::Stage) => {
                    staged = true;
                    let last = self.staged.1.clamp(1, MAX_STAGED / 2) * 2;
                    self.staged = (last, last);
                }
                // It was not even sent: something else than the row is refused.
                Err(Trouble::Smaller(problem))
                    if rows.len() == 1 && chunk.bad.contains_key(&at) =>
                {
                    let problem = problem.unwrap_or_else(unknown);
                    return Err(Error::Database(ErrorDetail::new(
                        &problem.code,
                        format!("the target refuses every row: {}", problem.reason),
                        "Look at its triggers: no row was sent.",
                    )));
                }
                Err(Trouble::Smaller(problem)) if rows.len() == 1 => {
                    chunk.bad.insert(at, problem.unwrap_or_else(unknown));
                }
                Err(Trouble::Smaller(_)) => size = rows.len() / 2,
                Err(Trouble::Slow(_)) if rows.len() > 1 => self.max_rows = rows.len() / 2,
                Err(Trouble::Again(error) | Trouble::Slow(error)) => {
                    let (since, pause) = *failing.get_or_insert((Instant::now(), FIRST_PAUSE));
                    if since.elapsed() > RETRY_FOR {
                        return Err(error);
                    }
                    sleep(pause).await;
                    failing = Some((since, (pause * 2).min(MAX_PAUSE)));
                    if !self.import.dry_run {
                        let (_, place) = self.look(since).await?;
                        at = usize::try_from(place.row.saturating_sub(chunk.start.row))
                            .unwrap_or(at);
                    }
                }
                Err(Trouble::Fatal(error)) => return Err(error),
            }
        }
        if !staged {
            self.staged = (0, 0);
        }
        Ok(())
    }

    fn check_failed(&self) -> Result<()> {
        if self.now.failed <= self.import.max_failed {
            return Ok(());
        }
        Err(invalid(
            "P4083",
            format!(
                "{} rows have failed, more than the {} that are allowed",
                self.now.failed, self.import.max_failed
            ),
            "Look at the reasons: pgonce import show JOB. Then raise the limit (--max-failed); or, where rows have a key, fix the file.",
        ))
    }
}
