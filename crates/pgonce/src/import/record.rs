//! Records of a file, found strictly and in bounded memory: lenient readers make two rows of a broken one.

use std::io::{self, BufRead};
use std::ops::Range;

use memchr::{memchr, memchr2};

/// The next record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A record is in [`Records::bytes`].
    Record,
    /// A record was larger than the limit, and is skipped.
    TooLarge,
    /// The same, and a quote in it is out of place: nobody knows where it really ends.
    Misquoted,
    /// There are no more.
    End,
    /// A quote that is opened in this record is never closed.
    NeverClosed,
}

/// Reads record by record. A record ends at a line feed outside of quotes.
pub(super) struct Records<R> {
    reader: R,
    /// A record that does not lie in the reader's buffer in one piece, or was taken out of it.
    record: Vec<u8>,
    delimiter: Option<u8>,
    max: usize,
    /// Where the next record begins, in bytes.
    pub(super) offset: u64,
    /// The line on which the last record began, from 1.
    pub(super) line: u64,
    /// The line on which the next record begins.
    pub(super) next_line: u64,
}

impl<R: BufRead> Records<R> {
    /// With a delimiter line feeds in double quotes belong to the record, as in CSV.
    pub(super) fn new(reader: R, delimiter: Option<u8>, max: usize) -> Self {
        Self {
            reader,
            record: Vec::new(),
            delimiter,
            max,
            offset: 0,
            line: 0,
            next_line: 1,
        }
    }

    /// The record without its line end.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.record
    }

    /// The reader, to skip in; then say where it is.
    pub(super) fn reader(&mut self) -> &mut R {
        &mut self.reader
    }

    pub(super) fn next(&mut self) -> io::Result<Next> {
        self.record.clear();
        self.line = self.next_line;
        let (mut inside, mut too_large, mut misquoted) = (false, false, false);
        // The last byte before the buffer, and whether it is a quote that ended a field unless another one follows.
        let (mut last, mut closed) = (None, false);
        loop {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                return Ok(match (last, inside, too_large) {
                    (None, ..) => Next::End,
                    (_, true, _) => Next::NeverClosed,
                    (_, false, true) if misquoted => Next::Misquoted,
                    (_, false, true) => Next::TooLarge,
                    (_, false, false) => {
                        self.next_line += 1;
                        self.strip();
                        Next::Record
                    }
                });
            }
            let delimiter = self.delimiter;
            let ends_field = |byte| matches!(byte, b'"' | b'\n' | b'\r') || Some(byte) == delimiter;
            misquoted |= closed && !ends_field(buffer[0]);
            closed = false;
            let mut end = None;
            let mut at = 0;
            while let Some(found) = match delimiter {
                Some(_) => memchr2(b'\n', b'"', &buffer[at..]),
                None => memchr(b'\n', &buffer[at..]),
            } {
                at += found + 1;
                if buffer[at - 1] == b'"' {
                    if inside {
                        closed = at == buffer.len();
                        misquoted |= !closed && !ends_field(buffer[at]);
                    } else {
                        // It opens a field, or is the second one of two in a field.
                        let before = if at > 1 { Some(buffer[at - 2]) } else { last };
                        misquoted |= before.is_some_and(|byte| byte != b'"' && before != delimiter);
                    }
                    inside = !inside;
                } else {
                    self.next_line += 1;
                    if !inside {
                        end = Some(at);
                        break;
                    }
                }
            }
            let used = end.unwrap_or(buffer.len());
            too_large |= self.record.len() + used > self.max + 2;
            if too_large {
                self.record.clear();
            } else {
                self.record.extend_from_slice(&buffer[..used]);
            }
            last = buffer.get(used - 1).copied();
            self.reader.consume(used);
            self.offset += used as u64;
            if end.is_some() {
                if too_large {
                    return Ok(if misquoted {
                        Next::Misquoted
                    } else {
                        Next::TooLarge
                    });
                }
                self.strip();
                return Ok(Next::Record);
            }
        }
    }

    fn strip(&mut self) {
        if self.record.last() == Some(&b'\n') {
            self.record.pop();
            if self.record.last() == Some(&b'\r') {
                self.record.pop();
            }
        }
    }
}

/// A field of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    /// Where its text is: in the record, or in the scratch space.
    at: Range<usize>,
    unescaped: bool,
    /// An empty field without quotes is null.
    pub(super) quoted: bool,
}

impl Field {
    pub(super) fn text<'a>(&self, record: &'a [u8], scratch: &'a [u8]) -> &'a [u8] {
        let from = if self.unescaped { scratch } else { record };
        &from[self.at.clone()]
    }

    pub(super) fn is_null(&self) -> bool {
        !self.quoted && self.at.is_empty()
    }
}

