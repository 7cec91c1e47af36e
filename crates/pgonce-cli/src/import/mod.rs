//! `pgonce import`: files into tables or functions, each row once.

mod progress;
mod rejects;

use std::io;
use std::path::PathBuf;

use clap::Subcommand;
use pgonce::Once;
use pgonce::import::{Format, Import, Input, Report};
use serde_json::{Value, json};

use self::progress::Shown;
use crate::database::{Database, Target};
use crate::exit::{self, CliError, Result};
use crate::output;

/// What to import.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    file: File,
    /// The tenant; empty where there are none.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    tenant: String,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List imports and how far they are.
    List,
    /// Show an import and its rows that need attention.
    Show(Show),
    /// Go on with an import that was stopped, from the file that it was begun with.
    Resume(Resume),
    /// Stop the import of a job. What was applied stays.
    Cancel(Job),
}

#[derive(Debug, clap::Args)]
struct Job {
    /// The job.
    job: String,
}

#[derive(Debug, clap::Args)]
struct Show {
    #[command(flatten)]
    job: Job,
    /// The number of the file in the job. Default: the last.
    #[arg(long)]
    number: Option<i32>,
    /// Show what became of this row; they count from 1, without the header.
    #[arg(long)]
    row: Option<u64>,
    /// Maximum number of rows that need attention.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    limit: u32,
}

#[derive(Debug, clap::Args)]
struct Resume {
    #[command(flatten)]
    job: Job,
    /// The number of the file in the job. Default: the last that is not done.
    #[arg(long)]
    number: Option<i32>,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, clap::Args)]
struct File {
    /// CSV or JSON Lines, plain or compressed with gzip or zstd; - reads standard input.
    #[arg(required = true)]
    file: Option<PathBuf>,
    /// What the import is called. Files of one job share their natural keys.
    #[arg(long, required = true, default_value = "", hide_default_value = true)]
    job: String,
    /// The table to import into. It has a unique key over columns of the file.
    #[arg(long, value_name = "TABLE", required_unless_present = "call")]
    into: Option<String>,
    /// A SQL function that takes each row as jsonb.
    #[arg(long, value_name = "FUNCTION", conflicts_with = "into")]
    call: Option<String>,
    /// Pass a list of rows to the function.
    #[arg(long, requires = "call")]
    batch: bool,
    /// The columns of the natural key. Default: the primary key of the table.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    key: Vec<String>,
    /// How the file is written. Default: by its name, else csv.
    #[arg(long, value_parser = ["csv", "jsonl"])]
    file_format: Option<String>,
    /// What separates the values of a CSV file, such as ';' or tab.
    #[arg(long, value_name = "CHARACTER", default_value = ",", value_parser = delimiter)]
    delimiter: u8,
    /// The names of the columns, for a CSV file without a header.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    columns: Option<Vec<String>>,
    /// Another name for a column of the file; an empty one leaves it out. May be given several times.
    #[arg(long, value_name = "FROM=TO", value_parser = renamed)]
    map: Vec<(String, String)>,
    /// Do everything and roll it back: say what would be applied, skipped and refused.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, clap::Args)]
struct How {
    /// Maximum number of failed rows; with more the import stops. Give it to `resume` again.
    #[arg(long, value_name = "ROWS", default_value_t = 1000)]
    max_failed: u64,
    /// Maximum size of a row. Give it to `resume` again.
    #[arg(long, value_name = "SIZE", default_value = "4 MiB")]
    max_row: bytesize::ByteSize,
    /// Maximum number of rows in one transaction.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_rows: Option<u32>,
    /// Write the rows that need attention to this file, as CSV: line, column, code, reason.
    #[arg(long, value_name = "FILE")]
    rejects: Option<PathBuf>,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

impl How {
    fn applied(&self, import: Import) -> Import {
        let size = usize::try_from(self.max_row.as_u64()).unwrap_or(usize::MAX);
        let import = import.max_failed(self.max_failed).max_row(size);
        match self.max_rows {
            Some(rows) => import.max_rows(rows as usize),
            None => import,
        }
    }
}

fn delimiter(text: &str) -> std::result::Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        [byte] if !b"\"\r\n\\".contains(byte) && byte.is_ascii() => Ok(*byte),
        _ => Err("one character, not a quote or a line end; or tab".to_owned()),
    }
}

