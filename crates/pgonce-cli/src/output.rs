//! Standard output: tables for people, JSON for programs.

use std::fmt;
use std::io::{self, IsTerminal, Write as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{ColorChoice, ValueEnum};
use comfy_table::{Attribute, Cell, Table, presets};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::exit::Result;

/// For whom results and errors are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// A table for people; a list where the terminal is too narrow for it.
    Table,
    /// JSON for programs; errors too, on stderr.
    Json,
}

/// What people choose. Those that are not in the help of every command are in that of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Choice {
    /// A table for people; a list where the terminal is too narrow for it.
    #[default]
    Table,
    /// JSON for programs; errors too, on stderr.
    Json,
    /// A table, however wide it is.
    #[value(hide = true)]
    Wide,
    /// A JSON document on each line.
    #[value(hide = true)]
    Jsonl,
    /// Comma-separated values, with the names of the columns.
    #[value(hide = true)]
    Csv,
    /// Only the key, number or name of each row.
    #[value(hide = true)]
    Name,
}

/// How results are printed.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Shown {
    /// Output format of results and errors.
    #[arg(
        long,
        short_alias = 'o',
        value_enum,
        default_value = "table",
        global = true
    )]
    format: Choice,
    /// Print tables however wide they are.
    #[arg(long, global = true)]
    wide: bool,
    /// When to use colours; NO_COLOR turns them off too.
    #[arg(long, value_name = "WHEN", default_value = "auto", global = true)]
    color: ColorChoice,
}

/// Of the whole process; set once, by [`Shown::apply`].
static SETTINGS: OnceLock<(bool, ColorChoice, Choice)> = OnceLock::new();

/// The columns by which rows are named.
static NAMED_BY: OnceLock<&[&str]> = OnceLock::new();

impl Shown {
    /// Makes these the settings of the process, which runs one command.
    pub(crate) fn apply(&self, command: &str) {
        let wide = self.wide || self.format == Choice::Wide;
        NAMED_BY.get_or_init(|| crate::names::columns(command));
        SETTINGS.get_or_init(|| (wide, self.color, self.format));
    }

    /// For people or for programs.
    pub(crate) fn format(&self) -> Format {
        match self.format {
            Choice::Table | Choice::Wide => Format::Table,
            Choice::Json | Choice::Jsonl | Choice::Csv | Choice::Name => Format::Json,
        }
    }
}

/// Whether a stream gets colours.
pub(crate) fn has_color(stream: &impl IsTerminal) -> bool {
    let (_, color, _) = SETTINGS.get().copied().unwrap_or_default();
    let unwanted = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => stream.is_terminal() && !unwanted("NO_COLOR"),
    }
}

/// The width that a table may have: the terminal's, or what COLUMNS says; none where nobody looks.
fn width() -> Option<usize> {
    let (wide, _, _) = SETTINGS.get().copied().unwrap_or_default();
    if wide {
        return None;
    }
    let named = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok());
    named.or_else(|| {
        let table = Table::new();
        let is_terminal = io::stdout().is_terminal();
        is_terminal
            .then(|| table.width().map(usize::from))
            .flatten()
    })
}

/// One line.
pub(crate) fn line(text: &str) -> Result {
    Ok(writeln!(io::stdout(), "{text}")?)
}

/// What concerns a result and is no part of it, for people and programs alike: on stderr.
pub(crate) fn note(words: &str) -> Result {
    Ok(writeln!(io::stderr(), "{words}")?)
}

