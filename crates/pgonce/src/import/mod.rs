//! Files into tables or functions, each row once.
//!
//! [`Once::import`](crate::Once) reads CSV or JSON Lines in bounded memory. Rows and their results commit
//! together, chunk by chunk: killed anywhere, the import goes on where it was when it is started again. A row
//! whose natural key is there already is skipped, and listed where its content differs. A bad row fails alone.
//!
//! Needs the feature `import`, which uses COPY of tokio-postgres.

mod call;
mod chunk;
#[cfg(test)]
mod fuzz;
mod input;
mod record;
mod rows;
mod run;
mod table;
mod text;
mod trouble;
mod write;

use std::time::Duration;

use serde_json::{Value, json};

pub use self::input::Input;
pub use self::rows::Format;
use crate::driver::tokio_postgres::TokioPostgres;
use crate::error::Result;
use crate::once::Once;

/// Where rows go.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Table(String),
    /// A function, and whether it gets a batch of rows at a time.
    Function(String, bool),
}

/// What to import, and how.
///
/// ```
/// use pgonce::import::Import;
///
/// let customers = Import::into_table("customers", "public.customer").key(["email"]);
/// let payments = Import::call("payments", "public.take_payment").key(["reference"]).max_failed(10);
/// # let _ = (customers, payments);
/// ```
#[derive(Debug, Clone)]
pub struct Import {
    job: String,
    target: Target,
    tenant: String,
    key: Option<Vec<String>>,
    layout: rows::Layout,
    max_failed: u64,
    lease: Duration,
    dry_run: bool,
    number: Option<i32>,
}

impl Import {
    /// Into the columns of a table that have the names of the file's. The table has a unique key over columns of
    /// the file, which says which rows are new.
    pub fn into_table(job: impl Into<String>, table: impl Into<String>) -> Self {
        Self::new(job.into(), Target::Table(table.into()))
    }

    /// To a SQL function that takes a row as `jsonb`, once for each row.
    pub fn call(job: impl Into<String>, function: impl Into<String>) -> Self {
        Self::new(job.into(), Target::Function(function.into(), false))
    }

    /// To a SQL function that takes a list of rows as `jsonb`.
    pub fn call_batch(job: impl Into<String>, function: impl Into<String>) -> Self {
        Self::new(job.into(), Target::Function(function.into(), true))
    }

    fn new(job: String, target: Target) -> Self {
        let objects = matches!(target, Target::Function(..));
        Self {
            job,
            target,
            tenant: String::new(),
            key: None,
            layout: rows::Layout {
                delimiter: b',',
                objects,
                max_row: 4 << 20,
                max_rows: if objects { 1000 } else { 50_000 },
                max_bytes: 4 << 20,
                ..rows::Layout::default()
            },
            max_failed: 1000,
            lease: Duration::from_secs(30),
            dry_run: false,
            number: None,
        }
    }