/// Splits a record into its fields. Fails with the position of a quote that is out of place.
pub(super) fn split(
    record: &[u8],
    delimiter: u8,
    fields: &mut Vec<Field>,
    scratch: &mut Vec<u8>,
) -> Result<(), usize> {
    fields.clear();
    scratch.clear();
    if memchr(b'"', record).is_none() {
        let mut start = 0;
        for end in memchr::memchr_iter(delimiter, record).chain([record.len()]) {
            fields.push(Field {
                at: start..end,
                unescaped: false,
                quoted: false,
            });
            start = end + 1;
        }
        return Ok(());
    }
    let mut at = 0;
    loop {
        if record.get(at) != Some(&b'"') {
            let end = memchr(delimiter, &record[at..]).map_or(record.len(), |n| at + n);
            if let Some(quote) = memchr(b'"', &record[at..end]) {
                return Err(at + quote);
            }
            fields.push(Field {
                at: at..end,
                unescaped: false,
                quoted: false,
            });
            at = end;
        } else {
            let start = at + 1;
            let mut from = start;
            let kept = scratch.len();
            let end = loop {
                let quote = memchr(b'"', &record[from..]).map(|n| from + n).ok_or(at)?;
                if record.get(quote + 1) != Some(&b'"') {
                    break quote;
                }
                scratch.extend_from_slice(&record[from..=quote]);
                from = quote + 2;
            };
            let unescaped = from != start;
            if unescaped {
                scratch.extend_from_slice(&record[from..end]);
            }
            fields.push(Field {
                at: if unescaped {
                    kept..scratch.len()
                } else {
                    start..end
                },
                unescaped,
                quoted: true,
            });
            at = end + 1;
        }
        match record.get(at) {
            None => return Ok(()),
            Some(byte) if *byte == delimiter => at += 1,
            Some(_) => return Err(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(record: &str) -> Result<Vec<Option<String>>, usize> {
        let (mut fields, mut scratch) = (Vec::new(), Vec::new());
        split(record.as_bytes(), b',', &mut fields, &mut scratch)?;
        let text = |field: &Field| {
            let text = field.text(record.as_bytes(), &scratch);
            (!field.is_null()).then(|| String::from_utf8(text.to_vec()).unwrap())
        };
        Ok(fields.iter().map(text).collect())
    }

    fn some(texts: &[&str]) -> Vec<Option<String>> {
        texts.iter().map(|text| Some((*text).to_owned())).collect()
    }

    #[test]
    fn fields_are_what_rfc_4180_says_and_an_empty_one_without_quotes_is_null() {
        assert_eq!(fields("a,b c").unwrap(), some(&["a", "b c"]));
        assert_eq!(fields(r#""a,""b""","c""#).unwrap(), some(&["a,\"b\"", "c"]));
        assert_eq!(fields("\"a\nb\",c").unwrap(), some(&["a\nb", "c"]));
        assert_eq!(
            fields(r#","","#).unwrap(),
            [None, Some(String::new()), None]
        );
        assert_eq!(fields(r#""""","x""y""""#).unwrap(), some(&["\"", "x\"y\""]));
    }

    #[test]
    fn a_quote_out_of_place_is_found() {
        assert_eq!(fields(r#"a"b,c"#), Err(1));
        assert_eq!(fields(r#""a"b,c"#), Err(3));
        assert_eq!(fields(r#"x,"a"#), Err(2));
    }

    fn records(text: &str, max: usize, buffer: usize) -> Vec<(Next, String, u64, u64)> {
        let reader = io::BufReader::with_capacity(buffer, text.as_bytes());
        let mut records = Records::new(reader, Some(b','), max);
        let mut found = Vec::new();
        loop {
            let next = records.next().unwrap();
            if next == Next::End {
                return found;
            }
            let text = String::from_utf8_lossy(records.bytes()).into_owned();
            found.push((next, text, records.line, records.offset));
        }
    }

    #[test]
    fn records_end_at_line_feeds_outside_of_quotes_wherever_the_buffer_ends() {
        let text = "a,b\r\n\"x\ny\",2\n\"\"\"\n\"\nlast";
        for buffer in 1..30 {
            let found = records(text, 100, buffer);
            let found: Vec<_> = found
                .iter()
                .map(|(_, text, line, at)| (&**text, *line, *at))
                .collect();
            assert_eq!(
                found,
                [
                    ("a,b", 1, 5),
                    ("\"x\ny\",2", 2, 13),
                    ("\"\"\"\n\"", 4, 19),
                    ("last", 6, 23)
                ],
                "buffer of {buffer}"
            );
        }
    }

    #[test]
    fn a_record_over_the_limit_is_skipped_whole_and_takes_no_memory() {
        for buffer in [1, 7, 64] {
            let found = records("ok\n\"long\nlong\"\nok\n", 6, buffer);
            assert_eq!(found.len(), 3);
            assert_eq!((&found[1].0, &*found[1].1), (&Next::TooLarge, ""));
            assert_eq!((&*found[2].1, found[2].2), ("ok", 4));
        }
    }

    #[test]
    fn a_record_over_the_limit_whose_quotes_are_out_of_place_is_not_skipped() {
        for (text, next) in [
            ("a\"b\nlong\nc\"d\n", Next::Misquoted),
            ("\"b\nlong\nx,\"d\n", Next::Misquoted),
            ("x,\"a\"b,long\n", Next::Misquoted),
            ("\"\"\"long\"\"\",\"\"\r\n", Next::TooLarge),
            ("x,\"long\nlong\"\n", Next::TooLarge),
            ("x,\"long\nlong\"", Next::TooLarge),
            ("x,\"long\nlong\"z", Next::Misquoted),
        ] {
            for buffer in 1..12 {
                assert_eq!(records(text, 4, buffer)[0].0, next, "{text:?} {buffer}");
            }
        }
    }

    #[test]
    fn a_quote_that_is_never_closed_is_found_at_the_end() {
        let found = records("a\n\"b\nc\n", 100, 8);
        assert_eq!((&found[1].0, found[1].2), (&Next::NeverClosed, 2));
    }
}
