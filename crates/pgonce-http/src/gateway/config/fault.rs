//! What is wrong with a file, and where.

use std::fmt;
use std::ops::Range;

/// Everything that is wrong with a configuration, each with its place.
///
/// Displayed as a compiler would: file, line and column, the line itself, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    file: String,
    faults: Vec<Fault>,
}

/// One thing that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub hint: String,
    /// The line as it is written.
    source: String,
    /// How many characters of it are meant.
    width: usize,
}

impl Fault {
    /// Something wrong with the bytes of `text` in `span`.
    pub fn at(
        text: &str,
        span: Range<usize>,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        let start = floor(text, span.start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..]
            .find('\n')
            .map_or(text.len(), |length| start + length);
        let end = floor(text, span.end).clamp(start, line_end);
        Self {
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            what: what.into(),
            hint: hint.into(),
            source: text[line_start..line_end].trim_end().to_owned(),
            width: text[start..end].chars().count().max(1),
        }
    }
}

/// The nearest place not after `place` where `text` may be cut.
fn floor(text: &str, place: usize) -> usize {
    let place = place.min(text.len());
    (0..=place)
        .rev()
        .find(|place| text.is_char_boundary(*place))
        .unwrap_or(0)
}

impl Faults {
    /// What is wrong with the file of this name.
    pub fn new(file: &str, mut faults: Vec<Fault>) -> Self {
        faults.sort_by_key(|fault| (fault.line, fault.column));
        Self {
            file: file.to_owned(),
            faults,
        }
    }

    /// The file that they are in.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// One by one, in the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, Fault> {
        self.faults.iter()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, fault) in self.faults.iter().enumerate() {
            if number > 0 {
                f.write_str("\n\n")?;
            }
            let Fault {
                line,
                column,
                what,
                hint,
                source,
                width,
            } = fault;
            let gutter = " ".repeat(line.to_string().len());
            // The line's own tabs are repeated, so that the mark stands below what it marks.
            let lead: String = source
                .chars()
                .take(column - 1)
                .map(|c| if c == '\t' { '\t' } else { ' ' })
                .collect();
            writeln!(f, "{}:{line}:{column}: {what}", self.file)?;
            writeln!(f, " {line} | {}", printable(source))?;
            writeln!(f, " {gutter} | {lead}{}", "^".repeat(*width))?;
            write!(f, "   do: {hint}")?;
        }
        Ok(())
    }
}

/// Nothing in a file may drive the terminal.
fn printable(line: &str) -> String {
    line.chars()
        .map(|c| {
            if c.is_control() && c != '\t' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

impl std::error::Error for Faults {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_points_at_the_line_and_the_column() {
        let text = "a = 1\n\tbüro = \"x\"\n";
        let start = text.find("\"x\"").unwrap();
        let fault = Fault::at(text, start..start + 3, "no", "Say y.");
        assert_eq!((fault.line, fault.column), (2, 9));
        let shown = Faults::new("f.toml", vec![fault]).to_string();
        assert_eq!(
            shown,
            "f.toml:2:9: no\n 2 | \tbüro = \"x\"\n   | \t       ^^^\n   do: Say y."
        );
    }

    #[test]
    fn a_place_outside_the_text_is_its_end() {
        for (text, span) in [("", 5..9), ("ü", 1..1), ("a\n", 2..2), ("a\nb", 0..3)] {
            let fault = Fault::at(text, span, "no", "yes");
            assert!(fault.line >= 1 && fault.column >= 1 && fault.width >= 1);
        }
    }
}
