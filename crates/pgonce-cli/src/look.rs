//! Lists whose filter may match few of very many rows: a bounded number of them is looked at, and where these were not all, the list says
//! so. It never says that there is nothing.

use serde_json::Value;

use crate::database::Database;
use crate::exit::Result;
use crate::output;

/// Rows that one list looks at.
pub(crate) const LOOK: u32 = 20_000;

/// The rows of a look, as `x`, that match; and the one at which the look stopped. They come in the order of the look, no more of them than
/// the limit. A list selects `matches` and `stopped` as its last columns; one that sorts them anew takes all of them, and selects `bool_or(stopped) over ()`, since its
/// own limit may leave out the row at which the look stopped.
pub(crate) fn among(look: &str, max: u32, condition: &str, limit: &str) -> String {
    format!(
        "(select l.* from (select x.*, ({condition}) is true as matches, row_number() over () = {max} as stopped from ({look} limit {max}) x) l \
         where l.matches or l.stopped limit {limit})"
    )
}

/// What a look found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    rows: Vec<String>,
    /// The last row that was looked at, where there are more.
    pub(crate) stopped: Option<Value>,
    /// Whether the list has another order than the look: what was not looked at may belong before what is shown.
    is_sorted: bool,
}

impl Found {
    /// From rows whose last columns are `matches` and `stopped`.
    pub(crate) fn of(rows: Vec<String>) -> Result<Self> {
        let mut found = Self::default();
        for row in rows {
            let parsed = |row: &str| pgonce::unstable::json::read(row);
            if let Some(row) = row.strip_suffix(r#","matches":true,"stopped":false}"#) {
                found.rows.push(format!("{row}}}"));
            } else if let Some(kept) = row.strip_suffix(r#","matches":true,"stopped":true}"#) {
                found.stopped = Some(parsed(&row)?);
                found.rows.push(format!("{kept}}}"));
            } else {
                found.stopped = Some(parsed(&row)?);
            }
        }
        Ok(found)
    }

    /// The same of a list that has another order than the look.
    pub(crate) fn sorted(rows: Vec<String>) -> Result<Self> {
        Ok(Self {
            is_sorted: true,
            ..Self::of(rows)?
        })
    }

    /// With the rows of another look, where this one found none. Neither found all.
    pub(crate) fn or(self, other: Self) -> Self {
        match self.rows.is_empty() {
            true => Self {
                rows: other.rows,
                is_sorted: true,
                ..self
            },
            false => self,
        }
    }

    /// Whether these are all that a list with this limit could show.
    pub(crate) fn is_all(&self, limit: u32) -> bool {
        self.stopped.is_none() || !self.is_sorted && self.rows.len() >= limit as usize
    }

    /// Prints the rows, and where the look stopped early what was looked at and how to look further.
    pub(crate) fn print(
        &self,
        database: &Database,
        limit: u32,
        nothing: &str,
        looked: impl FnOnce(&Value) -> String,
    ) -> Result {
        let Some(last) = self.stopped.as_ref().filter(|_| !self.is_all(limit)) else {
            return output::rows(database.format, &self.rows, nothing);
        };
        output::rows(
            database.format,
            &self.rows,
            "None of those that were looked at.",
        )?;
        output::note(&looked(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_only_says_where_the_look_stopped_is_not_shown() {
        let row = |id: u32, matches: bool, stopped: bool| {
            format!(r#"{{"id":{id},"matches":{matches},"stopped":{stopped}}}"#)
        };
        let all = Found::of(vec![row(3, true, false), row(2, true, false)]).unwrap();
        assert_eq!(all.rows, [r#"{"id":3}"#, r#"{"id":2}"#]);
        assert!(all.is_all(100));
        for matches in [true, false] {
            let some = Found::of(vec![row(3, true, false), row(2, matches, true)]).unwrap();
            assert_eq!(some.rows.len(), 1 + usize::from(matches));
            assert_eq!(some.stopped.as_ref().unwrap()["id"], 2);
            assert!(some.is_all(1) && !some.is_all(100));
        }
    }

    #[test]
    fn a_full_list_in_another_order_than_its_look_is_not_all() {
        let row = |stopped: bool| format!(r#"{{"id":3,"matches":true,"stopped":{stopped}}}"#);
        assert!(Found::sorted(vec![row(false)]).unwrap().is_all(1));
        assert!(!Found::sorted(vec![row(true)]).unwrap().is_all(1));
    }
}
