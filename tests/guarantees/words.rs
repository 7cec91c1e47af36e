//! Words that this project avoids do not come back: `tests/words.txt` says how often each file still
//! has them, and its numbers only fall.
//!
//! `PGONCE_UPDATE_WORDS=1` lowers them to what is there.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use crate::tidy::{files, read, root};

const WORDS: [&str; 20] = [
    "told", "tell", "tells", "wish", "wishes", "hear", "hears", "heard", "mend", "mends", "mended",
    "whoever", "patience", "murder", "murders", "sulk", "glance", "hopeless", "weather", "tend",
];
const PHRASES: [&str; 5] = [
    "for good",
    "for now",
    "unless said otherwise",
    "a person",
    "is not there",
];
const ENDINGS: [&str; 2] = ["_at_most", "_within"];
const BEGINNING: &str = "longest_";

fn count(text: &str) -> usize {
    let text = text.to_lowercase();
    let is_letter = |c: char| c.is_alphanumeric() || c == '\'';
    let words: Vec<&str> = text
        .split(|c| !is_letter(c))
        .filter(|word| !word.is_empty())
        .collect();
    let single = words.iter().filter(|word| WORDS.contains(word)).count();
    let phrases = PHRASES.iter().map(|phrase| {
        let phrase: Vec<&str> = phrase.split(' ').collect();
        words
            .windows(phrase.len())
            .filter(|window| *window == phrase)
            .count()
    });
    let names = text
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|name| name.starts_with(BEGINNING) || ENDINGS.iter().any(|e| name.ends_with(e)));
    single + phrases.sum::<usize>() + names.count()
}

#[test]
fn a_word_to_avoid_is_found_in_prose_names_and_over_line_ends() {
    assert_eq!(count("Whoever wishes: is_told, call_at_most"), 4);
    assert_eq!(count("// it is not\n    // there"), 1);
    assert_eq!(count("almost, within, a_wishbone, longest"), 0);
}

#[test]
fn words_to_avoid_only_become_fewer() {
    let mut found = BTreeMap::new();
    let all =
        [".rs", ".sql", ".md", ".toml", ".py", ".ts", "Makefile"].map(|ending| files(".", ending));
    for path in all.into_iter().flatten().chain(files("scripts", "")) {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        let counted = count(&read(&path));
        if counted > 0 && name != "tests/guarantees/words.rs" {
            found.insert(name, counted);
        }
    }
    let list = root().join("tests/words.txt");
    let allowed: BTreeMap<String, usize> = read(&list)
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(number, name)| (name.to_owned(), number.parse().unwrap()))
        .collect();
    let mut more = Vec::new();
    for (name, counted) in &found {
        let most = allowed.get(name).copied().unwrap_or(0);
        if *counted > most {
            more.push(format!("{name} has {counted}, at most {most} are allowed"));
        }
    }
    assert!(
        more.is_empty(),
        "say it in the words of the glossary: {more:#?}"
    );
    if found != allowed && std::env::var_os("PGONCE_UPDATE_WORDS").is_some() {
        let mut text = String::new();
        for (name, counted) in &found {
            writeln!(text, "{counted} {name}").unwrap();
        }
        fs::write(&list, text).unwrap();
        return;
    }
    let fewer: Vec<_> = allowed
        .iter()
        .filter(|(name, most)| found.get(*name).copied().unwrap_or(0) < **most)
        .collect();
    assert!(
        fewer.is_empty(),
        "fewer than tests/words.txt allows; run this test with PGONCE_UPDATE_WORDS=1: {fewer:#?}"
    );
}
