//! What the program says on stdout: tables for people, JSON for programs.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::exit::Result;

/// For whom it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table for people.
    Table,
    /// JSON for programs; errors too, on stderr.
    Json,
}

/// How the result is shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Shown {
    /// How results are printed.
    #[arg(long, value_enum, default_value = "table", global = true)]
    pub(crate) format: Format,
}

/// One line.
pub(crate) fn line(text: &str) -> Result {
    Ok(writeln!(io::stdout(), "{text}")?)
}

/// A text as it is, such as a script.
pub(crate) fn raw(text: &str) -> Result {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Words for people, or a value for programs.
pub(crate) fn say(format: Format, words: &str, value: &Value) -> Result {
    match format {
        Format::Table => line(words),
        Format::Json => line(&value.to_string()),
    }
}

/// Rows, each an object as JSON text whose columns are in the order to show. `nothing` is what
/// people are told when there are none.
pub(crate) fn rows(format: Format, rows: &[String], nothing: &str) -> Result {
    if format == Format::Json {
        // As PostgreSQL wrote them: parsing would sort the columns.
        return line(&format!("[{}]", rows.join(",\n ")));
    }
    let mut table = new_table();
    for (number, row) in rows.iter().enumerate() {
        let columns = in_order(row)?;
        if number == 0 {
            table.set_header(columns.iter().map(|(name, _)| name.replace('_', " ")));
        }
        table.add_row(columns.into_iter().map(|(_, value)| value));
    }
    if rows.is_empty() {
        line(nothing)
    } else {
        line(&table.trim_fmt())
    }
}

/// One row, a field per line.
pub(crate) fn fields(format: Format, row: &str) -> Result {
    if format == Format::Json {
        return line(row);
    }
    let mut table = new_table();
    for (name, value) in in_order(row)? {
        table.add_row([name.replace('_', " "), value]);
    }
    line(&table.trim_fmt())
}

fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    if io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table
}

/// The columns of an object in the order in which they were written.
fn in_order(row: &str) -> Result<Vec<(String, String)>> {
    let Columns(columns) = serde_json::from_str(row)?;
    let shown = columns.into_iter().map(|(name, value)| match value {
        Value::Null => (name, String::new()),
        Value::String(text) => (name, printable(&text)),
        other => (name, printable(&other.to_string())),
    });
    Ok(shown.collect())
}

/// serde_json's own map would sort them.
struct Columns(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Columns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct AsWritten;
        impl<'de> Visitor<'de> for AsWritten {
            type Value = Columns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(
                self,
                mut map: M,
            ) -> std::result::Result<Columns, M::Error> {
                let mut columns = Vec::new();
                while let Some(column) = map.next_entry()? {
                    columns.push(column);
                }
                Ok(Columns(columns))
            }
        }
        deserializer.deserialize_map(AsWritten)
    }
}

/// Keys and notes come from anywhere: no control character of theirs reaches the terminal.
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
    fn columns_keep_the_order_of_the_database() {
        let columns =
            in_order(r#"{"tenant":"","scope":"s","answer":{"note":1},"key":"k","note":null}"#)
                .unwrap();
        let names: Vec<_> = columns.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["tenant", "scope", "answer", "key", "note"]);
        assert_eq!(columns[2].1, r#"{"note":1}"#);
        assert_eq!(columns[4].1, "");
    }

    #[test]
    fn nothing_in_a_key_can_drive_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\u{a}c");
        assert_eq!(printable("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(printable("Bücher"), "Bücher");
    }
}