fn renamed(text: &str) -> std::result::Result<(String, String), String> {
    let (from, to) = text
        .split_once('=')
        .ok_or("write FROM=TO, or FROM= to leave the column out")?;
    Ok((from.to_owned(), to.to_owned()))
}

impl File {
    fn import(&self, tenant: &str) -> Import {
        let mut import = match (&self.into, &self.call) {
            (Some(table), _) => Import::into_table(&self.job, table),
            (None, call) if self.batch => {
                Import::call_batch(&self.job, call.as_deref().unwrap_or_default())
            }
            (None, call) => Import::call(&self.job, call.as_deref().unwrap_or_default()),
        };
        import = import
            .tenant(tenant)
            .delimiter(self.delimiter)
            .dry_run(self.dry_run);
        if !self.key.is_empty() {
            import = import.key(&self.key);
        }
        if let Some(format) = &self.file_format {
            import = import.format(match &**format {
                "jsonl" => Format::JsonLines,
                _ => Format::Csv,
            });
        }
        if let Some(columns) = &self.columns {
            import = import.columns(columns);
        }
        for (from, to) in &self.map {
            import = import.map(from, to);
        }
        self.how.applied(import)
    }
}

pub(crate) async fn run(args: Args, target: Target) -> Result {
    let database = target.installed().await?;
    let tenant = &*args.tenant;
    let Some(action) = args.action else {
        let file = args.file;
        let path = file.file.clone().unwrap_or_default();
        let input = if path.as_os_str() == "-" {
            Input::Stream(Box::new(io::stdin()))
        } else {
            // Resumed from another folder, it is still the same file.
            Input::File(std::path::absolute(&path).unwrap_or(path))
        };
        let import = file.import(tenant);
        return import_file(
            &database,
            (&file.job, tenant),
            import,
            input,
            &file.how,
            file.dry_run,
        )
        .await;
    };
    match action {
        Action::List => {
            let query = "select job, number, state, row_count as rows, applied, skipped, changed, failed, source, started_at, \
                         ended_at from pgonce.imports where tenant = $1 order by started_at desc limit 1000";
            let rows = database.read(query, &[Some(tenant)]).await?;
            output::rows(database.format, &rows, "Nothing was imported here.")?;
            match rows.len() {
                1000 => output::note("These are the newest 1000; pgonce.imports has the others."),
                _ => Ok(()),
            }
        }
        Action::Show(show) => self::show(&database, show, tenant).await,
        Action::Resume(resume) => self::resume(&database, resume, tenant).await,
        Action::Cancel(Job { job }) => {
            let query = "select pgonce.import_cancel($1, $2) as n";
            match database.count(query, &[Some(&job), Some(tenant)]).await? {
                0 => Err(unknown(&job, "no unfinished import")),
                n => output::say(
                    database.format,
                    "Cancelled. What was applied stays.",
                    &json!({"cancelled": n}),
                ),
            }
        }
    }
}

fn unknown(job: &str, what: &str) -> CliError {
    CliError::new(
        exit::NOT_FOUND,
        format!("job {job:?} has {what}"),
        "`pgonce import list` shows the imports.",
    )
}

async fn import_file(
    database: &Database,
    (job, tenant): (&str, &str),
    import: Import,
    input: Input,
    how: &How,
    dry_run: bool,
) -> Result {
    if let (Some(file), Input::File(path)) = (&how.rejects, &input) {
        rejects::refuse_input(file, path)?;
    }
    let once = Once::builder(database.driver.clone())
        .schema(&database.schema)
        .build()?;
    let mut shown = Shown::new(how.quiet, database.format);
    let mut number = 0;
    let done = once.import(&import, input, |now| {
        number = now.number;
        shown.show(now);
    });
    let done = done.await;
    shown.end();
    if let Some(file) = &how.rejects {
        match &done {
            Ok(report) if dry_run => {
                rejects::write(file, report.rejects.iter().map(rejects::line))?
            }
            // It was not begun.
            Err(_) if number == 0 => {}
            _ => {
                let number = done.as_ref().map_or(number, |report| report.number);
                rejects::write_stored(database, file, (job, number, tenant)).await?;
            }
        }
    }
    let report = done?;
    exit::before_verdict(say(database, &report, job, dry_run))?;
    if report.rows.failed == 0 {
        return Ok(());
    }
    Err(CliError::new(
        exit::ROWS_FAILED,
        format!(
            "{} rows failed; all others have their result",
            report.rows.failed
        ),
        "Look at the reasons: pgonce import show JOB, or --rejects FILE. Fix these rows in a file of their own and import that.",
    ))
}

