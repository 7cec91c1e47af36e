//! Files that are damaged, cut off or no files at all: a row, or an error with a code, and never another row.

use std::io::BufReader;

use pgonce_testkit::fuzz;

use super::chunk::{Chunk, Place};
use super::record::{Next, Records, split};
use super::rows::{Format, Layout, Rows};
use crate::error::Result;

const CSV: [&str; 6] = [
    "id,name\n1,ada\n2,bob\n",
    "id,name,note\r\n1,\"ada, \"\"countess\"\"\",\"two\nlines\"\r\n2,,\"\"\r\n",
    "\u{feff}id;name\n1;\u{e9}\n",
    "only\n\n\"\"\nx\n",
    "a,b\n1\n1,2,3\n\"1\",\"2\"",
    "a\tb\n\\N\t\\.\n",
];
const JSON_LINES: [&str; 4] = [
    "{\"id\": 1, \"name\": \"ada\"}\n{\"id\": 2, \"name\": null}\n",
    "{\"id\": 12345678901234567890.5e3, \"x\": {\"y\": [1, {}]}}\n\n{\"x\": \"\\u00e9\\n\\\"\"}\n",
    "{\"a\": true}\n{\"b\": false}\n{\"a\": 1, \"a\": 2}\n[1]\n",
    "{\"a\": \"\\ud83d\\ude00\"}\n{\"a\": \"\\u0000\"}",
];

type Found = (Next, Vec<u8>, u64, u64);

fn records(input: &[u8], quotes: bool, buffer: usize) -> (Vec<Found>, u64) {
    let mut records = Records::new(
        BufReader::with_capacity(buffer, input),
        quotes.then_some(b','),
        40,
    );
    let mut found = Vec::new();
    loop {
        let next = records.next().unwrap();
        if next == Next::End {
            return (found, records.offset);
        }
        let bytes = records.bytes().to_vec();
        found.push((next, bytes, records.line, records.offset));
    }
}

#[test]
fn fuzz_records_do_not_depend_on_how_the_file_is_read() {
    fuzz(&CSV, 2000, |input| {
        for quotes in [true, false] {
            let (all, end) = records(input, quotes, 64 * 1024);
            assert_eq!(end, input.len() as u64, "everything is read");
            for buffer in [1, 2, 7, 41] {
                assert_eq!(records(input, quotes, buffer).0, all, "buffer of {buffer}");
            }
            let is_kept = |(next, bytes, ..): &Found| *next != Next::Record || bytes.len() <= 42;
            assert!(all.iter().all(is_kept), "a record above the limit");
        }
    });
}

#[test]
fn fuzz_fields_that_are_written_are_read_back() {
    fuzz(&["a\0b\0", "\"\0,\0\n\0\r\n", ""], 2000, |input| {
        // A zero byte parts the fields here, nothing else does.
        let fields: Vec<&[u8]> = input.split(|byte| *byte == 0).collect();
        let quoted = fields.iter().map(|field| {
            let mut text = vec![b'"'];
            for byte in *field {
                text.extend(if *byte == b'"' {
                    &b"\"\""[..]
                } else {
                    std::slice::from_ref(byte)
                });
            }
            text.push(b'"');
            text
        });
        let line = [quoted.collect::<Vec<_>>().join(&b','), b"\r\n".to_vec()].concat();
        let mut records = Records::new(&line[..], Some(b','), usize::MAX - 2);
        assert_eq!(records.next().unwrap(), Next::Record);
        let (mut found, mut scratch) = (Vec::new(), Vec::new());
        split(records.bytes(), b',', &mut found, &mut scratch).unwrap();
        let texts: Vec<&[u8]> = found
            .iter()
            .map(|field| field.text(records.bytes(), &scratch))
            .collect();
        assert_eq!(texts, fields);
        assert!(found.iter().all(|field| field.quoted && !field.is_null()));
        assert_eq!(records.next().unwrap(), Next::End);
    });
}

/// Every row, good or bad, and the place behind the last.
fn rows(input: &[u8], layout: &Layout) -> Result<(Vec<Chunk>, Place)> {
    let mut rows = Rows::open(BufReader::new(input), layout.clone())?;
    let key: Vec<String> = rows.columns.first().cloned().into_iter().collect();
    rows.set_key(&key)?;
    let mut chunks = Vec::new();
    loop {
        let chunk = rows.next()?;
        let last = chunk.last;
        chunks.push(chunk);
        if last {
            return Ok((chunks, rows.place()));
        }
    }
}

fn is_sound(chunk: &Chunk, layout: &Layout) {
    assert!(chunk.ends.is_sorted() && chunk.ends.last().copied().unwrap_or(0) == chunk.data.len());
    assert_eq!(
        (chunk.places.len(), chunk.hashes.len()),
        (chunk.len(), chunk.len() * 8)
    );
    for at in 0..chunk.len() {
        let row = chunk.row(at);
        match chunk.bad.get(&at) {
            Some(problem) => {
                assert!(row.is_empty() && problem.code.len() == 5 && !problem.reason.is_empty());
            }
            None if layout.objects => {
                // By its grammar: which characters a text may have is for PostgreSQL to say, row by row.
                let object: &serde_json::value::RawValue = serde_json::from_slice(row).unwrap();
                assert!(object.get().starts_with('{'));
            }
            // One line of COPY's text format: no other line end, and no NUL, which PostgreSQL refuses by itself.
            None => {
                assert_eq!(row.iter().filter(|byte| **byte == b'\n').count(), 1);
                assert_eq!(row.last(), Some(&b'\n'));
            }
        }
    }
}

fn each_row_is_sound(samples: &[&str], format: Format) {
    fuzz(samples, 1500, |input| {
        for objects in [false, true] {
            let layout = Layout {
                format: Some(format),
                delimiter: b',',
                objects,
                max_row: 200,
                max_rows: 1000,
                max_bytes: 1 << 20,
                ..Layout::default()
            };
            let one_by_one = Layout {
                max_rows: 1,
                ..layout.clone()
            };
            match (rows(input, &layout), rows(input, &one_by_one)) {
                (Ok((chunks, end)), Ok((singles, end_of_singles))) => {
                    chunks.iter().for_each(|chunk| is_sound(chunk, &layout));
                    singles.iter().for_each(|chunk| is_sound(chunk, &layout));
                    // The hash of all rows before a place does not depend on the size of chunks: resuming relies on it.
                    assert_eq!(end, end_of_singles);
                }
                (Err(error), Err(same)) => {
                    assert_eq!(error.code(), same.code());
                    assert!(error.code().starts_with("P409"), "{error:?}");
                }
                (one, other) => panic!("{one:?} and {other:?}"),
            }
        }
    });
}

#[test]
fn fuzz_a_row_of_csv_is_sound_or_has_a_code() {
    each_row_is_sound(&CSV, Format::Csv);
}

#[test]
fn fuzz_a_row_of_json_lines_is_sound_or_has_a_code() {
    each_row_is_sound(&JSON_LINES, Format::JsonLines);
}
