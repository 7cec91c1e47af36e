//! Lists whose filter may match few of very many rows: a page looks at a bounded number of them, in the order of an index, and the
//! next page goes on where it stopped.

use crate::db::flag;
use crate::html::el;
use crate::view::{Section, after};

/// Rows that a page looks at. The statements of such lists have it in their text.
pub(crate) const LOOK: usize = 20_000;

/// Wraps the rows of a look: what matches the condition, and the row at which the look stopped. `$n` in the condition are those of the
/// whole statement; `x` are the rows.
pub(crate) fn among(look: &str, max: usize, condition: &str, limit: &str) -> String {
    format!(
        "select l.*, l.n = {max} as stopped from (select x.*, ({condition}) is true as matches, row_number() over () as n from ({look} limit {max}) x) l \
         where l.matches or l.n = {max} limit {limit}"
    )
}

impl Section {
    /// As [`Section::paged`], for the rows of [`among`].
    pub(crate) fn looked(
        mut self,
        size: usize,
        page: (&'static str, &'static str),
        keep: &[(&str, &str)],
        cursor: &[(&str, &str)],
    ) -> Self {
        let last = self.rows.last().filter(|row| flag(row, "stopped")).cloned();
        self.keep_matches();
        if self.rows.len() > size {
            return self.paged(size, page, keep, cursor);
        }
        if let Some(last) = last {
            self.next = Some(after(&last, page, keep, cursor));
            self.empty = "None of the 20,000 records that this page looked at matches.";
            let words = "This page looked at 20,000 records; the next page looks further. A narrower filter looks at fewer.";
            self.foot = el("p", &[("class", "muted")], words);
        }
        self
    }

    /// As [`Section::cut`], for the rows of [`among`] in another order, each of which has whether the look stopped (`bool_or(stopped) over ()`).
    /// `looked` says what was looked at.
    pub(crate) fn looked_once(mut self, size: usize, looked: &'static str) -> Self {
        let stopped = self.rows.iter().any(|row| flag(row, "stopped"));
        self.keep_matches();
        let mut cut = self.cut(size);
        if stopped {
            cut.is_cut = true;
            cut.empty = "None of those that were looked at.";
            cut.foot = el("p", &[("class", "muted")], looked);
        }
        cut
    }

    fn keep_matches(&mut self) {
        self.rows.retain(|row| flag(row, "matches"));
        for row in &mut self.rows {
            for name in ["matches", "stopped", "n"] {
                row.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::db::Row;

    fn table(rows: &[(i64, bool, bool)]) -> Vec<Row> {
        let rows = rows.iter().map(|(key, matches, stopped)| {
            let row = json!({"key": key, "n": key, "matches": matches, "stopped": stopped});
            row.as_object().cloned().unwrap_or_default()
        });
        rows.collect()
    }

    fn rows(rows: &[(i64, bool, bool)]) -> Section {
        Section::new("", &[], table(rows), "nothing").looked(
            2,
            ("list", "/list"),
            &[("q", "x")],
            &[("after", "key")],
        )
    }

    fn next(section: &Section) -> Option<&str> {
        section.next.as_ref().map(|(_, _, query)| query.as_str())
    }

    #[test]
    fn a_look_that_stopped_goes_on_after_the_last_row_it_looked_at() {
        let few = rows(&[(3, true, false), (9, false, true)]);
        assert_eq!((few.rows.len(), next(&few)), (1, Some("?q=x&after=9")));
        assert_eq!(few.rows[0].get("matches"), None);
        let none = rows(&[(9, false, true)]);
        assert_eq!((none.rows.len(), next(&none)), (0, Some("?q=x&after=9")));
        assert!(none.empty.contains("20,000"), "{}", none.empty);
        let matched = rows(&[(9, true, true)]);
        assert_eq!(
            (matched.rows.len(), next(&matched)),
            (1, Some("?q=x&after=9"))
        );
    }

    #[test]
    fn a_page_that_is_full_goes_on_after_its_last_row() {
        let full = rows(&[(3, true, false), (4, true, false), (5, true, false)]);
        assert_eq!((full.rows.len(), next(&full)), (2, Some("?q=x&after=4")));
        let all = rows(&[(3, true, false), (4, true, false)]);
        assert_eq!((all.rows.len(), next(&all)), (2, None));
    }

    #[test]
    fn a_table_in_another_order_says_that_its_look_stopped_whether_anything_matched_or_not() {
        let section = |all: &[(i64, bool, bool)]| {
            let rows = table(all);
            Section::new("", &[], rows, "nothing").looked_once(2, "two were looked at")
        };
        let none = section(&[(9, false, true)]);
        assert_eq!((none.rows.len(), none.is_cut), (0, true));
        assert!(none.empty.contains("looked at"), "{}", none.empty);
        let one = section(&[(3, true, true)]);
        assert_eq!((one.rows.len(), one.is_cut), (1, true));
        assert_eq!(one.rows[0].get("stopped"), None);
        let all = section(&[(3, true, false)]);
        assert_eq!((all.rows.len(), all.is_cut), (1, false));
        let more = section(&[(3, true, false), (4, true, false), (5, true, false)]);
        assert_eq!((more.rows.len(), more.is_cut), (2, true));
    }
}
