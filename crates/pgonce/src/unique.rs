//! Business uniqueness beside the key: a second key for the same fact still makes one row.
//!
//! The natural unique constraint decides. [`insert_or_fetch`] writes the statement that asks it
//! without a no-op update, [`Made`] is its answer, and [`classify_violation`] says what a unique
//! violation means. In SQL, and for partial or expression indexes, call
//! `pgonce.insert_or_fetch(index, row)`.

use crate::error::{Error, Problem, Result};

/// How often [`look`] asks before it gives up. The second look nearly always sees the row.
pub const LOOKS: u32 = 10;

/// A row, and whether it was made now or had been there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "it says whether the row is new"]
pub enum Made<T> {
    /// This call made it.
    Now(T),
    /// It was there before; nothing was written.
    Before(T),
}

impl<T> Made<T> {
    /// The answer of the statement that [`insert_or_fetch`] writes: its `made_now` column and the
    /// rest of the row. `None` when there is no row: look again, see [`look`].
    pub fn from_rows(rows: impl IntoIterator<Item = (bool, T)>) -> Option<Self> {
        let (made_now, row) = rows.into_iter().next()?;
        Some(if made_now {
            Self::Now(row)
        } else {
            Self::Before(row)
        })
    }

    /// Whether this call made it.
    pub fn is_now(&self) -> bool {
        matches!(self, Self::Now(_))
    }

    /// The row, made now or before.
    pub fn into_inner(self) -> T {
        match self {
            Self::Now(row) | Self::Before(row) => row,
        }
    }

    /// The same answer about another form of the row.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Made<U> {
        match self {
            Self::Now(row) => Made::Now(change(row)),
            Self::Before(row) => Made::Before(change(row)),
        }
    }
}

/// One statement that inserts a row or fetches the one that stands in its way.
///
/// `conflict` are the columns of the unique constraint, `columns` those to insert, given as
/// parameters `$1`, `$2` … in this order, and `returning` what to answer after `made_now`. The
/// table may be qualified by its schema: `shop.orders`. All names are quoted.
///
/// Under READ COMMITTED the answer can be **no row at all**: another transaction committed the row
/// after this statement's snapshot was taken, so it is in the way and not visible. Ask again, as
/// [`look`] does. Under REPEATABLE READ that case is error 40001: run the transaction again.
///
/// ```
/// use pgonce::unique::insert_or_fetch;
///
/// let sql = insert_or_fetch("orders", &["customer", "reference"], &["customer", "reference", "item"], &["id"])?;
/// assert_eq!(sql, r#"with made as (
///   insert into "orders" ("customer", "reference", "item") values ($1, $2, $3)
///   on conflict ("customer", "reference") do nothing
///   returning "id"
/// )
/// select true as made_now, "id" from made
/// union all
/// select false, "id" from "orders"
///  where "customer" = $1 and "reference" = $2 and not exists (select from made)"#);
/// # Ok::<(), pgonce::Error>(())
/// ```
pub fn insert_or_fetch(
    table: &str,
    conflict: &[&str],
    columns: &[&str],
    returning: &[&str],
) -> Result<String> {
    for (what, names) in [
        ("conflict", conflict),
        ("columns", columns),
        ("returning", returning),
    ] {
        if names.is_empty() {
            return Err(invalid(
                format!("insert_or_fetch: `{what}` names no column"),
                "Name the columns of the unique constraint, those to insert and those to answer.",
            ));
        }
    }
    if returning.contains(&"made_now") {
        return Err(invalid(
            "insert_or_fetch: `returning` names a column made_now, which is the answer's own"
                .to_owned(),
            "Rename the column, or write the statement by hand.",
        ));
    }
    let places = conflict
        .iter()
        .map(|column| {
            let place = columns.iter().position(|c| c == column).ok_or_else(|| {
                invalid(
                    format!(
                        "insert_or_fetch: conflict column {column:?} is not among those to insert"
                    ),
                    "Insert every column of the unique constraint.",
                )
            })?;
            Ok(format!("{} = ${}", quoted(column)?, place + 1))
        })
        .collect::<Result<Vec<_>>>()?
        .join(" and ");
    let table = table
        .split('.')
        .map(quoted)
        .collect::<Result<Vec<_>>>()?
        .join(".");
    let (key, answer) = (list(conflict)?, list(returning)?);
    let into = list(columns)?;
    let values = (1..=columns.len())
        .map(|n| format!("${n}"))
        .collect::<Vec<_>>()
        .join(", ");
    Ok(format!(
        "with made as (\n  insert into {table} ({into}) values ({values})\n  \
         on conflict ({key}) do nothing\n  returning {answer}\n)\n\
         select true as made_now, {answer} from made\nunion all\n\
         select false, {answer} from {table}\n where {places} and not exists (select from made)"
    ))
}

fn list(names: &[&str]) -> Result<String> {
    Ok(names
        .iter()
        .map(|name| quoted(name))
        .collect::<Result<Vec<_>>>()?
        .join(", "))
}