fn say(database: &Database, report: &Report, job: &str, dry_run: bool) -> Result {
    let rows = report.rows;
    let counts = format!(
        "{} rows: {} applied, {} skipped ({} of them changed), {} failed",
        rows.rows, rows.applied, rows.skipped, rows.changed, rows.failed
    );
    let words = match (dry_run, report.new) {
        (true, _) => format!("Would import {counts}."),
        (false, true) => format!("Imported {counts}."),
        (false, false) => format!("Imported before, nothing was done: {counts}."),
    };
    let value = json!({
        "job": job, "number": report.number, "new": report.new, "dry_run": dry_run, "rows": rows.rows, "applied": rows.applied,
        "skipped": rows.skipped, "changed": rows.changed, "failed": rows.failed,
    });
    output::say(database.format, &words, &value)
}

/// The import that is meant, as `pgonce.imports` has it.
async fn find(
    database: &Database,
    job: &str,
    number: Option<i32>,
    tenant: &str,
) -> Result<(String, Value)> {
    let query = "select * from pgonce.imports where tenant = $1 and job = $2 and number = coalesce($3::text::integer, number) \
                 order by number desc limit 1";
    let number = number.map(|number| number.to_string());
    let row = database
        .read_row(query, &[Some(tenant), Some(job), number.as_deref()])
        .await?;
    let row = row.ok_or_else(|| unknown(job, "no such import"))?;
    let value = serde_json::from_str(&row)?;
    Ok((row, value))
}

async fn show(database: &Database, show: Show, tenant: &str) -> Result {
    let job = &*show.job.job;
    let (row, import) = find(database, job, show.number, tenant).await?;
    let number = import["number"].to_string();
    if let Some(row) = show.row {
        let query =
            "select * from pgonce.import_result($1, $2::text::integer, $3::text::bigint, $4)";
        let params = [
            Some(job),
            Some(&*number),
            Some(&*row.to_string()),
            Some(tenant),
        ];
        let found = database.read_row(query, &params).await?.unwrap_or_default();
        return output::fields(database.format, &found);
    }
    let query = "select row, line, status, key, field, code, reason from pgonce.import_row \
                 where tenant = $1 and job = $2 and number = $3::text::integer order by row limit $4::text::bigint";
    let limit = show.limit.to_string();
    let rows = database
        .read(
            query,
            &[Some(tenant), Some(job), Some(&number), Some(&limit)],
        )
        .await?;
    if output::is_by_row() {
        return output::rows(database.format, &rows, "");
    }
    if database.format == output::Format::Json {
        return output::line(&format!(
            "{{\"import\":{row},\n \"attention\":[{}]}}",
            rows.join(",\n  ")
        ));
    }
    output::fields(database.format, &row)?;
    output::rows(database.format, &rows, "No row needs attention.")
}

async fn resume(database: &Database, resume: Resume, tenant: &str) -> Result {
    let job = resume.job.job;
    let query = "select max(number) as n from pgonce.imports where tenant = $1 and job = $2 and state <> 'done'";
    let last = database
        .read_count(query, &[Some(tenant), Some(&job)])
        .await?;
    let last = i32::try_from(last).ok().filter(|number| *number > 0);
    let (_, found) = find(database, &job, resume.number.or(last), tenant).await?;
    let number = found["number"].as_i64().unwrap_or_default();
    let source = found["source"].as_str().unwrap_or_default();
    let import = Import::from_settings(&job, &found["settings"])
        .ok_or_else(|| unknown(&job, "settings of another version"))?;
    let input = match source {
        "-" => Input::Stream(Box::new(io::stdin())),
        path => Input::File(path.into()),
    };
    let import = import
        .tenant(tenant)
        .resumes(i32::try_from(number).unwrap_or_default());
    let import = resume.how.applied(import);
    import_file(database, (&job, tenant), import, input, &resume.how, false).await
}
