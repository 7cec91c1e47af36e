//! From records to rows that the database takes: values by column, hash, natural key, place in the input.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use sha2::{Digest as _, Sha256};

use super::chunk::{Chunk, Place, Problem, copy_row};
use super::record::{Field, Next, Records, split};
use super::text::{Object, text};
use crate::error::{Error, ErrorDetail, Result};

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Comma-separated values with a header, by RFC 4180; an empty field without quotes is null.
    Csv,
    /// A JSON object on each line.
    JsonLines,
}

/// What the columns of a file are called, and what becomes of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Layout {
    pub(super) format: Option<Format>,
    pub(super) delimiter: u8,
    /// Names for a file without a header; for JSON Lines those to expect.
    pub(super) columns: Option<Vec<String>>,
    /// Other names; an empty one leaves the column out.
    pub(super) map: BTreeMap<String, String>,
    /// Whether rows become JSON objects for a function.
    pub(super) objects: bool,
    pub(super) max_row: usize,
    pub(super) max_rows: usize,
    pub(super) max_bytes: usize,
}

/// The values of a row, where they are compared and not its data; or why it is none.
type Added = std::result::Result<Option<Vec<u8>>, Problem>;

/// Reads rows.
pub(super) struct Rows<R> {
    records: Records<R>,
    layout: Layout,
    /// What the columns are called in the target, sorted: so their order in the file does not matter.
    pub(super) columns: Vec<String>,
    /// For each of them, its position in the file.
    order: Vec<usize>,
    /// The number of columns in the file.
    width: usize,
    /// The natural key, as positions in `columns`.
    key: Vec<usize>,
    place: Place,
    fields: Vec<Field>,
    scratch: Vec<u8>,
    /// A first row that was read for its columns.
    pending: bool,
    /// The row after which a chunk ends.
    stop: u64,
}

impl<R: io::BufRead> Rows<R> {
    /// Reads as far as the names of the columns.
    pub(super) fn open(mut reader: R, layout: Layout) -> Result<Self> {
        let mut begin = 0;
        if reader
            .fill_buf()
            .map_err(unreadable)?
            .starts_with(b"\xef\xbb\xbf")
        {
            reader.consume(3);
            begin = 3;
        }
        let csv = layout.format != Some(Format::JsonLines);
        let mut records = Records::new(reader, csv.then_some(layout.delimiter), layout.max_row);
        records.offset = begin;
        let mut rows = Self {
            records,
            columns: Vec::new(),
            order: Vec::new(),
            width: 0,
            key: Vec::new(),
            place: Place::default(),
            fields: Vec::new(),
            scratch: Vec::new(),
            pending: false,
            stop: u64::MAX,
            layout,
        };
        let given = rows.layout.columns.clone();
        let names = match given {
            Some(names) => names,
            None => rows.names(csv)?,
        };
        rows.arrange(names)?;
        rows.place.bytes = rows.records.offset;
        rows.place.lines = rows.records.next_line - 1;
        Ok(rows)
    }

    fn names(&mut self, csv: bool) -> Result<Vec<String>> {
        match self.records.next().map_err(unreadable)? {
            Next::Record if !self.records.bytes().is_empty() => {}
            Next::NeverClosed => return Err(self.never_closed()),
            Next::Misquoted => return Err(self.misquoted()),
            Next::TooLarge => {
                return Err(broken(
                    "P4093",
                    1,
                    "the first line is larger than the limit",
                ));
            }
            _ => {
                return Err(invalid(
                    "P4094",
                    "the file is empty: it has no header",
                    "Look at what wrote it. A file without rows has its header.",
                ));
            }
        }
        let record = self.records.bytes();
        if std::str::from_utf8(record).is_err() {
            return Err(broken("P4092", 1, "the first line is not UTF-8"));
        }
        if !csv {
            // It is a row too, and is read again.
            let object: Object<'_> = serde_json::from_slice(record)
                .map_err(|error| broken("P4090", 1, format!("not a JSON object: {error}")))?;
            self.pending = true;
            return Ok(object.0.into_keys().collect());
        }
        let split = split(
            record,
            self.layout.delimiter,
            &mut self.fields,
            &mut self.scratch,
        );
        split.map_err(|at| broken("P4090", 1, quote_at(at)))?;
        let text =
            |field: &Field| String::from_utf8_lossy(field.text(record, &self.scratch)).into_owned();
        Ok(self.fields.iter().map(text).collect())
    }

