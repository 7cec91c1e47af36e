//! Rows that are ready to be sent, and the text format of COPY.

use std::collections::BTreeMap;
use std::ops::Range;

use memchr::{memchr, memchr3};

/// Why a row failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) code: String,
    pub(super) field: Option<String>,
    pub(super) reason: String,
}

impl Problem {
    pub(super) fn new(code: &str, reason: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            field: None,
            reason: reason.into(),
        }
    }

    pub(super) fn of(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }
}

/// A place in the input, between two rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) row: u64,
    pub(super) bytes: u64,
    pub(super) lines: u64,
    pub(super) chain: u64,
}

/// Rows that are ready to be sent.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) start: Place,
    /// Rows as COPY's text, or as JSON objects.
    pub(super) data: Vec<u8>,
    /// Where each row ends in `data`.
    pub(super) ends: Vec<usize>,
    /// The place after each row, and the line that it began on.
    pub(super) places: Vec<(Place, u64)>,
    pub(super) hashes: Vec<u8>,
    /// Natural keys, for a function.
    pub(super) keys: Vec<String>,
    /// Rows that failed; they have no data.
    pub(super) bad: BTreeMap<usize, Problem>,
    /// Whether the input ends here.
    pub(super) last: bool,
}

impl Chunk {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn row(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.data[start..self.ends[at]]
    }

    /// The bytes of the good rows among these, in as few pieces as possible.
    pub(super) fn pieces(&self, rows: Range<usize>) -> Vec<Range<usize>> {
        let mut pieces: Vec<Range<usize>> = Vec::new();
        for at in rows {
            let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
            if self.bad.contains_key(&at) || start == self.ends[at] {
                continue;
            }
            match pieces.last_mut() {
                Some(piece) if piece.end == start => piece.end = self.ends[at],
                _ => pieces.push(start..self.ends[at]),
            }
        }
        pieces
    }

    /// The good rows among these.
    pub(super) fn good(&self, rows: Range<usize>) -> Vec<usize> {
        rows.filter(|at| !self.bad.contains_key(at)).collect()
    }

    pub(super) fn place_before(&self, at: usize) -> Place {
        at.checked_sub(1)
            .map_or(self.start, |before| self.places[before].0)
    }

    pub(super) fn line(&self, at: usize) -> u64 {
        self.places[at].1
    }
}

/// A row in the text format of COPY.
pub(super) fn copy_row<'a>(values: impl Iterator<Item = Option<&'a [u8]>>, out: &mut Vec<u8>) {
    for (at, value) in values.enumerate() {
        if at > 0 {
            out.push(b'\t');
        }
        let Some(value) = value else {
            out.extend_from_slice(b"\\N");
            continue;
        };
        if memchr3(b'\\', b'\n', b'\t', value).is_none() && memchr(b'\r', value).is_none() {
            out.extend_from_slice(value);
            continue;
        }
        for byte in value {
            match byte {
                b'\\' => out.extend_from_slice(b"\\\\"),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                byte => out.push(*byte),
            }
        }
    }
    out.push(b'\n');
}

/// The values of some columns of a row in the text format of COPY, as a JSON list.
pub(super) fn values_of(row: &[u8], columns: &[usize]) -> String {
    let text = String::from_utf8_lossy(row);
    let fields: Vec<_> = text.trim_end_matches('\n').split('\t').collect();
    let plain = |at: &usize| {
        let field = fields.get(*at).copied().unwrap_or_default();
        let plain = field
            .replace("\\\\", "\0")
            .replace("\\n", "\n")
            .replace("\\r", "\r");
        plain.replace("\\t", "\t").replace('\0', "\\")
    };
    let values: Vec<_> = columns.iter().map(plain).collect();
    serde_json::Value::from(values).to_string()
}

/// Sorted positions in a chunk as a multirange of row numbers.
pub(super) fn ranges(chunk: &Chunk, rows: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for row in rows {
        match ranges.last_mut() {
            Some((_, end)) if *end == *row => *end += 1,
            _ => ranges.push((*row, *row + 1)),
        }
    }
    let first = chunk.start.row + 1;
    let range = |(start, end): &(usize, usize)| {
        format!("[{},{})", first + *start as u64, first + *end as u64)
    };
    format!(
        "{{{}}}",
        ranges.iter().map(range).collect::<Vec<_>>().join(",")
    )
}
