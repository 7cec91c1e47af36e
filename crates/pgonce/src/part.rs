//! The user's statement as a part of another one.

/// A statement taken apart: what its `with` defines, and the rest. PostgreSQL runs statements that change something only in the
/// outermost `with`, so those of the user's go there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts<'a> {
    recursive: bool,
    /// The first name of its `with` that is reserved for the statement around it.
    pub(crate) reserved: Option<&'a str>,
    defined: &'a str,
    last: &'a str,
}

impl<'a> Parts<'a> {
    /// A statement whose `with` cannot be read has none, and begins with the word `with`.
    pub(crate) fn of(sql: &'a str) -> Self {
        with(sql).unwrap_or(Self {
            recursive: false,
            reserved: None,
            defined: "",
            last: sql,
        })
    }

    /// What the statement itself begins with, where that is one of these kinds.
    pub(crate) fn kind(&self, kinds: &[&'static str]) -> Result<&'static str, String> {
        kind_of(self.last, kinds)
    }

    /// The beginning of a statement in which this one is called `name`, after all that its `with` defines.
    pub(crate) fn begin(&self, name: &str) -> String {
        let (recursive, defined) = (self.recursive, self.defined);
        let recursive = if recursive { "recursive " } else { "" };
        let comma = if defined.is_empty() { "" } else { ", " };
        format!("with {recursive}{defined}{comma}{}", part(name, self.last))
    }
}

/// What a statement begins with, where that is one of these kinds.
pub(crate) fn kind_of(sql: &str, kinds: &[&'static str]) -> Result<&'static str, String> {
    let first = sql.split_whitespace().next().unwrap_or_default();
    let kind = kinds.iter().find(|kind| first.eq_ignore_ascii_case(kind));
    kind.copied().ok_or_else(|| first.to_owned())
}

/// The user's statement as a part of another; the line's end closes a comment.
pub(crate) fn part(name: &str, sql: &str) -> String {
    let sql = sql.trim_end().trim_end_matches(';');
    format!("{name} as materialized (\n{sql}\n)")
}

/// Reads `with a (x) as (...), b as materialized (...) rest`.
fn with(sql: &str) -> Option<Parts<'_>> {
    let mut scan = Scanner { sql, at: 0 };
    if !scan.eat("with") {
        return None;
    }
    let recursive = scan.eat("recursive");
    scan.skip();
    let start = scan.at;
    let mut reserved = None;
    loop {
        let name = scan.name()?;
        let is_reserved = name
            .get(..7)
            .is_some_and(|begin| begin.eq_ignore_ascii_case("pgonce_"));
        reserved = reserved.or(is_reserved.then_some(name));
        if scan.is_at('(') {
            scan.group()?;
        }
        if !scan.eat("as") {
            return None;
        }
        scan.eat("not");
        scan.eat("materialized");
        scan.group()?;
        let defined = &sql[start..scan.at];
        if !scan.is_at(',') {
            let last = scan.rest();
            return Some(Parts {
                recursive,
                reserved,
                defined,
                last,
            });
        }
        scan.at += 1;
    }
}

/// Reads SQL as far as parentheses go: what is quoted is one piece, and comments are none.
struct Scanner<'a> {
    sql: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        &self.sql[self.at..]
    }

    /// Passes spaces and comments.
    fn skip(&mut self) {
        loop {
            let rest = self.rest();
            let text = rest.trim_start();
            self.at += rest.len() - text.len();
            self.at += match text.get(..2) {
                Some("--") => text.find('\n').unwrap_or(text.len()),
                Some("/*") => comment(text),
                _ => return,
            };
        }
    }

    fn is_at(&mut self, sign: char) -> bool {
        self.skip();
        self.rest().starts_with(sign)
    }

    /// Passes this word, if it is the next one.
    fn eat(&mut self, word: &str) -> bool {
        self.skip();
        let next = word_of(self.rest());
        let is_next = next.eq_ignore_ascii_case(word);
        if is_next {
            self.at += next.len();
        }
        is_next
    }

    /// Passes a name, and gives it without its quotes.
    fn name(&mut self) -> Option<&'a str> {
        self.skip();
        let rest = self.rest();
        let len = match rest.starts_with('"') {
            true => quoted(rest, false)?,
            false => word_of(rest).len(),
        };
        self.at += len;
        (len > 0).then_some(rest[..len].trim_matches('"'))
    }