/// A text as it is, such as a script.
pub(crate) fn raw(text: &str) -> Result {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Whether programs asked for a line for each row, not for one document.
pub(crate) fn is_by_row() -> bool {
    let (_, _, choice) = SETTINGS.get().copied().unwrap_or_default();
    matches!(choice, Choice::Jsonl | Choice::Csv | Choice::Name)
}

/// Words for people, or a value for programs.
pub(crate) fn say(format: Format, words: &str, value: &Value) -> Result {
    match format {
        Format::Table => line(words),
        Format::Json => line(&value.to_string()),
    }
}

/// Rows, each an object as JSON text whose columns are in the order to show. `nothing` is
/// printed for people when there are none.
pub(crate) fn rows(format: Format, rows: &[String], nothing: &str) -> Result {
    if format == Format::Json {
        let (_, _, choice) = SETTINGS.get().copied().unwrap_or_default();
        return match choice {
            Choice::Csv | Choice::Name | Choice::Jsonl if rows.is_empty() => Ok(()),
            Choice::Csv => raw(&csv(rows, true)?),
            Choice::Name => names(rows, NAMED_BY.get().copied().unwrap_or_default())?
                .iter()
                .try_for_each(|name| line(name)),
            Choice::Jsonl => line(&rows.join("\n")),
            // As PostgreSQL wrote them: parsing would sort the columns.
            _ => line(&format!("[{}]", rows.join(",\n "))),
        };
    }
    if rows.is_empty() {
        return line(nothing);
    }
    let rows = rows.iter().map(|row| in_order(row));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    line(&shown(&rows, width()))
}

/// A row for programs, of those that are printed one by one as they come.
pub(crate) fn next_row(row: &str) -> Result {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    let (_, _, choice) = SETTINGS.get().copied().unwrap_or_default();
    match choice {
        Choice::Csv => raw(&csv(
            &[row.to_owned()],
            !BEGUN.swap(true, Ordering::Relaxed),
        )?),
        Choice::Name => rows(Format::Json, &[row.to_owned()], ""),
        _ => line(row),
    }
}

/// As RFC 4180 has it.
fn csv(rows: &[String], has_names: bool) -> Result<String> {
    let quoted = |text: &str| match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    };
    let mut text = String::new();
    for (place, row) in rows.iter().enumerate() {
        let row = as_written(row)?;
        if place == 0 && has_names {
            let names: Vec<_> = row.iter().map(|(name, _)| quoted(name)).collect();
            text += &(names.join(",") + "\r\n");
        }
        let values: Vec<_> = row.iter().map(|(_, value)| quoted(value)).collect();
        text += &(values.join(",") + "\r\n");
    }
    Ok(text)
}

/// What each row is called, as other commands take it: the first of these columns that the row has, or its first column where
/// none is given. A row without such a name is left out.
fn names(rows: &[String], columns: &[&str]) -> Result<Vec<String>> {
    let name = |row: &String| {
        let row = as_written(row)?;
        let of = |column: &&str| row.iter().find(|(name, _)| name == column);
        let named = match columns {
            [] => row.first(),
            columns => columns.iter().find_map(of),
        };
        Ok(named.map(|(_, value)| printable(value)))
    };
    let names = rows.iter().map(name).collect::<Result<Vec<_>>>()?;
    let names = names.into_iter().flatten();
    Ok(names.filter(|name| !name.is_empty()).collect())
}

/// A table, or a list of records where the table would be wider than the terminal: a key that is
/// broken over lines cannot be copied.
fn shown(rows: &[Vec<(String, String)>], width: Option<usize>) -> String {
    let mut table = new_table();
    let names = rows.first().into_iter().flatten();
    table.set_header(names.map(|(name, _)| header(name)));
    for row in rows {
        table.add_row(row.iter().map(|(_, value)| value));
    }
    let text = table.trim_fmt();
    if fits(&text, width) {
        return text;
    }
    let blocks: Vec<String> = rows.iter().map(|row| listed(row)).collect();
    blocks.join("\n\n")
}

