//! Standard output: tables for people, JSON for programs.

use std::io::{self, IsTerminal as _, Write as _};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};

use crate::exit::Result;

/// Output format of results and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people.
    Table,
    /// JSON for programs; errors too, on stderr.
    Json,
}

pub(crate) fn line(text: &str) -> Result {
    Ok(writeln!(io::stdout(), "{text}")?)
}

pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> Result {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    if io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table.set_header(header);
    table.add_rows(rows);
    line(&table.trim_fmt())
}

/// Responses come from anywhere: no control character of theirs reaches the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_response_can_drive_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\u{a}c");
        assert_eq!(printable("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(printable("Bücher"), "Bücher");
    }
}