    /// Passes parentheses and what is in them.
    fn group(&mut self) -> Option<()> {
        if !self.is_at('(') {
            return None;
        }
        let mut depth = 0_usize;
        loop {
            self.skip();
            let rest = self.rest();
            let first = rest.chars().next()?;
            self.at += match first {
                '(' | ')' | '\'' | '"' | '$' => 0,
                _ if is_in_word(first) => word_of(rest).len(),
                _ => first.len_utf8(),
            };
            self.at += match first {
                '(' => {
                    depth += 1;
                    1
                }
                ')' => {
                    depth -= 1;
                    1
                }
                '\'' | '"' => quoted(rest, false)?,
                '$' => dollars(rest)?,
                // The backslash escapes in e'...' only.
                'e' | 'E' if rest[1..].starts_with('\'') => quoted(&rest[1..], true)?,
                _ => 0,
            };
            if depth == 0 {
                return Some(());
            }
        }
    }
}

fn is_in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii()
}

fn word_of(text: &str) -> &str {
    let end = text.find(|c| !is_in_word(c) && c != '$');
    &text[..end.unwrap_or(text.len())]
}

/// How long a comment is: they nest.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        (depth, at) = match rest {
            [b'/', b'*', ..] => (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth - 1, at + 2),
            _ => (depth, at + 1),
        };
        if depth == 0 {
            break;
        }
    }
    at
}

/// How long a string or a quoted name is; none that does not end.
fn quoted(text: &str, backslashes: bool) -> Option<usize> {
    let quote = text.chars().next()?;
    let mut signs = text.char_indices().skip(1).peekable();
    while let Some((at, sign)) = signs.next() {
        if sign == '\\' && backslashes {
            signs.next();
        } else if sign == quote && signs.next_if(|(_, next)| *next == quote).is_none() {
            return Some(at + 1);
        }
    }
    None
}

/// How long `$1` or `$tag$ ... $tag$` is.
fn dollars(text: &str) -> Option<usize> {
    let tag = text[1..]
        .find(|c| !is_in_word(c))
        .map(|end| &text[..end + 2]);
    match tag {
        Some(tag) if tag.ends_with('$') => {
            let end = text[tag.len()..].find(tag)?;
            Some(2 * tag.len() + end)
        }
        _ => Some(1 + word_of(&text[1..]).len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_with_is_taken_apart_whatever_is_quoted_in_it() {
        let defined = r#"a as (insert into t values ('a)''(', e'\'(', $1, $$)$$, $q$ $$ ) $q$) returning id), -- with (
            "b)" (x, y) as not materialized (select ")", /* ( /* ) */ */ (1 + 2)), ä as materialized(select 1)"#;
        let sql = format!(" /* one */ With {defined} select id from a;");
        let parts = Parts::of(&sql);
        assert_eq!(parts.defined, defined);
        assert_eq!(parts.kind(&["select"]), Ok("select"));
        let begin = format!("with {defined}, e as materialized (\nselect id from a\n)");
        assert_eq!(parts.begin("e"), begin);

        let parts = Parts::of("with recursive n(i) as (values (1)) select max(i) from n");
        let begin =
            "with recursive n(i) as (values (1)), e as materialized (\nselect max(i) from n\n)";
        assert_eq!(parts.begin("e"), begin);
    }

    #[test]
    fn names_of_the_statement_around_it_are_found() {
        for (with, reserved) in [
            (
                "a as (select 1), PGonce_done as (select 2)",
                Some("PGonce_done"),
            ),
            (r#""pgonce_x" as (select 1)"#, Some("pgonce_x")),
            ("pgonce as (select 1), apgonce_ as (select 2)", None),
        ] {
            let sql = format!("with {with} select 1");
            assert_eq!(Parts::of(&sql).reserved, reserved, "{with}");
        }
    }

    #[test]
    fn what_has_no_with_or_one_that_cannot_be_read_stays_whole() {
        let plain = "insert into t values ($1) returning 1 -- one";
        assert_eq!(
            Parts::of(plain).begin("e"),
            format!("with e as materialized (\n{plain}\n)")
        );
        for sql in [
            "with",
            "with a",
            "with a as",
            "with a as (",
            "with a as (')",
            "with a as ($x$ $y$)",
            "with a as (select 1), select 1",
            "with 'a' as (select 1) select 1",
            "without a as (select 1) select 1",
        ] {
            assert_eq!(Parts::of(sql).last, sql);
            assert!(Parts::of(sql).kind(&["select"]).is_err(), "{sql}");
        }
    }

    #[test]
    fn fuzz_statements_are_taken_apart_without_a_panic() {
        let samples = [
            "with recursive a (x) as not materialized (select ')', e'\\'(', \"(\"), b as (values ($1)) select 1",
            "with ä as (insert into t values ($q$ ) $q$) returning id), /* ( /* */ */ b as (select 2) -- (\nselect 3",
        ];
        pgonce_testkit::fuzz(&samples, 4000, |input| {
            let sql = String::from_utf8_lossy(input);
            let parts = Parts::of(&sql);
            assert!(sql.ends_with(parts.last));
            assert!(parts.begin("e").contains(parts.defined));
        });
    }
}
