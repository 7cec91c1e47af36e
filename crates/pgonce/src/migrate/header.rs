//! The header of a routine's file, in a form that a program can read: the comment on the function
//! or view in the database and the SQL reference of the book are both made from it.

use super::routines::ROUTINES;

/// What the header of a routine's file says.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The routine's name without its schema.
    pub name: &'static str,
    /// The folder of its file: the capability that it belongs to.
    pub capability: &'static str,
    /// `function` or `view`.
    pub kind: &'static str,
    /// The whole file.
    pub sql: &'static str,
    /// What it does, in a sentence or two.
    pub what: String,
    /// The other sections by name, in order: answers, locks, writes, raises, note, example.
    pub sections: Vec<(&'static str, String)>,
}

impl Header {
    /// The text of a section.
    pub fn section(&self, name: &str) -> Option<&str> {
        let found = self.sections.iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| text.as_str())
    }

    /// The statement that puts what the header says on the routine, for `\df+` and `\d+`.
    pub(super) fn comment(&self) -> String {
        let mut text = self.what.clone();
        for (name, section) in &self.sections {
            text.push_str(&format!("\n{name}: {section}"));
        }
        let (kind, name) = (self.kind, self.name);
        let text = text.replace('\'', "''");
        format!("comment on {kind} pgonce.{name} is '{text}';\n")
    }
}

/// The headers of all public functions and views, in the order they are loaded.
#[doc(hidden)]
pub fn public_headers() -> Vec<Header> {
    let public = ROUTINES
        .iter()
        .filter(|routine| !name(routine.name).starts_with('_'));
    public
        .map(|routine| parse(routine.name, routine.sql))
        .collect()
}

fn name(path: &'static str) -> &'static str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The first line is `-- pgonce.name(parameters): what it does`. A section begins with its name at
/// the start of a line; what belongs to it is indented by ten blanks.
fn parse(path: &'static str, sql: &'static str) -> Header {
    let mut what = String::new();
    let mut sections: Vec<(&'static str, String)> = Vec::new();
    for line in sql.lines().map_while(|line| line.strip_prefix("--")) {
        let (label, text) = match line.strip_prefix("          ") {
            Some(text) => ("", text),
            None => line[1..].split_once(' ').unwrap_or((&line[1..], "")),
        };
        if label.starts_with("pgonce.") || what.is_empty() {
            what = line[1..].to_owned();
        } else if !label.is_empty() {
            sections.push((label, text.trim_start().to_owned()));
        } else {
            match sections.last_mut() {
                // Lines of a list, and those of an example, stay lines.
                Some((label, section)) => {
                    let break_line = *label == "example" || text.starts_with(' ');
                    section.push(if break_line { '\n' } else { ' ' });
                    section.push_str(text);
                }
                None => {
                    what.push(' ');
                    what.push_str(text);
                }
            }
        }
    }
    let name = name(path);
    let signature = match what.find(')') {
        Some(end) if what.starts_with(&format!("pgonce.{name}(")) => end,
        _ => 0,
    };
    let what = match what[signature..].split_once(": ") {
        Some((_, what)) => what.to_owned(),
        None => what,
    };
    let is_view = sql
        .lines()
        .any(|l| l.starts_with("create or replace view "));
    Header {
        name,
        capability: path.split_once('/').map_or("", |(folder, _)| folder),
        kind: if is_view { "view" } else { "function" },
        sql,
        what,
        sections,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_with_its_lists_and_examples() {
        let header = parse(
            "intent/claim",
            "-- pgonce.claim(p_scope, p_key): asks for\n--          the right.\n\
             -- answers  one of\n--            fresh  it's yours\n--            busy   it is not\n\
             -- raises   P4000\n--          P4001\n-- example  begin;\n--          commit;\n\
             create or replace function pgonce.claim()",
        );
        assert_eq!(header.what, "asks for the right.");
        assert_eq!(
            header.section("answers"),
            Some("one of\n  fresh  it's yours\n  busy   it is not")
        );
        assert_eq!(header.section("raises"), Some("P4000 P4001"));
        assert_eq!(header.section("example"), Some("begin;\ncommit;"));
        assert_eq!((header.name, header.kind), ("claim", "function"));
        assert!(header.comment().contains("it''s yours"));
    }

    #[test]
    fn every_public_routine_has_every_section() {
        for header in public_headers() {
            let name = header.name;
            assert!(header.what.ends_with('.'), "{name}: {}", header.what);
            let wanted: &[&str] = match header.kind {
                "view" => &["example"],
                _ => &["answers", "locks", "writes", "raises", "example"],
            };
            for section in wanted {
                assert!(header.section(section).is_some(), "{name}: {section}");
            }
            let known = ["answers", "locks", "writes", "raises", "note", "example"];
            for (section, _) in &header.sections {
                assert!(known.contains(section), "{name}: {section}");
            }
        }
    }
}
