//! Plain technical English: the words that docs/src/reference/glossary.md replaces stay out.

use crate::tidy::{files, read, root};

/// A word or phrase, what to write instead, and how often it is still there. The numbers may only fall:
/// who removes one lowers its number.
const BANNED: &[(&str, &str, usize)] = &[
    ("wish", "intent, request", 697),
    ("wishes", "intents, requests", 62),
    ("told", "gets, is reported", 1103),
    ("hears", "gets", 26),
    ("heard", "got, received", 103),
    ("mend", "fix", 17),
    ("mended", "fixed", 9),
    ("whoever", "the caller, the attempt that", 68),
    ("patience", "timeout", 169),
    ("murder", "kill", 7),
    ("for good", "permanent, permanently", 18),
    ("for now", "transient", 13),
    ("waits for a person", "needs manual action", 0),
    ("unless said otherwise", "default: ...", 9),
    ("is not there", "is unavailable, does not exist", 12),
];

/// The places of a word in our own texts: code, SQL, pages, help and scripts.
fn places(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    let own = [
        ".rs", ".sql", ".md", ".toml", ".yaml", ".mutant", "Makefile",
    ];
    for path in files(".", "") {
        let name = path.to_string_lossy();
        // What was is what was; and this file names the words.
        let skipped = name.ends_with("CHANGELOG.md") || name.ends_with("guarantees/words.rs");
        if skipped || !own.iter().any(|ending| name.ends_with(ending)) {
            continue;
        }
        for (number, line) in read(&path).lines().enumerate() {
            let line = line.to_lowercase();
            for (at, _) in line.match_indices(word) {
                let part_of_a_word = |c: char| c.is_alphanumeric();
                let before = line[..at].chars().next_back().is_some_and(part_of_a_word);
                let after = line[at + word.len()..]
                    .chars()
                    .next()
                    .is_some_and(part_of_a_word);
                if !before && !after {
                    let path = path.strip_prefix(root()).unwrap();
                    found.push(format!("{}:{}", path.display(), number + 1));
                }
            }
        }
    }
    found
}

#[test]
fn no_banned_word_comes_back() {
    let mut too_many = Vec::new();
    for (word, instead, allowed) in BANNED {
        let found = places(word);
        if found.len() > *allowed {
            too_many.push(format!(
                "\"{word}\" {} times, {allowed} allowed (write: {instead}):\n  {}",
                found.len(),
                found.join("\n  ")
            ));
        }
    }
    assert!(too_many.is_empty(), "{}", too_many.join("\n"));
}
