//! `pgonce explain`: the page of an error code, in the terminal.

use pgonce::retry::{self, Entry};
use serde_json::json;

use crate::exit::{self, CliError, Result};
use crate::output::{self, Format};

/// Which code.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The code of an error, such as P4002 or 40001.
    code: String,
}

/// The pages of the book, one after the other; a test compares them. `PGONCE_UPDATE=1` with that test writes it again.
const PAGES: &str = include_str!("explain.txt");

/// What stands before a page.
fn mark(code: &str) -> String {
    format!("\u{c}{code}\n")
}

fn page(code: &str) -> Option<&'static str> {
    let (_, rest) = PAGES.split_once(&mark(code))?;
    Some(rest.split('\u{c}').next().unwrap_or(rest).trim_end())
}

pub(crate) fn run(args: &Args, format: Format) -> Result {
    let code = args.code.to_ascii_uppercase();
    let page = page(&code);
    let entry = retry::lookup(&code);
    if page.is_none() && entry.is_none() {
        return Err(CliError::new(
            exit::NOT_FOUND,
            format!("there is no page for code {:?}", args.code),
            "Whatever is not in the table is final: report it. `pgonce codes` lists the codes.",
        ));
    }
    let value = json!({
        "code": code,
        "name": entry.map(|entry| entry.name),
        "class": entry.map(|entry| entry.class.as_str()),
        "advice": entry.map(|entry| entry.advice),
        "page": page,
    });
    output::say(format, &words(&code, entry, page), &value)
}

fn words(code: &str, entry: Option<&Entry>, page: Option<&str>) -> String {
    let mut text = match page {
        Some(page) => plain(page),
        None => format!("{code}: {}", entry.map_or("", |entry| entry.name)),
    };
    if let Some(entry) = entry {
        let (class, advice) = (entry.class.as_str().replace('_', " "), entry.advice);
        text.push_str(&format!("\n\nIn short: {class}. {advice}"));
    }
    text
}

/// Markdown as people read it: without marks of headings and emphasis, links by their text. Code stays as it is.
fn plain(page: &str) -> String {
    let mut is_code = false;
    let lines = page.lines().filter_map(|line| {
        if line.starts_with("```") {
            is_code = !is_code;
            return None;
        }
        if is_code {
            return Some(format!("    {line}"));
        }
        let line = line.trim_start_matches('#').trim_start_matches(' ');
        Some(without_links(&line.replace("**", "").replace('`', "")))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// `[text](address)` as `text`.
fn without_links(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('[') {
        text.push_str(before);
        let parts = after.split_once("](");
        match parts.and_then(|(name, after)| Some((name, after.split_once(')')?.1))) {
            Some((name, after)) => {
                text.push_str(name);
                rest = after;
            }
            None => {
                text.push('[');
                rest = after;
            }
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn pages_are_those_of_the_book() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = here.join("../../docs/src/reference/errors");
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().path())
            .collect();
        files.sort();
        let mut book = String::new();
        for file in files {
            let code = file.file_stem().unwrap().to_str().unwrap().to_owned();
            // The index and the table are no pages of a code.
            if code.len() == 5 {
                book += &mark(&code);
                book += std::fs::read_to_string(file).unwrap().trim_end();
                book.push('\n');
            }
        }
        if std::env::var_os("PGONCE_UPDATE").is_some() {
            std::fs::write(here.join("src/explain.txt"), &book).unwrap();
        } else {
            assert_eq!(PAGES, book, "run this test with PGONCE_UPDATE=1");
        }
    }

    #[test]
    fn a_page_is_readable_without_markdown() {
        let text = plain(
            "# P1: no\n\n**Why.** See [the page](x.md) and [1].\n\n```sql\nselect '**';\n```",
        );
        assert_eq!(
            text,
            "P1: no\n\nWhy. See the page and [1].\n\n    select '**';"
        );
        let text = words("40001", retry::lookup("40001"), page("40001"));
        assert!(text.contains("In short: retry."), "{text}");
        let text = words("P4002", retry::lookup("P4002"), page("P4002"));
        assert!(
            text.contains("What to do") && !text.contains("**"),
            "{text}"
        );
    }
}