/// A field per line, without those that are empty.
fn listed(row: &[(String, String)]) -> String {
    let filled = || row.iter().filter(|(_, value)| !value.is_empty());
    let widest = filled().map(|(name, _)| name.chars().count()).max();
    let lines = filled().map(|(name, value)| {
        let name = name.replace('_', " ");
        format!("{name:<width$}  {value}", width = widest.unwrap_or(0))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn fits(text: &str, width: Option<usize>) -> bool {
    let widest = text.lines().map(|line| line.chars().count()).max();
    width.is_none_or(|width| widest.unwrap_or(0) <= width)
}

fn header(name: &str) -> Cell {
    let cell = Cell::new(name.replace('_', " "));
    match has_color(&io::stdout()) {
        true => cell.add_attribute(Attribute::Bold),
        false => cell,
    }
}

/// One row, a field per line. A `verdict` stands above as a sentence, and what is a list of records below as a table of its own.
pub(crate) fn fields(format: Format, row: &str) -> Result {
    if format == Format::Json {
        let (_, _, choice) = SETTINGS.get().copied().unwrap_or_default();
        return match choice {
            Choice::Csv | Choice::Name => rows(format, &[row.to_owned()], ""),
            _ => line(row),
        };
    }
    line(&record(row, width())?)
}

fn record(row: &str, width: Option<usize>) -> Result<String> {
    let Columns(columns) = serde_json::from_str(row)?;
    let (lists, plain): (Vec<_>, Vec<_>) = columns
        .into_iter()
        .partition(|(_, value)| value.get().starts_with("[{"));
    let (verdicts, plain): (Vec<_>, Vec<_>) = cells(plain)?
        .into_iter()
        .partition(|(name, _)| name == "verdict");
    let mut table = new_table();
    for (name, value) in &plain {
        table.add_row([name.replace('_', " "), value.clone()]);
    }
    let text = table.trim_fmt();
    let mut blocks: Vec<String> = verdicts
        .iter()
        .map(|(_, verdict)| wrapped(verdict, width.unwrap_or(SENTENCE).min(SENTENCE)))
        .collect();
    blocks.push(match fits(&text, width) {
        true => text,
        false => listed(&plain),
    });
    for (name, list) in lists {
        let rows: Vec<Columns> = serde_json::from_str(list.get())?;
        let rows: Result<Vec<_>> = rows.into_iter().map(|Columns(row)| cells(row)).collect();
        blocks.push(format!(
            "{}:\n{}",
            name.replace('_', " "),
            shown(&rows?, width)
        ));
    }
    Ok(blocks.join("\n\n"))
}

/// Maximum width of a sentence: longer lines are hard to read, however wide the terminal is.
const SENTENCE: usize = 80;

/// A sentence, broken between words.
fn wrapped(text: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    if has_color(&io::stdout()) {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table
}

/// The columns of an object in the order in which they were written.
fn in_order(row: &str) -> Result<Vec<(String, String)>> {
    let Columns(columns) = serde_json::from_str(row)?;
    cells(columns)
}

fn cells(columns: Vec<(String, Box<RawValue>)>) -> Result<Vec<(String, String)>> {
    let columns = unescaped(columns)?.into_iter();
    Ok(columns
        .map(|(name, text)| (name, printable(&text)))
        .collect())
}

/// The columns of an object in their order, with their values as they are.
fn as_written(row: &str) -> Result<Vec<(String, String)>> {
    let Columns(columns) = serde_json::from_str(row)?;
    unescaped(columns)
}

fn unescaped(columns: Vec<(String, Box<RawValue>)>) -> Result<Vec<(String, String)>> {
    let shown = columns.into_iter().map(|(name, value)| {
        let text = match value.get() {
            "null" => String::new(),
            text if text.starts_with('"') => serde_json::from_str(text)?,
            // As it is written: a number may have more digits than a float.
            other => other.to_owned(),
        };
        Ok((name, text))
    });
    shown.collect()
}

/// serde_json's own map would sort them.
struct Columns(Vec<(String, Box<RawValue>)>);

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
    fn a_table_that_is_too_wide_becomes_a_list_and_no_key_is_broken() {
        let key = "k".repeat(70);
        let row = |key: &str, owner: &str| {
            let columns = [("scope", "orders"), ("key", key), ("owner", owner)];
            columns
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec()
        };
        let rows = [row(&key, "worker"), row("short", "")];
        let list =
            format!("scope  orders\nkey    {key}\nowner  worker\n\nscope  orders\nkey    short");
        assert_eq!(shown(&rows, Some(80)), list);
        for width in [None, Some(200)] {
            let table = shown(&rows, width);
            assert!(
                table.contains(&key) && table.lines().count() == 6,
                "{table}"
            );
        }
    }

    #[test]
    fn a_verdict_is_a_sentence_and_acts_are_a_table_within_eighty_columns() {
        let row = r#"{"verdict":"Its holder stopped on the way. Nothing is acknowledged; what it did outside this database is not known.",
            "key":"k-1","acts":[{"at":"2026-01-01","act":"settle","reason":"ticket 7"},{"at":"2026-01-02","act":"evict","reason":null}]}"#;
        for width in [None, Some(80), Some(40)] {
            let text = record(row, width).unwrap();
            assert!(fits(&text, Some(width.unwrap_or(80))), "{text}");
            assert!(text.starts_with("Its holder stopped on the way."), "{text}");
            assert!(
                text.contains("acts:\n") && text.contains("ticket 7"),
                "{text}"
            );
            assert!(!text.contains(['{', '[']), "{text}");
        }
    }

    #[test]
    fn csv_quotes_what_must_be_quoted_and_names_are_what_commands_take() {
        let rows = [
            r#"{"scope":"s","key":"a,\"b\"","n":7}"#.to_owned(),
            r#"{"scope":"s","key":"c","n":null}"#.to_owned(),
        ];
        assert_eq!(
            csv(&rows, true).unwrap(),
            "scope,key,n\r\ns,\"a,\"\"b\"\"\",7\r\ns,c,\r\n"
        );
        assert_eq!(names(&rows, &["key"]).unwrap(), ["a,\"b\"", "c"]);
        assert_eq!(names(&rows, &["id", "n"]).unwrap(), ["7"]);
        assert_eq!(names(&rows, &[]).unwrap(), ["s", "s"]);
    }

    #[test]
    fn nothing_in_a_key_can_drive_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\u{a}c");
        assert_eq!(printable("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(printable("Bücher"), "Bücher");
    }
}