/// A name that PostgreSQL reads as exactly this, or an error: longer ones it would cut short.
fn quoted(name: &str) -> Result<String> {
    if name.is_empty() || name.len() > 63 || name.contains('\0') {
        return Err(invalid(
            format!("{name:?} is not a name of a table or column"),
            "A name has 1 to 63 bytes and no NUL.",
        ));
    }
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

fn invalid(message: String, hint: &'static str) -> Error {
    Error::Invalid(Problem::new("22023", message, hint))
}

/// Runs the statement of [`insert_or_fetch`] until it answers a row, at most [`LOOKS`] times.
///
/// `ask` runs it once and answers [`Made::from_rows`].
pub async fn look<T, F, Fut>(mut ask: F) -> Result<Made<T>>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<Made<T>>>>,
{
    for _ in 0..LOOKS {
        if let Some(made) = ask().await? {
            return Ok(made);
        }
    }
    Err(Error::Database(Problem::new(
        "P4099",
        format!("the row was neither inserted nor found in {LOOKS} looks"),
        "Compare the statement's conflict columns with the unique constraint: are they the same, \
         and none of the values null?",
    )))
}

/// What a unique violation (23505) means. Never swallow one: find out which it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Violation {
    /// The row in the way was made by this same intent: answer with it.
    Replay,
    /// The same business fact under another key: answer with the row that is there.
    BusinessDuplicate,
    /// Another attempt at this intent finished first: roll back and claim again.
    LostRace,
    /// No constraint that anybody expected: report it.
    Bug,
}

impl Violation {
    /// A business duplicate whose row turns out to be this intent's own is a replay. That
    /// happens in leased mode, when an attempt made the row and vanished before it said so.
    #[must_use]
    pub fn or_replay(self, row_is_of_this_intent: bool) -> Self {
        match self {
            Self::BusinessDuplicate if row_is_of_this_intent => Self::Replay,
            other => other,
        }
    }
}

/// Sorts a unique violation by the constraint that was violated. `business` lists the constraints
/// that say what may exist only once.
///
/// ```
/// use pgonce::unique::{Violation, classify_violation};
///
/// let business = ["one_order_per_reference"];
/// assert_eq!(
///     classify_violation(Some("one_order_per_reference"), &business),
///     Violation::BusinessDuplicate,
/// );
/// assert_eq!(classify_violation(Some("orders_pkey"), &business), Violation::Bug);
/// ```
pub fn classify_violation(constraint: Option<&str>, business: &[&str]) -> Violation {
    match constraint {
        Some("one_row_per_intent") => Violation::LostRace,
        Some(name) if business.contains(&name) => Violation::BusinessDuplicate,
        _ => Violation::Bug,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn names_cannot_leave_their_quotes() {
        let sql =
            insert_or_fetch(r#"shop.or"ders"#, &["a\"; drop"], &["a\"; drop"], &["Id"]).unwrap();
        assert!(
            sql.contains(r#"insert into "shop"."or""ders" ("a""; drop") values ($1)"#),
            "{sql}"
        );
        assert!(sql.contains(r#"returning "Id""#), "{sql}");
    }

    #[test]
    fn a_conflict_column_keeps_the_number_of_its_parameter() {
        let sql = insert_or_fetch("t", &["c", "a"], &["a", "b", "c"], &["a"]).unwrap();
        assert!(sql.contains(r#"where "c" = $3 and "a" = $1 and"#), "{sql}");
    }

    #[test]
    fn what_cannot_become_a_statement_is_refused_with_a_code() {
        let long = "x".repeat(64);
        for (table, conflict, columns, returning) in [
            ("", &["a"][..], &["a"][..], &["a"][..]),
            ("s..t", &["a"], &["a"], &["a"]),
            ("t", &[], &["a"], &["a"]),
            ("t", &["a"], &["a"], &[]),
            ("t", &["b"], &["a"], &["a"]),
            ("t", &["a"], &["a", "b\0"], &["a"]),
            ("t", &["a"], &["a"], &["made_now"]),
            (&long, &["a"], &["a"], &["a"]),
        ] {
            let error = insert_or_fetch(table, conflict, columns, returning).unwrap_err();
            assert_eq!(error.code(), "22023", "{error}");
        }
    }

    #[test]
    fn no_rows_means_look_again() {
        assert_eq!(Made::<i32>::from_rows([]), None);
        assert_eq!(Made::from_rows([(true, 7)]), Some(Made::Now(7)));
        assert_eq!(Made::from_rows([(false, 7)]), Some(Made::Before(7)));
    }

    #[tokio::test]
    async fn looking_stops_at_the_first_row_or_after_its_limit() {
        let looks = Cell::new(0);
        let ask = |row_at: u32| {
            looks.set(looks.get() + 1);
            let seen = looks.get() == row_at;
            async move { Ok(seen.then_some(Made::Before(7))) }
        };
        assert_eq!(look(|| ask(2)).await.unwrap(), Made::Before(7));
        looks.set(0);
        assert_eq!(look(|| ask(0)).await.unwrap_err().code(), "P4099");
        assert_eq!(looks.get(), LOOKS);
    }

    #[test]
    fn every_violation_is_one_of_four() {
        let business = ["one_order_per_reference"];
        let of = |name| classify_violation(name, &business);
        assert_eq!(of(Some("one_row_per_intent")), Violation::LostRace);
        assert_eq!(
            of(Some("one_order_per_reference")),
            Violation::BusinessDuplicate
        );
        assert_eq!(
            of(Some("one_order_per_reference")).or_replay(true),
            Violation::Replay
        );
        assert_eq!(of(None), Violation::Bug);
        assert_eq!(of(None).or_replay(true), Violation::Bug);
    }
}