    fn arrange(&mut self, names: Vec<String>) -> Result<()> {
        self.width = names.len();
        let mut renamed = BTreeMap::new();
        for (at, name) in names.iter().enumerate() {
            let name = self.layout.map.get(name).unwrap_or(name);
            if !name.is_empty() && renamed.insert(name.clone(), at).is_some() {
                let what = format!("the column {name:?} is in the file twice");
                return Err(invalid(
                    "P4095",
                    what,
                    "Rename or leave out one of them: --map FROM=TO, --map FROM=.",
                ));
            }
        }
        if let Some(name) = self.layout.map.keys().find(|name| !names.contains(name)) {
            let what = format!("there is no column {name:?} in the file to rename");
            return Err(invalid(
                "P4095",
                what,
                "Names of columns are case-sensitive.",
            ));
        }
        (self.columns, self.order) = renamed.into_iter().unzip();
        Ok(())
    }

    /// Names the natural key.
    pub(super) fn set_key(&mut self, key: &[String]) -> Result<()> {
        let position = |name: &String| {
            let at = self.columns.iter().position(|column| column == name);
            at.ok_or_else(|| {
                let what = format!("the key names the column {name:?}, which is not in the file");
                invalid(
                    "P4095",
                    what,
                    "Name columns of the file, by their new names where --map renames them.",
                )
            })
        };
        self.key = key.iter().map(position).collect::<Result<_>>()?;
        Ok(())
    }

