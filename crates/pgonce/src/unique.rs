//! Business uniqueness beside the key: a second key for the same fact still makes one row.
//!
//! The natural unique constraint decides. [`insert_or_fetch`] writes the statement that asks it
//! without a no-op update, [`Inserted`] is its answer, and [`classify_violation`] says what a unique
//! violation means. In SQL, and for partial or expression indexes, call
//! `pgonce.insert_or_fetch(index, row)`.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::{Args, Sql};
use crate::driver::Connection;
use crate::error::{Error, ErrorDetail, Result};
use crate::tx::Tx;

static INSERT_OR_FETCH: Sql = Sql::kept(
    "select made_now::text, stored::text from pgonce.insert_or_fetch($1::text::regclass, $2::text::jsonb)",
);

static UPDATE_ONCE: Sql = Sql::kept(
    "select outcome, stored::text from pgonce.update_once($1::text::regclass, $2::text::jsonb, $3::text::jsonb)",
);
static REFER: Sql = Sql::kept("select made_now::text, id from pgonce.refer($1, $2, $3, $4, $5)");

/// What became of a change that happens once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "it says whether the row was changed"]
#[non_exhaustive]
pub enum Updated {
    /// The row was as expected, and was changed.
    Applied,
    /// The row has these values already.
    Already,
    /// The row is not as expected.
    Stale,
    /// The row was as expected when the call began; another transaction came first.
    LostRace,
    /// There is no such row.
    Missing,
}

/// A row, and whether it is new or existed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "it says whether the row is new"]
pub enum Inserted<T> {
    /// This call inserted the row.
    New(T),
    /// The row existed; nothing was written.
    Existing(T),
}

impl<T> Inserted<T> {
    /// The answer of the statement that [`insert_or_fetch`] writes: its `made_now` column and the
    /// rest of the row. `None` when there is no row: run the statement again.
    pub fn from_rows(rows: impl IntoIterator<Item = (bool, T)>) -> Option<Self> {
        let (made_now, row) = rows.into_iter().next()?;
        Some(if made_now {
            Self::New(row)
        } else {
            Self::Existing(row)
        })
    }

    /// Whether this call inserted the row.
    pub fn is_new(&self) -> bool {
        matches!(self, Self::New(_))
    }

    /// The row, new or existing.
    pub fn into_inner(self) -> T {
        match self {
            Self::New(row) | Self::Existing(row) => row,
        }
    }

    /// The same answer about another form of the row.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Inserted<U> {
        match self {
            Self::New(row) => Inserted::New(change(row)),
            Self::Existing(row) => Inserted::Existing(change(row)),
        }
    }
}

impl<C: Connection> Tx<C> {
    /// Inserts a row, or fetches the one that has the same business identity already: the first
    /// caller inserts it, under any key. Nothing is updated.
    ///
    /// `index` names the unique index or constraint that says what may exist only once; it may be
    /// partial or over expressions. `row` gives columns by name, and `T` reads the stored row.
    /// For a hot path write the statement once with [`insert_or_fetch`].
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(tx: &mut pgonce::sqlx::Tx) -> Result<(), pgonce::Error> {
    /// use pgonce::Inserted;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Order { id: i64 }
    ///
    /// let row = serde_json::json!({"customer": 7, "reference": "A-1", "item": "book"});
    /// match tx.insert_or_fetch::<Order>("one_order_per_reference", &row).await? {
    ///     Inserted::New(order) => println!("new order {}", order.id),
    ///     Inserted::Existing(order) => println!("order {} existed", order.id),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn insert_or_fetch<T: DeserializeOwned>(
        &mut self,
        index: &str,
        row: &(impl Serialize + ?Sized),
    ) -> Result<Inserted<T>> {
        let row = serde_json::to_string(row)?;
        let args = Args::texts([index, &row]);
        let mut stored = self.call(&INSERT_OR_FETCH, args).await?.one()?;
        let new = stored.bool()?;
        let row = serde_json::from_str(&stored.text()?)?;
        Ok(if new {
            Inserted::New(row)
        } else {
            Inserted::Existing(row)
        })
    }
}

impl<C: Connection> Tx<C> {
    /// Changes a row once. `row` holds the columns of the unique index, which find it, and those to set. Where
    /// `expected` is `None` these must have no value yet: the first one stays. Otherwise the row must have the
    /// values that it names, such as a state or a version.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(tx: &mut pgonce::sqlx::Tx) -> Result<(), pgonce::Error> {
    /// use pgonce::unique::Updated;
    /// use serde_json::json;
    ///
    /// let paid = json!({"number": "2026-7", "paid_at": "2026-01-31"});
    /// let first = tx.update_once("invoice_pkey", &paid, None).await?;
    /// let sent = json!({"number": "2026-7", "state": "sent", "version": 4});
    /// let moved = tx.update_once("invoice_pkey", &sent, Some(json!({"version": 3}))).await?;
    /// assert_ne!((first, moved), (Updated::Missing, Updated::Missing));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn update_once(
        &mut self,
        index: &str,
        row: &(impl Serialize + ?Sized),
        expected: Option<serde_json::Value>,
    ) -> Result<Updated> {
        let row = serde_json::to_string(row)?;
        let expected = expected.map(|values| values.to_string());
        let args = Args::texts([index, &row]).text(expected.as_deref());
        let mut row = self.call(&UPDATE_ONCE, args).await?.one()?;
        Ok(match &*row.text()? {
            "applied" => Updated::Applied,
            "already" => Updated::Already,
            "stale" => Updated::Stale,
            "lost_race" => Updated::LostRace,
            "missing" => Updated::Missing,
            _ => return Err(crate::call::unreadable()),
        })
    }

    /// Names a thing by another system's name for it, once. Call it before you create the thing: an existing
    /// reference says which one it is.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(tx: &mut pgonce::sqlx::Tx, id: &str) -> Result<(), pgonce::Error> {
    /// use pgonce::Inserted;
    ///
    /// match tx.refer("portal", "complaint-77", "case", id).await? {
    ///     Inserted::New(id) => println!("create case {id}"),
    ///     Inserted::Existing(id) => println!("it is case {id}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn refer(
        &mut self,
        system: &str,
        reference: &str,
        kind: &str,
        id: &str,
    ) -> Result<Inserted<String>> {
        let tenant = self.shared_tenant().unwrap_or_default();
        let args = Args::texts([system, reference, kind, id]).text(&*tenant);
        let mut row = self.call(&REFER, args).await?.one()?;
        let new = row.bool()?;
        let id = row.text()?;
        Ok(if new {
            Inserted::New(id)
        } else {
            Inserted::Existing(id)
        })
    }
}

/// One statement that inserts a row or fetches the one that stands in its way.
///
/// `conflict` are the columns of the unique constraint, `columns` those to insert, given as
/// parameters `$1`, `$2` … in this order, and `returning` what to answer after `made_now`. The
/// table may be qualified by its schema: `shop.orders`. All names are quoted.
///
/// Under READ COMMITTED the answer can be **no row at all**: another transaction committed the row
/// after this statement's snapshot was taken, so it is in the way and not visible. Run it again;
/// [`Tx::insert_or_fetch`] does so by itself. Under REPEATABLE READ that case is error 40001: run the transaction again.
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
    Error::Invalid(ErrorDetail::new("22023", message, hint))
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
        assert_eq!(Inserted::<i32>::from_rows([]), None);
        assert_eq!(Inserted::from_rows([(true, 7)]), Some(Inserted::New(7)));
        assert_eq!(
            Inserted::from_rows([(false, 7)]),
            Some(Inserted::Existing(7))
        );
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
