//! The contracts of the file's scopes, and those that the database knows.

use std::fmt;
use std::time::Duration;

use pgonce::driver::{Connection as _, Driver, Param, Session as _, Statement};

use super::config::{Contracts, Scope};
use crate::policy::max_answer;

/// Default of `wait_timeout`: how long a duplicate waits with `busy = "wait"`.
pub(crate) const DEFAULT_WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A field of a scope's contract that the database knows otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The scope.
    pub scope: String,
    /// The field; `None` where the database does not know the scope at all.
    pub field: Option<String>,
    /// What the file says.
    pub file: String,
    /// What the database says.
    pub database: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scope,
            field,
            file,
            database,
        } = self;
        match field {
            None => write!(f, "scope {scope:?} is not defined in the database"),
            Some(field) => {
                write!(
                    f,
                    "scope {scope:?}: {field} is {file} in the file and {database} in the database"
                )
            }
        }
    }
}

/// Brings file and database together as `contracts` says. What it could not, it answers. With each scope comes the
/// largest response that its routes keep.
pub(crate) async fn agree<'a, D: Driver>(
    driver: &D,
    schema: &str,
    scopes: impl Iterator<Item = (&'a str, &'a Scope, usize)>,
    contracts: Contracts,
) -> pgonce::Result<Vec<Difference>> {
    let mut differences = Vec::new();
    for (name, scope, max_response) in scopes {
        let fields = fields(name, scope, max_response);
        // A note is a comment and is not compared.
        let found = compare(driver, schema, name, &fields[..fields.len() - 1]).await?;
        let missing = found.iter().any(|difference| difference.field.is_none());
        let define = match contracts {
            Contracts::Check => false,
            Contracts::Define => missing,
            Contracts::Replace => !found.is_empty(),
        };
        if define {
            define_scope(driver, schema, &fields).await?;
            tracing::info!(scope = name, "the scope's contract was written down");
        } else {
            differences.extend(found);
        }
    }
    Ok(differences)
}

/// A column of `pgonce.scope`, its type, and what the file says about it.
struct Field {
    column: &'static str,
    kind: &'static str,
    value: Option<String>,
}

/// Beside what the file says: the key is the client's, and the effect is beyond this database. The
/// scope is the first, the note the last.
fn fields(name: &str, scope: &Scope, max_response: usize) -> Vec<Field> {
    let field = |column, kind, value| Field {
        column,
        kind,
        value,
    };
    let word = |column, value: &str| field(column, "text", Some(value.to_owned()));
    let length = |column, value: Option<Duration>| field(column, "interval", value.map(interval));
    let given = |value: &Option<toml::Spanned<super::config::values::Length>>| {
        value.as_ref().map(|length| length.get_ref().0)
    };
    let zero = Some(Duration::ZERO);
    vec![
        word("scope", name),
        length("retention", Some(scope.retention.get_ref().0)),
        length("lease", Some(scope.lease.get_ref().0)),
        word("busy", scope.busy.word()),
        length(
            "wait_timeout",
            given(&scope.wait_timeout).or(Some(DEFAULT_WAIT_TIMEOUT)),
        ),
        word("storage", scope.storage.word()),
        word("after_expiry", scope.after_expiry.word()),
        length("tombstone_for", given(&scope.tombstone_for)),
        word("stale", scope.stale.word()),
        word("key_source", "client"),
        word("boundary", "external"),
        length("client_retry", given(&scope.client_retry).or(zero)),
        field(
            "max_answer",
            "integer",
            Some(match &scope.max_answer {
                Some(size) => size.get_ref().0.to_string(),
                None => max_answer(max_response).to_string(),
            }),
        ),
        field(
            "max_keys",
            "bigint",
            scope
                .max_keys
                .as_ref()
                .map(|keys| keys.get_ref().to_string()),
        ),
        field("note", "text", scope.note.clone()),
    ]
}

/// Days apart from the rest, so that people read "7 days" and not "168:00:00". No number exceeds 32 bits: PostgreSQL 14.
fn interval(length: Duration) -> String {
    const DAY: u64 = 86_400;
    let rest = length - Duration::from_secs(length.as_secs() / DAY * DAY);
    format!(
        "{} days {}.{:06} seconds",
        length.as_secs() / DAY,
        rest.as_secs(),
        rest.subsec_micros()
    )
}

/// What the database knows otherwise. It compares by itself, so that 24 hours are a day.
async fn compare<D: Driver>(
    driver: &D,
    schema: &str,
    scope: &str,
    fields: &[Field],
) -> pgonce::Result<Vec<Difference>> {
    let rows = (1..)
        .zip(fields)
        .map(|(number, Field { column, kind, .. })| {
            format!(
                "('{column}', ${number}::text::{kind}::text, s.{column}::text, \
             (s.{column} is distinct from ${number}::text::{kind})::text)"
            )
        });
    let rows: Vec<String> = rows.collect();
    let sql = format!(
        "select f.* from {schema}.scope s, lateral (values {}) f where s.tenant = '' and s.scope = $1",
        rows.join(", ")
    );
    let rows = call(driver, sql, fields).await?;
    let difference = |field, file: Option<String>, database: Option<String>| {
        let shown = |value: Option<String>| value.unwrap_or_else(|| "not given".to_owned());
        Difference {
            scope: scope.to_owned(),
            field,
            file: shown(file),
            database: shown(database),
        }
    };
    if rows.is_empty() {
        return Ok(vec![difference(None, None, None)]);
    }
    let differing = rows.into_iter().filter_map(|row| {
        let [field, file, database, differs] = <[_; 4]>::try_from(row).ok()?;
        (differs.as_deref() == Some("true")).then(|| difference(field, file, database))
    });
    Ok(differing.collect())
}

async fn define_scope<D: Driver>(driver: &D, schema: &str, fields: &[Field]) -> pgonce::Result<()> {
    let given = (1..)
        .zip(fields)
        .map(|(number, Field { column, kind, .. })| {
            format!("p_{column} => ${number}::text::{kind}")
        });
    let given: Vec<String> = given.collect();
    let sql = format!(
        "select 'done' from {schema}.define_scope({})",
        given.join(", ")
    );
    call(driver, sql, fields).await.map(drop)
}

async fn call<D: Driver>(
    driver: &D,
    sql: String,
    fields: &[Field],
) -> pgonce::Result<Vec<pgonce::driver::Row>> {
    let statement = Statement {
        sql: sql.into(),
        keep: false,
        pooled: false,
    };
    let params: Vec<Param<'_>> = fields
        .iter()
        .map(|field| Param::Text(field.value.as_deref()))
        .collect();
    let mut session = driver.acquire().await?;
    session.open("begin isolation level read committed").await?;
    // Types and operators are PostgreSQL's own, whatever schemas the role's path names first.
    session
        .batch("set local search_path = pg_catalog, pg_temp")
        .await?;
    let rows = session.query(&statement, &params).await?;
    session.batch("commit").await?;
    session.keep();
    Ok(rows)
}