    /// Lets a chunk end after this row.
    pub(super) fn stop_at(&mut self, row: u64) {
        self.stop = row;
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    pub(super) fn reader(&mut self) -> &mut R {
        self.records.reader()
    }

    /// The reader stands at this place now.
    pub(super) fn moved_to(&mut self, place: Place) {
        self.place = place;
        self.pending = false;
        self.records.offset = place.bytes;
        self.records.next_line = place.lines + 1;
    }

    /// The next rows. After the last chunk there is none.
    pub(super) fn next(&mut self) -> Result<Chunk> {
        let mut chunk = Chunk {
            start: self.place,
            ..Chunk::default()
        };
        while chunk.len() < self.layout.max_rows
            && chunk.data.len() < self.layout.max_bytes
            && self.place.row < self.stop
        {
            let next = if std::mem::take(&mut self.pending) {
                Next::Record
            } else {
                self.records.next().map_err(unreadable)?
            };
            let start = chunk.data.len();
            let added = match next {
                Next::End => {
                    chunk.last = true;
                    break;
                }
                Next::NeverClosed => return Err(self.never_closed()),
                Next::Misquoted => return Err(self.misquoted()),
                Next::TooLarge => Err(Problem::new(
                    "P4093",
                    format!("the row has more than {} bytes", self.layout.max_row),
                )),
                // An empty line is no row, except where null is one.
                Next::Record
                    if self.records.bytes().is_empty()
                        && (self.width != 1 || self.layout.format == Some(Format::JsonLines)) =>
                {
                    continue;
                }
                Next::Record => self.add(&mut chunk)?,
            };
            let values = added.unwrap_or_else(|problem| {
                chunk.data.truncate(start);
                chunk.bad.insert(chunk.ends.len(), problem);
                chunk.keys.resize(
                    chunk.ends.len() + usize::from(self.layout.objects),
                    String::new(),
                );
                None
            });
            // Of what a function gets, its values: one row has many spellings.
            let digest = Sha256::digest(values.as_deref().unwrap_or(&chunk.data[start..]));
            let hash = &digest[..8];
            chunk.hashes.extend_from_slice(hash);
            let number = hash.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
            self.place = Place {
                row: self.place.row + 1,
                bytes: self.records.offset,
                lines: self.records.next_line - 1,
                chain: (self.place.chain ^ number)
                    .wrapping_mul(0x0000_0100_0000_01b3)
                    .rotate_left(23),
            };
            chunk.ends.push(chunk.data.len());
            chunk.places.push((self.place, self.records.line));
        }
        Ok(chunk)
    }

    /// Adds the record, or says why it is no row. Fails where nothing after it can be read either.
    fn add(&mut self, chunk: &mut Chunk) -> Result<Added> {
        let record = self.records.bytes();
        let Ok(text) = std::str::from_utf8(record) else {
            return Ok(Err(Problem::new("P4092", "the row is not UTF-8")));
        };
        if self.layout.format == Some(Format::JsonLines) {
            return Ok(self.add_object(text, chunk));
        }
        let split = split(
            record,
            self.layout.delimiter,
            &mut self.fields,
            &mut self.scratch,
        );
        split.map_err(|at| broken("P4090", self.records.line, quote_at(at)))?;
        if self.fields.len() != self.width {
            let reason = format!(
                "the row has {} values, the header {}",
                self.fields.len(),
                self.width
            );
            return Ok(Err(Problem::new("P4091", reason)));
        }
        let value = |at: usize| {
            let field = &self.fields[self.order[at]];
            (!field.is_null()).then(|| field.text(record, &self.scratch))
        };
        if let Some(at) = self.key.iter().find(|at| value(**at).is_none()) {
            return Ok(Err(null_key(&self.columns[*at])));
        }
        if self.layout.objects {
            let text = |at| value(at).map(String::from_utf8_lossy);
            let object: BTreeMap<_, _> = (0..self.order.len())
                .map(|at| (&*self.columns[at], text(at)))
                .collect();
            serde_json::to_writer(&mut chunk.data, &object)?;
            let key: Vec<_> = self.key.iter().map(|at| text(*at)).collect();
            chunk.keys.push(serde_json::to_string(&key)?);
            let values: BTreeMap<_, _> = object.iter().filter(|(_, text)| text.is_some()).collect();
            return Ok(Ok(Some(serde_json::to_vec(&values)?)));
        }
        copy_row((0..self.order.len()).map(value), &mut chunk.data);
        Ok(Ok(None))
    }

    fn add_object(&self, record: &str, chunk: &mut Chunk) -> Added {
        let malformed =
            |error: serde_json::Error| Problem::new("P4090", format!("not a JSON object: {error}"));
        let Object(object) = serde_json::from_str(record).map_err(malformed)?;
        let mut renamed = BTreeMap::new();
        for (name, value) in &object {
            let name = self.layout.map.get(name).unwrap_or(name);
            if name.is_empty() {
                continue;
            }
            if !self.layout.objects && self.columns.binary_search(name).is_err() {
                return Err(
                    Problem::new("P4095", format!("the first row has no {name:?}")).of(name),
                );
            }
            if renamed.insert(&**name, *value).is_some() {
                return Err(Problem::new("P4095", format!("{name:?} is there twice")).of(name));
            }
        }
        let value = |at: usize| {
            renamed
                .get(&*self.columns[at])
                .filter(|value| value.get() != "null")
        };
        if let Some(at) = self.key.iter().find(|at| value(**at).is_none()) {
            return Err(null_key(&self.columns[*at]));
        }
        if self.layout.objects {
            serde_json::to_writer(&mut chunk.data, &renamed).map_err(malformed)?;
            let values: BTreeMap<_, _> = renamed
                .iter()
                .filter(|(_, value)| value.get() != "null")
                .map(|(name, value)| (*name, text(value.get())))
                .collect();
            let key: Vec<_> = self
                .key
                .iter()
                .map(|at| &values[&*self.columns[*at]])
                .collect();
            chunk
                .keys
                .push(serde_json::to_string(&key).map_err(malformed)?);
            return Ok(Some(serde_json::to_vec(&values).map_err(malformed)?));
        }
        let mut values = Vec::with_capacity(self.columns.len());
        for at in 0..self.columns.len() {
            values.push(match value(at).map(|value| value.get()) {
                Some(text) if text.starts_with('"') => {
                    Some(serde_json::from_str::<String>(text).map_err(malformed)?)
                }
                other => other.map(str::to_owned),
            });
        }
        copy_row(
            values
                .iter()
                .map(|value| value.as_ref().map(String::as_bytes)),
            &mut chunk.data,
        );
        Ok(None)
    }

    fn misquoted(&self) -> Error {
        let what = format!(
            "the row has more than {} bytes, and a quote in it is out of place",
            self.layout.max_row
        );
        broken("P4090", self.records.line, what)
    }

    fn never_closed(&self) -> Error {
        broken(
            "P4090",
            self.records.line,
            "a quote is opened in this row and never closed",
        )
    }
}

fn null_key(column: &str) -> Problem {
    Problem::new(
        "23502",
        format!("{column} is part of the natural key and has no value"),
    )
    .of(column)
}

fn quote_at(at: usize) -> String {
    format!(
        "a quote is out of place, or text follows it, at byte {} of the row",
        at + 1
    )
}

fn broken(code: &str, line: u64, what: impl fmt::Display) -> Error {
    invalid(
        code,
        format!("line {line}: {what}"),
        "Fix the file. Rows before this one may have been applied: with a key they are skipped when you import the fixed file; without one, import only the rest of it, under another name of the job.",
    )
}

pub(super) fn invalid(code: &str, message: impl Into<String>, hint: &str) -> Error {
    Error::Invalid(ErrorDetail::new(code, message, hint))
}

/// The input cannot be read on: compressed data is damaged, or the disk is.
pub(super) fn unreadable(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => invalid(
            "P4090",
            format!("the input is damaged, or cut off: {error}"),
            "Get the file again. Rows before this place may have been applied: with a key they are skipped when you import it again; without one, import only the rest of it, under another name of the job.",
        ),
        _ => Error::work(error),
    }
}