    /// The tenant that the job belongs to. Default: none.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// The columns of the natural key. Default: the primary key of the table, else its oldest unique index; for a
    /// function none, so that a row is known by its file and number only; a stream needs one (`P4097`).
    #[must_use]
    pub fn key<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.key = Some(columns.into_iter().map(Into::into).collect());
        self
    }

    /// How the file is written. Default: JSON Lines where its name ends in `.jsonl` or `.ndjson`, with or without
    /// `.gz` or `.zst`; else CSV.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.layout.format = Some(format);
        self
    }

    /// What separates the values of a CSV file. Default: a comma.
    #[must_use]
    pub fn delimiter(mut self, delimiter: u8) -> Self {
        self.layout.delimiter = delimiter;
        self
    }

    /// The names of the columns of a CSV file that has no header; of JSON Lines, those that rows may have. Default:
    /// the first line says.
    #[must_use]
    pub fn columns<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.layout.columns = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Gives a column of the file another name; an empty one leaves the column out.
    #[must_use]
    pub fn map(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.layout.map.insert(from.into(), to.into());
        self
    }

    /// Maximum size of a row in bytes. A larger one fails. Default: 4 MiB.
    #[must_use]
    pub fn max_row(mut self, bytes: usize) -> Self {
        self.layout.max_row = bytes;
        self
    }

    /// Maximum number of rows in one transaction. Default: 50,000, or 1,000 for a function.
    #[must_use]
    pub fn max_rows(mut self, rows: usize) -> Self {
        self.layout.max_rows = rows.max(1);
        self
    }

    /// Maximum number of failed rows. With more, the import stops. Default: 1,000.
    #[must_use]
    pub fn max_failed(mut self, rows: u64) -> Self {
        self.max_failed = rows;
        self
    }

    /// How long another process waits for a sign of life before it goes on with the import. Default: 30 seconds; a
    /// process whose connection has ended is not waited for.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Does everything, and rolls it back: what would be applied, skipped and refused. Default: no.
    #[must_use]
    pub fn dry_run(mut self, on: bool) -> Self {
        self.dry_run = on;
        self
    }

    /// Goes on with the import of this number, and with no other file.
    #[doc(hidden)]
    #[must_use]
    pub fn resumes(mut self, number: i32) -> Self {
        self.number = Some(number);
        self
    }

    /// What makes another import of it.
    fn settings(&self) -> Value {
        let (kind, name) = match &self.target {
            Target::Table(name) => ("into", name),
            Target::Function(name, false) => ("call", name),
            Target::Function(name, true) => ("call_batch", name),
        };
        json!({
            kind: name,
            "key": self.key,
            "format": match self.layout.format {
                Some(Format::JsonLines) => "jsonl",
                _ => "csv",
            },
            "delimiter": char::from(self.layout.delimiter),
            "columns": self.layout.columns,
            "map": self.layout.map,
        })
    }

    /// The import that has these settings, as `pgonce.imports` shows them.
    #[doc(hidden)]
    pub fn from_settings(job: &str, settings: &Value) -> Option<Self> {
        let text = |name: &str| settings[name].as_str();
        let texts = |name: &str| {
            let list = settings[name].as_array()?;
            Some(
                list.iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect::<Vec<_>>(),
            )
        };
        let mut import = match (text("into"), text("call"), text("call_batch")) {
            (Some(table), ..) => Self::into_table(job, table),
            (_, Some(function), _) => Self::call(job, function),
            (.., function) => Self::call_batch(job, function?),
        };
        import.key = texts("key");
        import.layout.columns = texts("columns");
        import.layout.delimiter = u8::try_from(text("delimiter")?.chars().next()?).ok()?;
        import.layout.format = Some(match text("format")? {
            "jsonl" => Format::JsonLines,
            _ => Format::Csv,
        });
        for (from, to) in settings["map"].as_object()? {
            import = import.map(from, to.as_str()?);
        }
        Some(import)
    }
}

/// How far an import is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The number of the file in its job; 0 in a dry run.
    pub number: i32,
    /// Rows that have their result.
    pub rows: u64,
    /// Rows that were applied.
    pub applied: u64,
    /// Rows whose natural key was there already.
    pub skipped: u64,
    /// Skipped rows whose content differs from what is there.
    pub changed: u64,
    /// Rows that failed.
    pub failed: u64,
    /// Bytes of the input that were read, as they are stored.
    pub bytes: u64,
    /// Bytes of the input in all; not known of a stream.
    pub total_bytes: Option<u64>,
}

/// What became of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "rows may have failed"]
#[non_exhaustive]
pub struct Report {
    /// The number of the file in its job.
    pub number: i32,
    /// Whether this call did anything; else the file was imported before.
    pub new: bool,
    /// The rows, of all runs together.
    pub rows: Progress,
    /// The failed rows of a dry run. Otherwise they are in `pgonce.import_row`.
    pub rejects: Vec<Reject>,
}

/// A row that failed, or whose natural key was there with other content.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Reject {
    /// The number of the row, from 1, without the header.
    pub row: u64,
    /// The line that it begins on.
    pub line: u64,
    /// `failed` or `skipped`.
    pub status: &'static str,
    /// The natural key as a JSON list, where it could be read.
    pub key: Option<String>,
    /// The column, where one is to blame.
    pub field: Option<String>,
    /// The code of the reason.
    pub code: String,
    /// Why.
    pub reason: String,
}

impl Once<TokioPostgres> {
    /// Imports a file, or goes on with it, and returns when every row has its result. Imported before, it changes
    /// nothing. `progress` is called at the beginning and after every transaction.
    ///
    /// `P4029`: another process imports for this job, or this very file for another job of the tenant.
    ///
    /// ```no_run
    /// # async fn example(once: &pgonce::tokio_postgres::Once) -> Result<(), pgonce::Error> {
    /// use pgonce::import::{Import, Input};
    ///
    /// let customers = Import::into_table("customers", "public.customer").key(["email"]);
    /// let file = Input::File("customers.csv.gz".into());
    /// let report = once.import(&customers, file, |now| println!("{} rows", now.rows)).await?;
    /// println!("{} applied, {} failed", report.rows.applied, report.rows.failed);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn import(
        &self,
        import: &Import,
        input: Input,
        progress: impl FnMut(&Progress) + Send,
    ) -> Result<Report> {
        run::run(self.caller(), import, input, progress).await
    }
}
