//! The rows that need attention, as a CSV file.

use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use pgonce::import::Reject;
use serde_json::Value;
use uuid::Uuid;

use crate::database::Database;
use crate::exit::{self, CliError, Result};

const HEADER: &str = "row,line,status,key,column,code,reason";

/// Rows per page.
const PAGE: usize = 1000;

/// A line of the file.
pub(super) fn line(reject: &Reject) -> String {
    let (row, line) = (reject.row.to_string(), reject.line.to_string());
    let [key, field] = [&reject.key, &reject.field].map(|text| text.as_deref().unwrap_or_default());
    joined([
        &row,
        &line,
        reject.status,
        key,
        field,
        &reject.code,
        &reject.reason,
    ])
}

fn joined(values: [&str; 7]) -> String {
    values.map(quoted).join(",")
}

/// A value of CSV. Spreadsheets run what begins like a formula.
fn quoted(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if formula {
        format!("'{text}")
    } else {
        text.to_owned()
    };
    match text.contains([',', '"', '\n', '\r', '\'']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

/// Refuses to write over the file that is imported.
pub(super) fn refuse_input(file: &Path, input: &Path) -> Result {
    match (file.canonicalize(), input.canonicalize()) {
        (Ok(one), Ok(other)) if one == other => Err(CliError::new(
            exit::USAGE,
            format!(
                "--rejects names the file that is imported: {}",
                file.display()
            ),
            "Name another file: it would be written over.",
        )),
        _ => Ok(()),
    }
}

/// Writes the file whole, or leaves the one that was there.
pub(super) fn write(file: &Path, lines: impl Iterator<Item = String>) -> Result {
    let unwritable = |error: std::io::Error| {
        let what = format!("the file {} cannot be written: {error}", file.display());
        CliError::new(
            exit::FAILED,
            what,
            "The results are in the database: pgonce import show JOB.",
        )
    };
    // A name that no file has: what is beside it may be the input.
    let mut part = file.as_os_str().to_owned();
    part.push(format!(".{}.part", Uuid::new_v4()));
    let part = PathBuf::from(part);
    let out = fs::File::create_new(&part).map_err(unwritable)?;
    let written = fill(out, lines).and_then(|()| fs::rename(&part, file));
    written.map_err(|error| {
        // What it has is of no use, and the next run does not write over it.
        let _ = fs::remove_file(&part);
        unwritable(error)
    })
}

fn fill(out: fs::File, lines: impl Iterator<Item = String>) -> std::io::Result<()> {
    let mut out = BufWriter::new(out);
    for line in std::iter::once(HEADER.to_owned()).chain(lines) {
        writeln!(out, "{line}")?;
    }
    out.into_inner()?.sync_all()
}

/// The same from the database: rows of earlier runs too.
pub(super) async fn write_stored(
    database: &Database,
    file: &Path,
    (job, number, tenant): (&str, i32, &str),
) -> Result {
    let query = "select * from pgonce.import_row r where tenant = $1 and job = $2 and row > $3::text::bigint \
                 and number = $4::text::integer order by row limit 1000";
    let number = number.to_string();
    let mut lines = Vec::new();
    let mut last = "0".to_owned();
    loop {
        let page = database
            .read(
                query,
                &[Some(tenant), Some(job), Some(&last), Some(&number)],
            )
            .await?;
        for row in &page {
            let row = pgonce::unstable::json::read(row)?;
            let text = |name: &str| match &row[name] {
                Value::String(text) => text.clone(),
                Value::Null => String::new(),
                other => other.to_string(),
            };
            let values = ["row", "line", "status", "key", "field", "code", "reason"].map(text);
            last.clone_from(&values[0]);
            lines.push(joined(values.each_ref().map(|value| &**value)));
        }
        if page.len() < PAGE {
            return write(file, lines.into_iter());
        }
    }
}
